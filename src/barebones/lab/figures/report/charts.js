/* Charts. Plotly draws them; this file loads it and adds the page's colours, a legend of buttons, the arrow keys and downloads. */
const plotly = (async () => {
  const source = await unpacked("library");
  for (const [, id] of source.matchAll(/getElementById\("([0-9a-f]{64})"\)/g)) document.head.append(h("template", { id })); // its style of maps, which the page's policy forbids
  document.head.append(h("script", {}, source));
  return window.Plotly;
})();
const safe = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;"); // Plotly reads tags in texts
const shade = ({ light, dark: night }) => (dark() ? night : light);
const coarse = matchMedia("(pointer: coarse)").matches; // a finger scrolls the page, so it does not zoom

/* A chart of lines {name, look, dash, symbol, points: [{x, y, off, title, says, hollow}], joined, banded, bar, faint}: `off` is the deviation,
   and `says` is what a point tells. x and y are Plotly's axes. The lines named in `hidden` are not drawn; the legend's buttons change that. */
function chart(spec) {
  const plot = h("div", { class: "plot", tabindex: 0, role: "img", "aria-label": `${spec.label}. Use the arrow keys to read its numbers.` });
  Object.assign(plot, { spec: { hidden: new Set(), ...spec }, at: -1 });
  plot.addEventListener("keydown", (event) => { if (event.target === plot) walk(plot, event); });
  plot.addEventListener("blur", () => hover(plot, -1));
  sizes.observe(plot);
  const keys = spec.keys === false || spec.lines.length < 2 ? null : legend(spec.lines, plot.spec.hidden, () => draw(plot));
  return h("figure", { class: spec.class }, h("figcaption", {}, h("h4", {}, spec.title), spec.note ? h("span", { class: "hint" }, spec.note) : null, spec.extra), keys, plot);
}
const sizes = new ResizeObserver((entries) => { for (const { target } of entries) if (target.clientWidth && target.drawn !== `${target.clientWidth} ${dark()}`) draw(target); });
const redraw = () => { for (const plot of document.querySelectorAll(".plot")) if (plot.clientWidth) draw(plot); };

function tracesOf(line, { hidden, unified }) {
  const colour = shade(line.look), { points } = line, named = { name: safe(line.name), legendgroup: safe(line.name), visible: !hidden.has(line.name) };
  const column = (read) => points.map(read), dash = line.dash ?? "solid", spread = points.some((point) => point.off);
  const banded = line.banded && spread && points.length > 1, edge = { ...named, x: column((p) => p.x), mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
  const main = { ...named, x: edge.x, y: column((p) => p.y), customdata: column((p) => [p.title, ...p.says]), connectgaps: Boolean(line.gaps),
    text: column((p) => (unified ? [] : [p.title]).concat(p.says).map(safe).join("<br>")), hovertemplate: "%{text}<extra></extra>" };
  if (line.bar) return [{ ...main, type: "bar", textposition: "none", marker: { color: colour, opacity: line.faint ? 0.3 : 1 } }];
  return [...(banded ? [{ ...edge, y: column((p) => p.y + (p.off ?? 0)) }, { ...edge, y: column((p) => p.y - (p.off ?? 0)), fill: "tonexty", fillcolor: /^#\w{6}$/.test(colour) ? `${colour}22` : "rgba(128,128,128,.15)" }] : []),
    { ...main, mode: [line.joined ? "lines" : "", line.symbol ? "markers" : ""].filter(Boolean).join("+") || "markers", line: { color: colour, dash, width: line.wide ? 3 : 2 },
      marker: { color: colour, symbol: column((p) => (line.symbol ?? "circle") + (p.hollow ? "-open" : "")), size: line.size ?? 10, line: { color: colour, width: 1 } },
      error_y: { visible: spread && !banded, type: "data", array: column((p) => p.off ?? 0), color: colour, thickness: 1.25, width: 0 } }];
}
/* A logarithmic axis whose ticks are whole numbers in full, at 1, 2 and 5 where there is room. */
const logAxis = (values) => ({ type: "log", tickformat: "~g", ...(Math.max(...values) < 100 * Math.min(...values) ? { dtick: "D2" } : { nticks: 6 }) });
async function draw(plot) {
  const { spec } = plot, width = plot.clientWidth;
  plot.drawn = `${width} ${dark()}`;
  const library = await plotly;
  if (!plot.isConnected) { plot.drawn = null; return; }
  const { color, backgroundColor, fontFamily } = getComputedStyle(plot), ink = getComputedStyle(document.body).color;
  const axis = (name, { title, ...more }) => ({ gridcolor: "rgba(128,128,128,.2)", linecolor: "rgba(128,128,128,.5)", zeroline: false, automargin: true, exponentformat: "e", minexponent: 5, 
    title: { text: safe(title), standoff: 8 }, fixedrange: coarse, ...(name === "x" ? { showgrid: false, showline: true, ticks: "outside", tickcolor: "rgba(128,128,128,.5)" } : {}), ...more });
  await library.react(plot, spec.lines.flatMap((line) => tracesOf(line, spec)), {
    paper_bgcolor: backgroundColor, plot_bgcolor: backgroundColor, font: { family: fontFamily, size: 12, color }, height: plot.clientHeight, margin: { l: 48, r: 12, t: 30, b: 40 },
    xaxis: axis("x", typeof spec.x === "function" ? spec.x(width) : spec.x), yaxis: axis("y", spec.y), showlegend: false, barmode: "overlay", bargap: 0.25, dragmode: coarse ? false : "zoom",
    hovermode: spec.unified && spec.lines.length <= 12 ? "x unified" : "closest", hoverlabel: { bgcolor: backgroundColor, bordercolor: color, font: { color: ink, family: fontFamily }, align: "left", namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color, activecolor: ink },
  }, { displaylogo: false, displayModeBar: true, scrollZoom: false, doubleClick: "reset+autosize", modeBarButtons: [[...["PNG", "SVG"].map((kind) => ({
    name: kind, title: `Save as ${kind}`, icon: library.Icons[kind === "PNG" ? "camera" : "disk"], click: () => savePicture(plot, kind.toLowerCase()) }))],
  coarse ? ["resetScale2d"] : ["zoomIn2d", "zoomOut2d", "resetScale2d"]] });
  for (const button of plot.querySelectorAll(".modebar-btn")) button.tabIndex = -1; // the keys of the chart do the same
}

/* A button for each line, which hides it and shows it again. */
function legend(lines, hidden, changed) {
  return h("ul", { class: "legend" }, lines.filter((line) => line.key !== false).map((line) => {
    const button = h("button", { type: "button", class: "toggle", "aria-pressed": String(!hidden.has(line.name)), title: "Hide or show it in the chart", onclick: () => {
      hidden.has(line.name) ? hidden.delete(line.name) : hidden.add(line.name);
      button.setAttribute("aria-pressed", String(!hidden.has(line.name)));
      changed();
    } }, glyph(line.glyph ?? (DASH_GLYPHS[line.dash] ?? "━"), { "--c": line.look.light, "--d": line.look.dark }), line.name);
    return h("li", {}, button);
  }));
}
const DASH_GLYPHS = { dash: "╍", dot: "┅", dashdot: "╌", longdash: "╍", longdashdot: "┉" };

/* The arrow keys go through the points from left to right, and the page speaks their numbers. */
function stopsOf(plot) {
  const stops = [];
  (plot.data ?? []).forEach((trace, curveNumber) => trace.customdata && trace.visible !== false && trace.x.forEach((x, pointNumber) => {
    if (known(trace.y[pointNumber])) stops.push({ x, y: trace.y[pointNumber], points: [{ curveNumber, pointNumber }], words: trace.customdata[pointNumber] });
  }));
  stops.sort((a, b) => a.x - b.x || a.y - b.y);
  if (!plot.spec.unified) return stops;
  const byX = new Map();
  for (const stop of stops) byX.set(stop.x, { points: [...(byX.get(stop.x)?.points ?? []), ...stop.points], words: [...(byX.get(stop.x)?.words ?? [stop.words[0]]), ...stop.words.slice(1)] });
  return [...byX.values()];
}
async function hover(plot, at) {
  const library = await plotly, stops = stopsOf(plot);
  plot.at = Math.min(at, stops.length - 1);
  if (plot.at < 0) { if (plot._fullLayout) library.Fx.unhover(plot); return; }
  library.Fx.hover(plot, stops[plot.at].points);
  $("live").textContent = stops[plot.at].words.join(", ");
}
const KEYS = { "+": "Zoom in", "-": "Zoom out", 0: "Reset axes", p: "Save as PNG", s: "Save as SVG" };
function walk(plot, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in KEYS) plot.querySelector(`.modebar-btn[data-title="${KEYS[event.key]}"]`)?.click();
  const at = { ArrowRight: plot.at + 1, ArrowUp: plot.at + 1, ArrowLeft: Math.max(0, plot.at - 1), ArrowDown: Math.max(0, plot.at - 1), Home: 0, End: Infinity, Escape: -1 }[event.key];
  if (at === undefined) return;
  event.preventDefault();
  hover(plot, at);
}

/* Files that the page writes. */
function save(name, address) { h("a", { href: address, download: name.replace(/[^\w.-]+/g, "-").slice(0, 80) }).click(); }
async function savePicture(plot, kind) {
  const library = await plotly, width = Math.max(640, plot.clientWidth), { spec } = plot, shown = spec.lines.filter((line) => line.key !== false && !spec.hidden.has(line.name)).length;
  const height = plot.clientHeight + 70 + 22 * Math.ceil(shown / 3);
  const layout = { ...plot.layout, width, height, showlegend: shown > 1, title: { text: safe(spec.label), font: { size: 14 } }, margin: { ...plot.layout.margin, t: 50 }, legend: { orientation: "h", y: -0.25, yanchor: "top" } };
  const svg = await library.toImage({ data: plot.data, layout }, { format: "svg", width, height });
  if (kind === "svg") return save(`${spec.label}.svg`, svg);
  const image = new Image(), canvas = h("canvas", { width: 2 * width, height: 2 * height });
  image.src = svg;
  await image.decode();
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  save(`${spec.label}.png`, canvas.toDataURL("image/png"));
}
