/* The theme, and what happens when the page is loaded. */
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
$("made").textContent = `Made by barebones ${data.version}. This page is self-contained and needs no network.`;
$("text").placeholder = example();
for (const name of METHOD_KEYS) { choices(name); $(`by-${name}`).addEventListener("change", select); }
let waiting = 0;
/* Filter when typing pauses. Leaving the field filters at once, or the charts would be redrawn while they have the focus. */
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
