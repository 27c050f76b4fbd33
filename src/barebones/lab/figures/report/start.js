/* The theme, the address, and what happens when the page is loaded. */
function theme() {
  $("theme").setAttribute("aria-pressed", String(dark()));
  $("theme").textContent = dark() ? "Light" : "Dark";
  drawAgain();
}
$("theme").addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  theme();
  remember();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);

/* The address holds what the reader chose. A run is named by its folder. */
const runOf = (folder) => runs.find((run) => run.folder === folder);
const read = () => ({
  q: $("text").value.trim(), ...Object.fromEntries(CHOICES.map((name) => [name, $(`by-${name}`).value])), theme: root.dataset.theme ?? "",
  rows: single() ? "runs" : "groups", sort: sorting, ticks: [...ticked].map((index) => runs[index].folder).join("\n"), run: opened.folder,
});
let usual = null; // what the page shows at first
function remember() {
  if (usual) history.replaceState(null, "", `#${new URLSearchParams(Object.entries(read()).filter(([name, value]) => value !== usual[name]))}`);
}
function recall() {
  const state = { ...usual, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
  $("text").value = state.q;
  for (const name of CHOICES) {
    $(`by-${name}`).value = state[name];
    if ($(`by-${name}`).selectedIndex < 0) $(`by-${name}`).value = "";
  }
  $("single").checked = state.rows === "runs";
  if (["dark", "light"].includes(state.theme)) root.dataset.theme = state.theme;
  sorting = state.sort;
  ticked.clear();
  for (const id of state.ticks.split("\n")) if (runOf(id)) ticked.add(runOf(id).index);
  show(runOf(state.run) ?? opened);
  compare();
  select();
  theme();
}
document.addEventListener("click", (event) => { // links within the page keep the rest of the address
  const anchor = event.target.closest("a[href^='#']"), run = anchor && runOf(new URLSearchParams(anchor.hash.slice(1)).get("run"));
  if (!anchor) return;
  event.preventDefault();
  if (run) show(run);
  const target = run ? $("run") : $(anchor.hash.slice(1));
  target.scrollIntoView();
  target.focus({ preventScroll: true });
  remember();
});
addEventListener("hashchange", recall);

/* While a command watches the runs, the page loads itself anew, unless somebody is using it. */
if (data.refresh) {
  let touched = 0;
  for (const kind of ["pointerdown", "pointermove", "keydown", "wheel", "scroll"]) addEventListener(kind, () => { touched = Date.now(); }, { passive: true });
  setInterval(() => { if (!document.hidden && Date.now() - touched > 3000) location.reload(); }, 1000 * data.refresh);
}

/* Begin. */
$("title").textContent = data.title;
$("summary").textContent = `${plural(runs.length, "run")}: ${stateText(rowOf({}, runs).states)}.`;
const troubled = runs.filter((run) => ["failed", "unreadable"].includes(run.status) || run.problems.length);
if (troubled.length) $("troubles").append(h("div", { class: "word bad" }, `${plural(troubled.length, "run")} failed or cannot be read in full:`,
  h("ul", {}, troubled.slice(0, 8).map((run) => h("li", {}, link(run, describe(run)), ` – ${(run.words.find(([kind]) => kind === "bad") ?? ["", run.status])[1]}`))),
  troubled.length > 8 ? "Search for “failed” or “unreadable” to see the others." : ""));
$("made").textContent = `Made by barebones ${data.version}. This page is self-contained and needs no network.`;
for (const name of CHOICES) {
  const values = [...new Set(runs.map((run) => setting(run, name)).filter(known))].sort();
  $(`by-${name}`).replaceChildren(h("option", { value: "" }, "all"), ...values.map((value) => h("option", { value }, value)));
}
let waiting = 0;
$("filters").addEventListener("input", () => { // select when typing pauses
  clearTimeout(waiting);
  waiting = setTimeout(select, 120);
});
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("reset", () => setTimeout(select));
$("single").addEventListener("change", () => {
  table();
  compare();
  remember();
});
const finished = inGroups(runs).filter((row) => row.members[0].layers.length && known(row.accuracy));
const [alike] = [...Map.groupBy(finished, (row) => JSON.stringify(row.panel)).values()].sort((a, b) => b.length - a.length);
for (const row of alike?.slice(0, 2) ?? []) for (const run of row.members) ticked.add(run.index);
opened = alike?.[0].members[0] ?? runs[0];
usual = read();
recall();
root.dataset.ready = "true";
