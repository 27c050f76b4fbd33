/* Curves and layers: of one run, and of several that are compared. */
/* A bundle is what one line shows: {name, look, dash, runs}, where the runs differ in the seed alone. */
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"], UNITS = { pretrain: "epoch", prune: "round", train: "epoch" };
/* A line over rounds or epochs: the mean over the runs of a bundle. `read` turns a number of a run into the one that is drawn. */
function seriesLine({ name, look, dash, runs: members }, stage, field, read) {
  const at = [...new Set(members.flatMap((run) => run.series[stage]?.at ?? []))].sort((a, b) => a - b);
  const points = at.map((x) => {
    const values = bySeed(members, (run) => {
      const value = run.series[stage]?.[field][run.series[stage].at.indexOf(x)];
      return known(value) ? read(value, run) : null;
    });
    return { x, y: mean(values), off: deviation(values), says: `${UNITS[stage]} ${x}, ${name}: ${short(mean(values))}${values.length > 1 ? ` ± ${short(deviation(values))}` : ""}` };
  }).filter((point) => known(point.y));
  return { name, look, dash, points, symbol: points.length > 1 ? null : "circle" };
}
const pointsOf = (lines) => lines.flatMap((line) => line.points);
function seriesChart(title, stage, y, lines) {
  const drawn = lines.filter((line) => line.points.some((point) => point.y > 0)), at = pointsOf(drawn).map((point) => point.x);
  if (!drawn.length) return null;
  const axis = axisOf(y, pointsOf(drawn).map((point) => point.y).filter((value) => value > 0), y === "accuracy, %" ? false : undefined);
  for (const line of drawn) if (axis.type) line.points = line.points.filter((point) => point.y > 0);
  return chart(title, { title: { text: UNITS[stage] }, dtick: Math.max(...at) - Math.min(...at) <= 10 ? 1 : null }, axis, drawn, true);
}
/* The density of each layer; a cross at the bottom is an empty one. Only bundles with the same layers are drawn together. */
function layersChart(bundles, fields) {
  const [{ layers }] = bundles[0].runs, names = JSON.stringify(layers.map((layer) => layer.name));
  if (!layers.length || bundles.some(({ runs: all }) => all.some((run) => JSON.stringify(run.layers.map((layer) => layer.name)) !== names))) return null;
  const lines = bundles.flatMap((bundle) => fields.filter(({ field }) => known(layers[0][field])).map(({ field, ...more }) => ({ ...bundle, ...more, symbol: "circle", points: layers.map(({ name, total }, index) => {
    const values = bySeed(bundle.runs, (run) => (100 * run.layers[index][field]) / Math.max(1, total));
    return { x: index + 1, y: mean(values), off: deviation(values), says: `${index + 1}. ${name.replace(/\.weight$/, "")}, ${more.name ?? bundle.name}: ${short(mean(values))} %` };
  }) })));
  const alive = pointsOf(lines).map((point) => point.y).filter((value) => value > 0), axis = axisOf("% of the layer's weights", alive);
  for (const point of pointsOf(lines)) if (!point.y) Object.assign(point, { y: axis.type ? Math.min(...alive) / 2 : 0, symbol: "x", says: `${point.says}, empty: no weight is left` });
  const x = { title: { text: "layer, from input to output" }, range: [0.5, layers.length + 0.5], dtick: layers.length <= 12 ? 1 : null };
  return chart("Density of each layer", x, axis, lines, true);
}
/* All charts of some bundles. One alone tells more of itself; several show the accuracy that all of them have. */
function curves(bundles) {
  const one = bundles.length === 1, has = (stage, field) => bundles.every(({ runs: all }) => all.some((run) => !run.series[stage] || run.series[stage][field].some(known)));
  const lines = (stage, fields, read) => bundles.flatMap((bundle) => fields.map(({ field, ...more }) => seriesLine({ ...bundle, ...more }, stage, field, read)));
  const alone = (field, name, dash) => (one ? [{ field, name, dash }] : []), hundredfold = (value) => 100 * value, plain = (value) => value;
  const common = (stage) => ["validation", "test"].find((field) => has(stage, field)) ?? "accuracy";
  const ACCURACIES = [...alone("accuracy", "training", "dot"), ...alone("validation", "validation", "dash"), ...alone("test", "test", "solid")];
  const KEPT = one ? [...alone("keep", "kept", "solid"), ...alone("pruned", "pruned", "dash"), ...alone("recovered", "recovered", "dot")] : [{ field: "keep" }];
  const name = { validation: "Validation accuracy", test: "Test accuracy", accuracy: "Training accuracy" };
  const epochs = (stage, when) => [
    seriesChart((one ? "Accuracy" : name[common(stage)]) + when, stage, "accuracy, %", lines(stage, one ? ACCURACIES : [{ field: common(stage) }], hundredfold)),
    seriesChart(`Loss${when}`, stage, "loss", lines(stage, [{ field: "loss" }], plain)),
  ];
  const charts = [
    layersChart(bundles, one ? [{ field: "kept", name: "kept" }, { field: "effective", name: "kept and on a path", dash: "dot" }] : [{ field: "kept" }]),
    ...epochs("train", " in training"), ...epochs("pretrain", " before pruning"),
    seriesChart("Weights by round of pruning", "prune", "% of all prunable weights", lines("prune", KEPT, (value, run) => (100 * value) / (run.prunable || 1))),
    seriesChart("Saliency by round of pruning", "prune", "saliency S(θ, c)", lines("prune", [{ field: "saliency" }], plain)),
  ].filter(Boolean);
  return charts.length ? h("div", { class: "card grid" }, charts) : h("p", { class: "hint" }, "There are no layers, rounds or epochs to draw yet.");
}

/* The rows that are ticked in the table, side by side. */
const share = (part, whole) => (known(part) && whole ? part / whole : null);
const SCORES = [
  ["Test accuracy, %", (run) => run.accuracy, percent],
  ["Top-5 accuracy, %", (run) => run.top5, percent],
  ["Test accuracy at the best validation, %", (run) => run.accuracy_at_best_validation, percent],
  ["Sparsity, nominal, %", (run) => run.sparsity, sparse],
  ["Sparsity, effective, %", (run) => run.effective_sparsity, sparse],
  ["Weights left", (run) => run.kept, count],
  ["Weights on a path", (run) => run.effective, count],
  ["FLOPs left, %", (run) => share(run.flops_effective, run.flops_dense), said((part) => short(100 * part))],
  ["Pruning", (run) => run.seconds.prune, seconds],
  ["Training", (run) => run.seconds.train, seconds],
];
function scoresOf(rows) {
  const score = (values, say) => say(mean(values)) + (deviation(values) > 1e-9 ? ` ± ${say(deviation(values))}` : "");
  return SCORES.map(([name, read, say]) => [name, ...rows.map((row) => score(bySeed(row.members, read), say))]).filter(([, ...texts]) => texts.some((text) => text !== "–"));
}
function compare() {
  const rows = rowsOf(runs.filter((run) => ticked.has(run.index))), vary = (read) => new Set(rows.map(read)).size > 1;
  const nameOf = (row) => titleOf(row) + (single() ? `, seed ${setting(row.members[0], "seed")}` : "") + (vary(placeOf) ? `, ${placeOf(row)}` : ""); // a name says only what differs
  const used = new Map();
  const bundles = rows.map((row) => {
    used.set(row.method, (used.get(row.method) ?? -1) + 1); // rows of one method share its color, not its dashes
    return { name: nameOf(row), look: lookOf(row.method), dash: DASHES[used.get(row.method) % DASHES.length], runs: row.members };
  });
  const value = (row, name) => [...new Set(row.members.map((run) => String(setting(run, name) ?? "–")))].join(", ");
  const settings = data.settings.filter((name) => vary((row) => value(row, name))).map((name) => [spoken(name), ...rows.map((row) => value(row, name))]);
  const hint = h("p", { class: "hint" }, "Tick rows of the table to see them here, side by side.");
  $("comparison").replaceChildren(...(rows.length ? [tableOf(["", ...rows.map(nameOf)], [...scoresOf(rows), ...settings]), curves(bundles)] : [hint]));
}

/* One run. */
const more = (title, content) => h("details", {}, h("summary", {}, title), content);
function layerTable({ layers, collapsed }) {
  const density = (part, total) => short((100 * part) / Math.max(1, total));
  const rows = layers.map(({ name, shape, total, kept, effective }) => [name.replace(/\.weight$/, ""), shape.join(" × "), count(total), count(kept), density(kept, total), count(effective),
    [!kept ? badge("bad", "empty") : effective === 0 ? badge("warn", "disconnected") : "", collapsed.includes(name) ? badge("bad", "collapsed") : ""]]);
  return tableOf(["Layer", "Shape", "Weights", "Kept", "Density %", "On a path", ""], rows, 2);
}
let opened = null;
function show(run) {
  opened = run;
  const g = groupOf[run.index], settings = [...Object.entries(run.settings ?? {}).filter(([, value]) => known(value)), ...Object.entries(run.environment)];
  $("one").replaceChildren(
    h("p", { class: "swatch" }, ...swatch(g, describe(run))),
    h("ul", { class: "words" }, run.words.map(([kind, text]) => h("li", { class: `word ${kind}` }, text))),
    tableOf(["Result", "Value"], scoresOf([rowOf(g, [run])])),
    curves([{ name: "this run", look: lookOf(g.method), runs: [run] }]),
    run.layers.length ? more(`The ${run.layers.length} layers as a table`, layerTable(run)) : "",
    settings.length ? more("Settings and environment", tableOf(["Setting", "Value"], settings.map(([name, value]) => [spoken(name), String(value)]), 2)) : "",
    h("p", { class: "hint" }, `Folder: ${run.folder}`));
}
