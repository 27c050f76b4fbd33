/* The overview: charts of groups, filters, and the table. */
/* Charts of groups: accuracy against sparsity, and against the pruning time. */
function spreads(lines, dense) {
  const all = lines.flatMap((line) => line.groups).concat(dense);
  return all.flatMap((g) => [g.accuracy - (g.deviation || 0), g.accuracy + (g.deviation || 0)]);
}
const tipOf = (g) => [
  `accuracy ${percent(g.accuracy)}${known(g.deviation) ? ` ± ${percent(g.deviation)}` : ""} %`,
  ...(known(g.effective_sparsity) && !g.dense ? [`effective sparsity ${sparse(g.effective_sparsity)} %`] : []),
  ...(known(g.prune_seconds) && !g.dense ? [`pruning ${seconds(g.prune_seconds)}`] : []),
  plural(g.seeds, "seed") + (g.collapsed ? `, ${g.collapsed} collapsed` : ""),
];
const nameOf = (g) => g.method + (g.line ? `, ${g.line}` : "");
function denseRules(f, dense, stops) {
  const parts = [];
  for (const g of dense) {
    const y = f.py(100 * g.accuracy), off = known(g.deviation) ? Math.abs(f.py(0) - f.py(100 * g.deviation)) : 0;
    parts.push(s("g", { class: "m", ...colour(g.method) },
      off ? s("rect", { class: "area", x: f.left, width: f.right - f.left, y: y - off, height: 2 * off }) : null,
      s("path", { class: "curve", "stroke-dasharray": "7 4", "stroke-width": 1.5, d: `M${f.left},${y}H${f.right}` })));
    stops.push({ x: f.left + 1, y, title: nameOf(g), lines: tipOf(g) });
  }
  return parts;
}
function groupMarks(f, line, place) {
  const kind = line.marker, parts = [];
  for (const g of line.groups) {
    const [x, y] = place(g), off = known(g.deviation) ? Math.abs(f.py(0) - f.py(100 * g.deviation)) : 0;
    if (off && (line.groups.length === 1 || !line.banded)) parts.push(s("path", { class: "whisker", d: `M${x},${y - off}V${y + off}` }));
    parts.push(s("path", { class: g.collapsed ? "mark hollow" : "mark", d: outline(kind, x, y, 4.6) }));
  }
  return parts;
}
function accuracyChart(lines, dense) {
  return chart({
    title: "Accuracy against sparsity", label: `Accuracy against sparsity: ${lines.map((line) => line.name).join(", ")}`,
    draw(width) {
      const shares = lines.flatMap((line) => line.groups.map((g) => nines(g.sparsity)));
      const y = percents(spreads(lines, dense));
      const from = Math.min(1, ...shares), to = Math.max(4, ...shares);
      const f = frame(width, Math.round(Math.max(270, Math.min(360, width * 0.62))), {
        domain: [from - 0.06, to + 0.06], ticks: SPARSITIES.map(nines).filter((t) => t >= from - 1e-9 && t <= to + 1e-9),
        format: (t) => tidy((100 - 100 * 10 ** -t).toFixed(3)), name: "sparsity, % of the prunable weights removed" },
      { ...y, name: "test accuracy, %" });
      const stops = [], few = new Set(shares).size === 1; // with a single sparsity the marks stand side by side
      f.svg.append(...denseRules(f, dense, stops));
      for (const line of lines) {
        const aside = few ? (lines.indexOf(line) - (lines.length - 1) / 2) * Math.min(9, 60 / lines.length) : 0;
        const place = (g) => [f.px(nines(g.sparsity)) + aside, f.py(100 * g.accuracy)];
        const points = line.groups, edge = (sign) => points.map((g) => [place(g)[0], f.py(100 * (g.accuracy + sign * (g.deviation || 0)))]);
        line.banded = points.length > 1;
        f.svg.append(s("g", { class: "m", ...colour(line.method) },
          points.length > 1 && points.some((g) => g.deviation) ? s("path", { class: "area", d: path([...edge(1), ...edge(-1).reverse()]) + "Z" }) : null,
          points.length > 1 ? s("path", { class: "curve", d: path(points.map(place)), "stroke-dasharray": line.dash }) : null,
          groupMarks(f, line, place)));
        for (const g of points) stops.push({ x: place(g)[0], y: place(g)[1], title: `${nameOf(g)}, ${nominal(g.sparsity)} %`, lines: tipOf(g) });
      }
      return { svg: f.svg, stops };
    },
  });
}
function costChart(lines, dense) {
  const timed = lines.map((line) => ({ ...line, banded: false, groups: line.groups.filter((g) => g.prune_seconds > 0) })).filter((line) => line.groups.length);
  if (!timed.length) return null;
  return chart({
    title: "Accuracy against pruning time", label: `Accuracy against pruning time: ${timed.map((line) => line.name).join(", ")}`,
    draw(width) {
      const times = timed.flatMap((line) => line.groups.map((g) => Math.log10(g.prune_seconds)));
      let low = Math.min(...times), high = Math.max(...times);
      if (high - low < 1) { const mid = (low + high) / 2; low = mid - 0.5; high = mid + 0.5; }
      const room = 0.07 * (high - low);
      low -= room; high += room;
      const f = frame(width, Math.round(Math.max(270, Math.min(360, width * 0.93))), {
        domain: [low, high], ticks: decades(low, high, 7), format: (t) => plain(10 ** t), name: "pruning time, seconds" },
      { ...percents(spreads(timed, dense)), name: "test accuracy, %" });
      const stops = [];
      f.svg.append(...denseRules(f, dense, stops));
      for (const line of timed) {
        const place = (g) => [f.px(Math.log10(g.prune_seconds)), f.py(100 * g.accuracy)];
        f.svg.append(s("g", { class: "m", ...colour(line.method) }, groupMarks(f, line, place)));
        for (const g of line.groups) stops.push({ x: place(g)[0], y: place(g)[1], title: `${nameOf(g)}, ${nominal(g.sparsity)} %`, lines: tipOf(g) });
      }
      return { svg: f.svg, stops };
    },
  });
}
/* The cost at one sparsity, which the reader chooses; all sparsities at once are hard to read. */
const costAt = new Map(), hidden = new Set();
function costCharts(lines, dense, place) {
  const shares = [...new Set(lines.flatMap((line) => line.groups.filter((g) => g.prune_seconds > 0).map((g) => g.sparsity)))].sort((a, b) => a - b);
  if (!shares.length) return null;
  const often = (value) => lines.filter((line) => line.groups.some((g) => g.sparsity === value)).length;
  const usual = shares.reduce((best, value) => (often(value) >= often(best) ? value : best), shares[0]);
  const holder = h("div", {});
  const select = h("select", { "aria-label": "Sparsity of the costs", onchange: () => { costAt.set(place, select.value); draw(); select.focus(); } },
    shares.map((value) => h("option", { value }, `at ${nominal(value)} %`)), h("option", { value: "all" }, "at all sparsities"));
  select.value = costAt.get(place) ?? String(usual);
  if (!select.value) select.value = String(usual);
  function draw() {
    const chosen = select.value === "all" ? lines : lines.map((line) => ({ ...line, groups: line.groups.filter((g) => g.sparsity === Number(select.value)) })).filter((line) => line.groups.length);
    const figure = costChart(chosen, dense);
    if (shares.length > 1) figure.querySelector("figcaption").append(select);
    holder.replaceChildren(figure);
  }
  draw();
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
  $("facets").replaceChildren(...few.map(([name, { groups: members, network }]) => facet(name, members.filter((g) => known(g.accuracy)), shown,
    drawable.some(([, other]) => other.network === network && other.groups.some((g) => g.dense && known(g.accuracy))))),
  ...(rest ? [h("button", { type: "button", onclick: () => { allPanels = true; facets(shown); } }, `Show ${plural(rest, "more panel")}`)] : []),
  ...(drawable.length ? [] : [h("p", { class: "facet empty" }, "None of these runs is finished, so there is nothing to draw yet.")]));
}
function facet(name, members, shown, denseElsewhere) {
  const order = [...looks.keys()], dense = members.filter((g) => g.dense), byLine = new Map();
  for (const g of members.filter((g) => !g.dense)) {
    if (!byLine.has(nameOf(g))) byLine.set(nameOf(g), { name: nameOf(g), method: g.method, marker: g.marker, dash: DASHES[g.dash], groups: [] });
    byLine.get(nameOf(g)).groups.push(g);
  }
  const rank = (line) => (order.indexOf(line.method) + 1 || 99);
  const lines = [...byLine.values()].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
  for (const line of lines) line.groups.sort((a, b) => a.sparsity - b.sparsity);
  const toggle = (name) => () => {
    hidden.has(name) ? hidden.delete(name) : hidden.add(name);
    facets(shown);
    [...document.querySelectorAll(".toggle")].find((button) => button.textContent === name)?.focus();
  };
  const keys = lines.map((line) => ({ name: line.name, colour: colour(line.method), kind: line.marker, dash: line.dash }));
  for (const g of dense) keys.push({ name: nameOf(g), colour: colour(g.method), dash: "7 4" });
  for (const entry of keys) Object.assign(entry, { off: hidden.has(entry.name), toggle: toggle(entry.name) });
  const drawn = lines.filter((line) => !hidden.has(line.name)), rules = dense.filter((g) => !hidden.has(nameOf(g)));
  const [{ model, data, protocol }] = members;
  return h("div", { class: "facet" }, h("h3", {}, `${model} on ${data}${protocol ? `, ${protocol}` : ""}`), legend(keys),
    lines.length ? drawn.length ? h("div", { class: "grid" }, accuracyChart(drawn, rules), costCharts(drawn, rules, name)) : h("p", { class: "hint" }, "All methods are hidden; choose one above.")
      : h("p", { class: "hint" }, `Only the dense network so far: ${dense.map((g) => tipOf(g)[0]).join("; ")}.`),
    lines.length && !dense.length && denseElsewhere ? h("p", { class: "hint" }, "No dense line: the dense network was trained in another way.") : null);
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
}
function choices(name) {
  const counts = new Map();
  for (const run of runs) if (known(setting(run, name))) counts.set(setting(run, name), (counts.get(setting(run, name)) ?? 0) + 1);
  const values = [...counts].sort(([a, many], [b, more]) => more - many || a.localeCompare(b)).map(([value]) => value);
  $(`by-${name}`).replaceChildren(h("option", { value: "" }, "all"), ...values.map((value) => h("option", { value: JSON.stringify(value) }, value)));
}

/* The table. */
const stateText = (states) => Object.entries(states).map(([state, number]) => `${number} ${state}`).join(", ");
const STATE_KINDS = { done: "good", pruned: "good", failed: "bad", unreadable: "bad", unfinished: "warn" };
const progressOf = (run) => (run.status === "unfinished" && run.state ? h("div", { class: "progress" }, run.state) : null);
const stateBadge = (status, text = status) => h("span", { class: `badge ${STATE_KINDS[status]}` }, text);
const accuracyCell = (g) => known(g.accuracy) ? [percent(g.accuracy), known(g.deviation) ? h("span", { class: "pm" }, ` ± ${percent(g.deviation)}`) : null] : "–";
const link = (index, text) => h("a", { href: `#run-${index}`, "aria-label": `Run ${describe(runs[index])}` }, text);
const COLUMNS = {
  groups: [
    { name: "Method", value: (g) => g.method, cell: (g) => swatch(g.method, g.marker) },
    { name: "Sparsity %", value: (g) => g.sparsity, number: true, cell: (g) => nominal(g.sparsity) },
    { name: "State", value: (g) => stateText(g.states), cell: (g) => [
      ...Object.entries(g.states).map(([state, number]) => [stateBadge(state, `${number} ${state}`), " "]),
      g.collapsed ? h("span", { class: "badge bad" }, `${g.collapsed} collapsed`) : null] },
    { name: "Accuracy %", value: (g) => g.accuracy, number: true, down: true, cell: accuracyCell },
    { name: "Effective %", value: (g) => g.effective_sparsity, number: true, cell: (g) => percent(g.effective_sparsity, 3) },
    { name: "Data", value: (g) => g.data },
    { name: "Network", value: (g) => g.model },
    { name: "Settings", value: (g) => g.variant, wrap: true, only: groups.some((g) => g.variant) },
    { name: "Pruning", value: (g) => g.prune_seconds, number: true, cell: (g) => seconds(g.prune_seconds) },
    { name: "Training", value: (g) => g.train_seconds, number: true, cell: (g) => seconds(g.train_seconds) },
    { name: "Seeds", value: (g) => g.seeds, cell: (g) => h("span", { class: "seeds" }, g.members.map((run) => link(run.index, run.settings ? String(run.settings.seed) : "open"))) },
  ],
  runs: [
    { name: "Method", value: (r) => setting(r, "method"), cell: (r) => swatch(setting(r, "method"), groupOf[r.index].marker) },
    { name: "Sparsity %", value: (r) => setting(r, "sparsity"), number: true, cell: (r) => nominal(setting(r, "sparsity")) },
    { name: "State", value: (r) => r.status, cell: (r) => [stateBadge(r.status), progressOf(r), " ", r.collapsed.length ? h("span", { class: "badge bad" }, "collapsed") : null] },
    { name: "Seed", value: (r) => setting(r, "seed"), number: true },
    { name: "Accuracy %", value: (r) => r.accuracy, number: true, down: true, cell: (r) => percent(r.accuracy) },
    { name: "Top-5 %", value: (r) => r.top5, number: true, down: true, cell: (r) => percent(r.top5), only: runs.some((r) => known(r.top5)) },
    { name: "Effective %", value: (r) => r.effective_sparsity, number: true, cell: (r) => percent(r.effective_sparsity, 3) },
    { name: "Data", value: (r) => setting(r, "data") },
    { name: "Network", value: (r) => setting(r, "model") },
    { name: "Settings", value: (r) => variantOf(r), wrap: true, only: groups.some((g) => g.variant) },
    { name: "Pruning", value: (r) => r.seconds.prune, number: true, cell: (r) => seconds(r.seconds.prune) },
    { name: "Training", value: (r) => r.seconds.train, number: true, cell: (r) => seconds(r.seconds.train) },
    { name: "Run", value: (r) => r.folder, cell: (r) => link(r.index, "open") },
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
function table() {
  const kind = rowsOf(), columns = COLUMNS[kind].filter((column) => column.only !== false);
  const column = columns.find((each) => each.name === sorting.by);
  const rows = column ? sorted(kind === "groups" ? shownGroups : shownRuns, column, sorting.down) : kind === "groups" ? shownGroups : shownRuns;
  const head = $("table").tHead, body = $("table").tBodies[0];
  const focused = head.contains(document.activeElement) ? document.activeElement.textContent : null;
  head.replaceChildren(h("tr", {}, columns.map((each) => h("th", {
    scope: "col", class: each.number ? "number" : null,
    "aria-sort": each === column ? (sorting.down ? "descending" : "ascending") : "none" },
  h("button", { type: "button", onclick: () => {
    sorting = { by: each.name, down: each.name === sorting.by ? !sorting.down : Boolean(each.down) };
    table();
    $("live").textContent = `sorted by ${each.name}, ${sorting.down ? "descending" : "ascending"}`;
  } }, each.name)))));
  if (focused) [...head.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
  body.replaceChildren(...rows.map((row) => h("tr", {}, columns.map((each, index) => h(index ? "td" : "th", {
    scope: index ? null : "row", class: each.number ? "number" : each.wrap ? "wrap" : null },
  each.cell ? each.cell(row) : known(each.value(row)) ? String(each.value(row)) : "–")))));
  if (!rows.length) body.append(h("tr", {}, h("td", { class: "empty", colspan: columns.length }, "No run matches. “Show all” clears the filters.")));
}
