// Drop photos: each answer is shown as soon as it is ready; a corrected one becomes a label of the next step.

import { ask, byId, count, failure, fill, h, percent, say } from "./dom.js";
import { refreshAgent, refreshLabels, shared } from "./page.js";

const AT_ONCE = 2;
const waiting = [];
let running = 0;
const answers = h("ul", { class: "answers", "aria-label": "Answers" });
let last = null;

export function showAsk(content) {
  const input = h("input", { type: "file", multiple: true, accept: "image/*,.heic,.heif", class: "unseen", id: "files",
    onchange: () => { take(input.files); input.value = ""; } });
  const zone = h("label", { class: "drop", for: "files", ondragover: over, ondragleave: () => zone.classList.remove("over"), ondrop: dropped },
    arrow(), h("strong", {}, "Drop photos here"), h("span", { class: "muted" }, "or choose files of any size, including HEIC"), input);
  function over(event) { event.preventDefault(); zone.classList.add("over"); }
  function dropped(event) { event.preventDefault(); zone.classList.remove("over"); take(event.dataTransfer.files); }
  const classes = shared.agent.classes.map((one) => one.name);
  fill(content, h("h1", {}, "What is in this photo?"),
    h("p", { class: "lead" }, `This agent knows ${count(classes.length, "class", "classes")}: ${classes.slice(0, 12).join(", ")}${classes.length > 12 ? " …" : ""}. `,
      "It names the class of a photo, or says that it has not learned anything like it."),
    shared.agent.warnings.map((text) => h("p", { class: "note" }, text)), zone, answers.childElementCount ? null : whatNext(), answers);
}

// For a person who is here for the first time.
function whatNext() {
  const steps = [["Ask", "#ask", "Drop a photo above. You see its class, how sure the agent is, and the most similar pictures that it was taught."],
    ["Pile", "#pile", shared.agent.has_pile ? "Look through your unlabelled pictures. Unknown ones are in groups: give a group a name, and the agent learns it." : "Serve a folder of unlabelled pictures with --pile DIR to name what is new."],
    ["Learned", "#learned", "See every class with examples, rename or merge classes, and go back to any earlier model."]];
  return h("ul", { class: "next", id: "what-next" }, steps.map(([name, place, words]) => h("li", { class: "card" }, h("p", {}, h("a", { href: place }, name)), h("p", { class: "muted small" }, words))));
}

function arrow() {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  made.setAttribute("viewBox", "0 0 24 24");
  made.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  for (const [name, value] of Object.entries({ d: "M12 16V5m0 0L7.5 9.5M12 5l4.5 4.5M4 16v2.5A1.5 1.5 0 0 0 5.5 20h13a1.5 1.5 0 0 0 1.5-1.5V16",
    fill: "none", stroke: "currentColor", "stroke-width": "1.8", "stroke-linecap": "round", "stroke-linejoin": "round" })) path.setAttribute(name, value);
  made.append(path);
  return made;
}

function take(files) {
  const cards = [...files].map((file) => ({ file, card: h("li", { class: "card answer" }, h("span", { class: "photo muted small" }, "…"),
    h("div", { class: "about" }, h("p", {}, h("strong", {}, file.name)), h("p", { class: "muted" }, "Waiting"))) }));
  byId("what-next")?.remove();
  answers.prepend(...cards.map((one) => one.card));
  waiting.push(...cards);
  if (cards.length) say(`${count(cards.length, "photo")} sent`);
  while (running < AT_ONCE && waiting.length) answerNext();
}

async function answerNext() {
  const next = waiting.shift();
  if (!next) return;
  running += 1;
  try {
    const body = new FormData();
    body.append("files", next.file);
    show(next, await ask("/api/predict", { method: "POST", body }));
  } catch (error) {
    next.card.replaceChildren(h("span", { class: "photo muted small" }, "no answer"), h("div", { class: "about" }, h("p", {}, h("strong", {}, next.file.name)), failure(error)));
  }
  running -= 1;
  answerNext();
}

function show({ file, card }, answer) {
  if (answer.error) {
    card.replaceChildren(h("span", { class: "photo muted small" }, "no picture"),
      h("div", { class: "about" }, h("p", {}, h("strong", {}, answer.file)), h("p", { class: "error" }, answer.error)));
    say(answer.error);
    return;
  }
  const [best] = answer.top;
  const digits = answer.known_percent < 10 ? 1 : 0; // near the limit, 5 % may be known or not
  const odds = `${answer.known ? "Known" : "Unknown"} · ${percent(answer.known_percent, digits)}`;
  const words = answer.known ? `More familiar than ${percent(answer.known_percent, digits)} of known pictures.`
    : `Less familiar than ${percent(100 - answer.known_percent, digits)} of known pictures. Closest class: ${best.name}.`;
  card.replaceChildren(
    h("img", { class: "photo", src: answer.thumbnail, alt: answer.file }),
    h("div", { class: "about" },
      h("p", { class: "title" }, h("strong", {}, answer.known ? best.name : "Something new"), h("span", { class: `badge ${answer.known ? "good" : "odd"}` }, odds),
        answer.learned_as ? h("span", { class: "badge info" }, `taught as ${answer.learned_as}`) : null),
      h("p", { class: "small" }, words, h("span", { class: "muted" }, ` ${answer.file}${answer.note ? ` (${answer.note})` : ""}`)),
      h("ul", { class: "bars", "aria-label": "Probabilities" }, answer.top.map(bar))),
    nearest(answer), correction(file, answer));
  say(`${answer.file}: ${answer.known ? best.name : "unknown"}`);
}

function bar(guess) {
  const fill = h("i", {});
  fill.style.width = `${100 * guess.probability}%`;
  return h("li", {}, h("span", { class: "name", title: guess.name }, guess.name), h("span", { class: "bar", "aria-hidden": "true" }, fill),
    h("span", { class: "value" }, percent(100 * guess.probability)));
}

function nearest(answer) {
  if (!answer.nearest.length) return h("div", { class: "nearest muted small" });
  return h("div", { class: "nearest" }, h("p", { class: "muted small" }, "Most similar labelled pictures"), h("ul", {}, answer.nearest.map((one) =>
    h("li", { title: one.name }, h("img", { src: one.picture, alt: `an example of ${one.name}` }), one.name))));
}

function correction(file, answer) {
  const id = `right-${answer.id}`;
  const input = h("input", { type: "text", id, list: "class-names", required: true, maxLength: 100, autocomplete: "off", placeholder: "class name" });
  const result = h("span", { class: "small", role: "status" });
  return h("form", { class: "row", onsubmit: async (event) => {
    event.preventDefault();
    const body = new FormData();
    body.append("name", input.value);
    body.append("files", file);
    try {
      await refreshLabels(await ask("/api/next/upload", { method: "POST", body }));
      await refreshAgent();
      result.className = "badge good";
      result.textContent = `Added as ${input.value}`;
    } catch (error) {
      result.className = "error small";
      result.textContent = error.message;
    }
  } }, h("label", { for: id, class: "muted small" }, answer.known ? "Not right? This is" : "Do you know it? This is"), input, h("button", { type: "submit" }, "Add to next step"), result);
}
