/* The overview: which runs are shown, the charts of accuracy against sparsity, and the table. */
const stateText = (states) => Object.entries(states).map(([state, number]) => `${number} ${state}`).join(", ");
/* A row of the table: a group with its members that are shown, or with one run, and the means over their seeds. */
function rowOf(g, members) {
  const over = (read) => mean(bySeed(members, read)), accuracies = bySeed(members, (run) => run.accuracy), states = {};
  for (const run of members) states[run.status] = (states[run.status] ?? 0) + 1;
  return {
    ...g, members, states, seeds: accuracies.length, accuracy: mean(accuracies), deviation: deviation(accuracies), collapsed: members.filter((run) => run.collapsed.length).length,
    top5: over((run) => run.top5), effective: over((run) => run.effective_sparsity), prune: over((run) => run.seconds.prune), train: over((run) => run.seconds.train),
  };
}
const inGroups = (members) => groups.map((g) => rowOf(g, members.filter((run) => groupOf[run.index] === g))).filter((row) => row.members.length);
const single = () => $("single").checked; // a row for each run
const rowsOf = (members) => (single() ? members.map((run) => rowOf(groupOf[run.index], [run])) : inGroups(members));

/* The filter. */
const CHOICES = ["data", "model", "method"];
let shownRuns = runs;
function select() {
  const { test, problem } = search($("text").value);
  shownRuns = runs.filter((run) => test(run) && CHOICES.every((name) => ["", setting(run, name)].includes($(`by-${name}`).value)));
  $("text").setAttribute("aria-invalid", String(Boolean(problem)));
  $("count").textContent = problem || `${shownRuns.length} of ${plural(runs.length, "run")}.`;
  panels();
  table();
  remember();
}

/* Names. */
const titleOf = (row) => (known(row.method) ? [labelOf(row.method) + (row.dense ? "" : ` ${nominal(row.sparsity)} %`), row.line].filter(Boolean).join(", ") : runs[row.runs[0]].folder);
const placeOf = (row) => (known(row.model) ? [`${row.model} on ${row.data}`, row.protocol].filter(Boolean).join(", ") : "");
function describe(run) {
  const g = groupOf[run.index];
  return known(g.method) ? `${titleOf(g)}, seed ${setting(run, "seed")}, ${placeOf(g)}` : run.folder;
}
const accuracyText = (row) => percent(row.accuracy) + (known(row.deviation) ? ` ± ${percent(row.deviation)}` : "");

/* A panel for each network, data set and way of training: only such runs can be compared. */
const nines = (share) => -Math.log10(Math.max(1 - share, 1e-7));
function panels() {
  const byPanel = Map.groupBy(inGroups(shownRuns).filter((row) => row.panel && known(row.accuracy)), (row) => JSON.stringify(row.panel));
  $("panels").replaceChildren(...[...byPanel.values()].map(panel), byPanel.size ? "" : h("p", { class: "hint" }, "None of these runs is finished, so there is nothing to draw yet."));
}
function panel(rows) {
  const pruned = rows.filter((row) => !row.dense), shares = [...new Set(pruned.map((row) => row.sparsity))], at = shares.map(nines), range = at.length ? [Math.min(...at) - 0.15, Math.max(...at) + 0.15] : [0, 1];
  const nameOf = (row) => labelOf(row.method) + (row.line ? `, ${row.line}` : "");
  const point = (row, x) => ({ x, y: 100 * row.accuracy, off: 100 * (row.deviation ?? 0), symbol: row.collapsed ? `${row.symbol}-open` : row.symbol,
    says: `${titleOf(row)}\naccuracy ${accuracyText(row)} %\neffective sparsity ${sparse(row.effective)} %\n${plural(row.seeds, "seed")}${row.collapsed ? `, ${row.collapsed} collapsed` : ""}` });
  const lineOf = ([first], points) => ({ name: nameOf(first), look: lookOf(first.method), dash: first.dash, symbol: first.symbol, points });
  const lines = [...Map.groupBy(pruned, (row) => row.method + nameOf(row)).values()].map((line, place, { length }) => lineOf(line, line.map((row) => point(row, nines(row.sparsity) + (shares.length > 1 ? 0 : 0.03 * (place - (length - 1) / 2))))));
  /* With a single sparsity the marks stand side by side; the dense line goes from side to side. */
  const dense = rows.filter((row) => row.dense).map((row) => ({ ...lineOf([row], range.map((end) => point(row, end))), dash: "dash", symbol: null }));
  const x = { title: { text: "sparsity: prunable weights removed, %" }, range, tickvals: at, ticktext: shares.map(nominal) };
  return h("div", { class: "card" }, h("h3", {}, placeOf(rows[0])), chart(`Accuracy against sparsity, ${placeOf(rows[0])}`, x, { title: { text: "test accuracy, %" } }, [...lines, ...dense]));
}

/* The table. A column has a name, a value to sort by, and a cell. */
const ticked = new Set(); // the runs to compare
function tick(row) {
  const box = h("input", { type: "checkbox", "aria-label": `Compare ${titleOf(row)}`, onchange: () => {
    for (const run of row.members) box.checked ? ticked.add(run.index) : ticked.delete(run.index);
    compare();
    remember();
  } });
  const many = row.members.filter((run) => ticked.has(run.index)).length;
  return Object.assign(box, { checked: many > 0, indeterminate: many > 0 && many < row.members.length });
}
const STATE_KINDS = { done: "good", pruned: "good", unfinished: "warn" };
const badge = (kind, text) => h("span", { class: `badge ${kind}` }, text);
const stateCell = (row) => [Object.entries(row.states).map(([state, number]) => badge(STATE_KINDS[state] ?? "bad", row.members.length > 1 ? `${number} ${state}` : state)),
  row.collapsed ? badge("bad", row.members.length > 1 ? `${row.collapsed} collapsed` : "collapsed") : null,
  row.members.filter((run) => run.status === "unfinished" && run.state).map((run) => h("div", { class: "hint" }, run.state))];
const link = (run, text) => h("a", { href: `#${new URLSearchParams({ run: run.folder })}`, "aria-label": `Run ${describe(run)}` }, text);
const COLUMNS = [
  { name: "Method", value: (row) => row.method, cell: (row) => h("span", { class: "swatch" }, tick(row), ...swatch(row)) },
  { name: "Sparsity %", value: (row) => row.sparsity, cell: (row) => nominal(row.sparsity), number: true },
  { name: "State", value: (row) => stateText(row.states), cell: stateCell, wrap: true },
  { name: "Accuracy %", value: (row) => row.accuracy, cell: accuracyText, number: true },
  { name: "Top-5 %", value: (row) => row.top5, cell: (row) => percent(row.top5), number: true, only: runs.some((run) => known(run.top5)) },
  { name: "Effective %", value: (row) => row.effective, cell: (row) => sparse(row.effective), number: true },
  { name: "Data", value: (row) => row.data },
  { name: "Network", value: (row) => row.model },
  { name: "Settings", value: (row) => row.variant, wrap: true, only: groups.some((g) => g.variant) },
  { name: "Pruning", value: (row) => row.prune, cell: (row) => seconds(row.prune || null), number: true },
  { name: "Training", value: (row) => row.train, cell: (row) => seconds(row.train || null), number: true },
  { name: "Seeds", value: (row) => row.seeds, cell: (row) => h("span", { class: "seeds" }, row.members.map((run) => link(run, setting(run, "seed") ?? "open"))) },
].filter((column) => column.only ?? true);
let sorting = ""; // the name of a column, with a minus before it for the largest first
function sorted(rows) {
  const column = COLUMNS.find((each) => each.name === sorting.replace(/^-/, "")), sign = sorting.startsWith("-") ? -1 : 1;
  if (!column) return rows;
  const missing = (value) => !known(value) || value === ""; // comes last
  const order = (a, b) => (missing(a) || missing(b) ? missing(a) - missing(b) : sign * (typeof a === "number" ? a - b : String(a).localeCompare(b, "en", { numeric: true })));
  return rows.toSorted((one, other) => order(column.value(one), column.value(other)));
}
function headCell({ name, number }) {
  const order = { [name]: "ascending", [`-${name}`]: "descending" }[sorting] ?? "none";
  const sort = () => {
    sorting = order === "none" ? (number ? `-${name}` : name) : order === "ascending" ? `-${name}` : name;
    table();
    remember();
    [...$("table").querySelectorAll("thead button")].find((button) => button.textContent === name).focus();
  };
  return h("th", { scope: "col", class: number ? "number" : null, "aria-sort": order }, h("button", { type: "button", onclick: sort }, name));
}
function bodyCell({ value, cell, number, wrap }, row, at) {
  return h(at ? "td" : "th", { scope: at ? null : "row", class: number ? "number" : wrap ? "wrap" : null }, cell ? cell(row) : value(row) ?? "–");
}
function table() {
  const rows = sorted(rowsOf(shownRuns)).map((row) => h("tr", {}, COLUMNS.map((column, at) => bodyCell(column, row, at))));
  $("table").tHead.replaceChildren(h("tr", {}, COLUMNS.map(headCell)));
  $("table").tBodies[0].replaceChildren(...rows, rows.length ? "" : h("tr", {}, h("td", { colspan: COLUMNS.length }, "No run matches. “Show all” clears the filter.")));
}
