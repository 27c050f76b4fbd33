/* Charts: Plotly draws each when it comes into view, in the page's colors. */
const plotly = (async () => {
  const source = await unpacked("library");
  for (const [, id] of source.matchAll(/getElementById\("([0-9a-f]{64})"\)/g)) document.head.append(h("template", { id })); // its style of maps, which the page's policy forbids
  document.head.append(h("script", {}, source));
  return window.Plotly;
})();
const safe = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;"); // Plotly reads tags in texts
const coarse = matchMedia("(pointer: coarse)").matches; // a finger scrolls the page, so it does not zoom
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting && !target.data) draw(target);
}, { rootMargin: "400px" });
function drawAgain() {
  for (const plot of document.querySelectorAll(".plot")) if (plot.data) draw(plot);
}

/* A chart of lines {name, look, dash, symbol, points: [{x, y, off, symbol, says}]}: `off` is the deviation, and `says` is what a point tells.
   The axes x and y are Plotly's. In a unified chart, one box tells the points of all lines. */
function chart(title, x, y, lines, unified) {
  const plot = h("div", { class: "plot", role: "img", "aria-label": title });
  plot.spec = { title, x, y, lines, unified: unified && lines.length <= 12 };
  seen.observe(plot);
  return h("figure", {}, h("h4", {}, title), plot);
}
function traces({ name, look, dash, symbol, points }) {
  const color = dark() ? look.dark : look.light, column = (read) => points.map(read), spread = points.some((point) => point.off);
  const shared = { name: safe(name), legendgroup: safe(name), x: column((point) => point.x) };
  const edge = (sign) => ({ ...shared, y: column((point) => point.y + sign * (point.off ?? 0)), mode: "lines", line: { color, width: 0 }, hoverinfo: "skip", showlegend: false });
  const main = {
    ...shared, y: column((point) => point.y), text: column((point) => safe(point.says).replaceAll("\n", "<br>")), hovertemplate: "%{text}<extra></extra>",
    mode: symbol ? "lines+markers" : "lines", line: { color, dash, width: 2 }, marker: { color, size: 9, symbol: column((point) => point.symbol ?? symbol) },
    error_y: { visible: spread && points.length === 1, type: "data", array: column((point) => point.off ?? 0), color, thickness: 1.25, width: 0 },
  };
  return spread && points.length > 1 ? [edge(1), { ...edge(-1), fill: "tonexty", fillcolor: /^#\w{6}$/.test(color) ? `${color}2a` : null }, main] : [main];
}
/* An axis for positive values: logarithmic if they spread far, with labels at 1, 2 and 5 where there is room. */
function axisOf(text, values, log = Math.max(...values) > 30 * Math.min(...values)) {
  const ticks = Math.max(...values) > 300 * Math.min(...values) ? { nticks: 6 } : { dtick: "D2" };
  return { title: { text }, ...(log ? { type: "log", tickformat: "~g", ...ticks } : {}) };
}
async function draw(plot) {
  const { title, x, y, lines, unified } = plot.spec, library = await plotly;
  if (!plot.isConnected) return;
  const { color, backgroundColor, fontFamily } = getComputedStyle(plot), ink = getComputedStyle(document.body).color;
  const rows = lines.length > 1 ? Math.ceil(lines.length / Math.max(1, Math.floor(plot.clientWidth / 170))) : 0; // of the legend
  const axis = (more) => ({ gridcolor: "rgba(128,128,128,.2)", zeroline: false, automargin: true, exponentformat: "power", fixedrange: coarse, ...more });
  await library.react(plot, lines.flatMap(traces), {
    paper_bgcolor: backgroundColor, plot_bgcolor: backgroundColor, font: { family: fontFamily, size: 12, color }, height: 300 + 20 * rows, margin: { l: 48, r: 12, t: 10, b: 40 },
    xaxis: axis({ showgrid: false, showline: true, linecolor: "rgba(128,128,128,.5)", ...x }), yaxis: axis(y), dragmode: coarse ? false : "zoom",
    showlegend: rows > 0, legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
    hovermode: unified ? "x unified" : "closest", hoverlabel: { bgcolor: backgroundColor, bordercolor: color, font: { color: ink }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color, activecolor: ink },
  }, { displaylogo: false, responsive: true, toImageButtonOptions: { format: "svg", filename: title }, modeBarButtonsToRemove: ["pan2d", "select2d", "lasso2d", "autoScale2d"] });
}
