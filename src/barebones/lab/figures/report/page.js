/* Elements, numbers in words, and how methods look. */
const $ = (id) => document.getElementById(id);
async function unpacked(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
if (!window.DecompressionStream) $("troubles").textContent = "This page needs a browser of 2024 or later.";
const data = JSON.parse(await unpacked("data"));
const { runs, groups } = data;
for (const run of runs) run.layers = run.layers.map(([name, shape, total, kept, effective]) => ({ name, shape, total, kept, effective }));
const groupOf = [];
for (const g of groups) for (const index of g.runs) groupOf[index] = g;
const setting = (run, name) => run.settings?.[name] ?? null;

/* Elements. Text is always a text node, so nothing from a run folder can become markup. */
function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else node.setAttribute(name, value);
  }
  node.append(...children.flat(4).filter(known));
  return node;
}
/* A table of texts: its first column names the rows, and the columns after `words` hold numbers. */
function tableOf(heads, rows, words = 1) {
  const kind = (at) => (at >= words ? "number" : null);
  const line = (cells, scope) => h("tr", {}, cells.map((cell, at) => h(scope === "col" || !at ? "th" : "td", { class: kind(at), scope: at ? null : "row" }, cell)));
  return h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("thead", {}, line(heads, "col")), h("tbody", {}, rows.map((row) => line(row)))));
}

/* Numbers as text. */
function known(value) {
  return value !== null && value !== undefined;
}
const said = (write) => (value) => (known(value) ? write(value) : "–");
const withoutZeros = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
const count = said((value) => Math.round(value).toLocaleString("en-GB"));
const percent = said((share) => (100 * share).toFixed(2));
const nominal = said((share) => withoutZeros((100 * share).toFixed(8))); // as it was set
const sparse = said((share) => withoutZeros((100 * share).toFixed(share < 1 ? Math.max(2, 2 - Math.floor(Math.log10(100 - 100 * share))) : 0))); // as it was counted
const short = said((value) => (value && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3) ? value.toExponential(2).replace("e+", "e") : withoutZeros(value.toPrecision(4))));
const seconds = said((value) => {
  if (value < 120) return `${value.toFixed(value < 0.1 ? 3 : value < 10 ? 2 : 0)} s`;
  return value < 7200 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
});
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const spoken = (name) => name.replaceAll("_", "-");

/* Means over seeds: each seed counts once, so a copied run folder changes nothing. */
const bySeed = (members, read) => [...new Map(members.filter((run) => known(read(run))).reverse().map((run) => [setting(run, "seed"), read(run)])).values()];
const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);
const deviation = (values) => (values.length > 1 ? Math.sqrt(values.reduce((sum, value) => sum + (value - mean(values)) ** 2, 0) / (values.length - 1)) : null);

/* Light and dark: as the reader chose, or else as the system is. */
const root = document.documentElement;
const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

/* How a method looks, as Python says: one color for light pages, one for dark ones. A group has its own marker and dashes. */
const looks = new Map(Object.entries(data.looks));
const lookOf = (method) => looks.get(method) ?? looks.get("");
const labelOf = (method) => lookOf(method).label || method;
const swatch = (g, text = labelOf(g.method) ?? "unknown") => [h("span", { class: "glyph", "data-mark": g.glyph, "--c": lookOf(g.method).light, "--d": lookOf(g.method).dark }), h("span", {}, text)];
