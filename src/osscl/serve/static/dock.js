// The bar at the bottom: labels of the next step, the teaching that runs, and how it ended.

import { byId, count, h, say, send } from "./dom.js";
import { refreshAgent, refreshLabels, shared, showView } from "./page.js";

let source = null;

export function showDock(problem = "") {
  const dock = byId("dock");
  const { teaching, labels } = shared;
  const content = teaching.state === "running" ? runningBar(teaching)
    : ["finished", "failed", "stopped"].includes(teaching.state) && !labels.labels.length ? endedBar(teaching)
    : labels.labels.length ? labelsBar(labels, teaching) : [];
  dock.hidden = !content.length && !problem;
  if (teaching.state === "running" && dock.dataset.step === teaching.step) return updateRunning(dock, teaching);
  dock.dataset.step = teaching.state === "running" ? teaching.step : "";
  dock.replaceChildren(...content, ...(problem ? [h("p", { class: "error", role: "alert" }, problem)] : []));
  if (teaching.state === "running") updateRunning(dock, teaching);
}

const classWords = (classes) => Object.entries(classes).map(([name, n]) => `${n} × ${name}`).join(", ");

function labelsBar(labels, teaching) {
  const ended = teaching.state === "failed" ? h("p", { class: "error" }, teaching.error) : teaching.state === "stopped" ? h("p", { class: "muted small" }, "Stopped; the agent is unchanged.") : null;
  return [h("div", { class: "grow" }, h("p", {}, h("strong", {}, "Next step: "), classWords(labels.classes)), ended),
    h("button", { class: "plain", onclick: () => act(async () => refreshLabels(await send("/api/next/drop"))) }, "Clear"),
    h("button", { class: "main", onclick: teach }, `Teach ${count(labels.labels.length, "picture")}`)].filter(Boolean);
}

function runningBar(teaching) {
  return [h("div", { class: "grow" }, h("p", {}, h("strong", {}, `Teaching ${teaching.classes.join(", ")}`), h("span", { class: "muted small phase" })),
    h("progress", { "aria-label": "Teaching progress" })),
    h("button", { class: "stop", onclick: () => act(() => send("/api/teach/stop")) }, "Stop")];
}

function updateRunning(dock, teaching) {
  const bar = dock.querySelector("progress");
  dock.querySelector(".phase").textContent = ` · ${teaching.stopping ? "stopping" : teaching.phase}${teaching.of ? ` ${teaching.done} of ${teaching.of}` : ""}`;
  if (teaching.of) { bar.max = teaching.of; bar.value = teaching.done; } else bar.removeAttribute("value");
  dock.querySelector(".stop").disabled = teaching.stopping;
}

function endedBar(teaching) {
  const dismiss = h("button", { class: "plain", onclick: () => act(async () => { shared.teaching = await send("/api/teach/dismiss"); showDock(); }) }, "Dismiss");
  if (teaching.state === "failed") return [h("p", { class: "grow error" }, teaching.error), dismiss];
  if (teaching.state === "stopped") return [h("p", { class: "grow" }, "Stopped; the agent is unchanged."), dismiss];
  const made = teaching.result;
  const learned = made.new_classes.length ? `New: ${made.new_classes.join(", ")}. ` : "";
  const changed = made.pile ? `The answer changed for ${made.changed} of ${count(made.pile, "picture")} in the pile.` : "";
  return [h("p", { class: "grow" }, h("strong", {}, "Taught. "), learned, changed), dismiss,
    location.hash === "#changes" ? null : h("a", { class: "button", href: "#changes" }, "What changed")].filter(Boolean);
}

async function act(action) {
  try {
    await action();
  } catch (error) {
    showDock(error.message);
  }
}

export async function teach() {
  await act(async () => {
    await send("/api/teach");
    say("Teaching has started");
    watchTeaching();
  });
}

export function watchTeaching() {
  source?.close();
  source = new EventSource("/api/teach/events");
  source.addEventListener("teaching", async (event) => {
    const before = shared.teaching.state;
    shared.teaching = JSON.parse(event.data);
    if (shared.teaching.state === "running") return showDock();
    source.close();
    if (before === "running") {
      say(shared.teaching.state === "finished" ? "Teaching has finished" : shared.teaching.error || "Stopped");
      await refreshLabels();
      await refreshAgent();
      await showView(true);
    }
    showDock();
  });
}
