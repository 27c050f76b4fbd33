/* The overview: charts of groups, filters, and the table. */
/* Charts of groups: accuracy against sparsity, and against the pruning time. */
const nameOf = (g) => g.method + (g.line ? `, ${g.line}` : "");
const tipOf = (g) => [
  `accuracy ${percent(g.accuracy)}${known(g.deviation) ? ` ± ${percent(g.deviation)}` : ""} %`,
  ...(known(g.effective_sparsity) && !g.dense ? [`effective sparsity ${sparse(g.effective_sparsity)} %`] : []),
  ...(known(g.prune_seconds) && !g.dense ? [`pruning ${seconds(g.prune_seconds)}`] : []),
  plural(g.seeds, "seed") + (g.collapsed ? `, ${g.collapsed} collapsed` : ""),
];
const ACCURACY = { title: "test accuracy, %" };
const TICKS = [0.9, 0.99, 0.999, 0.9999, 0, 0.5, 0.95, 0.995, 0.9995, 0.99999, 0.8, 0.98, 0.998, 0.9998];
const nines = (share) => -Math.log10(Math.max(1 - share, 1e-7));
/* The sparsities that fit under the axis, the most important first. */
function sparsityAxis([from, to]) {
  return (width) => {
    const gap = (48 * (to - from)) / Math.max(100, width - 80), shares = [];
    for (const share of TICKS) if (nines(share) >= from && nines(share) <= to && shares.every((other) => Math.abs(nines(other) - nines(share)) >= gap)) shares.push(share);
    return { title: "sparsity: prunable weights removed, %", range: [from, to], tickvals: shares.map(nines), ticktext: shares.map(nominal) };
  };
}
/* The dense network, and the baseline if it can be compared, are lines from side to side. */
const rule = (g, x, name = nameOf(g), dash = "dash", look = lookOf(g.method)) => ({ name, look, dash, joined: true, banded: true, points: x.map((at) => ({ x: at, y: 100 * g.accuracy, off: 100 * (g.deviation ?? 0), title: name, says: tipOf(g) })) });
const pointOf = (g, x) => ({ x, y: 100 * g.accuracy, off: 100 * (g.deviation ?? 0), hollow: g.collapsed > 0, title: `${nameOf(g)}, ${nominal(g.sparsity)} %`, says: tipOf(g) });
function groupCharts(lines, rules, panel, hidden) {
  const shares = lines.flatMap((line) => line.groups.map((g) => nines(g.sparsity)));
  const range = [Math.min(1, ...shares) - 0.08, Math.max(4, ...shares) + 0.08], single = new Set(shares).size === 1; // with a single sparsity the marks stand side by side
  const accuracy = chart({ title: "Accuracy against sparsity", label: `Accuracy against sparsity, ${panel.title}`, keys: false, hidden, x: sparsityAxis(range), y: ACCURACY,
    lines: [...rules.map(([g, ...more]) => rule(g, range, ...more)), ...lines.map((line, at) => ({ ...line, joined: line.groups.length > 1, banded: true,
      points: line.groups.map((g) => pointOf(g, nines(g.sparsity) + (single ? (at - (lines.length - 1) / 2) * Math.min(0.06, 0.6 / lines.length) : 0))) }))] });
  return h("div", { class: "grid" }, accuracy, costChart(lines, rules, panel, hidden));
}
/* The cost at one sparsity, which the reader chooses; all sparsities at once are hard to read. */
const costAt = new Map(), hiddenIn = new Map();
function costChart(lines, rules, panel, hidden) {
  const timed = lines.map((line) => ({ ...line, groups: line.groups.filter((g) => g.prune_seconds > 0) })).filter((line) => line.groups.length);
  const shares = [...new Set(timed.flatMap((line) => line.groups.map((g) => g.sparsity)))].sort((a, b) => a - b);
  if (!shares.length) return null;
  const often = (value) => timed.filter((line) => line.groups.some((g) => g.sparsity === value)).length;
  const usual = shares.reduce((best, value) => (often(value) >= often(best) ? value : best), shares[0]);
  const holder = h("div", {}), select = h("select", { "aria-label": "Sparsity of the costs", onchange: () => { costAt.set(panel.name, select.value); fill(); select.focus(); } },
    shares.map((value) => h("option", { value }, `at ${nominal(value)} %`)), h("option", { value: "all" }, "at all sparsities"));
  select.value = costAt.get(panel.name) ?? String(usual);
  if (!select.value) select.value = String(usual);
  function fill() {
    const chosen = timed.map((line) => ({ ...line, points: line.groups.filter((g) => select.value === "all" || g.sparsity === Number(select.value)).map((g) => pointOf(g, g.prune_seconds)) })).filter((line) => line.points.length);
    const logs = chosen.flatMap((line) => line.points.map((point) => Math.log10(point.x))), room = Math.max(0.12, 0.5 - (Math.max(...logs) - Math.min(...logs)) / 2);
    const range = [Math.min(...logs) - room, Math.max(...logs) + room];
    holder.replaceChildren(chart({ title: "Accuracy against pruning time", label: `Accuracy against pruning time, ${panel.title}`, keys: false, hidden, extra: shares.length > 1 ? select : null,
      x: { title: "pruning time, seconds", ...logAxis(range.map((at) => 10 ** at)), range }, y: ACCURACY, lines: [...rules.map(([g, ...more]) => rule(g, range.map((at) => 10 ** at), ...more)), ...chosen] }));
  }
  fill();
  return holder;
}
/* A panel for each network, data set and way of training: only such runs can be compared. */
const MOST_PANELS = 12;
let allPanels = false;
function facets(shown) {
  const networks = new Map(), panels = new Map();
  for (const g of shown.filter((g) => g.panel)) {
    const network = JSON.stringify([g.data, g.model]), panel = JSON.stringify(g.panel);
    networks.set(network, (networks.get(network) ?? 0) + g.members.length);
    if (!panels.has(panel)) panels.set(panel, { network, groups: [], runs: 0 });
    panels.get(panel).groups.push(g);
    panels.get(panel).runs += g.members.length;
  }
  const drawable = [...panels.entries()].filter(([, panel]) => panel.groups.some((g) => known(g.accuracy)))
    .sort(([, a], [, b]) => networks.get(b.network) - networks.get(a.network) || a.network.localeCompare(b.network) || b.runs - a.runs);
  const few = allPanels ? drawable : drawable.slice(0, MOST_PANELS), rest = drawable.length - few.length;
  $("facets").replaceChildren(...few.map(([name, { groups: members, network }]) => facet(name, members.filter((g) => known(g.accuracy)),
    drawable.some(([, other]) => other.network === network && other.groups.some((g) => g.dense && known(g.accuracy))))),
  ...(rest ? [h("button", { type: "button", onclick: () => { allPanels = true; facets(shown); } }, `Show ${plural(rest, "more panel")}`)] : []),
  ...(drawable.length ? [] : [h("p", { class: "facet empty" }, "None of these runs is finished, so there is nothing to draw yet.")]));
}
function facet(name, members, denseElsewhere) {
  const order = [...looks.keys()], dense = members.filter((g) => g.dense), byLine = new Map(), [{ model, data, protocol }] = members;
  for (const g of members.filter((g) => !g.dense)) {
    if (!byLine.has(nameOf(g))) byLine.set(nameOf(g), { name: nameOf(g), look: lookOf(g.method), method: g.method, symbol: g.symbol, glyph: g.glyph, dash: g.dash, groups: [] });
    byLine.get(nameOf(g)).groups.push(g);
  }
  const rank = (line) => (order.indexOf(line.method) + 1 || 99);
  const lines = [...byLine.values()].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
  for (const line of lines) line.groups.sort((a, b) => a.sparsity - b.sparsity);
  const pinned = baseline(), title = `${model} on ${data}${protocol ? `, ${protocol}` : ""}`;
  const rules = dense.filter((g) => g.index !== pinned?.index).map((g) => [g]);
  if (pinned && known(pinned.accuracy) && JSON.stringify(pinned.panel) === name) rules.push([pinned, `baseline: ${titleOf(pinned)}`, "dot", INK]);
  if (!hiddenIn.has(name)) hiddenIn.set(name, new Set());
  const hidden = hiddenIn.get(name), panel = h("div", { class: "facet" }, h("h3", {}, title));
  if (!lines.length) panel.append(h("p", { class: "hint" }, `Only the dense network so far: ${dense.map((g) => tipOf(g)[0]).join("; ")}.`));
  else panel.append(legend([...lines, ...rules.map(([g, ...more]) => rule(g, [], ...more))], hidden, () => { for (const plot of panel.querySelectorAll(".plot")) draw(plot); }), groupCharts(lines, rules, { name, title }, hidden));
  if (lines.length && !dense.length && denseElsewhere) panel.append(h("p", { class: "hint" }, "No dense line: the dense network was trained in another way."));
  return panel;
}

/* Which runs are shown. */
const METHOD_KEYS = ["data", "model", "method"];
const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);
const deviation = (values) => (values.length > 1 ? Math.sqrt(values.reduce((sum, value) => sum + (value - mean(values)) ** 2, 0) / (values.length - 1)) : null);
/* A group with its shown runs, and the means over the seeds of those that are tested; each seed counts once. */
function summed(g, inside) {
  const members = g.runs.filter((index) => inside.has(index)).map((index) => runs[index]);
  const tested = members.filter((run, at, all) => run.status === "done" && known(run.accuracy)
    && all.findIndex((other) => other.status === "done" && known(other.accuracy) && other.settings.seed === run.settings.seed) === at);
  const over = (value) => mean(tested.map(value).filter(known)), accuracies = tested.map((run) => run.accuracy), states = {};
  for (const run of members) states[run.status] = (states[run.status] ?? 0) + 1;
  return { ...g, members, states, seeds: tested.length, accuracy: mean(accuracies), deviation: deviation(accuracies), collapsed: members.filter((run) => run.collapsed.length).length,
    effective_sparsity: over((run) => run.effective_sparsity), prune_seconds: over((run) => run.seconds.prune), train_seconds: over((run) => run.seconds.train) };
}
let shownRuns = runs, shownGroups = [];
function select() {
  const { test, problem } = search($("text").value), chosen = Object.fromEntries(METHOD_KEYS.map((name) => [name, $(`by-${name}`).value]));
  shownRuns = runs.filter((run) => test(run) && METHOD_KEYS.every((name) => chosen[name] === "" || JSON.stringify(setting(run, name)) === chosen[name]));
  const inside = new Set(shownRuns.map((run) => run.index));
  shownGroups = groups.map((g) => summed(g, inside)).filter((g) => g.members.length);
  $("text").setAttribute("aria-invalid", String(Boolean(problem)));
  $("count").textContent = problem || (shownRuns.length === runs.length ? `All ${plural(runs.length, "run")} in ${plural(groups.length, "group")} of seeds.`
    : `${shownRuns.length} of ${plural(runs.length, "run")}, in ${shownGroups.length} of ${plural(groups.length, "group")} of seeds.`);
  facets(shownGroups);
  table();
  list();
  remember();
}
function choices(name) {
  const counts = new Map();
  for (const run of runs) if (known(setting(run, name))) counts.set(setting(run, name), (counts.get(setting(run, name)) ?? 0) + 1);
  const values = [...counts].sort(([a, many], [b, more]) => more - many || a.localeCompare(b)).map(([value]) => value);
  $(`by-${name}`).replaceChildren(h("option", { value: "" }, "all"), ...values.map((value) => h("option", { value: JSON.stringify(value) }, value)));
}

/* The runs that are drawn over each other, and the baseline: a group that the reader pins. */
const chosen = new Set();
const baseline = () => ($("pin").value === "" ? null : summed(groups[Number($("pin").value)], new Set(groups[Number($("pin").value)].runs)));
const titleOf = (g) => (known(g.method) ? `${g.method}${g.dense ? "" : ` ${nominal(g.sparsity)} %`}${g.line ? `, ${g.line}` : ""}` : runs[g.runs[0]].folder);
/* What a row is better than the baseline by, in points of accuracy; on other data it cannot be compared. */
function beyond(row) {
  const pinned = baseline(), there = row.data ?? setting(row, "data");
  return pinned && known(pinned.accuracy) && known(row.accuracy) && pinned.data === there ? 100 * (row.accuracy - pinned.accuracy) : null;
}
const signed = (value, digits = 2) => (!known(value) ? "–" : Math.abs(value) < 0.5 * 10 ** -digits ? "0" : (value > 0 ? "+" : "−") + Math.abs(value).toLocaleString("en-GB", { maximumFractionDigits: digits }));
function tick(members, name) {
  const box = h("input", { type: "checkbox", "aria-label": `Draw ${name} over others`, onchange: () => { for (const run of members) box.checked ? chosen.add(run.index) : chosen.delete(run.index); overlay(); remember(); } });
  const ticked = members.filter((run) => chosen.has(run.index)).length;
  return Object.assign(box, { checked: ticked > 0, indeterminate: ticked > 0 && ticked < members.length });
}

/* The table. A column has a name, a value to sort by, and a cell; `text` is its content in an exported table, if that is not the cell's. */
const stateText = (states) => Object.entries(states).map(([state, number]) => `${number} ${state}`).join(", ");
const STATE_KINDS = { done: "good", pruned: "good", failed: "bad", unreadable: "bad", unfinished: "warn" };
const stateBadge = (status, text = status) => h("span", { class: `badge ${STATE_KINDS[status]}` }, text);
const collapsedBadge = (text) => (text ? h("span", { class: "badge bad" }, text) : null);
const progressOf = (run) => (run.status === "unfinished" && run.state ? h("div", { class: "progress" }, run.state) : null);
const accuracyCell = (g) => known(g.accuracy) ? [percent(g.accuracy), known(g.deviation) ? h("span", { class: "pm" }, ` ± ${percent(g.deviation)}`) : null] : "–";
const link = (index, text) => h("a", { href: `#${new URLSearchParams({ run: idOf(runs[index]) })}`, "aria-label": `Run ${describe(runs[index])}` }, text);
const baselineColumn = { name: "vs. baseline", value: beyond, number: true, down: true, cell: (row) => signed(beyond(row)), only: () => $("pin").value !== "" };
const varied = () => groups.some((g) => g.variant);
const COLUMNS = {
  groups: [
    { name: "Method", value: (g) => g.method, text: (g) => g.method ?? "unknown", cell: (g) => h("span", { class: "swatch" }, tick(g.members, titleOf(g)), swatch(g.method, g.glyph)) },
    { name: "Sparsity %", value: (g) => g.sparsity, number: true, cell: (g) => nominal(g.sparsity) },
    { name: "State", wrap: true, value: (g) => stateText(g.states), text: (g) => stateText(g.states) + (g.collapsed ? `, ${g.collapsed} collapsed` : ""), cell: (g) => [
      ...Object.entries(g.states).map(([state, number]) => [stateBadge(state, `${number} ${state}`), " "]), collapsedBadge(g.collapsed && `${g.collapsed} collapsed`)] },
    { name: "Accuracy %", value: (g) => g.accuracy, number: true, down: true, cell: accuracyCell },
    baselineColumn,
    { name: "Effective %", value: (g) => g.effective_sparsity, number: true, cell: (g) => sparse(g.effective_sparsity) },
    { name: "Data", value: (g) => g.data },
    { name: "Network", value: (g) => g.model },
    { name: "Settings", value: (g) => g.variant, wrap: true, only: varied },
    { name: "Pruning", value: (g) => g.prune_seconds, number: true, cell: (g) => seconds(g.prune_seconds) },
    { name: "Training", value: (g) => g.train_seconds, number: true, cell: (g) => seconds(g.train_seconds) },
    { name: "Seeds", value: (g) => g.seeds, text: (g) => g.members.map((run) => setting(run, "seed") ?? "").join(" "), cell: (g) => h("span", { class: "seeds" }, g.members.map((run) => link(run.index, run.settings ? String(run.settings.seed) : "open"))) },
  ],
  runs: [
    { name: "Method", value: (r) => setting(r, "method"), text: (r) => setting(r, "method") ?? "unknown", cell: (r) => h("span", { class: "swatch" }, tick([r], describe(r)), swatch(setting(r, "method"), groupOf[r.index].glyph)) },
    { name: "Sparsity %", value: (r) => setting(r, "sparsity"), number: true, cell: (r) => nominal(setting(r, "sparsity")) },
    { name: "State", wrap: true, value: (r) => r.status, text: (r) => r.status + (r.collapsed.length ? ", collapsed" : ""), cell: (r) => [stateBadge(r.status), progressOf(r), " ", collapsedBadge(r.collapsed.length && "collapsed")] },
    { name: "Seed", value: (r) => setting(r, "seed"), number: true },
    { name: "Accuracy %", value: (r) => r.accuracy, number: true, down: true, cell: (r) => percent(r.accuracy) },
    baselineColumn,
    { name: "Top-5 %", value: (r) => r.top5, number: true, down: true, cell: (r) => percent(r.top5), only: () => runs.some((r) => known(r.top5)) },
    { name: "Effective %", value: (r) => r.effective_sparsity, number: true, cell: (r) => sparse(r.effective_sparsity) },
    { name: "Data", value: (r) => setting(r, "data") },
    { name: "Network", value: (r) => setting(r, "model") },
    { name: "Settings", value: (r) => variantOf(r), wrap: true, only: varied },
    { name: "Pruning", value: (r) => r.seconds.prune, number: true, cell: (r) => seconds(r.seconds.prune) },
    { name: "Training", value: (r) => r.seconds.train, number: true, cell: (r) => seconds(r.seconds.train) },
    { name: "Run", value: (r) => r.folder, text: (r) => r.folder, cell: (r) => link(r.index, "open") },
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
/* The columns and rows of the table as it is shown. */
function tabular() {
  const kind = rowsOf(), columns = COLUMNS[kind].filter((column) => column.only?.() ?? true), column = columns.find((each) => each.name === sorting.by);
  const rows = kind === "groups" ? shownGroups : shownRuns;
  return { columns, column, rows: column ? sorted(rows, column, sorting.down) : rows };
}
const cellOf = (column, row) => (column.cell ? column.cell(row) : known(column.value(row)) ? String(column.value(row)) : "–");
function table() {
  const { columns, column, rows } = tabular(), head = $("table").tHead, body = $("table").tBodies[0];
  const focused = head.contains(document.activeElement) ? document.activeElement.textContent : null;
  head.replaceChildren(h("tr", {}, columns.map((each) => h("th", {
    scope: "col", class: each.number ? "number" : null,
    "aria-sort": each === column ? (sorting.down ? "descending" : "ascending") : "none" },
  h("button", { type: "button", onclick: () => {
    sorting = { by: each.name, down: each.name === sorting.by ? !sorting.down : Boolean(each.down) };
    table();
    remember();
    $("live").textContent = `sorted by ${each.name}, ${sorting.down ? "descending" : "ascending"}`;
  } }, each.name)))));
  if (focused) [...head.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
  body.replaceChildren(...rows.map((row) => h("tr", {}, columns.map((each, index) => h(index ? "td" : "th", {
    scope: index ? null : "row", class: each.number ? "number" : each.wrap ? "wrap" : null }, cellOf(each, row))))));
  if (!rows.length) body.append(h("tr", {}, h("td", { class: "empty", colspan: columns.length }, "No run matches. “Show all” clears the filters.")));
}

/* The table as a file: the rows, columns and order that are shown. */
function cells() {
  const { columns, rows } = tabular();
  return { columns, lines: rows.map((row) => columns.map((each) => (each.text ? each.text(row) : h("td", {}, cellOf(each, row)).textContent))) };
}
/* A text that a spreadsheet would compute has a quote before it. */
const csvCell = (text) => { const plain = text === "–" ? "" : /^[\t\r\n]|^\s*[=+\-@＝＋－＠]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text; return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain; };
function csv() {
  const { columns, lines } = cells(), wide = (name) => (name === "Accuracy %" && rowsOf() === "groups" ? [name, "Deviation %"] : [name]);
  const parted = (name, text) => (wide(name).length > 1 ? [...text.split(" ± "), ""].slice(0, 2) : [text.replace("−", "-")]);
  return [columns.flatMap((each) => wide(each.name)), ...lines.map((line) => line.flatMap((text, at) => parted(columns[at].name, text)))].map((line) => line.map(csvCell).join(",") + "\n").join("");
}
const LATEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "−": "$-$", "–": "--" };
const latexCell = (text) => text.replace(/[\r\n]+/g, " ").replace(/[\\~^±−–]|[&%$#_{}]/g, (letter) => LATEX[letter] ?? `\\${letter}`);
function latex() {
  const { columns, lines } = cells(), row = (texts) => `  ${texts.map(latexCell).join(" & ")} \\\\\n`;
  return `% needs \\usepackage{booktabs}\n\\begin{tabular}{${columns.map((each) => (each.number ? "r" : "l")).join("")}}\n  \\toprule\n${row(columns.map((each) => each.name))}  \\midrule\n${lines.map(row).join("")}  \\bottomrule\n\\end{tabular}\n`;
}
const saveText = (name, text, kind) => { const address = URL.createObjectURL(new Blob([text], { type: `${kind};charset=utf-8` })); save(name, address); setTimeout(() => URL.revokeObjectURL(address), 1000); };
