"use strict";
/* The page from its data: a setting and schedule are chosen, rows are pinned, and the address holds the view. */
const data = JSON.parse(document.getElementById("data").textContent);
const MOST_PINS = 4, FEW_CLASSES = 12;
const COLOURS = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)"], DASHES = [null, "9 4", "3 3", "9 3 2 3"];
const KINDS = { // words, colour, dash
  seen: ["classes seen so far", "var(--c1)", ""], unseen: ["later classes", "var(--c4)", "6 4"],
  foreign: ["foreign sets", "var(--c2)", "2 3"], main: ["the main set", "var(--c1)", ""],
};
const byId = id => document.getElementById(id);
const all = selector => [...document.querySelectorAll(selector)];

// ----- the view: what is shown, kept in the address
const view = { section: null, setting: null, schedule: null, pins: [], step: null, open: [] }; // pins: of any setting
function readAddress() {
  const [section, query] = location.hash.slice(1).split("?"), given = new URLSearchParams(query);
  const list = name => (given.get(name) ?? "").split(",").filter(Boolean);
  const here = data.chapters.filter(one => one.key === given.get("setting"));
  const chosen = here.find(one => one.schedule === given.get("schedule")) ?? here[0] ?? data.chapters[data.opening];
  const step = Number(given.get("step"));
  Object.assign(view, {
    section: section && byId(section) ? section : null, setting: chosen.key, schedule: chosen.schedule,
    pins: list("pins").map(pin => (pin.includes("@") ? pin : pinOf(chosen, { key: pin }))).filter(lookUp),
    step: step >= 1 ? Math.floor(step) : null, open: list("open"),
  });
}
function address(section) {
  const given = new URLSearchParams({ setting: view.setting, schedule: view.schedule });
  if (view.pins.length) given.set("pins", view.pins.join(","));
  if (view.step) given.set("step", view.step);
  if (view.open.length) given.set("open", view.open.join(","));
  return `#${section ?? "result"}?${given.toString().replaceAll("%2C", ",").replaceAll("%40", "@")}`;
}
function writeAddress() {
  history.replaceState(null, "", address(view.section));
  for (const link of all("nav a, a.link")) {
    link.dataset.to ??= link.hash.slice(1);
    link.setAttribute("href", address(link.dataset.to));
  }
}
const chapter = () => data.chapters.find(one => one.key === view.setting && one.schedule === view.schedule);
const row = key => chapter().rows.find(one => one.key === key);
/* A pin names its row, schedule and setting, so that it outlives a change of the view. */
const pinOf = (where, one) => [one.key, where.schedule, where.key].map(encodeURIComponent).join("@");
function lookUp(pin) {
  const [key, schedule, setting] = pin.split("@").map(part => { try { return decodeURIComponent(part); } catch { return part; } });
  const where = data.chapters.find(one => one.key === setting && one.schedule === schedule);
  const one = where?.rows.find(found => found.key === key);
  return one ? { pin, where, one, place: view.pins.indexOf(pin) } : null;
}
const pinned = () => view.pins.map(lookUp);
const pinnedHere = () => pinned().filter(({ where }) => where === chapter()).map(({ one }) => one);
const focus = () => (pinnedHere().length ? pinnedHere() : chapter().highlighted.map(row));
const inkAt = one => (pinnedHere().length ? view.pins.indexOf(pinOf(chapter(), one)) : focus().indexOf(one));
const colour = one => COLOURS[inkAt(one)] ?? null;
const dash = one => DASHES[inkAt(one)] ?? null;
const drawnRows = () => chapter().rows.filter(one => one.baseline || colour(one));
const about = () => `${chapter().label}; schedule ${chapter().schedule}; ${chapter().on} images`;
/* Rows as series: grey ones first, so that those in focus lie on top; dashes show lines that cover each other. */
function series(rows, runsOf) {
  const ordered = [...rows.filter(one => !colour(one)), ...focus().filter(one => rows.includes(one))];
  return ordered.map(one => ({ name: one.name, colour: colour(one), dash: dash(one), ...overSeeds(runsOf(one)) }));
}
function focusLegend(rows) {
  const shownRows = focus().filter(one => rows.includes(one)).map(one => [one.name, colour(one), dash(one)]);
  return legend(rows.every(colour) ? shownRows : [...shownRows, ["other rows", "var(--grey)"]]);
}
function item(one, values, words) {
  const value = mean(values), sd = deviation(values);
  const [low, high] = sd == null ? [null, null] : [value - sd, value + sd];
  return { name: one.name, value, low, high, colour: colour(one), words };
}
/* Differences of two rows in a measure, over the seeds for which both had the same stream. */
function paired(first, second, measure) {
  const gaps = [];
  first.seeds.forEach((seed, i) => {
    const j = second.seeds.indexOf(seed), a = first[measure][i], b = second[measure][j];
    if (j >= 0 && first.streams[i] === second.streams[j] && a != null && b != null) gaps.push({ seed, gap: a - b });
  });
  const values = gaps.map(one => one.gap), middle = centre(values), sd = deviation(values);
  if (sd == null) return { gaps, values, mean: middle, low: null, high: null };
  const half = (data.t95[values.length - 2] * sd) / Math.sqrt(values.length);
  return { gaps, values, mean: middle, low: middle - half, high: middle + half };
}
const interval = gap => (gap.low == null ? DASH : `${signed(gap.low)} to ${signed(gap.high)}`);

// ----- sections: each fills its box for the current view
const SECTIONS = {
  result(box) {
    const here = chapter(), named = drawnRows().filter(one => one.named || colour(one));
    const [first, ...more] = here.conclusion;
    document.querySelector(".conclusion").replaceChildren(first, h("span", {}, ` ${more.join(" ")}`));
    const items = named.map(one =>
      ({ ...item(one, one.final, `${spread(one.final)}  (n = ${one.final.length})`), paper: one.published }));
    const words = [`Final accuracy over all classes on ${here.on} images, schedule ${here.schedule}.`];
    if (items.some(one => one.low != null)) words.push("Whisker: ± sample standard deviation over seeds.");
    if (items.some(one => one.paper)) words.push("Diamond: the paper's mean, three runs.");
    if (items.length) words.push("n: runs, one per seed.");
    const left = here.rows.filter(one => one.named && !named.includes(one));
    if (left.length) words.push(`Not drawn, because of few updates at this schedule: ${left.map(untrained).join("; ")}.`);
    const columns = ["method", "final %", "n", "seeds", "paper %", "forgetting", "updates"];
    const cells = here.rows.map(one => [one.name, spread(one.final), one.final.length, one.seeds.join(", "),
      one.published?.join(" ± ") ?? DASH, spread(one.forgetting), one.updates.toLocaleString("en")]);
    const drawn = lines(box.clientWidth, items, { bar: true, unit: "final accuracy, %" });
    box.replaceChildren(figure(drawn, `Final accuracy by method: ${about()}`, columns, cells, words.join(" ")));
    showPins();
    comparePins();
  },
  steps(box) {
    const found = series(drawnRows(), one => one.overall), beside = innerWidth > 760;
    const height = beside ? Math.min(560, Math.max(320, 40 * drawnRows().length + 20)) : 320;
    const cells = found[0].columns.map((_, t) => [t + 1, ...found.map(one => spread(one.columns[t])).reverse()]);
    const drawn = curves(box.clientWidth, height, found, { unit: "accuracy on classes seen, %", percent: true });
    box.replaceChildren(figure(drawn, `Accuracy after each step: ${about()}`,
      ["step", ...found.map(one => one.name).reverse()], cells,
      found.some(one => one.low) ? "Band: ± sample standard deviation over seeds." : null));
  },
  forgetting(box) {
    const rows = drawnRows().filter(one => isWhole(one.forgetting));
    if (!rows.length) return box.replaceChildren(note("There is only one step, so nothing can be forgotten."));
    const items = rows.map(one => item(one, one.forgetting, `${spread(one.forgetting)}  (n = ${one.forgetting.length})`));
    const columns = ["method", "forgetting", "n", ...rows[0].dropped.map((_, k) => `classes of step ${k + 1}`)];
    const cells = rows.map(one =>
      [one.name, spread(one.forgetting), one.forgetting.length, ...one.dropped.map(value => shown(value))]);
    const unit = "points lost since a step's best accuracy";
    const drawn = lines(Math.min(box.clientWidth, 559), items, { unit });
    box.replaceChildren(figure(drawn, `Forgetting by method: ${about()}`, columns, cells));
  },
  gate(box) { showReadings(box, "gate", "The gate", "No row of this setting has a gate."); },
  known(box) { showReadings(box, "known", "Known or unknown", "No row of this setting records it."); },
  scores(box) { showStep(box, scoresAt, "scores"); },
  pictures(box) { showStep(box, picturesAt, "strip"); },
  confusion(box) {
    box.replaceChildren(h("div", { class: "two" }, focus().slice(0, 2).map(confusion)));
    const probe = box.appendChild(h("i", { style: "color:var(--card)" }));
    const rgb = name => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
    };
    for (const canvas of box.querySelectorAll("canvas"))
      paint(canvas, row(canvas.dataset.row).confusion, rgb("--card"), rgb("--c1"));
    probe.remove();
  },
  matrix(box) {
    const drawn = one => {
      const title = `Accuracy by step: ${one.name}`;
      const steps = one.matrix.map((_, t) => String(t + 1));
      return h("div", {}, h("h3", {}, title), heat(title, one.matrix, steps, 100, "after step"));
    };
    box.replaceChildren(h("div", { class: "two" }, focus().slice(0, 2).map(drawn)));
  },
  time(box) {
    const rows = chapter().rows, timed = rows.filter(one => one.minutes.length);
    const phases = [...new Set(timed.flatMap(one => Object.keys(one.phases)))];
    const scale = timed.some(one => mean(one.minutes) >= 1) ? 1 : 60; // seconds where nothing takes a minute
    const shade = i => `color-mix(in srgb, ${COLOURS[i % 4]} ${i < 4 ? 100 : 50}%, var(--card))`;
    const parts = one => phases.map((phase, i) =>
      ({ value: (one.phases[phase] ?? 0) * scale, colour: shade(i), words: `${phase}: ${duration([one.phases[phase]])}` }));
    const items = timed.map(one => ({
      name: one.name, value: sum(Object.values(one.phases)) * scale, colour: colour(one), parts: parts(one),
      words: `${duration([mean(one.minutes)])} (n = ${one.minutes.length})`,
    }));
    const columns = ["method", "time", "timed runs", ...phases, "peak device memory", "kept from past data"];
    const cells = rows.map(one => [one.name, duration(one.minutes), `${one.minutes.length} of ${one.seeds.length}`,
      ...phases.map(phase => duration([one.phases[phase]])), bytes(one.peak), bytes(one.kept)]);
    const unit = `${scale === 1 ? "minutes" : "seconds"} over all steps`;
    const drawn = items.length
      ? [legend(phases.map((phase, i) => [phase, shade(i)])),
         labelled(lines(box.clientWidth, items, { unit }), `Time by phase: ${about()}`)]
      : [note("No run of this setting was timed alone on its device.")];
    const title = h("h3", {}, "Time and bytes");
    const older = rows.some(one => one.kept.length < one.seeds.length)
      ? note("Kept from past data: a dash where the version of osscl that made the runs did not record it.") : [];
    box.replaceChildren(...drawn, title, table(`Time and bytes: ${about()}`, columns, cells), older);
  },
  ablations(box) {
    const rows = chapter().rows.filter(one => one.base);
    if (!rows.length) {
      const others = data.chapters.filter(one => one.rows.some(each => each.base)).map(one => `${one.label} (${one.schedule})`);
      return box.replaceChildren(note("No ablation of a method in this setting is recorded."
        + (others.length ? ` There are some for ${others.join("; ")}.` : "")));
    }
    const found = rows.map(one => ({ one, full: row(one.base), gap: paired(one, row(one.base), "final") }));
    const items = found.map(({ one, full, gap }) => ({
      name: `${full.name} ${one.changed}`, value: gap.mean, low: gap.low, high: gap.high, colour: colour(one),
      words: `${signed(gap.mean)}  (n = ${gap.values.length})`,
    }));
    const fields = one => Object.entries(one.changes).map(pair => pair.join("=")).join(", ");
    const cells = found.map(({ one, full, gap }) =>
      [one.changed, full.name, spread(one.final), signed(gap.mean), interval(gap), gap.values.length, fields(one)]);
    const columns = ["change", "of", "final %", "difference", "95 % interval", "paired seeds", "fields"];
    const drawn = lines(box.clientWidth, items, { unit: "points from the full method" });
    box.replaceChildren(figure(drawn, `Ablations: ${about()}`, columns, cells));
  },
  runs(box) {
    box.classList.add("runs");
    const facts = run => Object.entries(run).filter(([key]) => key !== "command").flatMap(([key, value]) =>
      [h("dt", {}, key), h("dd", {}, value == null ? DASH : String(value))]);
    const written = (words, label) => h("pre", { tabindex: 0, role: "region", "aria-label": label }, words);
    const inside = (one, run, i) => {
      const spec = JSON.stringify({ ...one.spec, seed: one.seeds[i] }, null, 1);
      return [written(run.command, `Command of ${run.id}`), h("dl", {}, facts(run)),
        lazily("Specification", () => [written(spec, `Specification of ${run.id}`)])];
    };
    const runs = chapter().rows.flatMap(one => one.runs.map((run, i) =>
      lazily(`${one.name}, seed ${one.seeds[i]}`, () => inside(one, run, i))));
    box.replaceChildren(note(`${chapter().facts}. Training: ${chapter().trained}.`), ...runs);
  },
};
const untrained = one =>
  `${one.name} (${spread(one.final)} %, ${one.updates.toLocaleString("en")} updates; ${row(chapter().highlighted[0]).name} `
  + `made ${row(chapter().highlighted[0]).updates.toLocaleString("en")})`;
/* The most of several counts of bytes, in a unit in which it is not nearly zero. */
function bytes(values) {
  if (!isWhole(values)) return DASH;
  const most = Math.max(...values), [unit, name] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([one]) => most >= one / 10) ?? [1, "bytes"];
  return `${shown(most / unit, unit > 1 && most / unit < 10 ? 2 : 0)} ${name}`;
}
/* Mean and deviation of minutes, in seconds where it is less than one. */
const duration = minutes => (!isWhole(minutes) ? DASH : mean(minutes) >= 1 ? `${spread(minutes)} min`
  : `${spread(minutes.map(one => 60 * one))} s`);
function lazily(words, fill) {
  const box = h("details", {}, h("summary", {}, words));
  box.addEventListener("toggle", () => box.append(...fill()), { once: true });
  return box;
}

// ----- pins
function pinButton(where, one, words) {
  const pin = pinOf(where, one), at = view.pins.indexOf(pin), ink = at >= 0 ? COLOURS[at] : where === chapter() && colour(one);
  const made = h("button", {
    type: "button", "aria-pressed": String(at >= 0), "data-pin": pin, style: ink ? `--c:${ink}` : null,
  }, words);
  made.addEventListener("click", () => {
    const others = view.pins.filter(other => other !== pin);
    view.pins = at >= 0 ? others : [...others, pin].slice(-MOST_PINS);
    render();
  });
  return made;
}
function showPins() {
  const box = document.querySelector(".pins"), active = document.activeElement?.dataset?.pin;
  const elsewhere = pinned().filter(({ where }) => where !== chapter());
  const kept = elsewhere.map(({ where, one }) =>
    pinButton(where, one, `${one.name}: ${where.label}; ${where.schedule}`));
  box.replaceChildren(h("span", {}, "Pin rows to compare:"), ...chapter().rows.map(one => pinButton(chapter(), one, one.name)),
    ...(kept.length ? [h("span", { class: "row" }, "Pinned in other settings:"), ...kept] : []));
  if (active) box.querySelector(`[data-pin="${CSS.escape(active)}"]`)?.focus();
}
const SAME = "same", TESTED = "tested", APART = "apart";
/* Whether two rows share the stream of a seed, only its classes and test images, or neither. */
function shared(first, second) {
  const both = part => first[part].some(id => second[part].includes(id));
  return both("streams") ? SAME : both("tests") ? TESTED : APART;
}
function difference(first, second, measure) {
  const kind = shared(first, second), means = [first, second].map(one => centre(one[measure]));
  if (kind === SAME) {
    const gap = paired(first, second, measure);
    return { shown: spread(gap.values, 1, signed), interval: interval(gap), n: gap.values.length, gaps: gap.gaps };
  }
  const gap = kind === APART || means.includes(null) ? null : means[0] - means[1];
  return { shown: signed(gap), interval: DASH, n: 0, gaps: [] };
}
function comparePins() {
  const box = byId("compare"), here = pinned().filter(({ where }) => where.scheduleId === chapter().scheduleId);
  const [first, ...others] = here, left = view.pins.length - here.length;
  const skipped = left ? [note(`${left === 1 ? "One pinned row is" : `${left} pinned rows are`} at another schedule and `
    + "not compared: schedules never share a figure or a table.")] : [];
  const alone = here.length === 1 && !left ? [note(`Pin another row to see its difference from ${first.one.name}.`)] : [];
  if (!others.length) return box.replaceChildren(...alone, ...skipped);
  const across = here.some(({ where }) => where !== first.where);
  const name = one => (across ? `${here.indexOf(one) + 1}: ${one.one.name}` : one.one.name);
  const cells = others.map(other => {
    const gap = difference(first.one, other.one, "final"), lost = difference(first.one, other.one, "forgetting");
    const bySeed = gap.gaps.map(one => `${one.seed}: ${signed(one.gap)}`).join(", ") || DASH;
    return [`${name(first)} − ${name(other)}`, gap.shown, gap.interval, gap.n || DASH, bySeed, lost.shown];
  });
  const columns = ["rows", "final accuracy, points", "95 % interval", "paired seeds", "by seed", "forgetting, points"];
  box.replaceChildren(h("h3", {}, across ? "Pinned rows across settings" : "Paired differences"),
    ...(across ? overlaid(here, name, box.clientWidth) : []),
    table("Differences between pinned rows", columns, cells), ...streamNotes(first, others, name), ...skipped);
}
function overlaid(pins, name, width) {
  const found = pins.map(one => ({
    name: name(one), colour: COLOURS[one.place], dash: DASHES[one.place], ...overSeeds(one.one.overall),
  }));
  const steps = Math.max(...found.map(one => one.values.length));
  const cells = Array.from({ length: steps }, (_, t) =>
    [t + 1, ...found.map(one => (t < one.columns.length ? spread(one.columns[t]) : DASH))]);
  const words = pins.map(one => [`${name(one)}, ${one.where.label} (${spread(one.one.final)} %, n = ${one.one.final.length})`,
    COLOURS[one.place], DASHES[one.place]]);
  return [legend(words), figure(curves(width, 300, found, { unit: "accuracy on classes seen, %", percent: true }),
    `Accuracy of pinned rows after each step; schedule ${chapter().schedule}`, ["step", ...found.map(one => one.name)], cells)];
}
/* What may not be concluded from a difference between streams. */
function streamNotes(first, others, name) {
  const named = kind => others.filter(other => shared(first.one, other.one) === kind).map(name).join(", ");
  const tested = named(TESTED), apart = named(APART);
  return [
    tested && note(`Different streams (${tested}): classes and test images are the same as for ${name(first)}, training `
      + "images are not. The difference is between means; it is not paired by seed and has no interval."),
    apart && note(`Different streams (${apart}): other classes or other test images than ${name(first)}, so a difference in `
      + "points would be meaningless and is not shown."),
  ].filter(Boolean);
}

// ----- readings of the gate and of what looks known: small multiples
function showReadings(box, part, title, none) {
  const rows = chapter().rows.filter(one => Object.keys(one[part]).length), words = data[part];
  if (!rows.length) return box.replaceChildren(note(none));
  const readings = Object.keys(words).filter(name => rows.some(one => one[part][name]));
  const panels = readings.map(name => h("div", {}, h("h3", { title: words[name] }, name)));
  box.replaceChildren(focusLegend(rows), h("div", { class: "small" }, panels));
  const cells = [];
  readings.forEach((name, i) => {
    const found = series(rows.filter(one => one[part][name]), one => one[part][name]);
    const drawn = curves(Math.max(130, panels[i].clientWidth), 120, found, { high: 1, small: true });
    panels[i].append(labelled(drawn, `${name}, ${words[name]}, by step, from 0 to 1`));
    cells.push(...found.map(one => [one.name, name, ...one.columns.map(column => spread(column, 3))]).reverse());
  });
  const meanings = readings.flatMap(name => [h("dt", {}, name), h("dd", {}, words[name])]);
  const steps = Array.from({ length: chapter().steps }, (_, t) => `step ${t + 1}`);
  box.append(h("details", {}, h("summary", {}, "Definitions"), h("dl", {}, meanings)),
    numbers(`${title} by step: ${about()}`, ["method", "reading", ...steps], cells));
}

// ----- one step of the stream: scores and pictures share a slider
function showStep(box, draw, part) {
  const gated = chapter().rows.filter(one => one.scores.some(Boolean));
  const chosen = focus().filter(one => gated.includes(one));
  const rows = (chosen.length ? chosen : gated).slice(0, 2), last = chapter().steps;
  if (!rows.length) return box.replaceChildren(note("No row of this setting has a gate."));
  const width = rows.length > 1 && box.clientWidth > 860 ? box.clientWidth / 2 - 12 : box.clientWidth;
  const out = h("div", { class: "two" }), name = h("output", {});
  const value = Math.min(view.step ?? last, last);
  const slider = h("input", { type: "range", min: 1, max: last, step: 1, value, "aria-label": "Step" });
  const show = () => {
    name.textContent = `Step ${slider.value} of ${last}`;
    out.replaceChildren(...rows.map(one => draw(one, slider.value - 1, width)));
  };
  slider.addEventListener("input", () => {
    view.step = Number(slider.value);
    writeAddress();
    show();
    for (const other of ["scores", "pictures"]) if (!byId(other).contains(box)) drawSection(other);
  });
  const isSame = rows.length > 1 && JSON.stringify(rows[0][part]) === JSON.stringify(rows[1][part]);
  const same = isSame ? note(`The same for ${rows[0].name} and ${rows[1].name}: their gates share one reference network.`) : [];
  box.replaceChildren(h("label", { class: "slider" }, name, slider), same, out);
  show();
}
function scoresAt(one, t, width) {
  const scores = one.scores[t], head = h("h3", {}, `Scores: ${one.name}, step ${t + 1}`);
  if (!scores) return h("div", {}, head, note(DASH));
  const kinds = Object.entries(scores.counts).filter(([, counts]) => sum(counts)).map(([kind, counts]) =>
    ({ counts, words: `${KINDS[kind][0]} (${sum(counts)})`, colour: KINDS[kind][1], dash: KINDS[kind][2] }));
  const edges = counts => shares(counts).flatMap((share, i) =>
    (share > 0.1 ? [i, i + 1].map(place => -1 + (2 * place) / counts.length) : []));
  const used = one.scores.filter(Boolean).flatMap(step => Object.values(step.counts)).flatMap(edges);
  const thresholds = [["accept above", scores.accept], ["pseudo-label above", scores.pseudo]];
  const drawn = histogram(width, kinds, thresholds, [Math.min(...used), Math.max(...used)],
    { interval: [-1, 1], unit: "score S(x); share of each kind, %", digits: 3 });
  const cells = one.scores.map((step, i) => [i + 1, ...(step
    ? [shown(step.accept, 3), shown(step.pseudo, 3), step.accepted, step.labeled, step.of] : Array(5).fill(DASH))]);
  const columns = ["step", "accept above", "pseudo-label above", "accepted", "pseudo-labelled", "unlabelled images"];
  const label = `Scores of ${one.name}, seed ${one.seeds[0]}, at step ${t + 1}: thresholds and sizes`;
  return h("div", {}, head, legend(kinds.map(kind => [kind.words, kind.colour, kind.dash])),
    figure(drawn, label, columns, cells));
}
function picturesAt(one, t) {
  const head = h("h3", {}, `Images: ${one.name}, step ${t + 1}`), strip = one.strip, sides = strip?.rows[t];
  if (!strip || strip.missing === "data")
    return h("div", {}, head, note("The data was not found; osscl report --data DIR writes a page with the images."));
  const steps = Object.keys(strip.rows).map(step => Number(step) + 1).join(", ");
  if (!sides) return h("div", {}, head, note(`No images are kept for this step; steps with images: ${steps}.`));
  const kinds = [...new Set(sides.flat().map(one => one.kind))];
  const side = (words, i) => [note(words), h("div", { class: "tiles" }, sides[i].length ? sides[i].map(tile) : DASH)];
  return h("div", {}, head, legend(kinds.map(kind => KINDS[kind])), ["accepted", "rejected"].flatMap(side),
    strip.missing === "room" ? note("Pictures are left out: a page contains at most 0.5 MB of them.") : null);
}
function tile(one) {
  const sprite = data.sprites[one.sprite], size = 42, what = { role: "img", "aria-label": one.words, title: one.words };
  if (!sprite) return h("span", { class: `tile blank ${one.kind}`, ...what });
  const left = -(one.place % sprite.across) * size, top = -Math.floor(one.place / sprite.across) * size;
  const style = `background-image:url(${sprite.uri});background-size:${sprite.across * size}px ${sprite.down * size}px;`
    + `background-position:${left}px ${top}px`;
  return h("span", { class: `tile ${one.kind}`, style, ...what });
}

function confusion(one) {
  const names = one.order.map(c => chapter().classes?.[c] ?? `class ${c}`), counts = one.confusion;
  const title = `Confusion: ${one.name}, seed ${one.seeds[0]}`, head = h("h3", {}, title);
  if (names.length <= FEW_CLASSES)
    return h("div", {}, head, heat(`${title}, % of the images of a class`, counts.map(shares), names, 100));
  const cells = counts.map((row, i) => {
    const wrong = row.map((count, j) => (j === i ? -1 : count)), most = wrong.indexOf(Math.max(...wrong));
    return [names[i], sum(row), row[i], `${names[most]} (${row[most]})`];
  });
  const canvas = h("canvas", { width: names.length, height: names.length, "data-row": one.key });
  const step = one.met.flatMap((many, t) => Array(many).fill(t)), merged = one.met.map(() => one.met.map(() => 0));
  counts.forEach((row, i) => row.forEach((count, j) => { merged[step[i]][step[j]] += count; }));
  return h("div", {}, head,
    figure(canvas, `${title}, ${names.length} classes`, ["class", "images", "correct", "most often predicted as"], cells),
    h("h3", {}, `By step: ${one.name}`),
    heat(`${title}, by step, in %`, merged.map(shares), one.met.map((_, t) => String(t + 1)), 100, "step"));
}

// ----- drawing what is open, and following the reader
function drawSection(id) {
  const part = byId(id);
  if (part.tagName === "DETAILS" && !part.open) return;
  SECTIONS[id](id === "result" ? byId("final") : part.querySelector(".drawn"));
}
function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, words]) => h("option", { value }, words)));
  select.value = chosen;
}
/* Settings whose accuracy is of validation images, which choices were made on, stand apart. */
function fillSettings(select) {
  const groups = { test: "Measured on test images", validation: "Measured on validation images" };
  const made = Object.entries(groups).map(([on, label]) => {
    const found = new Map(data.chapters.filter(one => one.on === on).map(one => [one.key, one.label]));
    return found.size ? h("optgroup", { label }, [...found].map(([value, words]) => h("option", { value }, words))) : null;
  });
  select.replaceChildren(...made.filter(Boolean));
  select.value = view.setting;
}
function render() {
  const schedules = data.chapters.filter(one => one.key === view.setting).map(one => one.schedule);
  fillSettings(byId("setting"));
  fill(byId("schedule"), schedules.map(name => [name, name]), view.schedule);
  for (const part of all("[data-schedule]")) part.hidden = part.dataset.schedule !== view.schedule;
  for (const words of all(".nothing")) words.hidden = !!words.parentNode.querySelector("[data-schedule]:not([hidden])");
  Object.keys(SECTIONS).forEach(drawSection);
  writeAddress();
  document.querySelector("nav [data-to=ablations]").hidden = !chapter().rows.some(one => one.base);
}
function go() {
  const part = view.section && byId(view.section);
  if (!part) return;
  if (part.tagName === "DETAILS") part.open = true;
  part.scrollIntoView();
}
function restore() {
  readAddress();
  for (const part of all(".part")) part.open = view.open.includes(part.id);
  render();
  go();
}
byId("setting").addEventListener("change", event => {
  const here = data.chapters.filter(one => one.key === event.target.value);
  view.setting = event.target.value;
  view.schedule = (here.find(one => one.schedule === view.schedule) ?? here[0]).schedule;
  render();
});
byId("schedule").addEventListener("change", event => {
  view.schedule = event.target.value;
  render();
});
document.addEventListener("click", event => {
  const link = event.target.closest("nav a, a.link, .skip");
  if (!link) return;
  event.preventDefault();
  view.section = link.dataset.to;
  history.pushState(null, "", address(view.section));
  go();
});
for (const part of all(".part"))
  part.addEventListener("toggle", () => {
    view.open = all(".part").filter(one => one.open).map(one => one.id);
    writeAddress();
    if (SECTIONS[part.id]) drawSection(part.id);
  });
addEventListener("popstate", restore);
let lastWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === lastWidth) return;
  lastWidth = innerWidth;
  render();
});
addEventListener("beforeprint", () => { // on white paper
  applyTheme("light");
  for (const part of all(".part:not(#runs)")) {
    part.open = true;
    if (SECTIONS[part.id]) drawSection(part.id); // the toggle event would come too late for printing
  }
});

addEventListener("afterprint", () => {
  applyTheme(stored());
  render();
});

// ----- a page that is watched
const refresh = document.querySelector("meta[name=osscl-refresh]");
if (refresh)
  setInterval(() => {
    if (!document.hidden && document.activeElement?.tagName !== "SELECT") location.reload();
  }, 1000 * refresh.content);
followTheme(render);
restore();
