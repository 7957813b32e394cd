"use strict";
/* Drawings in SVG and tables, from numbers alone: nothing here knows what the page shows. */
const DASH = "—";

// ----- elements: text is always a text node
function make(namespace, tag, attributes, children) {
  const made = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(attributes ?? {}))
    if (value != null && value !== false) made.setAttribute(name, value);
  made.append(...children.flat().filter(child => child != null));
  return made;
}
const h = (tag, attributes, ...children) => make("http://www.w3.org/1999/xhtml", tag, attributes, children);
const s = (tag, attributes, ...children) => make("http://www.w3.org/2000/svg", tag, attributes, children);
const svg = (width, height) => s("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
const text = (x, y, words, more) => s("text", { x, y, ...more }, words);
const note = words => h("p", { class: "note" }, words);
const cut = (words, most) => (words.length > most ? `${words.slice(0, most - 1)}…` : words);

// ----- numbers
const sum = values => values.reduce((total, value) => total + value, 0);
const mean = values => sum(values) / values.length;
const isWhole = values => values.length > 0 && values.every(value => value != null);
const centre = values => (isWhole(values) ? mean(values) : null);
function deviation(values) { // of the sample
  if (values.length < 2) return null;
  const middle = mean(values);
  return Math.sqrt(sum(values.map(value => (value - middle) ** 2)) / (values.length - 1));
}
const minus = words => String(words).replace("-", "−");
const shown = (value, digits = 1) => (value == null ? DASH : minus(value.toFixed(digits)));
const signed = (value, digits = 1) => (value == null ? DASH : (value >= 0 ? "+" : "") + shown(value, digits));
function spread(values, digits = 1, write = shown) {
  if (!isWhole(values)) return DASH;
  return write(mean(values), digits) + (values.length > 1 ? ` ± ${shown(deviation(values), digits)}` : "");
}
const shares = counts => counts.map(count => (100 * count) / (sum(counts) || 1));
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map(x => x * power).find(x => x >= raw * 0.999) ?? power;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step)
    found.push(Number(at.toPrecision(10)));
  return found;
}

// ----- tables, and figures with a table of their numbers
function table(label, columns, rows) {
  const head = columns.map((name, i) => h("th", { scope: "col", class: i ? "n" : null }, name));
  const cell = (value, i) => (i ? h("td", { class: "n" }, value) : h("th", { scope: "row" }, value));
  const body = rows.map(cells => h("tr", {}, cells.map(cell)));
  return scrolling(label, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}
const scrolling = (label, inside) =>
  h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, inside);
const numbers = (label, columns, rows) => {
  const more = h("span", { class: "unseen-words" }, ` of: ${label}`);
  return h("details", {}, h("summary", {}, "Show the numbers", more), table(label, columns, rows));
};
function labelled(drawing, label) {
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", `${label}. The numbers are in the table below.`);
  return drawing;
}
const figure = (drawing, label, columns, rows, words) =>
  h("figure", {}, labelled(drawing, label), words ? note(words) : null, numbers(label, columns, rows));
function legend(entries) {
  const stroke = (ink, dash) => s("line", {
    x1: 0, x2: 26, y1: 5, y2: 5, stroke: ink, "stroke-width": 3, "stroke-dasharray": dash || null,
  });
  return h("ul", { class: "key" }, entries.map(([words, ink, dash]) =>
    h("li", {}, s("svg", { width: 26, height: 10, "aria-hidden": "true" }, stroke(ink, dash)), words)));
}
/* A square of numbers as a table whose cells are coloured by `value / top`. */
function heat(label, values, names, top, corner) {
  const columns = names.map(name => h("th", { scope: "col" }, cut(name, 10)));
  const head = h("tr", {}, h("td", { style: "--v:0" }, ""), columns);
  const cell = value => h("td", { style: `--v:${Math.min(100, (100 * value) / top).toFixed(0)}` },
    value >= 0.5 ? value.toFixed(0) : "·");
  const body = values.map((cells, i) =>
    h("tr", {}, h("th", { scope: "row" }, corner ? `${corner} ${names[i]}` : names[i]), cells.map(cell)));
  return scrolling(label, h("table", { class: "heat" }, h("thead", {}, head), h("tbody", {}, body)));
}

/* One line per item {name, words, value, low, high, paper, parts, colour}: a bar, a stack or a dot with a whisker. Its
   name stands on the left or, where that is narrow, above. */
function lines(width, items, { bar, unit }) {
  const narrow = width < 560, letters = Math.max(...items.map(item => item.name.length));
  const left = narrow ? 6 : Math.min(width * 0.36, letters * 7.3 + 14), right = narrow ? 12 : 150;
  const room = narrow ? 40 : 30, height = room * items.length + 40;
  const ends = items.flatMap(item => [item.value, item.low, item.high, item.paper?.[0]]).filter(end => end != null);
  const min = Math.min(0, ...ends) * 1.04, max = Math.max(min + 1e-6, 0, ...ends) * 1.04;
  const at = value => left + ((value - min) / (max - min || 1)) * (width - left - right);
  const drawn = svg(width, height);
  for (const tick of ticks(min, max, narrow ? 4 : 7)) {
    const x = at(tick), d = narrow ? items.map((_, i) => `M${x} ${i * room + 20}v18`).join("") : `M${x} 2V${height - 36}`;
    drawn.append(s("path", { class: tick === 0 ? "zero" : "grid", d }), // where a name stands above its line, not through it
      text(x, height - 20, minus(tick), { class: "tick", "text-anchor": "middle" }));
  }
  drawn.append(text(at(max), height - 4, unit, { class: "axis", "text-anchor": "end" }));
  items.forEach((item, i) => {
    const words = i * room + (narrow ? 15 : 20), middle = i * room + (narrow ? 29 : 16);
    const name = cut(item.name, narrow ? Math.floor(width / 11) : 44);
    drawn.append(s("g", {}, s("title", {}, `${item.name}: ${item.words}`),
      text(narrow ? 0 : left - 8, words, name, {
        "text-anchor": narrow ? null : "end", "font-weight": item.colour ? 650 : null,
      }),
      text(narrow ? width : width - right + 10, words, item.words, { "text-anchor": narrow ? "end" : null }),
      item.parts ? stack(item.parts, at, middle) : mark(item, at, middle, bar, narrow),
      item.paper ? diamond(item.paper, at, middle) : null));
  });
  return drawn;
}
function stack(parts, at, middle) {
  let from = 0;
  return parts.map(part => {
    const x = at(from), width = at(from + part.value) - x;
    from += part.value;
    return s("rect", { x, y: middle - 8, width, height: 16, fill: part.colour }, s("title", {}, part.words));
  });
}
function mark(item, at, middle, bar, narrow) {
  if (item.value == null) return [];
  const ink = item.colour ?? "var(--grey)", [a, b] = [at(0), at(item.value)].sort((x, y) => x - y);
  const half = narrow ? 6 : 9, whisker = item.low == null ? null : s("path", {
    class: "whisker",
    d: `M${at(item.low)} ${middle}H${at(item.high)}M${at(item.low)} ${middle - 5}v10M${at(item.high)} ${middle - 5}v10`,
  });
  if (bar) return [s("rect", { x: a, y: middle - half, width: b - a, height: 2 * half, rx: 2, fill: ink }), whisker];
  return [whisker, s("circle", { cx: at(item.value), cy: middle, r: 6, fill: ink, stroke: "var(--card)" })];
}
const diamond = (paper, at, middle) => s("path", {
  class: "paper", d: `M${at(paper[0])} ${middle - 8}l7 8l-7 8l-7 -8z`,
}, s("title", {}, `the paper: ${paper.join(" ± ")}`));

/* Lines over the steps: series {name, values, low, high, colour, dash}; those without a colour are grey. */
function curves(width, height, series, { high, unit, small, percent }) {
  const steps = Math.max(...series.map(one => one.values.length));
  const named = small ? [] : series;
  const letters = Math.max(0, ...named.map(one => Math.min(18, one.name.length)));
  const left = small ? 26 : 36, right = small ? 8 : Math.min(width * 0.36, 14 + 8 * letters), bottom = small ? 20 : 38;
  const ends = series.flatMap(one => [...one.values, ...(one.high ?? [])]).filter(value => value != null);
  const top = high ?? Math.min(percent ? 100 : Infinity, Math.max(1, ...ends) * 1.05);
  const least = Math.min(...ends, ...series.flatMap(one => (one.low ?? []).filter(value => value != null)));
  const base = percent && least > top / 2 ? 10 * Math.floor(least / 10 - 0.3) : 0; // lines need no zero
  const X = t => left + (steps < 2 ? 0.5 : t / (steps - 1)) * (width - left - right);
  const Y = value => 8 + (1 - (Math.min(top, Math.max(base, value)) - base) / (top - base)) * (height - 8 - bottom);
  const drawn = svg(width, height);
  for (const tick of ticks(base, top, small ? 2 : 5))
    drawn.append(s("line", { class: "grid", x1: left, x2: width - right, y1: Y(tick), y2: Y(tick) }),
      text(left - 6, Y(tick) + 4, String(tick), { class: "tick", "text-anchor": "end" }));
  const every = Math.ceil(steps / (small ? 3 : Math.min(12, (width - left - right) / 28)));
  for (let t = 0; t < steps; t++)
    if (t % every === 0)
      drawn.append(text(X(t), height - bottom + 15, t + 1, { class: "tick", "text-anchor": "middle" }));
  if (!small) drawn.append(text(left, height - 4, `${unit}, after step`, { class: "axis" }));
  for (const one of series) drawn.append(...curve(one, X, Y, small));
  drawn.append(...names(named, Y, width - right + 8, Math.floor((right - 8) / 7.8), height - bottom));
  return drawn;
}
const pointsOf = values => values.map((value, t) => [t, value]).filter(([, value]) => value != null);
function curve(one, X, Y, small) {
  const path = points => points.map(([t, v], i) => `${i ? "L" : "M"}${X(t).toFixed(1)} ${Y(v).toFixed(1)}`).join("");
  const points = pointsOf(one.values), ink = one.colour ?? "var(--grey)", drawn = [];
  if (one.colour && one.low) {
    const around = [...pointsOf(one.high), ...pointsOf(one.low).reverse()];
    drawn.push(s("path", { d: `${path(around)}Z`, fill: ink, opacity: 0.16 }));
  }
  drawn.push(s("path", {
    d: path(points), fill: "none", stroke: ink, "stroke-width": one.colour ? 2.5 : 1.5, "stroke-dasharray": one.dash,
  }, s("title", {}, one.name)));
  if (one.colour || points.length === 1)
    for (const [t, v] of points)
      drawn.push(s("circle", { cx: X(t), cy: Y(v), r: small ? 2 : 3.5, fill: ink },
        s("title", {}, `${one.name}, step ${t + 1}: ${shown(v, small ? 3 : 1)}`)));
  return drawn;
}
function names(series, Y, x, most, bottom) { // at the ends of the lines, none on another and none below the figure
  const ended = series.map(one => ({ ...one, y: Y(pointsOf(one.values).at(-1)?.[1] ?? 0) + 4 }));
  ended.sort((a, b) => a.y - b.y);
  for (let i = 1; i < ended.length; i++) ended[i].y = Math.max(ended[i].y, ended[i - 1].y + 15);
  for (let i = ended.length - 1, most = bottom + 4; i >= 0; i--, most -= 15) ended[i].y = Math.min(ended[i].y, most);
  return ended.map(one => text(x, one.y, one.name.length > most ? [cut(one.name, most), s("title", {}, one.name)] : one.name, {
    style: `fill:${one.colour ?? "var(--soft)"}`, "font-weight": one.colour ? 650 : null,
  }));
}
/* What `curves` draws of several runs: mean and sample standard deviation at each step. */
function overSeeds(runs) {
  const columns = runs[0].map((_, t) => runs.map(run => run[t])), values = columns.map(centre);
  const deviations = columns.map(column => (isWhole(column) ? deviation(column) : null));
  const side = sign => values.map((value, t) => (deviations[t] == null ? null : value + sign * deviations[t]));
  const several = deviations.some(one => one != null);
  return { values, low: several ? side(-1) : null, high: several ? side(1) : null, columns };
}

/* Histograms over an interval: kinds [{counts, colour, dash}], each a share of its own; thresholds [[words, value]]. */
function histogram(width, kinds, thresholds, range, { interval: [from, to], unit, digits }) {
  const height = 260, left = 36, bins = kinds[0].counts.length, edge = i => from + ((to - from) * i) / bins;
  const ends = [...range, ...thresholds.map(([, value]) => value)];
  const low = Math.min(...ends) - 0.01 * (to - from), high = Math.max(...ends) + 0.01 * (to - from);
  const top = Math.max(...kinds.map(kind => Math.max(...shares(kind.counts)))) * 1.05;
  const X = value => left + ((value - low) / (high - low)) * (width - left - 12);
  const Y = share => 40 + (1 - share / top) * (height - 78);
  const drawn = svg(width, height);
  for (const tick of ticks(low, high, 6))
    drawn.append(text(X(tick), height - 22, minus(tick), { class: "tick", "text-anchor": "middle" }));
  for (const tick of ticks(0, top, 4))
    drawn.append(s("line", { class: "grid", x1: left, x2: width - 12, y1: Y(tick), y2: Y(tick) }),
      text(left - 6, Y(tick) + 4, String(tick), { class: "tick", "text-anchor": "end" }));
  drawn.append(text(left, height - 4, unit, { class: "axis" }));
  for (const { counts, colour, dash } of kinds) {
    const steps = shares(counts).map((share, i) => [i, `L${X(edge(i))} ${Y(share)}H${X(edge(i + 1))}`]);
    const inside = steps.filter(([i]) => edge(i + 1) > low && edge(i) < high).map(([, step]) => step);
    const d = inside.join("").replace("L", "M");
    drawn.append(s("path", { d: `${d}V${Y(0)}H${X(low)}Z`, fill: colour, opacity: 0.14 }),
      s("path", { d, fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash || null }));
  }
  thresholds.forEach(([words, value], i) => {
    const x = X(value), y = 30 - 16 * i, isLeft = x < width / 2, dashed = i ? null : "5 3";
    drawn.append(s("line", { class: "threshold", x1: x, x2: x, y1: y - 8, y2: Y(0), "stroke-dasharray": dashed }),
      text(x + (isLeft ? 5 : -5), y, digits ? `${words} ${shown(value, digits)}` : words, { "text-anchor": isLeft ? "start" : "end" }));
  });
  return drawn;
}
/* A large square of counts as pixels, rows by their shares, from one colour to another. */
function paint(canvas, counts, low, high) {
  const size = counts.length, image = new ImageData(size, size);
  counts.forEach((row, i) => shares(row).forEach((share, j) => {
    const strength = Math.min(1, share / 50), at = 4 * (i * size + j); // of many classes most cells are nearly empty
    for (let c = 0; c < 3; c++) image.data[at + c] = low[c] + strength * (high[c] - low[c]);
    image.data[at + 3] = 255;
  }));
  canvas.getContext("2d").putImageData(image, 0, 0);
}
