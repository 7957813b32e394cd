// What is learned: classes with examples, the history, earlier models, and the test.

import { ask, count, dialog, fill, h, percent, say, send } from "./dom.js";
import { refreshAgent, shared, showView } from "./page.js";

export async function showLearned(content, isShown) {
  await refreshAgent();
  const agent = shared.agent;
  const left = agent.left_out;
  fill(content, h("h1", {}, "What this agent has learned"),
    h("dl", { class: "figures" }, figure("Classes", String(agent.classes.length), `after ${count(agent.history.filter((one) => !one.is_edit).length, "step")}`),
      figure("Left-out accuracy", left ? percent(left.agent) : "—", left ? `on ${count(left.n, "labelled picture")}, each left out in turn; baseline (class means): ${percent(left.class_means)}` : "not measured: no labelled picture could be left out"),
      figure("Called unknown", percent(agent.reject_percent, 0), "of known pictures, by design")),
    agent.warnings.map((text) => h("p", { class: "note" }, text)),
    h("h2", {}, "Classes"), h("ul", { class: "classes" }, agent.classes.map(card)),
    h("h2", {}, "History"), history(agent.history), earlier(agent.earlier));
  const test = h("section", {});
  fill(content, test);
  showTest(test, isShown);
}

function figure(name, value, about) {
  return h("div", { class: "card" }, h("dt", {}, name), h("dd", {}, value, h("small", {}, about)));
}

function card(one) {
  return h("li", { class: "card class" },
    h("div", { class: "head" }, h("h3", {}, one.name), h("span", { class: "muted small" }, `${count(one.pictures, "picture")}${one.since ? ` · step ${one.since}` : ""}`)),
    one.examples.length ? h("div", { class: "mosaic" }, one.examples.map((address) => h("img", { src: address, alt: "", loading: "lazy" }))) : h("p", { class: "muted small" }, "No pictures kept."),
    h("div", { class: "row" }, ...[["Rename", rename], ["Merge", merge], ["Forget", remove]].map(([word, open]) =>
      h("button", { onclick: () => open(one), "aria-label": `${word} ${one.name}`, class: word === "Forget" ? "danger" : "" }, word))));
}

async function done(words) {
  say(words);
  await refreshAgent();
  await showView(true);
}

function rename(one) {
  const input = h("input", { type: "text", value: one.name, required: true, maxLength: 100, autocomplete: "off" });
  dialog(`Rename ${one.name}`, h("label", {}, "New name", input), { rename: { label: "Rename", run: async () => {
    await send("/api/classes/rename", { old: one.name, new: input.value });
    await done(`${one.name} is now ${input.value}`);
  } } });
}

function merge(one) {
  const others = shared.agent.classes.filter((other) => other.name !== one.name);
  const select = h("select", {}, others.map((other) => h("option", { value: other.name }, other.name)));
  dialog(`Merge ${one.name}`, h("label", {}, `All pictures of ${one.name} count as`, select), { merge: { label: "Merge", run: async () => {
    await send("/api/classes/merge", { gone: one.name, into: select.value });
    await done(`${one.name} is now part of ${select.value}`);
  } } });
}

function remove(one) {
  dialog(`Forget ${one.name}?`, h("p", {}, `${one.name} is no longer predicted, and what was learned about it is deleted from the newest model. The previous model is kept, so you can go back to it.`),
    { remove: { label: "Forget", class: "main", run: async () => {
      await send("/api/classes/remove", { name: one.name });
      await done(`${one.name} is forgotten`);
    } } });
}

const cell = (label, text, number = true) => h("td", { class: number ? "number" : "", "data-label": label }, text);

function history(steps) {
  const head = ["Step", "What", "Labelled", "Unlabelled", "Look known", "Left-out accuracy", "Class means", "When"];
  return h("div", { class: "card scroll", tabIndex: 0, role: "region", "aria-label": "History" }, h("table", { class: "cards" },
    h("thead", {}, h("tr", {}, head.map((text, i) => h("th", { scope: "col", class: i > 1 && i < 7 ? "number" : "" }, text)))),
    h("tbody", {}, [...steps].reverse().map((one) => h("tr", {},
      cell("Step", String(one.number), false), cell("What", one.what, false), cell("Labelled", one.is_edit ? "—" : String(one.labeled)),
      cell("Unlabelled", one.is_edit ? "—" : String(one.unlabeled)), cell("Look known", one.looked_known === null ? "—" : String(one.looked_known)),
      cell("Left-out accuracy", one.left_out ? `${percent(one.left_out.agent)} (n = ${one.left_out.n})` : "—"),
      cell("Class means", one.left_out ? percent(one.left_out.class_means) : "—"), cell("When", new Date(one.date).toLocaleString(), false))))));
}

function earlier(models) {
  if (!models.length) return h("p", { class: "muted after" }, "Every step and every change keeps the previous model; you can go back to it here.");
  return h("div", {}, h("h2", {}, "Earlier models"), h("div", { class: "card" }, h("table", { class: "cards" },
    h("thead", {}, h("tr", {}, ["After step", "Added", "Classes", ""].map((text) => h("th", { scope: "col" }, text || h("span", { class: "unseen" }, "Action"))))),
    h("tbody", {}, [...models].reverse().map((one) => h("tr", {}, cell("After step", String(one.steps), false), cell("Added", one.what, false),
      cell("Classes", one.classes.join(", "), false), h("td", {}, h("button", { "aria-label": `Go back to step ${one.steps}: ${one.what}`, onclick: (event) => goBack(one, event.target) }, "Go back"))))))));
}

async function goBack(model, button) {
  button.disabled = true;
  try {
    await send("/api/back", { model: model.name });
    await done(`Back to the agent after step ${model.steps}`);
  } catch (error) {
    button.disabled = false;
    button.after(h("p", { class: "error", role: "alert" }, error.message));
  }
}

async function showTest(place, isShown) {
  const test = await ask("/api/test").catch((error) => ({ state: "failed", error: error.message }));
  place.replaceChildren(h("h2", {}, "Test"));
  if (test.state === "none") return fill(place, h("p", { class: "muted" }, "Accuracy on your pictures is unknown until you test it. Set some labelled pictures aside, in one folder per class: ", h("code", {}, "osscl serve AGENT --test DIR")));
  if (test.state === "failed") return fill(place, h("p", { class: "failure", role: "alert" }, test.error));
  if (test.state === "reading") {
    fill(place, h("p", { class: "muted" }, test.of ? `Reading test pictures: ${test.done} of ${test.of}` : "Reading test pictures"));
    setTimeout(() => isShown() && showTest(place, isShown), 700);
    return;
  }
  const made = test.accuracy;
  fill(place, h("dl", { class: "figures" },
    figure("Correct", made ? percent(made.agent) : "—", made ? `of ${count(made.n, "picture")} of learned classes; baseline (class means): ${percent(made.class_means)}` : "no picture of a learned class"),
    figure("Others that look known", test.others ? percent(test.others_known_percent) : "—", test.others ? `${count(test.others, "picture")} of classes that were not taught` : "no pictures of other classes"),
    figure("AUROC", test.auroc === null ? "—" : test.auroc.toFixed(3), "how well known and unknown are separated: 1 is perfect, 0.5 is chance")));
  if (test.learned_pictures) fill(place, h("p", { class: "note" }, `${count(test.learned_pictures, "test picture was", "test pictures were")} also used for teaching, so these numbers are optimistic.`));
  fill(place, confusion(test));
}

function confusion(test) {
  const rows = test.classes.map((one, i) => {
    const most = Math.max(1, ...test.confusion[i]);
    return h("tr", {}, h("th", { scope: "row" }, one.learned ? one.name : `${one.name} (not taught)`), h("td", { class: "number" }, String(one.n)),
      h("td", { class: "number" }, one.right_percent === null ? "—" : percent(one.right_percent)), h("td", { class: "number" }, percent(one.known_percent)),
      test.confusion[i].map((n) => { const made = h("td", { class: "number" }, n ? String(n) : "·"); made.style.setProperty("--share", n / most); return made; }));
  });
  const about = "Test pictures by their true class, and the most probable class (→) that the agent predicts, known or not";
  return h("div", { class: "card scroll", tabIndex: 0, role: "region", "aria-label": "Confusion" }, h("p", { class: "muted small caption", "aria-hidden": "true" }, about), h("table", { class: "confusion" },
    h("caption", { class: "unseen" }, about),
    h("thead", {}, h("tr", {}, ["Class", "Pictures", "Correct", "Look known"].map((text, i) => h("th", { scope: "col", class: i ? "number" : "" }, text)),
      test.predicted.map((name) => h("th", { scope: "col", class: "turned", title: name }, `→ ${name}`)))), h("tbody", {}, rows)));
}
