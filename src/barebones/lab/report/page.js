"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const { runs, groups } = data;
const $ = (id) => document.getElementById(id);

/* Elements: text is always a text node, so nothing of a run folder can become markup. */
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(4).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/* Numbers in words. */
const known = (value) => value !== null && value !== undefined;
const count = (value) => (known(value) ? Math.round(value).toLocaleString("en-GB") : "–");
const tidy = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
const percent = (share, digits = 2) => (known(share) ? (100 * share).toFixed(digits) : "–");
const sparse = (share) => (known(share) ? tidy((100 * share).toFixed(share > 0.9999 ? 4 : share > 0.99 ? 3 : 2)) : "–");
const short = (value) =>
  !known(value) ? "–" : value === 0 ? "0" : Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3
    ? value.toExponential(2).replace("e+", "e") : tidy(value.toPrecision(4));
function seconds(value) {
  if (!known(value) || value === 0) return "–";
  if (value < 9.95) return `${value.toFixed(value < 0.0995 ? 3 : 2)} s`;
  if (value < 120) return `${value.toFixed(0)} s`;
  return value < 7200 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
}
const plain = (value) => (value < 1e5 && value >= 1e-4 ? tidy(value.toFixed(Math.max(0, -Math.floor(Math.log10(value) + 1e-9)))) : value.toExponential(0).replace("e+", "e"));
const plural = (number, noun) => `${number.toLocaleString("en-GB")} ${noun}${number === 1 ? "" : "s"}`;
const spoken = (name) => name.replaceAll("_", "-");
const label = (name) => name.replace(/\.weight$/, "");

/* A method's colour: as everywhere, and in the dark the same hue, light enough to be seen. */
const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
function luminance(hex) {
  const [r, g, b] = channels(hex).map((c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function lighter(hex) {
  let share = 0, mixed = hex;
  while (luminance(mixed) < 0.24 && share < 0.9) {
    share += 0.05;
    mixed = "#" + channels(hex).map((c) => Math.round(c + (255 - c) * share).toString(16).padStart(2, "0")).join("");
  }
  return mixed;
}
const colour = (method) => {
  const own = Object.hasOwn(data.colours, method ?? "") ? data.colours[method] : "#777777";
  return { "--c": own, "--d": method === "dense" ? "#f4f4f4" : lighter(own) };
};
const marker = (method) => (Object.hasOwn(data.markers, method ?? "") ? data.markers[method] : "o");

/* A mark of about 2r across, by Matplotlib's letters. */
function outline(kind, x, y, r) {
  const at = (points) => "M" + points.map(([a, b]) => `${(x + a * r).toFixed(1)},${(y + b * r).toFixed(1)}`).join("L") + "Z";
  switch (kind) {
    case "s": return at([[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]]);
    case "^": return at([[0, -1.15], [1.1, 0.9], [-1.1, 0.9]]);
    case "v": return at([[0, 1.15], [1.1, -0.9], [-1.1, -0.9]]);
    case "D": return at([[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]]);
    case "P": return at([[-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4], [0.4, 1.2],
      [-0.4, 1.2], [-0.4, 0.4], [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4]]);
    case "X": return at([[-1.15, -0.6], [-0.6, -1.15], [0, -0.55], [0.6, -1.15], [1.15, -0.6], [0.55, 0], [1.15, 0.6],
      [0.6, 1.15], [0, 0.55], [-0.6, 1.15], [-1.15, 0.6], [-0.55, 0]]);
    default: return `M${x - r},${y}a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0Z`;
  }
}
const DASHES = [null, "6 4", "2 4", "9 3 2 3"];
function key(line) {
  const dash = line.dash ?? null;
  return s("svg", { width: 26, height: 14, class: `m ${line.class || ""}`, "aria-hidden": "true", ...line.colour },
    line.bare ? null : s("path", { d: "M1,7H25", class: "curve", "stroke-dasharray": dash }),
    line.kind ? s("path", { d: outline(line.kind, 13, 7, 4), class: "mark" }) : null);
}
const swatch = (method) => h("span", { class: "swatch" },
  s("svg", { width: 12, height: 12, class: "m", "aria-hidden": "true", ...colour(method) },
    s("path", { d: outline(marker(method), 6, 6, 4.4), class: "mark" })), method ?? "unknown");

/* Scales. */
function linear([low, high], [from, to]) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}
function nice(low, high, wanted) {
  const raw = (high - low || Math.abs(high) || 1) / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((f) => f >= raw * 0.999);
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-6); at * step <= high + step * 1e-6; at++) ticks.push(at * step);
  return { ticks, step };
}
function decades(low, high, most) {
  const from = Math.ceil(low - 1e-6), to = Math.floor(high + 1e-6), every = Math.max(1, Math.ceil((to - from + 1) / most));
  const ticks = [];
  for (let power = from; power <= to; power += every) ticks.push(power);
  if (ticks.length < 2) {
    ticks.length = 0;
    for (let power = Math.floor(low); power <= high; power++)
      for (const f of [1, 2, 5]) { const at = power + Math.log10(f); if (at >= low && at <= high) ticks.push(at); }
  }
  return ticks;
}
const SPARSITIES = [0.9, 0.99, 0.999, 0.9999, 0, 0.5, 0.95, 0.995, 0.9995, 0.99999, 0.8, 0.98, 0.998, 0.9998];
const nines = (share) => -Math.log10(Math.max(1 - share, 1e-7));

/* A chart: lines, marks, bars and rules in an SVG as wide as its place; hover, and arrow keys, tell the numbers. */
function chart(spec) {
  const plot = h("div", { class: "plot", tabindex: 0, role: "img", "aria-label": spec.label });
  const figure = h("figure", { class: spec.class },
    spec.title ? h("figcaption", {}, h("h4", {}, spec.title), spec.note ? h("span", { class: "hint" }, spec.note) : null) : null,
    spec.keys ? legend(spec.keys) : null, plot);
  let stops = [], at = -1, width = 0, ring = null;
  const tip = h("div", { class: "tip", hidden: true });

  function draw() {
    const now = Math.round(plot.clientWidth);
    if (!now || now === width) return;
    width = now;
    const drawn = spec.draw(width);
    stops = drawn.stops.sort((a, b) => a.x - b.x || a.y - b.y);
    ring = s("g", {});
    drawn.svg.append(ring);
    plot.replaceChildren(drawn.svg, tip);
    hide();
  }
  function hide() { at = -1; tip.hidden = true; ring?.replaceChildren(); }
  function show(index, aloud) {
    if (!stops.length) return;
    at = Math.max(0, Math.min(stops.length - 1, index));
    const stop = stops[at];
    tip.replaceChildren(h("b", {}, stop.title), ...stop.lines.map((line) => h("span", {}, line)));
    tip.hidden = false;
    const left = stop.x + 14 + tip.offsetWidth < width ? stop.x + 14 : Math.max(0, stop.x - 14 - tip.offsetWidth);
    tip.style.left = `${left}px`;
    tip.style.top = `${Math.max(0, stop.y - tip.offsetHeight - 10)}px`;
    ring.replaceChildren(...(stop.cross ? [s("path", { class: "cross", d: `M${stop.x},${stop.cross[0]}V${stop.cross[1]}` })]
      : [s("circle", { class: "ring", cx: stop.x, cy: stop.y, r: 8 })]));
    if (aloud) $("live").textContent = [stop.title, ...stop.lines].join(", ");
  }
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = -1, least = Infinity;
    stops.forEach((stop, index) => {
      const far = stop.cross ? Math.abs(stop.x - x) : Math.hypot(stop.x - x, stop.y - y);
      if (far < least) { least = far; best = index; }
    });
    if (best >= 0 && least < (stops[best].cross ? 60 : 36)) { if (best !== at) show(best); } else hide();
  });
  plot.addEventListener("pointerleave", () => { if (document.activeElement !== plot || !plot.matches(":focus-visible")) hide(); });
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at < 0 ? 0 : at - 1, ArrowDown: at < 0 ? 0 : at - 1, Home: 0, End: stops.length - 1 };
    if (event.key === "Escape") hide();
    else if (event.key in moves) { event.preventDefault(); show(moves[event.key], true); }
  });
  new ResizeObserver(draw).observe(plot);
  return figure;
}
const legend = (keys) => h("ul", { class: "legend" }, keys.map((line) => h("li", {}, line.toggle
  ? h("button", { type: "button", class: "toggle", "aria-pressed": String(!line.off), title: line.off ? "Draw it again" : "Leave it out of the charts", onclick: line.toggle }, key(line), line.name)
  : [key(line), line.name])));

/* The frame of a chart: horizontal rules, an axis below, units on both. */
function frame(width, height, x, y) {
  const left = 50, right = 14, top = 26, bottom = x.name ? 44 : 28;
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  const px = linear(x.domain, [left, width - right]), py = linear(y.domain, [height - bottom, top]);
  svg.append(s("text", { x: 0, y: 12 }, y.name));
  for (const tick of y.ticks)
    svg.append(s("path", { class: "rule", d: `M${left},${py(tick)}H${width - right}` }),
      s("text", { x: left - 8, y: py(tick) + 4, "text-anchor": "end" }, y.format(tick)));
  svg.append(s("path", { class: "axis", d: `M${left},${height - bottom}H${width - right}` }));
  const taken = [];
  for (const tick of x.ticks) {
    const text = x.format(tick), half = (text.length * 6.6 + 12) / 2;
    if (taken.some(([at, own]) => Math.abs(at - px(tick)) < own + half)) continue;
    taken.push([px(tick), half]);
    svg.append(s("path", { class: "axis", d: `M${px(tick)},${height - bottom}v5` }),
      s("text", { x: Math.min(px(tick), width - half + 4), y: height - bottom + 19, "text-anchor": "middle" }, text));
  }
  if (x.name) svg.append(s("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, x.name));
  return { svg, px, py, left, right: width - right, top, bottom: height - bottom };
}
function percents(values, least = 0.02) {
  let low = Math.min(...values), high = Math.max(...values);
  const room = Math.max((high - low) * 0.08, least / 2);
  low = Math.max(0, low - room); high = Math.min(1, high + room);
  const { ticks, step } = nice(low * 100, high * 100, 5);
  const digits = step >= 1 ? 0 : step >= 0.1 ? 1 : 2;
  return { domain: [low * 100, high * 100], ticks, format: (tick) => tick.toFixed(digits) };
}
const path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

/* Charts of groups: accuracy against sparsity and against the seconds of pruning. */
function spreads(lines, dense) {
  const all = lines.flatMap((line) => line.groups).concat(dense);
  return all.flatMap((g) => [g.accuracy - (g.deviation || 0), g.accuracy + (g.deviation || 0)]);
}
const tipOf = (g) => [
  `accuracy ${percent(g.accuracy)}${known(g.deviation) ? ` ± ${percent(g.deviation)}` : ""} %`,
  ...(known(g.effective_sparsity) && g.method !== "dense" ? [`effective sparsity ${sparse(g.effective_sparsity)} %`] : []),
  ...(known(g.prune_seconds) && g.method !== "dense" ? [`pruning ${seconds(g.prune_seconds)}`] : []),
  plural(g.seeds, "seed") + (g.collapsed ? `, ${g.collapsed} collapsed` : ""),
];
const nameOf = (g) => g.method + (g.variant ? `, ${g.variant}` : "");
function denseRules(f, dense, stops) {
  const parts = [];
  for (const g of dense) {
    const y = f.py(100 * g.accuracy), off = known(g.deviation) ? Math.abs(f.py(0) - f.py(100 * g.deviation)) : 0;
    parts.push(s("g", { class: "m", ...colour("dense") },
      off ? s("rect", { class: "area", x: f.left, width: f.right - f.left, y: y - off, height: 2 * off }) : null,
      s("path", { class: "curve", "stroke-dasharray": "7 4", "stroke-width": 1.5, d: `M${f.left},${y}H${f.right}` })));
    stops.push({ x: f.left + 1, y, title: nameOf(g), lines: tipOf(g) });
  }
  return parts;
}
function groupMarks(f, line, place) {
  const kind = marker(line.method), parts = [];
  for (const g of line.groups) {
    const [x, y] = place(g), off = known(g.deviation) ? Math.abs(f.py(0) - f.py(100 * g.deviation)) : 0;
    if (off && (line.groups.length === 1 || !line.banded)) parts.push(s("path", { class: "whisker", d: `M${x},${y - off}V${y + off}` }));
    parts.push(s("path", { class: g.collapsed ? "mark hollow" : "mark", d: outline(kind, x, y, 4.6) }));
  }
  return parts;
}
function accuracyChart(lines, dense) {
  return chart({
    title: "Accuracy against sparsity", label: `Accuracy against sparsity: ${lines.map((line) => line.name).join(", ")}`,
    draw(width) {
      const shares = lines.flatMap((line) => line.groups.map((g) => nines(g.sparsity)));
      const y = percents(spreads(lines, dense));
      const from = Math.min(1, ...shares), to = Math.max(4, ...shares);
      const f = frame(width, Math.round(Math.max(270, Math.min(360, width * 0.62))), {
        domain: [from - 0.06, to + 0.06], ticks: SPARSITIES.map(nines).filter((t) => t >= from - 1e-9 && t <= to + 1e-9),
        format: (t) => tidy((100 - 100 * 10 ** -t).toFixed(3)), name: "sparsity, % of the prunable weights removed" },
      { ...y, name: "test accuracy, %" });
      const stops = [], few = new Set(shares).size === 1; // one sparsity alone: the marks stand side by side
      f.svg.append(...denseRules(f, dense, stops));
      for (const line of lines) {
        const aside = few ? (lines.indexOf(line) - (lines.length - 1) / 2) * Math.min(9, 60 / lines.length) : 0;
        const place = (g) => [f.px(nines(g.sparsity)) + aside, f.py(100 * g.accuracy)];
        const some = line.groups, edge = (sign) => some.map((g) => [place(g)[0], f.py(100 * (g.accuracy + sign * (g.deviation || 0)))]);
        line.banded = some.length > 1;
        f.svg.append(s("g", { class: "m", ...colour(line.method) },
          some.length > 1 && some.some((g) => g.deviation) ? s("path", { class: "area", d: path([...edge(1), ...edge(-1).reverse()]) + "Z" }) : null,
          some.length > 1 ? s("path", { class: "curve", d: path(some.map(place)), "stroke-dasharray": line.dash }) : null,
          groupMarks(f, line, place)));
        for (const g of some) stops.push({ x: place(g)[0], y: place(g)[1], title: `${nameOf(g)}, ${sparse(g.sparsity)} %`, lines: tipOf(g) });
      }
      return { svg: f.svg, stops };
    },
  });
}
function costChart(lines, dense) {
  const some = lines.map((line) => ({ ...line, banded: false, groups: line.groups.filter((g) => g.prune_seconds > 0) })).filter((line) => line.groups.length);
  if (!some.length) return null;
  return chart({
    title: "Accuracy against pruning time", label: `Accuracy against pruning time: ${some.map((line) => line.name).join(", ")}`,
    draw(width) {
      const times = some.flatMap((line) => line.groups.map((g) => Math.log10(g.prune_seconds)));
      let low = Math.min(...times), high = Math.max(...times);
      if (high - low < 1) { const mid = (low + high) / 2; low = mid - 0.5; high = mid + 0.5; }
      const room = 0.07 * (high - low);
      low -= room; high += room;
      const f = frame(width, Math.round(Math.max(270, Math.min(360, width * 0.93))), {
        domain: [low, high], ticks: decades(low, high, 7), format: (t) => plain(10 ** t), name: "seconds to the mask" },
      { ...percents(spreads(some, dense)), name: "test accuracy, %" });
      const stops = [];
      f.svg.append(...denseRules(f, dense, stops));
      for (const line of some) {
        const place = (g) => [f.px(Math.log10(g.prune_seconds)), f.py(100 * g.accuracy)];
        f.svg.append(s("g", { class: "m", ...colour(line.method) }, groupMarks(f, line, place)));
        for (const g of line.groups) stops.push({ x: place(g)[0], y: place(g)[1], title: `${nameOf(g)}, ${sparse(g.sparsity)} %`, lines: tipOf(g) });
      }
      return { svg: f.svg, stops };
    },
  });
}
/* The cost at one sparsity, to be chosen; all at once would be a cloud. */
const costAt = new Map(), hidden = new Set();
function costCharts(lines, dense, place) {
  const shares = [...new Set(lines.flatMap((line) => line.groups.filter((g) => g.prune_seconds > 0).map((g) => g.sparsity)))].sort((a, b) => a - b);
  if (!shares.length) return null;
  const often = (value) => lines.filter((line) => line.groups.some((g) => g.sparsity === value)).length;
  const usual = shares.reduce((best, value) => (often(value) >= often(best) ? value : best), shares[0]);
  const holder = h("div", {});
  const select = h("select", { "aria-label": "Sparsity of the costs", onchange: () => { costAt.set(place, select.value); draw(); select.focus(); } },
    shares.map((value) => h("option", { value }, `at ${sparse(value)} %`)), h("option", { value: "all" }, "at all sparsities"));
  select.value = costAt.get(place) ?? String(usual);
  if (!select.value) select.value = String(usual);
  function draw() {
    const own = select.value === "all" ? lines : lines.map((line) => ({ ...line, groups: line.groups.filter((g) => g.sparsity === Number(select.value)) })).filter((line) => line.groups.length);
    const figure = costChart(own, dense);
    if (shares.length > 1) figure.querySelector("figcaption").append(select);
    holder.replaceChildren(figure);
  }
  draw();
  return holder;
}
function facets(shown) {
  const usable = shown.filter((g) => known(g.accuracy) && g.method);
  const places = new Map();
  for (const g of usable) {
    const name = JSON.stringify([g.data, g.model]);
    if (!places.has(name)) places.set(name, []);
    places.get(name).push(g);
  }
  const order = Object.keys(data.colours);
  const made = [...places.values()].map((own) => {
    const dense = own.filter((g) => g.method === "dense"), byLine = new Map();
    for (const g of own.filter((g) => g.method !== "dense")) {
      const name = nameOf(g);
      if (!byLine.has(name)) byLine.set(name, { name, method: g.method, groups: [] });
      byLine.get(name).groups.push(g);
    }
    const rank = (line) => (order.indexOf(line.method) + 1 || 99);
    const lines = [...byLine.values()].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
    const seen = {};
    for (const line of lines) {
      line.groups.sort((a, b) => a.sparsity - b.sparsity);
      line.dash = DASHES[(seen[line.method] = (seen[line.method] ?? -1) + 1) % DASHES.length];
    }
    const toggle = (name) => () => {
      hidden.has(name) ? hidden.delete(name) : hidden.add(name);
      facets(shown);
      [...document.querySelectorAll(".toggle")].find((button) => button.textContent === name)?.focus();
    };
    const keys = lines.map((line) => ({ name: line.name, colour: colour(line.method), kind: marker(line.method), dash: line.dash }));
    for (const g of dense) keys.push({ name: nameOf(g), colour: colour("dense"), dash: "7 4" });
    for (const one of keys) Object.assign(one, { off: hidden.has(one.name), toggle: toggle(one.name) });
    const drawn = lines.filter((line) => !hidden.has(line.name)), rules = dense.filter((g) => !hidden.has(nameOf(g)));
    return h("div", { class: "facet" }, h("h3", {}, `${own[0].model} on ${own[0].data}`), legend(keys),
      lines.length ? drawn.length ? h("div", { class: "grid" }, accuracyChart(drawn, rules), costCharts(drawn, rules, JSON.stringify([own[0].data, own[0].model]))) : h("p", { class: "hint" }, "Everything is left out; choose a method above.")
        : h("p", { class: "hint" }, `Only the dense network so far: ${dense.map((g) => tipOf(g)[0]).join("; ")}.`));
  });
  $("facets").replaceChildren(...(made.length ? made : [h("p", { class: "facet empty" }, "No finished run among these, so there is nothing to draw yet.")]));
}

/* Which runs are shown. */
const METHOD_KEYS = ["data", "model", "method"];
const hay = (run) => [run.folder, run.status, run.collapsed.length ? "collapsed" : "", ...Object.entries(run.settings || {})
  .filter(([, value]) => known(value)).map(([name, value]) => name === "sparsity" ? `sparsity ${sparse(value)} ${value}` : `${spoken(name)} ${value}`)].join(" \n").toLowerCase();
const hays = runs.map(hay);
const setting = (run, name) => (run.settings ? run.settings[name] : null);
let shownRuns = runs, shownGroups = groups;
function select() {
  const words = $("text").value.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = Object.fromEntries(METHOD_KEYS.map((name) => [name, $(`by-${name}`).value]));
  shownRuns = runs.filter((run, index) => words.every((word) => hays[index].includes(word))
    && METHOD_KEYS.every((name) => chosen[name] === "" || JSON.stringify(setting(run, name)) === chosen[name]));
  const inside = new Set(shownRuns.map((run) => run.index));
  shownGroups = groups.filter((g) => g.runs.some((index) => inside.has(index)));
  $("count").textContent = shownRuns.length === runs.length ? `All ${plural(runs.length, "run")} in ${plural(groups.length, "group")} of seeds.`
    : `${shownRuns.length} of ${plural(runs.length, "run")}, in ${shownGroups.length} of ${plural(groups.length, "group")} of seeds.`;
  facets(shownGroups);
  table();
  list();
}
function choices(name) {
  const values = [...new Set(runs.map((run) => JSON.stringify(setting(run, name))))].filter((value) => value !== "null").sort();
  $(`by-${name}`).replaceChildren(h("option", { value: "" }, "all"), ...values.map((value) => h("option", { value }, JSON.parse(value))));
}

/* The table. */
const stateText = (states) => Object.entries(states).map(([state, number]) => `${number} ${state}`).join(", ");
const stateBadge = (status) => h("span", { class: `badge ${{ done: "good", failed: "bad", unreadable: "bad", unfinished: "warn" }[status]}` }, status);
const accuracyCell = (g) => known(g.accuracy) ? [percent(g.accuracy), known(g.deviation) ? h("span", { class: "pm" }, ` ± ${percent(g.deviation)}`) : null] : "–";
const link = (index, text) => h("a", { href: `#run-${index}`, "aria-label": `Run ${describe(runs[index])}` }, text);
const COLUMNS = {
  groups: [
    { name: "Method", value: (g) => g.method, cell: (g) => swatch(g.method) },
    { name: "Sparsity %", value: (g) => g.sparsity, number: true, cell: (g) => sparse(g.sparsity) },
    { name: "Accuracy %", value: (g) => g.accuracy, number: true, down: true, cell: accuracyCell },
    { name: "Effective %", value: (g) => g.effective_sparsity, number: true, cell: (g) => percent(g.effective_sparsity, 3) },
    { name: "Data", value: (g) => g.data },
    { name: "Network", value: (g) => g.model },
    { name: "With", value: (g) => g.variant, wrap: true, only: groups.some((g) => g.variant) },
    { name: "Pruning", value: (g) => g.prune_seconds, number: true, cell: (g) => seconds(g.prune_seconds) },
    { name: "Training", value: (g) => g.train_seconds, number: true, cell: (g) => seconds(g.train_seconds) },
    { name: "Seeds", value: (g) => g.seeds, cell: (g) => h("span", { class: "seeds" }, g.runs.map((index) => link(index, runs[index].settings ? String(runs[index].settings.seed) : "look"))) },
    { name: "State", value: (g) => stateText(g.states), cell: (g) => [
      ...Object.entries(g.states).map(([state, number]) => [h("span", { class: `badge ${{ done: "good", failed: "bad", unreadable: "bad", unfinished: "warn" }[state]}` }, `${number} ${state}`), " "]),
      g.collapsed ? h("span", { class: "badge bad" }, `${g.collapsed} collapsed`) : null] },
  ],
  runs: [
    { name: "Method", value: (r) => setting(r, "method"), cell: (r) => swatch(setting(r, "method")) },
    { name: "Sparsity %", value: (r) => setting(r, "sparsity"), number: true, cell: (r) => sparse(setting(r, "sparsity")) },
    { name: "Seed", value: (r) => setting(r, "seed"), number: true },
    { name: "Accuracy %", value: (r) => r.accuracy, number: true, down: true, cell: (r) => percent(r.accuracy) },
    { name: "Top-5 %", value: (r) => r.top5, number: true, down: true, cell: (r) => percent(r.top5), only: runs.some((r) => known(r.top5)) },
    { name: "Effective %", value: (r) => r.effective_sparsity, number: true, cell: (r) => percent(r.effective_sparsity, 3) },
    { name: "Data", value: (r) => setting(r, "data") },
    { name: "Network", value: (r) => setting(r, "model") },
    { name: "With", value: (r) => variantOf(r), wrap: true, only: groups.some((g) => g.variant) },
    { name: "Pruning", value: (r) => r.seconds.prune, number: true, cell: (r) => seconds(r.seconds.prune) },
    { name: "Training", value: (r) => r.seconds.train, number: true, cell: (r) => seconds(r.seconds.train) },
    { name: "State", value: (r) => r.status, cell: (r) => [stateBadge(r.status), " ", r.collapsed.length ? h("span", { class: "badge bad" }, "collapsed") : null] },
    { name: "Run", value: (r) => r.folder, cell: (r) => link(r.index, "look") },
  ],
};
const groupOf = [];
for (const g of groups) for (const index of g.runs) groupOf[index] = g;
function variantOf(run) { return groupOf[run.index].variant; }
let sorting = { by: null, down: false };
const rowsOf = () => document.querySelector("input[name=rows]:checked").value;
function sorted(rows, column, down) {
  const sign = down ? -1 : 1;
  return rows.map((row, index) => [column.value(row), index, row]).sort(([a, i], [b, j]) => {
    const none = (v) => !known(v) || v === "";
    if (none(a) || none(b)) return none(a) - none(b) || i - j;
    return sign * (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })) || i - j;
  }).map(([, , row]) => row);
}
function table() {
  const kind = rowsOf(), columns = COLUMNS[kind].filter((column) => column.only !== false);
  const column = columns.find((own) => own.name === sorting.by);
  const rows = column ? sorted(kind === "groups" ? shownGroups : shownRuns, column, sorting.down) : kind === "groups" ? shownGroups : shownRuns;
  const head = $("table").tHead, body = $("table").tBodies[0];
  const focused = head.contains(document.activeElement) ? document.activeElement.textContent : null;
  head.replaceChildren(h("tr", {}, columns.map((own) => h("th", {
    scope: "col", class: own.number ? "number" : null,
    "aria-sort": own === column ? (sorting.down ? "descending" : "ascending") : "none" },
  h("button", { type: "button", onclick: () => {
    sorting = { by: own.name, down: own.name === sorting.by ? !sorting.down : Boolean(own.down) };
    table();
    $("live").textContent = `sorted by ${own.name}, ${sorting.down ? "descending" : "ascending"}`;
  } }, own.name)))));
  if (focused) [...head.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
  body.replaceChildren(...rows.map((row) => h("tr", {}, columns.map((own, index) => h(index ? "td" : "th", {
    scope: index ? null : "row", class: own.number ? "number" : own.wrap ? "wrap" : null },
  own.cell ? own.cell(row) : known(own.value(row)) ? String(own.value(row)) : "–")))));
  if (!rows.length) body.append(h("tr", {}, h("td", { class: "empty", colspan: columns.length }, "Nothing matches. Show all takes the filters away.")));
}

/* Charts of one run, or of two beside each other: a list of [run, letter]. */
function style(run, second) { return { class: "m", ...colour(setting(run, "method")), second }; }
function layersChart(pair) {
  const [first, second] = pair;
  const names = first.layers.map((layer) => layer[0]);
  const both = second && second.layers.length === names.length && second.layers.every((layer, index) => layer[0] === names[index]);
  if (!names.length || (second && !both)) return null;
  const own = second ? [first, second] : [first];
  const density = (layer, at) => (layer[2] ? layer[at] / layer[2] : 0);
  const some = own.flatMap((run) => run.layers.flatMap((layer) => [density(layer, 3), known(layer[4]) && !second ? density(layer, 4) : 0])).filter((d) => d > 0);
  const least = Math.min(0.1, ...some), log = least < 0.05;
  const floor = log ? Math.max(-7, Math.floor(Math.log10(least) - 0.15)) : 0;
  const live = !second && first.layers.every((layer) => known(layer[4]));
  const keys = second ? own.map((run, index) => ({ name: `${index ? "B" : "A"}: ${describe(run)}`, colour: colour(setting(run, "method")), kind: "s", bare: true }))
    : null;
  return chart({
    class: "full", title: "Density of each layer", keys,
    note: [live ? "pale: kept, full: kept and on a path from input to output" : second ? "filled: A, outlined: B" : null, log ? "log scale" : null].filter(Boolean).join("; "),
    label: `Density of each layer, from input to output: ${names.length} layers`,
    draw(width) {
      const f = frame(width, 260, { domain: [0, names.length], ticks: nice(1, names.length, width / 60).ticks.filter((t) => t >= 1 && Number.isInteger(t)).map((t) => t - 0.5),
        format: (t) => String(t + 0.5), name: "layer, from input to output" },
      log ? { domain: [floor, 0], ticks: decades(floor, 0, 6), format: (t) => tidy((100 * 10 ** t).toFixed(5)), name: "weights kept, % of the layer" }
        : { domain: [0, 1], ticks: [0, 0.25, 0.5, 0.75, 1], format: (t) => String(100 * t), name: "weights kept, % of the layer" });
      const stops = [], slot = (f.right - f.left) / names.length, gap = Math.max(slot * 0.2, slot - 26 * own.length);
      const y = (d) => f.py(log ? Math.max(floor, Math.log10(d)) : d);
      own.forEach((run, which) => run.layers.forEach((layer, index) => {
        const wide = (slot - gap) / own.length, x = f.left + index * slot + gap / 2 + which * wide;
        const group = s("g", { class: "m", ...colour(setting(run, "method")) });
        const box = (d, name) => d > 0 && group.append(s("rect", { class: name, x: x.toFixed(1), width: Math.max(1, wide - (which || second ? 1 : 0)).toFixed(1), y: y(d).toFixed(1), height: Math.max(1, f.bottom - y(d)).toFixed(1) }));
        if (live) { box(density(layer, 3), "bar-kept"); box(density(layer, 4), "bar-live"); }
        else box(density(layer, 3), which ? "bar-b" : "bar-live");
        if (!layer[3]) {
          const at = x + wide / 2, up = f.bottom - 8, r = Math.min(4, wide / 2);
          group.append(s("path", { class: "deadmark", d: `M${at - r},${up - r}l${2 * r},${2 * r}m0,${-2 * r}l${-2 * r},${2 * r}` }));
        }
        f.svg.append(group);
      }));
      names.forEach((name, index) => stops.push({
        x: f.left + (index + 0.5) * slot, y: Math.min(...own.map((run) => (run.layers[index][3] ? y(density(run.layers[index], 3)) : f.bottom - 14))), cross: [f.top, f.bottom],
        title: `${index + 1}. ${label(name)}`,
        lines: [first.layers[index][1].join(" × "), ...own.flatMap((run, which) => {
          const layer = run.layers[index], before = second ? `${"AB"[which]}: ` : "";
          return [`${before}${count(layer[3])} of ${count(layer[2])} kept, ${short(100 * density(layer, 3))} %`,
            ...(known(layer[4]) && !second ? [`${count(layer[4])} on a path, ${short(100 * density(layer, 4))} %`] : []),
            ...(layer[3] ? [] : [`${before}dead`])];
        })] }));
      return { svg: f.svg, stops };
    },
  });
}
/* Lines over rounds or epochs: each {name, run, at, values, dash, class, say}. */
function linesChart({ title, name, unit, lines, log, share, what, of }) {
  const some = lines.filter((line) => line.values.some(known));
  if (!some.length) return null;
  const all = some.flatMap((line) => line.values.filter((value) => known(value) && (!log || value > 0)));
  if (!all.length) return null;
  const thin = some.map((line) => line.thin).find(Boolean);
  return chart({
    title, note: thin, label: `${title}: ${some.map((line) => line.name).join(", ")}`,
    keys: some.length > 1 ? some.map((line) => ({ name: line.name, colour: line.colour, dash: line.dash, class: line.class })) : null,
    draw(width) {
      let axis;
      if (share) axis = percents(all, 0.1);
      else if (log) {
        const low = Math.log10(Math.min(...all)), high = Math.log10(Math.max(...all)), room = Math.max(0.05, (high - low) * 0.06);
        axis = { domain: [low - room, high + room], ticks: decades(low - room, high + room, 6), format: (t) => plain(10 ** t) };
      } else {
        const low = Math.min(...all), high = Math.max(...all), room = (high - low || Math.abs(high) || 1) * 0.08;
        const domain = [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
        axis = { domain, ticks: nice(...domain, 5).ticks, format: short };
      }
      const from = Math.min(...some.map((line) => line.at[0])), to = Math.max(...some.map((line) => line.at.at(-1)));
      const f = frame(width, 240, { domain: from === to ? [from - 0.5, to + 0.5] : [from, to], ticks: nice(from, to, width / 80).ticks.filter(Number.isInteger), format: (t) => t.toLocaleString("en-GB"), name }, { ...axis, name: unit === "%" ? `${what}, %` : what });
      const y = (value) => f.py(share ? 100 * value : log ? Math.log10(value) : value), stops = new Map();
      for (const line of some) {
        const parts = [[]];
        line.values.forEach((value, index) => {
          if (!known(value) || (log && value <= 0)) { if (known(value) || !line.sparse) parts.push([]); }
          else parts.at(-1).push([f.px(line.at[index]), y(value)]);
          const x = line.at[index];
          if (!stops.has(x)) stops.set(x, { x: f.px(x), y: f.bottom, cross: [f.top, f.bottom], title: `${name} ${x.toLocaleString("en-GB")}${of ? ` of ${of}` : ""}`, lines: [] });
          const stop = stops.get(x);
          if (known(value)) { stop.lines.push(`${line.name} ${line.say(value, index)}`); if (!log || value > 0) stop.y = Math.min(stop.y, y(value)); }
        });
        f.svg.append(s("g", { class: `m ${line.class || ""}`, ...line.colour }, parts.map((part) => part.length > 1 ? s("path", { class: "curve", d: path(part), "stroke-dasharray": line.dash })
          : part.length ? s("path", { class: "mark", d: outline("o", part[0][0], part[0][1], 3.5) }) : null)));
      }
      return { svg: f.svg, stops: [...stops.values()].filter((stop) => stop.lines.length) };
    },
  });
}
const thinNote = (series, noun) => (series.all > series.at.length ? `${series.at.length} of ${count(series.all)} ${noun} drawn` : null);
function roundCharts(pair) {
  const made = [], two = pair.length > 1, before = (which) => (two ? `${"AB"[which]} ` : "");
  const own = pair.map((run, which) => ({ run, which, series: run.series.prune })).filter(({ series }) => series && series.at.length > 1);
  if (!own.length) return made;
  const of = two ? null : own[0].series.planned;
  const line = ({ run, which, series }, field, name, dash, change = (v) => v, say = short) => ({
    name: before(which) + name, colour: colour(setting(run, "method")), at: series.at, thin: thinNote(series, "rounds"), dash,
    values: series[field].map((value) => (known(value) ? change(value) : null)), say });
  const changes = own.flatMap((one) => {
    const total = one.run.prunable || 1, part = (value) => (100 * value) / total;
    const say = (field) => (value, index) => `${count(one.series[field][index])} (${short(value)} %)`;
    const wanted = [["pruned", "pruned", null], ["recovered", "recovered", "6 4"], ["recovered_empty", "recovered in empty channels", "2 4"]];
    return (two ? wanted.slice(0, 2) : wanted).filter(([field]) => one.series[field].some((value) => value > 0))
      .map(([field, name, dash]) => ({ ...line(one, field, name, two && one.which && !dash ? "9 3 2 3" : dash, part), say: say(field), class: null }));
  });
  made.push(linesChart({ title: "Pruned and recovered in each round", name: "round", of, what: "weights, % of the prunable", log: true, lines: changes }));
  made.push(linesChart({ title: "Saliency of the weights kept", name: "round", of, what: "saliency S(θ, c)", lines: own.map((one) => line(one, "saliency", "saliency", two && one.which ? "6 4" : null)),
    log: spread(own.flatMap((one) => one.series.saliency)) > 30 }));
  return made;
}
const spread = (values) => { const some = values.filter((v) => known(v)); return some.length && some.every((v) => v > 0) ? Math.max(...some) / Math.min(...some) : 0; };
function trainCharts(pair) {
  const made = [], two = pair.length > 1;
  for (const stage of two ? ["train"] : ["pretrain", "train"]) {
    const own = pair.map((run, which) => ({ run, which, series: run.series[stage] })).filter(({ series }) => series && series.at.length);
    if (!own.length) continue;
    const say = (value) => `${percent(value)} %`, of = two ? null : own[0].series.planned;
    const line = ({ run, which, series }, field, name, dash, soft) => ({ name: (two ? `${"AB"[which]} ` : "") + name, at: series.at, values: series[field], say, dash,
      colour: colour(setting(run, "method")), class: soft ? "soft-line" : null, thin: thinNote(series, "epochs"), sparse: true });
    const tested = (one) => one.series.test.filter(known).length > 1;
    const lines = own.flatMap((one) => two
      ? [line(one, tested(one) ? "test" : "validation", tested(one) ? "test" : "validation", one.which ? "6 4" : null)]
      : [line(one, "accuracy", "training", null, true), line(one, "validation", "validation", "6 4"), line(one, "test", "test", null)]);
    const title = stage === "train" ? "Accuracy in training" : "Accuracy in the dense epochs before pruning";
    made.push(linesChart({ title, name: "epoch", of, unit: "%", what: "accuracy", share: true, lines }));
    made.push(linesChart({ title: stage === "train" ? "Training loss" : "Loss before pruning", name: "epoch", of, what: "loss", lines: own.map((one) => ({ ...line(one, "loss", "loss", two && one.which ? "6 4" : null), say: short })) }));
  }
  return made;
}

/* Runs. */
function describe(run) {
  if (!run.settings) return run.folder;
  const own = run.settings, more = variantOf(run);
  return `${own.method}${own.method === "dense" ? "" : ` ${sparse(own.sparsity)} %`}, seed ${own.seed}, ${own.model} on ${own.data}${more ? `, ${more}` : ""}`;
}
const tile = (name, value, below) => (value === "–" || value === null ? null : h("div", {}, h("dt", {}, name), h("dd", {}, value, below ? h("small", {}, below) : null)));
const share = (part, whole) => (known(part) && whole ? part / whole : null);
function tiles(run) {
  const pruned = setting(run, "method") !== "dense";
  const made = [
    known(run.accuracy) ? tile("Test accuracy", `${percent(run.accuracy)} %`, known(run.top5) ? `top-5 ${percent(run.top5)} %` : "after the last epoch") : null,
    known(run.accuracy_at_best_validation) ? tile("At the best validation", `${percent(run.accuracy_at_best_validation)} %`, `epoch ${run.best_validation_epoch + 1}, validation ${percent(run.best_validation)} %`) : null,
    pruned && known(run.sparsity) ? tile("Sparsity, nominal", `${sparse(run.sparsity)} %`, `${count(run.kept)} weights left`) : null,
    pruned && known(run.effective_sparsity) ? tile("Sparsity, effective", `${sparse(run.effective_sparsity)} %`, `${count(run.effective)} weights on a path`) : null,
    pruned && known(run.flops_effective) ? tile("FLOPs left", `${short(100 * share(run.flops_effective, run.flops_dense))} %`, known(run.flops_shrunk) ? `${short(100 * share(run.flops_shrunk, run.flops_dense))} % in a shrunk dense network` : null) : null,
    known(run.seconds.prune) && run.seconds.prune > 0 ? tile("Pruning", seconds(run.seconds.prune), run.settings && known(run.settings.rounds) ? `${plural(run.settings.rounds, "round")} of ${plural(run.settings.batches ?? 1, "batch").replace(/batchs$/, "batches")}` : null) : null,
    known(run.seconds.train) && run.seconds.train > 0 ? tile("Training", seconds(run.seconds.train), run.settings && known(run.settings.epochs) ? plural(run.settings.epochs, "epoch") : null) : null,
  ].filter(Boolean);
  return made.length ? h("dl", { class: "tiles" }, made) : null;
}
function more(title, build) {
  const details = h("details", { class: "more" }, h("summary", {}, title));
  details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(build()); });
  return details;
}
function layerTable(run) {
  const live = run.layers.some((layer) => known(layer[4]));
  const heads = ["Layer", "Shape", "Weights", "Kept", "Density %", ...(live ? ["On a path", "Effective density %"] : []), ""];
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Layers" }, h("table", { class: "whole" },
    h("thead", {}, h("tr", {}, heads.map((name, index) => h("th", { scope: "col", class: index > 1 ? "plain number" : "plain" }, name)))),
    h("tbody", {}, run.layers.map(([name, shape, total, kept, effective]) => h("tr", {}, h("th", { scope: "row" }, label(name)), h("td", {}, shape.join(" × ")),
      [count(total), count(kept), short((100 * kept) / Math.max(1, total)), ...(live ? [count(effective), short((100 * effective) / Math.max(1, total))] : [])].map((text) => h("td", { class: "number" }, text)),
      h("td", {}, !kept ? h("span", { class: "badge bad" }, "dead") : effective === 0 ? h("span", { class: "badge warn" }, "idle") : "",
        run.collapsed.includes(name) ? h("span", { class: "badge bad" }, "cuts") : null))))));
}
function settingsTable(run) {
  const rows = [...Object.entries(run.settings || {}).filter(([, value]) => known(value)), ...Object.entries(run.environment)];
  return h("table", { class: "settings" }, h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, spoken(name)), h("td", { class: "mono" }, String(value))))));
}
const words = (run) => (run.words.length ? h("ul", { class: "words" }, run.words.map(([kind, text]) => h("li", { class: `word ${kind}` }, text))) : null);
function section(run) {
  const charts = [layersChart([run]), ...roundCharts([run]), ...trainCharts([run])].filter(Boolean);
  const choose = (id) => () => { $(id).value = String(run.index); compare(); $("compare").scrollIntoView(); $(id).focus({ preventScroll: true }); };
  return h("div", { class: "body" }, words(run), tiles(run), charts.length ? h("div", { class: "grid" }, charts) : null,
    run.layers.length ? more(`The ${run.layers.length} layers as a table`, () => layerTable(run)) : null,
    run.settings ? more("Settings and environment", () => h("div", { class: "card" }, settingsTable(run))) : null,
    h("div", { class: "actions" }, h("button", { type: "button", onclick: choose("run-a") }, "Compare as A"), h("button", { type: "button", onclick: choose("run-b") }, "Compare as B"),
      h("span", { class: "mono hint" }, run.folder)));
}
const sections = new Map();
function detailsOf(run) {
  if (!sections.has(run.index)) {
    const own = run.settings, dead = run.words.filter(([, text]) => /dead layer/.test(text)).length;
    const details = h("details", { class: "run", id: `run-${run.index}` }, h("summary", {},
      own ? swatch(`${own.method}`) : h("span", {}, run.folder), own ? h("b", { class: "num" }, own.method === "dense" ? "" : `${sparse(own.sparsity)} %`) : null,
      own ? h("span", { class: "where" }, `seed ${own.seed} · ${own.model} on ${own.data}${variantOf(run) ? ` · ${variantOf(run)}` : ""}`) : null,
      h("span", { class: "badges" }, run.collapsed.length ? h("span", { class: "badge bad" }, "collapsed") : dead ? h("span", { class: "badge warn" }, "dead layers") : null,
        known(run.accuracy) ? h("span", { class: "num" }, `${percent(run.accuracy)} %`) : null, run.status === "done" ? null : stateBadge(run.status))));
    details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(section(run)); });
    sections.set(run.index, details);
  }
  return sections.get(run.index);
}
const MANY = 60;
let everything = false;
function list() {
  const shown = everything ? shownRuns : shownRuns.slice(0, MANY), hidden = shownRuns.length - shown.length;
  $("list").replaceChildren(...shown.map(detailsOf), ...(hidden ? [h("button", { type: "button", onclick: () => { everything = true; list(); } }, `Show ${plural(hidden, "more run")}`)] : []),
    ...(shownRuns.length ? [] : [h("p", { class: "empty" }, "Nothing matches.")]));
}
function open(index) {
  if (!shownRuns.includes(runs[index])) { $("filters").reset(); select(); }
  if (!sections.has(index) || !sections.get(index).isConnected) { everything = true; list(); }
  const details = detailsOf(runs[index]);
  details.open = true;
  if (details.children.length === 1) details.append(section(runs[index]));
  details.scrollIntoView();
  details.querySelector("summary").focus({ preventScroll: true });
}
function follow() {
  const found = /^#run-(\d+)$/.exec(location.hash);
  if (found && runs[Number(found[1])]) open(Number(found[1]));
}

/* Two runs. */
const SCORES = [
  ["Test accuracy, %", (r) => r.accuracy, (v) => percent(v), 100, 2],
  ["Top-5 accuracy, %", (r) => r.top5, (v) => percent(v), 100, 2],
  ["Test accuracy at the best validation, %", (r) => r.accuracy_at_best_validation, (v) => percent(v), 100, 2],
  ["Sparsity, nominal, %", (r) => r.sparsity, sparse, 100, 3],
  ["Sparsity, effective, %", (r) => r.effective_sparsity, sparse, 100, 3],
  ["Weights left", (r) => r.kept, count, 1, 0],
  ["Weights on a path", (r) => r.effective, count, 1, 0],
  ["Dead layers", (r) => (r.layers.length ? r.layers.filter((layer) => !layer[3]).length : null), count, 1, 0],
  ["FLOPs left, %", (r) => share(r.flops_effective, r.flops_dense), (v) => (known(v) ? short(100 * v) : "–"), 100, 2],
  ["Saliency after the last round", (r) => r.series.prune?.saliency.at(-1), short, 1, 3],
  ["Pruning, s", (r) => r.seconds.prune, short, 1, 2],
  ["Training, s", (r) => r.seconds.train, short, 1, 2],
];
let onlyDifferences = true;
function compare() {
  const a = runs[Number($("run-a").value)], b = runs[Number($("run-b").value)];
  const head = (last) => h("thead", {}, h("tr", {}, ["", "A", "B", ...last].map((name, index) => h("th", { scope: "col", class: index && last.length ? "plain number" : "plain" }, name || h("span", { class: "quiet" }, "what")))));
  const scores = SCORES.filter(([, value]) => known(value(a)) || known(value(b))).map(([name, value, say, scale, digits]) => {
    const delta = known(value(a)) && known(value(b)) ? scale * (value(b) - value(a)) : null;
    const told = delta === null ? "–" : Math.abs(delta) < 0.5 * 10 ** -digits ? "0" : (delta > 0 ? "+" : "−") + Math.abs(delta).toLocaleString("en-GB", { maximumFractionDigits: digits });
    return h("tr", {}, h("th", { scope: "row" }, name), [say(value(a)), say(value(b)), told].map((text) => h("td", { class: "number" }, text)));
  });
  const names = data.settings.filter((name) => known(setting(a, name)) || known(setting(b, name)));
  const differs = (name) => setting(a, name) !== setting(b, name);
  const rows = names.filter((name) => !onlyDifferences || differs(name)).map((name) => h("tr", { class: differs(name) ? "differs" : null },
    h("th", { scope: "row" }, spoken(name), differs(name) ? h("span", { class: "quiet" }, " (differs)") : null), [a, b].map((run) => h("td", { class: "mono" }, known(setting(run, name)) ? String(setting(run, name)) : "–"))));
  const check = h("input", { type: "checkbox", id: "only", onchange: (event) => { onlyDifferences = event.target.checked; compare(); $("only").focus(); } });
  check.checked = onlyDifferences;
  const apart = names.filter(differs).length;
  const charts = a === b ? [] : [layersChart([a, b]), ...roundCharts([a, b]), ...trainCharts([a, b])].filter(Boolean);
  const side = (run, letter) => h("div", { class: "card" }, h("h3", {}, h("span", { class: "letter" }, letter), " ", swatch(setting(run, "method"))), h("p", { class: "hint" }, h("a", { href: `#run-${run.index}` }, describe(run))), words(run));
  $("comparison").replaceChildren(
    ...(a === b ? [h("p", { class: "hint" }, "A and B are the same run; choose another one to see differences.")] : []),
    h("div", { class: "side" }, side(a, "A"), side(b, "B")),
    h("div", { class: "side" },
      h("div", { class: "card" }, h("h3", {}, "Results"), scores.length ? h("table", {}, head(["B − A"]), h("tbody", {}, scores)) : h("p", { class: "hint" }, "Neither has any yet.")),
      h("div", { class: "card" }, h("div", { class: "bar" }, h("h3", {}, apart ? `Settings: ${plural(apart, "difference")}` : "Settings: no difference"), h("label", { class: "check" }, check, "differences only")),
        rows.length ? h("table", { class: "settings" }, head([]), h("tbody", {}, rows)) : null)),
    ...(charts.length ? [h("div", { class: "card" }, h("div", { class: "grid" }, charts))] : []));
}
function pair() {
  const options = () => runs.map((run) => h("option", { value: run.index }, describe(run)));
  $("run-a").replaceChildren(...options());
  $("run-b").replaceChildren(...options());
  const pruned = runs.filter((run) => run.layers.length && run.status === "done"), a = pruned[0] || runs[0];
  const b = pruned.find((run) => setting(run, "method") !== setting(a, "method") && setting(run, "sparsity") === setting(a, "sparsity"))
    || pruned.find((run) => run !== a) || runs.find((run) => run !== a) || a;
  $("run-a").value = String(a.index);
  $("run-b").value = String(b.index);
}

/* Light and dark. */
const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function theme() { $("theme").setAttribute("aria-pressed", String(dark())); $("theme").textContent = dark() ? "Light" : "Dark"; $("theme").setAttribute("aria-label", dark() ? "Use light colours" : "Use dark colours"); }
try { const kept = localStorage.getItem("barebones-theme"); if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept; } catch { /* a page from a file may have no storage */ }
$("theme").addEventListener("click", () => {
  const wanted = dark() ? "light" : "dark";
  document.documentElement.dataset.theme = wanted;
  try { localStorage.setItem("barebones-theme", wanted); } catch { /* as above */ }
  theme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);

/* Begin. */
$("title").textContent = data.title;
const states = {};
for (const run of runs) states[run.status] = (states[run.status] || 0) + 1;
$("summary").textContent = `${plural(runs.length, "run")}: ${stateText(states)}.`;
const troubled = runs.filter((run) => run.status === "failed" || run.status === "unreadable" || run.problems.length);
if (troubled.length) $("troubles").append(h("div", { class: "word bad" }, `${plural(troubled.length, "run")} failed or cannot be read in full:`,
  h("ul", {}, troubled.slice(0, 8).map((run) => h("li", {}, h("a", { href: `#run-${run.index}` }, describe(run)), ` – ${(run.words.find(([kind]) => kind === "bad") || ["", run.status])[1]}`)),
    troubled.length > 8 ? h("li", {}, `and ${troubled.length - 8} more; search for “failed” or “unreadable”`) : null)));
$("made").textContent = `Made by barebones ${data.version}. The page holds everything it shows and needs no network.`;
for (const name of METHOD_KEYS) { choices(name); $(`by-${name}`).addEventListener("change", select); }
let waiting = 0;
/* Typing is let finish; leaving the field is not, or the charts would be redrawn under the focus that went to them. */
const sift = () => { if (!waiting) return; clearTimeout(waiting); waiting = 0; select(); };
$("text").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(sift, 120); });
$("text").addEventListener("change", sift);
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("reset", () => setTimeout(select));
for (const radio of document.querySelectorAll("input[name=rows]")) radio.addEventListener("change", () => { table(); });
$("run-a").addEventListener("change", compare);
$("run-b").addEventListener("change", compare);
$("swap").addEventListener("click", () => { [$("run-a").value, $("run-b").value] = [$("run-b").value, $("run-a").value]; compare(); });
document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href^='#run-']");
  if (anchor && anchor.getAttribute("href") === location.hash) follow();
});
addEventListener("hashchange", follow);
theme();
pair();
select();
compare();
follow();
document.documentElement.dataset.ready = "true";
})();
