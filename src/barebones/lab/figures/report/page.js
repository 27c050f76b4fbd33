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
const plural = (number, noun) => `${number.toLocaleString("en-GB")} ${noun}${number === 1 ? "" : "s"}`;
const spoken = (name) => name.replaceAll("_", "-");
const label = (name) => name.replace(/\.weight$/, "");

/* Light and dark; a printed page is light. */
const dark = () => !matchMedia("print").matches && (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

/* How a method looks, as Python says: one colour for light pages, one for dark ones. A group has its own marker and dashes. */
const looks = new Map(Object.entries(data.looks));
const lookOf = (method) => looks.get(method) ?? looks.get("");
const colour = (method) => ({ "--c": lookOf(method).light, "--d": lookOf(method).dark });
const INK = { light: "#000000", dark: "#f4f4f4" };
const glyph = (mark, colours) => h("span", { class: "glyph m", "data-mark": mark, ...colours });
const swatch = (method, mark = lookOf(method).glyph) => h("span", { class: "swatch" }, glyph(mark, colour(method)), method ?? "unknown");
