/* Drawing: elements, numbers in words, scales, and the chart with its frame that all others use. */
const data = JSON.parse(document.getElementById("data").textContent);
const { runs, groups } = data;
for (const run of runs) run.layers = run.layers.map(([name, shape, total, kept, effective]) => ({ name, shape, total, kept, effective }));
const $ = (id) => document.getElementById(id);

/* Elements. Text is always a text node, so nothing from a run folder can become markup. */
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

/* Numbers as text. */
const known = (value) => value !== null && value !== undefined;
const count = (value) => (known(value) ? Math.round(value).toLocaleString("en-GB") : "–");
const tidy = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
const percent = (share, digits = 2) => (known(share) ? (100 * share).toFixed(digits) : "–");
const nominal = (share) => (known(share) ? tidy((100 * share).toFixed(8)) : "–"); // as it was set
const sparse = (share) => (known(share) ? tidy((100 * share).toFixed(share < 1 ? Math.max(2, 2 - Math.floor(Math.log10(100 - 100 * share))) : 0)) : "–"); // as it was counted
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

/* How a method looks, as Python says: one colour for light pages, one for dark ones, and a marker. */
const looks = new Map(Object.entries(data.looks));
const lookOf = (method) => looks.get(method) ?? looks.get("");
const colour = (method) => ({ "--c": lookOf(method).light, "--d": lookOf(method).dark });
const marker = (method) => lookOf(method).marker;

/* The outline of a marker about 2r wide, named by Matplotlib's letter. */
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
const swatch = (method, kind = marker(method)) => h("span", { class: "swatch" },
  s("svg", { width: 12, height: 12, class: "m", "aria-hidden": "true", ...colour(method) },
    s("path", { d: outline(kind, 6, 6, 4.4), class: "mark" })), method ?? "unknown");

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

/* A chart: an SVG as wide as its container. Hovering and the arrow keys show the numbers. */
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
  ? h("button", { type: "button", class: "toggle", "aria-pressed": String(!line.off), title: line.off ? "Show it in the charts" : "Hide it in the charts", onclick: line.toggle }, key(line), line.name)
  : [key(line), line.name])));

/* The frame of a chart: horizontal rules, and both axes with their units. */
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
    if (taken.some(([at, width]) => Math.abs(at - px(tick)) < width + half)) continue;
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
  const { ticks } = nice(low * 100, high * 100, 5);
  return { domain: [low * 100, high * 100], ticks, format: (tick) => tidy(tick.toFixed(4)) };
}
const path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
