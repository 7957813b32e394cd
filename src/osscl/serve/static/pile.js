// The pile: unknown pictures in groups, known ones by class; select, name, teach.

import { ask, byId, count, dialog, failure, fill, h, percent, pictureOf, send } from "./dom.js";
import { teach } from "./dock.js";
import { refreshAgent, refreshLabels, shared, showView } from "./page.js";

const PAGE = 60;
const POLL = 700; // ms

export async function showPile(content, isShown) {
  const pile = await ask("/api/pile");
  if (pile.state === "none") {
    fill(content, h("h1", {}, "Pile"), h("div", { class: "card empty" }, h("h2", {}, "No pile is served"),
      h("p", {}, "A pile is a folder of unlabelled pictures. Start the server with one to look through it, name what is new and teach it: ", h("code", {}, "osscl serve AGENT --pile DIR"))));
    return;
  }
  if (pile.state === "failed") return fill(content, h("h1", {}, "Pile"), failure({ message: pile.error }), again());
  if (!pile.sections.length) {
    fill(content, h("h1", {}, "Pile"), h("div", { class: "card empty" }, h("h2", {}, progressWords(pile)), h("p", {}, "Each picture is read only once, so the pile opens faster the next time."), progressBar(pile)));
    setTimeout(() => isShown() && showView(true), POLL);
    return;
  }
  const groups = pile.sections.filter((one) => one.kind === "group");
  const known = pile.sections.filter((one) => one.kind === "known");
  const unknown = groups.reduce((sum, one) => sum + one.count, 0);
  const progress = h("div", { class: "progress", hidden: pile.state === "ready" });
  if (pile.state !== "ready") watchSorting(pile, progress, isShown);
  fill(content, h("h1", {}, `${count(pile.pictures, "picture")} in the pile`), progress,
    h("p", { class: "lead" }, !unknown ? "All of them look known."
      : pile.is_grouped ? `${unknown.toLocaleString("en")} look unknown and are grouped by what they show. Name a group, and the agent learns it.`
      : `${unknown.toLocaleString("en")} look unknown so far.`),
    pile.problem_count ? h("details", { class: "note" }, h("summary", {}, `${count(pile.problem_count, "file")} cannot be read`), h("ul", {}, pile.problems.map((text) => h("li", {}, text)))) : null,
    groups.length ? [h("h2", {}, "Unknown"), h("ul", { class: "sections" }, groups.map((one) => sheet(one, "View and name")))] : null,
    known.length ? [h("h2", {}, "Known"), h("ul", { class: "sections" }, known.map((one) => sheet(one, "View and correct")))] : null,
    h("p", { class: "after" }, again()));
}

const progressWords = (pile) => (pile.of ? `${pile.state === "sorting" ? "Sorting" : "Reading new pictures"}: ${pile.done.toLocaleString("en")} of ${pile.of.toLocaleString("en")}`
  : pile.state === "sorting" ? "Sorting the pile" : "Reading the pile");

function progressBar(pile) {
  const bar = h("progress", { "aria-label": "Progress" });
  if (pile.of && pile.done < pile.of) { bar.max = pile.of; bar.value = pile.done; }
  return bar;
}

// Report how far the sorting is; show the result unless that would interrupt what the user is doing.
async function watchSorting(pile, place, isShown) {
  const about = pile.version !== shared.agent.version ? "The agent has changed. Below is the pile as the previous model sorted it."
    : pile.is_grouped ? "Below are the pictures sorted so far." : "Below are the pictures sorted so far; unknown ones are grouped at the end.";
  for (let now = pile; now.state !== "ready"; ) {
    const words = now.state === "sorting" && now.of && now.done === now.of ? "Grouping unknown pictures" : progressWords(now);
    place.replaceChildren(h("p", {}, h("strong", {}, words), ` · ${about}`), progressBar(now));
    await new Promise((resume) => setTimeout(resume, POLL));
    if (!isShown()) return;
    now = await ask("/api/pile").catch(() => now);
    if (now.state === "failed" || (!now.is_grouped && isIdle())) return showView(true);
  }
  if (isShown() && isIdle()) return showView(true);
  if (isShown()) place.replaceChildren(h("p", { role: "status" }, "The pile has been sorted again. ", h("button", { onclick: () => showView(true) }, "Show it")));
}

const isIdle = () => !document.activeElement?.closest("main a, main button") && scrollY < 40;
const again = () => h("button", { onclick: async () => { await send("/api/pile/refresh"); showView(true); } }, "Look for new pictures");

function sheet(section, words) {
  const waiting = [...new Set(shared.labels.labels.filter((one) => section.first.includes(one.id)).map((one) => one.name))];
  return h("li", {}, h("a", { class: "card sheet", href: `#pile/${section.id}` },
    h("span", { class: "head" }, h("strong", {}, section.name), h("span", { class: "muted small" }, count(section.count, "picture"))),
    waiting.length ? h("span", {}, h("span", { class: "badge info" }, `next step: ${waiting.join(", ")}`)) : null,
    h("span", { class: "mosaic" }, section.first.map((id) => h("img", { src: pictureOf(id), alt: "", loading: "lazy" }))),
    h("span", { class: "go" }, words)));
}

export async function showSection(content, id) {
  const chosen = new Map();
  const tiles = h("ul", { class: "tiles" });
  const told = h("span", { role: "status" });
  const more = h("button", { class: "more", onclick: () => load(tiles.children.length) }, "Show more");
  let section = null;
  let version = null;
  const boxes = () => [...tiles.querySelectorAll("input")];
  const tell = () => { told.textContent = `${chosen.size} of ${tiles.children.length} selected${section.count > tiles.children.length ? ` (${section.count.toLocaleString("en")} in total)` : ""}`; };
  const toggle = (box) => { box.checked ? chosen.set(box.value, true) : chosen.delete(box.value); tell(); };
  const all = (on) => { for (const box of boxes()) { box.checked = on; toggle(box); } tell(); };

  async function load(start) {
    const page = await ask(`/api/pile/sections/${id}?start=${start}&count=${PAGE}`);
    if (start && page.version !== version) return showView(true); // sorted again meanwhile
    ({ section, version } = page);
    tiles.append(...page.pictures.map((one) => tile(one, section.kind === "group", toggle)));
    for (const box of boxes()) if (box.checked) chosen.set(box.value, true);
    more.hidden = tiles.children.length >= section.count;
    tell();
  }
  await load(0);
  const name = h("input", { type: "text", id: "group-name", list: "class-names", required: true, maxLength: 100, autocomplete: "off", placeholder: "class name" });
  const problem = h("div", {});
  const form = h("form", { class: "row", onsubmit: async (event) => {
    event.preventDefault();
    problem.replaceChildren();
    if (!chosen.size) return problem.replaceChildren(failure({ message: "Select at least one picture." }));
    try {
      await refreshLabels(await send("/api/next", { name: name.value, pictures: [...chosen.keys()] }, "PUT"));
      await refreshAgent();
      if (event.submitter?.value === "teach") await teach();
      location.hash = "#pile";
    } catch (error) {
      problem.replaceChildren(failure(error));
    }
  } }, h("label", { for: "group-name" }, section.kind === "group" ? "They show" : "They actually show"), name,
    h("button", { type: "submit", value: "add" }, "Add to next step"), h("button", { class: "main", type: "submit", value: "teach" }, "Teach now"));
  const isGroup = section.kind === "group";
  tiles.classList.toggle("leave-out", isGroup);
  fill(content, h("p", {}, h("a", { href: "#pile" }, "← Pile")),
    h("h1", {}, isGroup ? section.name : `Looks like ${section.name}`),
    h("p", { class: "lead" }, isGroup ? "Deselect the pictures that do not belong here, then name the others: a new class, or an existing one." : "Select the pictures that are wrong and name what they show; they become labelled pictures of the next step."),
    h("div", { class: "card tools" }, told, h("span", { class: "row" }, h("button", { onclick: () => all(true) }, "All"), h("button", { onclick: () => all(false) }, "None")), form),
    problem, tiles, more);
}

function tile(one, isGroup, toggle) {
  const checked = isGroup && !one.label;
  const caption = one.label ? `next step: ${one.label}` : one.learned_as ? `taught as ${one.learned_as}` : isGroup ? `closest: ${one.name}` : `${percent(one.known_percent, 0)} known`;
  const box = h("input", { type: "checkbox", value: one.id, checked, id: `pick-${one.id}`, onchange: () => toggle(box) });
  return h("li", { class: "tile" }, box, h("label", { for: box.id }, h("img", { src: pictureOf(one.id), alt: one.file, loading: "lazy" }), h("span", { class: "caption", title: caption }, caption)),
    h("button", { class: "zoom", "aria-label": `Enlarge ${one.file}`, onclick: () => dialog(one.file, h("img", { src: pictureOf(one.id, "large"), alt: one.file }), {}, true) }, "⤢"));
}
