// The shell of the page: which view is shown, and the agent that all of them share.

import { ask, byId, failure, h } from "./dom.js";
import { showAsk } from "./ask.js";
import { showDock, watchTeaching } from "./dock.js";
import { showPile, showSection } from "./pile.js";
import { showLearned } from "./learned.js";
import { showChanges } from "./changes.js";

export const shared = { agent: null, labels: { labels: [], classes: {} }, teaching: { state: "idle" } };

export async function refreshAgent() {
  shared.agent = await ask("/api/agent");
  byId("agent-name").textContent = shared.agent.name;
  const names = new Set([...shared.agent.classes.map((one) => one.name), ...Object.keys(shared.labels.classes)]);
  byId("class-names").replaceChildren(...[...names].map((name) => h("option", { value: name })));
}

export async function refreshLabels(labels = null) {
  shared.labels = labels ?? (await ask("/api/next"));
  showDock();
}

const VIEWS = { ask: showAsk, pile: showPile, learned: showLearned, changes: showChanges };
const TITLES = { ask: "Ask", pile: "Pile", learned: "Learned", changes: "What changed" };
let shown = null;

export async function showView(keepFocus = false) {
  const [name, part] = location.hash.slice(1).split("/");
  const view = VIEWS[name] ? name : "ask";
  const main = byId("main");
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${TITLES[view]} · ${shared.agent?.name ?? "osscl"}`;
  const mine = (shown = Symbol(view));
  const isShown = () => shown === mine;
  try {
    const content = h("div", {});
    await (view === "pile" && part ? showSection(content, part, isShown) : VIEWS[view](content, isShown));
    if (isShown()) main.replaceChildren(content);
  } catch (error) {
    if (isShown()) main.replaceChildren(failure(error), h("p", {}, h("button", { onclick: () => showView() }, "Try again")));
  }
  if (!keepFocus && isShown() && document.activeElement?.closest("nav, dialog") === null) main.focus({ preventScroll: true });
  if (!keepFocus) scrollTo(0, 0);
  showDock();
}

async function start() {
  addEventListener("hashchange", () => location.hash === "#main" || showView());
  try {
    await refreshLabels();
    await refreshAgent();
  } catch (error) {
    byId("main").replaceChildren(failure(error));
    return;
  }
  watchTeaching();
  await showView(true);
}

start();
