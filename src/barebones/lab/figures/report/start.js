/* The theme, the address, and what happens when the page is loaded. */
function theme() {
  $("theme").setAttribute("aria-pressed", String(dark()));
  $("theme").textContent = dark() ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", dark() ? "Use light colours" : "Use dark colours");
  if (document.documentElement.dataset.ready) redraw();
}
const stored = (name, value) => { try { return value === undefined ? localStorage.getItem(name) : localStorage.setItem(name, value); } catch { return null; } }; // a page from a file may have no storage
if (["dark", "light"].includes(stored("barebones-theme"))) document.documentElement.dataset.theme = stored("barebones-theme");
$("theme").addEventListener("click", () => { stored("barebones-theme", document.documentElement.dataset.theme = dark() ? "light" : "dark"); theme(); });
for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", theme);

/* The address holds what the reader chose. A run is named by the hash in its folder's name, which other runs do not change. */
const hashes = runs.map((run) => /-([0-9a-f]{10})$/.exec(run.folder)?.[1] ?? run.folder), uses = new Map();
for (const hash of hashes) uses.set(hash, (uses.get(hash) ?? 0) + 1);
function idOf(run) { return uses.get(hashes[run.index]) === 1 ? hashes[run.index] : run.folder; }
const runOf = (id) => runs.find((run) => idOf(run) === id);
const usual = {}; // what the controls show at first
const read = () => ({
  q: $("text").value.trim(), ...Object.fromEntries(METHOD_KEYS.map((name) => [name, $(`by-${name}`).value && JSON.parse($(`by-${name}`).value)])), rows: rowsOf(),
  sort: sorting.by ? (sorting.down ? "-" : "") + sorting.by : "", draw: [...chosen].map((index) => idOf(runs[index])).join(" "),
  pin: $("pin").value && idOf(runs[groups[Number($("pin").value)].runs[0]]), a: idOf(runs[Number($("run-a").value)]), b: idOf(runs[Number($("run-b").value)]), run: opened ? idOf(opened) : "",
});
function remember() {
  if (!document.documentElement.dataset.ready) return;
  const state = Object.entries(read()).filter(([name, value]) => value !== (usual[name] ?? ""));
  history.replaceState(null, "", `#${new URLSearchParams(state)}`);
}
function recall() {
  const state = { ...usual, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
  $("text").value = state.q;
  for (const name of METHOD_KEYS) { $(`by-${name}`).value = state[name] && JSON.stringify(state[name]); if ($(`by-${name}`).selectedIndex < 0) $(`by-${name}`).value = ""; }
  for (const radio of document.querySelectorAll("input[name=rows]")) radio.checked = radio.value === (state.rows === "runs" ? "runs" : "groups");
  sorting = { by: state.sort.replace(/^-/, "") || null, down: state.sort.startsWith("-") };
  chosen.clear();
  for (const id of state.draw.split(" ")) if (runOf(id)) chosen.add(runOf(id).index);
  $("pin").value = runOf(state.pin) ? String(groupOf[runOf(state.pin).index].index) : "";
  for (const which of ["a", "b"]) if (runOf(state[which])) $(`run-${which}`).value = String(runOf(state[which]).index);
  select();
  overlay();
  compare();
  const run = runOf(state.run);
  if (run) { opened = run; open(run.index); }
}
document.addEventListener("click", (event) => { // links within the page keep the rest of the address
  const anchor = event.target.closest?.("a[href^='#']"), run = anchor && runOf(new URLSearchParams(anchor.hash.slice(1)).get("run"));
  if (!anchor) return;
  event.preventDefault();
  if (run) { opened = run; open(run.index); remember(); } else { const target = $(anchor.hash.slice(1)); target?.scrollIntoView(); target?.focus({ preventScroll: true }); }
});
addEventListener("hashchange", recall);

/* While a command watches the runs, the page loads itself anew, unless somebody is using it. */
if (data.refresh) {
  let touched = 0;
  for (const kind of ["pointerdown", "pointermove", "keydown", "wheel", "scroll", "touchmove"]) addEventListener(kind, () => { touched = Date.now(); }, { passive: true });
  const pause = h("button", { type: "button", "aria-pressed": "false", title: `The page loads itself anew every ${data.refresh} seconds`, onclick: () => pause.setAttribute("aria-pressed", String(pause.getAttribute("aria-pressed") === "false")) }, "Pause");
  $("theme").before(pause);
  setInterval(() => { if (pause.getAttribute("aria-pressed") === "false" && !document.hidden && Date.now() - touched > 3000) location.reload(); }, 1000 * data.refresh);
}

/* Begin. */
$("title").textContent = data.title;
const states = {};
for (const run of runs) states[run.status] = (states[run.status] || 0) + 1;
$("summary").textContent = `${plural(runs.length, "run")}: ${stateText(states)}.`;
const troubled = runs.filter((run) => run.status === "failed" || run.status === "unreadable" || run.problems.length);
if (troubled.length) $("troubles").append(h("div", { class: "word bad" }, `${plural(troubled.length, "run")} failed or cannot be read in full:`,
  h("ul", {}, troubled.slice(0, 8).map((run) => h("li", {}, link(run.index, describe(run)), ` – ${(run.words.find(([kind]) => kind === "bad") || ["", run.status])[1]}`)),
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
for (const radio of document.querySelectorAll("input[name=rows]")) radio.addEventListener("change", () => { table(); remember(); });
$("csv").addEventListener("click", () => saveText(`${data.title}.csv`, csv(), "text/csv"));
$("latex").addEventListener("click", () => saveText(`${data.title}.tex`, latex(), "text/x-tex"));
$("pin").append(h("option", { value: "" }, "none"), ...groups.filter((g) => known(g.method)).map((g) => h("option", { value: g.index }, `${titleOf(g)}, ${g.model} on ${g.data}${g.protocol ? `, ${g.protocol}` : ""}`)));
$("pin").addEventListener("change", () => { select(); overlay(); });
$("draw-all").addEventListener("click", () => { for (const run of shownRuns) chosen.add(run.index); table(); overlay(); remember(); });
$("draw-none").addEventListener("click", () => { chosen.clear(); table(); overlay(); remember(); });
const compareAnew = () => { compare(); remember(); };
for (const id of ["run-a", "run-b"]) $(id).addEventListener("change", compareAnew);
$("swap").addEventListener("click", () => { [$("run-a").value, $("run-b").value] = [$("run-b").value, $("run-a").value]; compareAnew(); });
pair();
Object.assign(usual, read());
recall();
theme();
document.documentElement.dataset.ready = "true";
