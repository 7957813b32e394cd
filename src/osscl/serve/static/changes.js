// What the last step changed.

import { count, fill, h, percent, pictureOf } from "./dom.js";
import { shared } from "./page.js";

export function showChanges(content) {
  const made = shared.teaching.result;
  if (!made) return fill(content, h("h1", {}, "What changed"), h("div", { class: "card empty" }, h("p", {}, "Nothing has been taught here yet.")));
  const fresh = made.new_classes.length ? made.new_classes.join(", ") : "none";
  fill(content, h("h1", {}, "What changed"),
    h("dl", { class: "figures" },
      figure("New classes", fresh, `${count(made.labeled, "picture")} learned${made.further_classes.length ? `, more of ${made.further_classes.join(", ")}` : ""}${made.relabeled ? `, ${made.relabeled} relabelled` : ""}`),
      accuracy("Left-out accuracy", made.left_out_before, made.left_out_after, "labelled picture"),
      made.test_after ? accuracy("Test accuracy", made.test_before, made.test_after, "test picture") : null,
      made.pile ? figure("Changed answers", String(made.changed), `of ${count(made.pile, "picture")} in the pile`) : null),
    made.notes.map((text) => h("p", { class: "note" }, text)),
    made.changes.length ? [h("h2", {}, "Pictures whose answer changed"), made.changed > made.changes.length ? h("p", { class: "muted" }, `The first ${made.changes.length} of ${made.changed}.`) : null,
      h("ul", { class: "changes" }, made.changes.map((one) => h("li", {}, h("img", { src: pictureOf(one.id), alt: "", loading: "lazy" }),
        h("p", {}, h("span", { class: "muted" }, one.before ?? "unknown"), " → ", h("strong", {}, one.after ?? "unknown")))))] : null,
    h("p", { class: "muted after" }, "Not what you wanted? ", h("a", { href: "#learned" }, "Go back to the previous model.")));
}

function figure(name, value, about) {
  return h("div", { class: "card" }, h("dt", {}, name), h("dd", {}, value, h("small", {}, about)));
}

function accuracy(name, before, after, word) {
  if (!after) return figure(name, "—", "not measured");
  const was = before ? `before: ${percent(before.agent)} (n = ${before.n}); ` : "";
  return figure(name, percent(after.agent), `on ${count(after.n, word)}; ${was}baseline (class means): ${percent(after.class_means)}`);
}
