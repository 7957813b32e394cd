"use strict";
/* Draws the page from its data: a setting and schedule are chosen, rows are pinned, and the address holds the view. */
const data = JSON.parse(document.getElementById("data").textContent);
const DASH = "—", BINS = 50, MOST_PINS = 4, FEW = 12;
const COLOURS = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)"];
const KINDS = {
  seen: ["classes seen so far", "var(--c1)", ""], unseen: ["classes to come", "var(--c4)", "6 4"],
  foreign: ["foreign sets", "var(--c2)", "2 3"], main: ["the main set", "var(--c1)", ""],
};
const byId = id => document.getElementById(id);

// ----- elements: text is always a text node
function make(namespace, tag, attributes, children) {
  const made = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(attributes ?? {})) if (value != null && value !== false) made.setAttribute(name, value);
  made.append(...children.flat().filter(child => child != null));
  return made;
}
const h = (tag, attributes, ...children) => make("http://www.w3.org/1999/xhtml", tag, attributes, children);
const s = (tag, attributes, ...children) => make("http://www.w3.org/2000/svg", tag, attributes, children);

// ----- numbers
const known = values => values.filter(value => value != null);
const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length;
const deviation = values => values.length < 2 ? null : Math.sqrt(values.reduce((sum, v) => sum + (v - mean(values)) ** 2, 0) / (values.length - 1));
const shown = (value, digits = 1) => value == null ? DASH : value.toFixed(digits).replace("-", "−");
const signed = (value, digits = 1) => value == null ? DASH : (value >= 0 ? "+" : "") + shown(value, digits);
const whole = values => values.length && values.every(value => value != null);
const centre = values => whole(values) ? mean(values) : null;
function spread(values, digits = 1, write = shown) {
  if (!whole(values)) return DASH;
  return write(mean(values), digits) + (values.length > 1 ? ` ± ${shown(deviation(values), digits)}` : "");
}
function paired(first, second, measure) {
  const gaps = [];
  first.seeds.forEach((seed, i) => {
    const j = second.seeds.indexOf(seed);
    if (j >= 0 && first.streams[i] === second.streams[j] && first[measure][i] != null && second[measure][j] != null)
      gaps.push({ seed, gap: first[measure][i] - second[measure][j] });
  });
  const values = gaps.map(one => one.gap), sd = deviation(values);
  const half = sd == null ? null : data.t95[Math.min(values.length - 1, data.t95.length) - 1] * sd / Math.sqrt(values.length);
  return { gaps, values, mean: centre(values), low: half == null ? null : mean(values) - half, high: half == null ? null : mean(values) + half };
}
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map(x => x * power).find(x => x >= raw * .999) ?? power;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(+at.toPrecision(10));
  return found;
}

// ----- the view: what is looked at, kept in the address
const view = { section: null, setting: null, schedule: null, pins: [], step: null, open: [] };
function readAddress() {
  const [section, query] = location.hash.slice(1).split("?"), given = new URLSearchParams(query);
  const list = name => (given.get(name) ?? "").split(",").filter(Boolean);
  const start = data.chapters[data.opening];
  const here = data.chapters.filter(one => one.key === given.get("setting"));
  const chosen = here.find(one => one.schedule === given.get("schedule")) ?? here[0] ?? start;
  Object.assign(view, {
    section: byId(section) ? section : null, setting: chosen.key, schedule: chosen.schedule,
    pins: list("pins"), step: Number(given.get("step")) || null, open: list("open"),
  });
}
function address(section) {
  const given = new URLSearchParams({ setting: view.setting, schedule: view.schedule });
  if (view.pins.length) given.set("pins", view.pins.join(","));
  if (view.step) given.set("step", view.step);
  if (view.open.length) given.set("open", view.open.join(","));
  return `#${section ?? "result"}?${given.toString().replaceAll("%2C", ",")}`;
}
function writeAddress() {
  history.replaceState(null, "", address(view.section));
  for (const link of document.querySelectorAll("nav a, a.link")) {
    link.dataset.to ??= link.hash.slice(1);
    link.setAttribute("href", address(link.dataset.to));
  }
}
const chapter = () => data.chapters.find(one => one.key === view.setting && one.schedule === view.schedule);
const row = key => chapter().rows.find(one => one.key === key);
const pinned = () => view.pins.map(row).filter(Boolean);
const focus = () => pinned().length ? pinned() : chapter().highlighted.map(row);
const colour = one => { const at = focus().indexOf(one); return at < 0 ? null : COLOURS[at]; };
const DASHES = [null, "9 4", "3 3", "9 3 2 3"];
const dash = one => DASHES[focus().indexOf(one)] ?? null;
const behind = rows => [...rows.filter(one => !colour(one)), ...focus().filter(one => rows.includes(one))]; // grey first, dashed lines last
const about = () => `${chapter().label}; schedule ${chapter().schedule}; ${chapter().on} images`;

// ----- figures: a drawing with a label, and its numbers as a table
function figure(drawing, label, columns, rows, note) {
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", `${label}. The numbers are in the table below.`);
  return h("figure", {}, drawing, note ? h("p", { class: "note" }, note) : null,
    h("details", {}, h("summary", {}, "The numbers", h("span", { class: "unseen-words" }, ` of: ${label}`)), table(label, columns, rows)));
}
function table(label, columns, rows) {
  const head = columns.map((name, i) => h("th", { scope: "col", class: i ? "n" : null }, name));
  const body = rows.map(cells => h("tr", {}, cells.map((cell, i) => i ? h("td", { class: "n" }, cell) : h("th", { scope: "row" }, cell))));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}
const canvas = (width, height) => s("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
const text = (x, y, words, more) => s("text", { x, y, ...more }, words);
const cut = (words, most) => words.length > most ? `${words.slice(0, most - 1)}…` : words;

/* One line per item: a bar or a dot with a whisker, its name on the left or, where that is narrow, above. */
function lines(width, items, { bar, unit, high }) {
  const narrow = width < 560, letters = Math.max(...items.map(item => item.name.length));
  const left = narrow ? 6 : Math.min(width * .36, letters * 7.3 + 14), right = narrow ? 12 : 150;
  const room = narrow ? 40 : 30, height = room * items.length + 40;
  const ends = items.flatMap(item => [item.value, item.low, item.high, item.paper?.[0]]).filter(value => value != null);
  const min = Math.min(0, ...ends) * 1.04, max = high ?? Math.max(min + 1e-6, 0, ...ends) * 1.04;
  const at = value => left + (value - min) / (max - min || 1) * (width - left - right);
  const drawn = canvas(width, height);
  for (const tick of ticks(min, max, narrow ? 4 : 7)) {
    drawn.append(s("line", { class: tick === 0 ? "zero" : "grid", x1: at(tick), x2: at(tick), y1: 2, y2: height - 36 }),
      text(at(tick), height - 20, String(tick).replace("-", "−"), { class: "tick", "text-anchor": "middle" }));
  }
  drawn.append(text(at(max), height - 4, unit, { class: "axis", "text-anchor": "end" }));
  items.forEach((item, i) => {
    const top = i * room, middle = narrow ? top + 29 : top + 16, ink = item.colour ?? "var(--grey)";
    const group = s("g", {}, s("title", {}, `${item.name}: ${item.words}`));
    group.append(text(narrow ? 0 : left - 8, narrow ? top + 15 : middle + 4, cut(item.name, narrow ? Math.floor(width / 11) : 44), { "text-anchor": narrow ? null : "end", "font-weight": item.colour ? 650 : null }));
    group.append(text(narrow ? width : width - right + 10, narrow ? top + 15 : middle + 4, item.words, { "text-anchor": narrow ? "end" : null }));
    let from = at(Math.max(min, 0));
    for (const part of item.parts ?? []) {
      group.append(s("rect", { x: from, y: middle - 8, width: Math.max(0, at(part.value) - at(0)), height: 16, fill: part.colour }, s("title", {}, part.words)));
      from += at(part.value) - at(0);
    }
    if (item.value != null && !item.parts) {
      const [a, b] = [at(0), at(item.value)].sort((x, y) => x - y);
      if (bar) group.append(s("rect", { x: a, y: middle - (narrow ? 6 : 9), width: b - a, height: narrow ? 12 : 18, rx: 2, fill: ink }));
      if (item.low != null) group.append(s("path", { class: "whisker", d: `M${at(item.low)} ${middle}H${at(item.high)}M${at(item.low)} ${middle - 5}v10M${at(item.high)} ${middle - 5}v10` }));
      if (!bar) group.append(s("circle", { cx: at(item.value), cy: middle, r: 6, fill: ink, stroke: "var(--card)" }));
    }
    if (item.paper) group.append(s("path", { class: "paper", d: `M${at(item.paper[0])} ${middle - 8}l7 8l-7 8l-7 -8z` }, s("title", {}, `the paper: ${item.paper.join(" ± ")}`)));
    drawn.append(group);
  });
  return drawn;
}

/* Lines over the steps: those in focus in colour, with their names where there is room, the others grey. */
function curves(width, height, series, { low = 0, high, unit, small }) {
  const steps = Math.max(...series.map(one => one.values.length));
  const named = small ? [] : series.filter(one => one.colour);
  const right = small ? 8 : Math.min(width * .3, 14 + 7.2 * Math.max(...named.map(one => Math.min(18, one.name.length)))), left = small ? 26 : 36, bottom = small ? 20 : 38;
  const ends = series.flatMap(one => [...one.values, ...(one.high ?? [])]).filter(value => value != null);
  const top = high ?? Math.max(1, ...ends) * 1.05;
  const X = t => left + (steps < 2 ? .5 : t / (steps - 1)) * (width - left - right), Y = v => 8 + (top - v) / (top - low) * (height - 8 - bottom);
  const drawn = canvas(width, height);
  for (const tick of ticks(low, top, small ? 2 : 5)) {
    drawn.append(s("line", { class: "grid", x1: left, x2: width - right, y1: Y(tick), y2: Y(tick) }),
      text(left - 6, Y(tick) + 4, String(tick), { class: "tick", "text-anchor": "end" }));
  }
  const every = Math.ceil(steps / (small ? 3 : Math.min(12, (width - left - right) / 28)));
  for (let t = 0; t < steps; t++) if (t % every === 0 || (t === steps - 1 && t % every > every / 2))
    drawn.append(text(X(t), height - bottom + 15, String(t + 1), { class: "tick", "text-anchor": "middle" }));
  if (!small) drawn.append(text(left, height - 4, `${unit}, after step`, { class: "axis" }));
  const inside = value => Math.min(top, Math.max(low, value));
  const path = points => points.map(([t, v], i) => `${i ? "L" : "M"}${X(t).toFixed(1)} ${Y(inside(v)).toFixed(1)}`).join("");
  const points = values => values.map((value, t) => [t, value]).filter(([, value]) => value != null);
  for (const one of series) {
    const found = points(one.values), ink = one.colour ?? "var(--grey)";
    if (one.colour && one.low) drawn.append(s("path", { d: path([...points(one.high), ...points(one.low).reverse()]) + "Z", fill: ink, opacity: .16 }));
    drawn.append(s("path", { d: path(found), fill: "none", stroke: ink, "stroke-width": one.colour ? 2.5 : 1.5, "stroke-dasharray": one.dash }, s("title", {}, one.name)));
    for (const [t, v] of found) if (one.colour || found.length === 1) drawn.append(s("circle", { cx: X(t), cy: Y(v), r: small ? 2 : 3.5, fill: ink }, s("title", {}, `${one.name}, step ${t + 1}: ${shown(v, small ? 3 : 1)}`)));
  }
  let last = -Infinity;
  for (const one of named.map(one => ({ ...one, at: Y(points(one.values).at(-1)?.[1] ?? low) })).sort((a, b) => a.at - b.at)) {
    last = Math.max(one.at + 4, last + 15);
    drawn.append(text(width - right + 8, last, cut(one.name, 18), { style: `fill:${one.colour}`, "font-weight": 650 }));
  }
  return drawn;
}
function overSeeds(runs) {
  const columns = runs[0].map((_, t) => runs.map(run => run[t]));
  const values = columns.map(centre), sd = columns.map(column => whole(column) ? deviation(column) : null);
  const side = sign => sd.some(value => value != null) ? values.map((value, t) => value == null || sd[t] == null ? null : value + sign * sd[t]) : null;
  return { values, low: side(-1), high: side(1), words: columns.map(column => spread(column, 1)), fine: columns.map(column => spread(column, 3)) };
}
function legend(entries) {
  return h("ul", { class: "key" }, entries.map(([words, ink, dash]) => h("li", {},
    s("svg", { width: 26, height: 10, "aria-hidden": "true" }, s("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: ink, "stroke-width": 3, "stroke-dasharray": dash || null })), words)));
}
const focusKey = rows => legend([...focus().filter(one => rows.includes(one)).map(one => [one.name, colour(one), dash(one)]), ...(rows.some(one => !colour(one)) ? [["other rows", "var(--grey)"]] : [])]);

// ----- sections: each fills its box for the current view
const SECTIONS = {
  result(box) {
    const here = chapter(), rows = here.rows.filter(one => one.named || colour(one)), shownRows = rows.length ? rows : here.rows;
    document.querySelector(".conclusion").textContent = here.conclusion;
    const items = shownRows.map(one => {
      const sd = deviation(one.final), value = mean(one.final);
      return { name: one.name, value, low: sd == null ? null : value - sd, high: sd == null ? null : value + sd, paper: one.published, colour: colour(one), words: `${spread(one.final)}  (n = ${one.final.length})` };
    });
    const paper = items.some(item => item.paper);
    const note = `Final accuracy over all classes on ${here.on} images, schedule ${here.schedule}.` + (items.some(item => item.low != null) ? " Whisker: ± sample standard deviation over seeds." : "") + (paper ? " Diamond: the paper's mean, three runs." : "");
    box.replaceChildren(figure(lines(box.clientWidth, items, { bar: true, unit: "final accuracy, %" }), `Final accuracy by method: ${about()}`,
      ["method", "final %", "n", "seeds", "the paper %", "forgetting"],
      here.rows.map(one => [one.name, spread(one.final), one.final.length, one.seeds.join(", "), one.published ? one.published.join(" ± ") : DASH, spread(one.forgetting)]), note));
    pins();
    compare();
  },
  steps(box) {
    const series = behind(chapter().rows).map(one => ({ name: one.name, colour: colour(one), dash: dash(one), ...overSeeds(one.overall) }));
    box.replaceChildren(figure(curves(box.clientWidth, 320, series, { unit: "accuracy on classes seen, %" }), `Accuracy after each step: ${about()}`,
      ["step", ...series.map(one => one.name).reverse()], series[0].words.map((_, t) => [t + 1, ...series.map(one => one.words[t]).reverse()]),
      series.some(one => one.low) ? "Band: ± sample standard deviation over seeds." : null));
  },
  forgetting(box) {
    const rows = chapter().rows.filter(one => whole(one.forgetting));
    if (!rows.length) return box.replaceChildren(h("p", { class: "note" }, `Forgetting: ${DASH}`));
    const items = rows.map(one => { const value = mean(one.forgetting), sd = deviation(one.forgetting); return { name: one.name, value, low: sd == null ? null : value - sd, high: sd == null ? null : value + sd, colour: colour(one), words: spread(one.forgetting) }; });
    box.replaceChildren(figure(lines(Math.min(box.clientWidth, 559), items, { unit: "points lost from the best accuracy of a step's classes" }), `Forgetting by method: ${about()}`,
      ["method", "forgetting", "n", ...rows[0].dropped.map((_, k) => `classes of step ${k + 1}`)], rows.map(one => [one.name, spread(one.forgetting), one.forgetting.length, ...one.dropped.map(value => shown(value))])));
  },
  gate(box) { multiples(box, "gate", "No row of this setting has a gate."); },
  known(box) { multiples(box, "known", "No row of this setting records it."); },
  scores(box) { slid(box, (one, t, width) => histogram(one, t, width)); },
  pictures(box) { slid(box, strip); },
  confusion(box) { box.replaceChildren(h("div", { class: "two" }, focus().slice(0, 2).map(one => confusion(one)))); paint(box); },
  matrix(box) {
    box.replaceChildren(h("div", { class: "two" }, focus().slice(0, 2).map(one => h("div", {}, h("h3", {}, `Accuracy by step: ${one.name}`),
      heat(`Accuracy by step: ${one.name}`, one.matrix, one.matrix.map((_, t) => String(t + 1)), 100, "after step")))));
  },
  time(box) {
    const rows = chapter().rows, timed = rows.filter(one => one.minutes.length), names = [...new Set(timed.flatMap(one => Object.keys(one.phases)))];
    const shades = names.map((_, i) => `color-mix(in srgb, ${COLOURS[i % 4]} ${i < 4 ? 100 : 50}%, var(--card))`);
    const items = timed.map(one => ({ name: one.name, value: Object.values(one.phases).reduce((a, b) => a + b, 0), colour: colour(one), words: `${shown(mean(one.minutes))} min (n = ${one.minutes.length})`,
      parts: names.map((name, i) => ({ value: one.phases[name] ?? 0, colour: shades[i], words: `${name}: ${shown(one.phases[name])} min` })) }));
    const cells = rows.map(one => [one.name, spread(one.minutes), `${one.minutes.length} of ${one.seeds.length}`, ...names.map(name => shown(one.phases[name])), bytes(one.peak), bytes(one.kept ?? [])]);
    const columns = ["method", "minutes", "timed runs", ...names.map(name => `${name}, min`), "peak device memory", "kept from past data"];
    const drawn = items.length ? [legend(names.map((name, i) => [name, shades[i]])), figure(lines(box.clientWidth, items, { unit: "minutes over all steps" }), `Time by phase: ${about()}`, columns, cells)] : [h("p", { class: "note" }, "No run of this setting was timed alone on its device.")];
    box.replaceChildren(...drawn, h("h3", {}, "Minutes and bytes"), table(`Minutes and bytes: ${about()}`, columns, cells));
  },
  ablations(box) {
    const rows = chapter().rows.filter(one => one.base);
    if (!rows.length) return box.replaceChildren(h("p", { class: "note" }, "No ablation of a method in this setting is recorded."));
    const found = rows.map(one => ({ one, full: row(one.base), gap: paired(one, row(one.base), "final"), changed: Object.entries(one.changes).map(pair => pair.join("=")).join(", ") }));
    const range = gap => gap.low == null ? DASH : `${signed(gap.low)} to ${signed(gap.high)}`;
    const items = found.map(({ one, full, gap, changed }) => ({ name: `${full.name}: ${changed}`, value: gap.mean, low: gap.low, high: gap.high, colour: colour(one), words: `${signed(gap.mean)}  (n = ${gap.values.length})` }));
    box.replaceChildren(figure(lines(box.clientWidth, items, { unit: "points from the full method" }), `Ablations: ${about()}`,
      ["change", "of", "final %", "difference", "95 % interval", "paired seeds"], found.map(({ one, full, gap, changed }) => [changed, full.name, spread(one.final), signed(gap.mean), range(gap), gap.values.length])));
  },
  runs(box) {
    box.classList.add("runs");
    box.replaceChildren(h("p", { class: "note" }, `${chapter().facts}. Training: ${chapter().trained}.`), ...chapter().rows.flatMap(one => one.runs.map((run, i) => lazily(`${one.name}, seed ${one.seeds[i]}: ${run.id}`, () => [
      h("pre", { tabindex: 0, "aria-label": "Command" }, run.command),
      h("dl", {}, Object.entries(run).filter(([key]) => key !== "command").flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value == null ? DASH : String(value))])),
      lazily("Specification", () => [h("pre", { tabindex: 0, "aria-label": "Specification" }, JSON.stringify({ ...one.spec, seed: one.seeds[i] }, null, 1))]),
    ]))));
  },
};
const bytes = values => whole(values) && values.length ? `${shown(Math.max(...values) / 1e9, 2)} GB` : DASH;
function lazily(words, fill) {
  const box = h("details", {}, h("summary", {}, words));
  box.addEventListener("toggle", () => box.childElementCount > 1 || box.append(...fill()), { once: true });
  return box;
}

function pins() {
  const box = document.querySelector(".pins"), active = document.activeElement?.dataset?.pin;
  const button = one => {
    const made = h("button", { type: "button", "aria-pressed": String(view.pins.includes(one.key)), "data-pin": one.key, style: colour(one) ? `--c:${colour(one)}` : null }, one.name);
    made.addEventListener("click", () => {
      view.pins = view.pins.includes(one.key) ? view.pins.filter(key => key !== one.key) : [...pinned().map(row => row.key), one.key].slice(-MOST_PINS);
      render();
    });
    return made;
  };
  box.replaceChildren(h("span", {}, "Pin rows to compare:"), ...chapter().rows.map(button));
  if (active) box.querySelector(`[data-pin="${CSS.escape(active)}"]`)?.focus();
}
function compare() {
  const [first, ...others] = focus(), box = byId("compare");
  if (pinned().length < 2) return box.replaceChildren();
  const cells = others.map(other => {
    const gap = paired(first, other, "final"), lost = paired(first, other, "forgetting");
    return [`${first.name} − ${other.name}`, spread(gap.values, 1, signed), gap.low == null ? DASH : `${signed(gap.low)} to ${signed(gap.high)}`, gap.values.length,
      gap.gaps.map(one => `${one.seed}: ${signed(one.gap)}`).join(", ") || DASH, spread(lost.values, 1, signed)];
  });
  box.replaceChildren(h("h3", {}, "Paired differences"), table("Paired differences over seeds, points", ["rows", "final accuracy, points", "95 % interval", "n", "by seed", "forgetting, points"], cells));
}
function multiples(box, part, none) {
  const rows = chapter().rows.filter(one => Object.keys(one[part]).length);
  if (!rows.length) return box.replaceChildren(h("p", { class: "note" }, none));
  const grid = h("div", { class: "small" }), readings = Object.keys(data[part]).filter(name => rows.some(one => one[part][name]));
  box.replaceChildren(focusKey(rows), grid);
  const cells = Object.fromEntries(readings.map(name => [name, h("div", {}, h("h3", { title: data[part][name] }, name))]));
  grid.append(...Object.values(cells));
  const records = [];
  for (const name of readings) {
    const series = behind(rows.filter(one => one[part][name])).map(one => ({ name: one.name, colour: colour(one), dash: dash(one), ...overSeeds(one[part][name]) }));
    const drawn = curves(Math.max(130, cells[name].clientWidth), 120, series, { high: 1, small: true });
    drawn.setAttribute("role", "img");
    drawn.setAttribute("aria-label", `${name}, ${data[part][name]}, by step, from 0 to 1. The numbers are in the table below.`);
    cells[name].append(drawn);
    records.push(...series.map(one => [one.name, name, ...one.fine]).reverse());
  }
  const label = `${part === "gate" ? "The gate" : "Known or unknown"} by step: ${about()}`;
  box.append(h("details", {}, h("summary", {}, "What each reading means"), h("dl", {}, readings.flatMap(name => [h("dt", {}, name), h("dd", {}, data[part][name])]))),
    h("details", {}, h("summary", {}, "The numbers", h("span", { class: "unseen-words" }, ` of: ${label}`)), table(label, ["method", "reading", ...Array.from({ length: chapter().steps }, (_, t) => `step ${t + 1}`)], records)));
}
function slid(box, draw) {
  const rows = chapter().rows.filter(one => one.scores.some(Boolean)), chosen = focus().filter(one => rows.includes(one));
  const watched = (chosen.length ? chosen : rows).slice(0, 2);
  if (!watched.length) return box.replaceChildren(h("p", { class: "note" }, "No row of this setting has a gate."));
  const last = chapter().steps, out = h("div", { class: "two" }), name = h("output", {});
  const slider = h("input", { type: "range", min: 1, max: last, step: 1, value: Math.min(view.step ?? last, last), "aria-label": "Step" });
  const show = () => {
    name.textContent = `Step ${slider.value} of ${last}`;
    out.replaceChildren(...watched.map(one => draw(one, slider.value - 1, watched.length > 1 && box.clientWidth > 860 ? box.clientWidth / 2 - 12 : box.clientWidth)));
  };
  slider.addEventListener("input", () => {
    view.step = Number(slider.value);
    writeAddress();
    show();
    for (const other of ["scores", "pictures"]) if (!byId(other).contains(box)) redraw(other);
  });
  box.replaceChildren(h("label", { class: "slider" }, name, slider), out);
  show();
}
function histogram(one, t, width) {
  const scores = one.scores[t], head = h("h3", {}, `Scores: ${one.name}, step ${t + 1}`);
  if (!scores) return h("div", {}, head, h("p", { class: "note" }, DASH));
  const counts = Object.entries(scores.counts).map(([kind, list]) => [kind, list, list.reduce((a, b) => a + b, 0)]).filter(([, , total]) => total);
  const all = one.scores.filter(Boolean).flatMap(step => Object.values(step.counts));
  const used = all.flatMap(list => { const total = list.reduce((a, b) => a + b, 0); return list.flatMap((count, i) => count > .001 * total ? [i] : []); });
  const edges = [-1 + 2 * Math.min(...used) / BINS, -1 + 2 * (Math.max(...used) + 1) / BINS, scores.admit, scores.pseudo];
  const low = Math.min(...edges) - .02, high = Math.max(...edges) + .02, height = 260;
  const top = Math.max(...counts.map(([, list, total]) => Math.max(...list) / total)) * 1.05;
  const X = v => 36 + (v - low) / (high - low) * (width - 48), Y = v => 40 + (1 - v / top) * (height - 78);
  const drawn = canvas(width, height);
  for (const tick of ticks(low, high, 6)) drawn.append(text(X(tick), height - 22, String(tick).replace("-", "−"), { class: "tick", "text-anchor": "middle" }));
  for (const tick of ticks(0, 100 * top, 4)) drawn.append(s("line", { class: "grid", x1: 36, x2: width - 12, y1: Y(tick / 100), y2: Y(tick / 100) }), text(30, Y(tick / 100) + 4, String(tick), { class: "tick", "text-anchor": "end" }));
  drawn.append(text(36, height - 4, "score S(x); share of each kind, %", { class: "axis" }));
  for (const [kind, list, total] of counts) {
    const steps = list.map((count, i) => `L${X(-1 + 2 * i / BINS)} ${Y(count / total)}H${X(-1 + 2 * (i + 1) / BINS)}`).filter((_, i) => -1 + 2 * (i + 1) / BINS > low && -1 + 2 * i / BINS < high);
    const d = steps.join("").replace("L", "M");
    drawn.append(s("path", { d: `${d}V${Y(0)}H${X(low)}Z`, fill: KINDS[kind][1], opacity: .14 }), s("path", { d, fill: "none", stroke: KINDS[kind][1], "stroke-width": 2, "stroke-dasharray": KINDS[kind][2] || null }));
  }
  [["admit", scores.admit, 30], ["pseudo-label", scores.pseudo, 14]].forEach(([words, value, y]) => {
    const left = X(value) < width / 2;
    drawn.append(s("line", { class: "threshold", x1: X(value), x2: X(value), y1: y - 8, y2: Y(0), "stroke-dasharray": words === "admit" ? "5 3" : null }),
      text(X(value) + (left ? 5 : -5), y, `${words} above ${shown(value, 3)}`, { "text-anchor": left ? "start" : "end" }));
  });
  const rows = one.scores.map((step, i) => step ? [i + 1, shown(step.admit, 3), shown(step.pseudo, 3), step.admitted, step.labeled, step.of] : [i + 1, DASH, DASH, DASH, DASH, DASH]);
  return h("div", {}, head, legend(counts.map(([kind, , total]) => [`${KINDS[kind][0]} (${total})`, KINDS[kind][1], KINDS[kind][2]])),
    figure(drawn, `Scores of ${one.name}, seed ${one.seeds[0]}, at step ${t + 1}: thresholds and sizes`, ["step", "admit above", "pseudo-label above", "admitted", "pseudo-labelled", "unlabelled images"], rows));
}
function strip(one, t) {
  const head = h("h3", {}, `Images: ${one.name}, step ${t + 1}`), sides = one.strip?.rows[t];
  if (!one.strip || one.strip.missing === "data") return h("div", {}, head, h("p", { class: "note" }, "The data was not found when the page was made: `osscl report --data DIR` shows the images."));
  if (!sides) return h("div", {}, head, h("p", { class: "note" }, `No images are kept for this step; steps with images: ${Object.keys(one.strip.rows).map(step => Number(step) + 1).join(", ")}.`));
  const kinds = [...new Set(sides.flat().map(tile => tile.kind))];
  return h("div", {}, head, legend(kinds.map(kind => KINDS[kind])), ["admitted", "rejected"].flatMap((words, i) => [h("p", { class: "note" }, words), h("div", { class: "tiles" }, sides[i].length ? sides[i].map(tile) : DASH)]),
    one.strip.missing === "room" ? h("p", { class: "note" }, "Pictures are left out: they may take 0.5 MB of a page.") : null);
}
function tile(one) {
  const sprite = data.sprites[one.sprite], size = 42;
  const place = sprite ? `background-image:url(${sprite.uri});background-size:${sprite.across * size}px ${sprite.down * size}px;background-position:${-(one.place % sprite.across) * size}px ${-Math.floor(one.place / sprite.across) * size}px` : null;
  return h("span", { class: `tile ${one.kind}${sprite ? "" : " blank"}`, role: "img", "aria-label": one.words, title: one.words, style: place });
}
function heat(label, values, names, top, corner) {
  const head = h("tr", {}, h("td", { style: "--v:0" }, ""), names.map(name => h("th", { scope: "col" }, cut(name, 10))));
  const body = values.map((cells, i) => h("tr", {}, h("th", { scope: "row" }, corner ? `${corner} ${names[i]}` : names[i]), cells.map(value => h("td", { style: `--v:${Math.min(100, 100 * value / top).toFixed(0)}` }, value >= .5 ? value.toFixed(0) : "·"))));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, h("table", { class: "heat" }, h("thead", {}, head), h("tbody", {}, body)));
}
function confusion(one) {
  const names = one.order.map(c => chapter().classes?.[c] ?? `class ${c}`), counts = one.confusion, share = list => { const total = list.reduce((a, b) => a + b, 0) || 1; return list.map(count => 100 * count / total); };
  const title = `Confusion: ${one.name}, seed ${one.seeds[0]}`, head = h("h3", {}, title);
  if (names.length <= FEW) return h("div", {}, head, heat(`${title}, % of the images of a class`, counts.map(share), names, 100));
  const step = one.met.flatMap((many, t) => Array(many).fill(t)), merged = one.met.map(() => one.met.map(() => 0));
  counts.forEach((list, i) => list.forEach((count, j) => { merged[step[i]][step[j]] += count; }));
  const wrong = counts.map((list, i) => { let most = i ? 0 : 1; list.forEach((count, j) => { if (j !== i && count > list[most]) most = j; }); return [names[i], list.reduce((a, b) => a + b, 0), list[i], `${names[most]} (${list[most]})`]; });
  const drawn = h("canvas", { width: names.length, height: names.length, "data-row": one.key });
  return h("div", {}, head, figure(drawn, `${title}, ${names.length} classes`, ["class", "images", "right", "most often taken for"], wrong),
    h("h3", {}, `By step: ${one.name}`), heat(`${title}, by step, % of the images of a step's classes`, merged.map(share), one.met.map((_, t) => String(t + 1)), 100, "step"));
}
function paint(box) {
  const rgb = name => { const probe = h("i", { style: `color:var(${name})` }); box.append(probe); const found = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number); probe.remove(); return found; };
  const [low, high] = [rgb("--card"), rgb("--c1")];
  for (const drawn of box.querySelectorAll("canvas")) {
    const counts = row(drawn.dataset.row).confusion, size = counts.length, image = new ImageData(size, size);
    counts.forEach((list, i) => { const total = list.reduce((a, b) => a + b, 0) || 1; list.forEach((count, j) => { const v = Math.min(1, 2 * count / total); for (let c = 0; c < 3; c++) image.data[4 * (i * size + j) + c] = low[c] + v * (high[c] - low[c]); image.data[4 * (i * size + j) + 3] = 255; }); });
    drawn.getContext("2d").putImageData(image, 0, 0);
  }
}

// ----- drawing what is open, and following the reader
const boxOf = id => id === "result" ? byId("final") : byId(id).querySelector(".drawn");
function redraw(id) { const part = byId(id); if (part && (part.tagName !== "DETAILS" || part.open)) SECTIONS[id](boxOf(id)); }
function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, words]) => h("option", { value }, words)));
  select.value = chosen;
}
function render() {
  fill(byId("setting"), [...new Map(data.chapters.map(one => [one.key, one.label]))], view.setting);
  fill(byId("schedule"), data.chapters.filter(one => one.key === view.setting).map(one => [one.schedule, one.schedule]), view.schedule);
  for (const part of document.querySelectorAll("[data-schedule]")) part.hidden = part.dataset.schedule !== view.schedule;
  for (const words of document.querySelectorAll(".nothing")) words.hidden = !!words.parentNode.querySelector("[data-schedule]:not([hidden])");
  Object.keys(SECTIONS).forEach(redraw);
  writeAddress();
}
function go() {
  const part = view.section && byId(view.section);
  if (!part) return;
  if (part.tagName === "DETAILS") part.open = true;
  part.scrollIntoView();
}
function restore() {
  readAddress();
  for (const part of document.querySelectorAll(".part")) part.open = view.open.includes(part.id);
  render();
  go();
}
byId("setting").addEventListener("change", event => {
  const here = data.chapters.filter(one => one.key === event.target.value);
  Object.assign(view, { setting: here[0].key, schedule: (here.find(one => one.schedule === view.schedule) ?? here[0]).schedule });
  render();
});
byId("schedule").addEventListener("change", event => { view.schedule = event.target.value; render(); });
document.addEventListener("click", event => {
  const link = event.target.closest("nav a, a.link, .skip");
  if (!link) return;
  event.preventDefault();
  view.section = link.dataset.to;
  history.pushState(null, "", address(view.section));
  go();
});
for (const part of document.querySelectorAll(".part")) part.addEventListener("toggle", () => {
  view.open = [...document.querySelectorAll(".part")].filter(one => one.open).map(one => one.id);
  writeAddress();
  if (part.open && SECTIONS[part.id]) redraw(part.id);
});
addEventListener("hashchange", restore);
addEventListener("popstate", restore);
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; render(); } });
addEventListener("beforeprint", () => { for (const part of document.querySelectorAll(".part:not(#runs)")) part.open = true; });

const system = matchMedia("(prefers-color-scheme: dark)");
function theme(chosen) {
  const dark = (chosen ?? (system.matches ? "dark" : "light")) === "dark";
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = dark ? "Light" : "Dark";
}
const kept = () => { try { return localStorage.getItem("osscl-theme"); } catch { return null; } };
byId("theme").addEventListener("click", () => {
  const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("osscl-theme", other); } catch { /* a page from disk may have no storage */ }
  theme(other);
  render();
});
system.addEventListener("change", () => { theme(kept()); render(); });
const refresh = document.querySelector("meta[name=osscl-refresh]");
if (refresh) setInterval(() => { if (!document.hidden && document.activeElement?.tagName !== "SELECT") location.reload(); }, 1000 * refresh.content);
theme(kept());
restore();
