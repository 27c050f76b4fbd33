/* One run, and several runs over each other: charts, layers, settings. */
/* A bundle is what one line shows: {name, look, dash, runs}, where the runs differ in the seed alone. */
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"], UNITS = { pretrain: "epoch", prune: "round", train: "epoch" };
const TINTS = { light: [null, [0, 0.4], [255, 0.4]], dark: [null, [255, 0.45], [255, 0.75]] }; // towards what, and how far
const tinted = (hex, tint) => (tint ? hex.replace(/^#(..)(..)(..)$/, (_, ...parts) => `#${parts.slice(0, 3).map((part) => Math.round(parseInt(part, 16) * (1 - tint[1]) + tint[0] * tint[1]).toString(16).padStart(2, "0")).join("")}`) : hex);
/* Bundles of one method share its colour: the second and third are tints of it, and the next are dashed. */
function told(bundles) {
  const seen = new Map();
  return bundles.map((bundle) => {
    const k = seen.get(bundle.method) ?? 0, { light, dark: night } = lookOf(bundle.method);
    seen.set(bundle.method, k + 1);
    return { look: { light: tinted(light, TINTS.light[k % 3]), dark: tinted(night, TINTS.dark[k % 3]) }, dash: DASHES[Math.floor(k / 3) % DASHES.length], ...bundle };
  });
}
/* A line over rounds or epochs: the mean over the runs of a bundle. `read` turns a number of a run into the one that is drawn. */
function seriesLine({ name, look, dash, runs: members, wide }, stage, field, say, read = (value) => value) {
  const values = new Map(), seeds = new Map(members.map((run) => [setting(run, "seed"), run]));
  for (const run of seeds.values()) run.series[stage]?.at.forEach((at, index) => {
    const value = run.series[stage][field][index];
    if (known(value)) values.set(at, [...(values.get(at) ?? []), read(value, run)]);
  });
  const words = (all) => `${name}: ${say(mean(all))}${all.length > 1 ? ` ± ${say(deviation(all))}, ${all.length} seeds` : ""}`;
  const points = [...values].sort(([a], [b]) => a - b).map(([x, all]) => ({ x, y: mean(all), off: deviation(all), title: `${UNITS[stage]} ${x}`, says: [words(all)] }));
  return { name, look, dash, wide, points, joined: points.length > 1, banded: true, gaps: true, size: 7, symbol: points.length > 1 ? null : "circle" };
}
const countAxis = (lines, title) => { const at = lines.flatMap((line) => line.points.map((point) => point.x)), span = Math.max(...at) - Math.min(...at); return { title, ...(span <= 10 ? { dtick: 1 } : {}), ...(span ? {} : { range: [at[0] - 1, at[0] + 1] }) }; };
const wideSpread = (lines) => { const all = lines.flatMap((line) => line.points.map((point) => point.y)); return Math.min(...all) > 0 && Math.max(...all) > 30 * Math.min(...all); };
function seriesChart(title, stage, lines, yTitle, { log = wideSpread, ...more } = {}) {
  const drawn = lines.filter((line) => line.points.length);
  if (!drawn.length) return null;
  const logarithmic = typeof log === "function" ? log(drawn) : log;
  for (const line of drawn) if (logarithmic) line.points = line.points.filter((point) => point.y > 0);
  return chart({ ...more, title, label: title, lines: drawn, unified: true, x: countAxis(drawn, UNITS[stage]), y: { title: yTitle, ...(logarithmic ? logAxis(drawn.flatMap((line) => line.points.map((point) => point.y))) : {}) } });
}
const inPercent = (value) => `${value.toFixed(2)} %`, hundredfold = (value) => 100 * value, share = (part, whole) => (known(part) && whole ? part / whole : null);
const thinNote = (run, stage) => { const series = run.series[stage]; return series && series.all > series.at.length ? `${series.at.length} of ${count(series.all)} ${UNITS[stage]}s drawn` : null; };

/* The density of each layer: bars for one run, lines for several that have the same layers. */
function layersChart(bundles, more = {}) {
  const layers = bundles[0].runs[0].layers, alike = (run) => run.layers.length === layers.length && run.layers.every((layer, index) => layer.name === layers[index].name);
  if (!layers.length || !bundles.every((bundle) => bundle.runs.every(alike))) return null;
  const one = bundles.length === 1 && bundles[0].runs.length === 1, live = one && layers.every((layer) => known(layer.effective));
  const density = (run, index, field) => 100 * (share(run.layers[index][field], run.layers[index].total) ?? 0);
  const says = (layer) => [layer.shape.join(" × "), `${count(layer.kept)} of ${count(layer.total)} kept, ${short(100 * share(layer.kept, layer.total))} %`,
    ...(known(layer.effective) ? [`${count(layer.effective)} on a path, ${short(100 * share(layer.effective, layer.total))} %`] : []), ...(layer.kept ? [] : ["dead: no weight is left"])];
  const lines = bundles.flatMap(({ name, look, dash, runs: members, wide }) => (one ? [["kept", live], ...(live ? [["effective", false]] : [])] : [["kept", false]]).map(([field, faint]) => ({
    name: one ? (field === "kept" ? "kept" : "kept and on a path") : name, look, dash, wide, faint, bar: one, joined: !one, banded: !one, symbol: one ? null : "circle", size: 6, glyph: one ? (faint ? "▒" : "█") : null,
    points: layers.map((layer, index) => { const all = members.map((run) => density(run, index, field)); return { x: index + 1, y: mean(all), off: deviation(all), title: `${index + 1}. ${label(layer.name)}`,
      says: one ? says(layer) : [`${name}: ${short(mean(all))} %${all.length > 1 ? ` ± ${short(deviation(all))}` : ""}`] }; }) })));
  const all = lines.flatMap((line) => line.points.map((point) => point.y)).filter((value) => value > 0), log = Math.min(10, ...all) < 5;
  const low = Math.floor(Math.log10(Math.min(10, ...all)) - 0.15), dead = one ? layers.map((layer, index) => ({ layer, index })).filter(({ layer }) => layer.total && !layer.kept) : [];
  if (dead.length) lines.push({ name: "dead layer", look: { light: "#a8261c", dark: "#ff9b8f" }, symbol: "x", glyph: "✖", size: 9, points: dead.map(({ layer, index }) => ({ x: index + 1, y: log ? 10 ** (low + 0.15) : 2, title: `${index + 1}. ${label(layer.name)}`, says: says(layer) })) });
  return chart({ ...more, class: "full", title: "Density of each layer", note: log ? "log scale" : null, label: `Density of each layer, from input to output: ${layers.length} layers`, unified: !one,
    lines: lines.map((line) => (log && !line.bar ? { ...line, points: line.points.map((point) => ({ ...point, y: point.y > 0 ? point.y : null })) } : line)),
    x: { ...countAxis(lines, "layer, from input to output"), range: [0.4, layers.length + 0.6] }, y: { title: "weights kept, % of the layer", ...(log ? { ...logAxis([10 ** low, 100]), range: [low, 2] } : { range: [0, 100] }) } });
}
function runCharts(run) {
  const bundle = { method: setting(run, "method"), runs: [run], look: lookOf(setting(run, "method")) }, soft = { light: "#777777", dark: "#a3a8b1" };
  const named = (name, dash, look = bundle.look) => ({ ...bundle, name, dash, look }), part = (value) => 100 * share(value, run.prunable || 1), partly = (value) => `${short(value)} % (${count((value * run.prunable) / 100)})`;
  const rounds = run.series.prune?.at.length > 1 ? [
    seriesChart("Pruned and recovered in each round", "prune", [["pruned", "pruned"], ["recovered", "recovered", "dash"], ["recovered_empty", "recovered in empty channels", "dot"]]
      .filter(([field]) => run.series.prune[field].some((value) => value > 0)).map(([field, name, dash]) => seriesLine(named(name, dash), "prune", field, partly, part)), "weights, % of all prunable", { log: true, note: thinNote(run, "prune") }),
    seriesChart("Saliency of the kept weights", "prune", [seriesLine(named("saliency"), "prune", "saliency", short)], "saliency S(θ, c)", { note: thinNote(run, "prune") })] : [];
  const epochs = ["pretrain", "train"].flatMap((stage) => [
    seriesChart(stage === "train" ? "Accuracy in training" : "Accuracy in the dense epochs before pruning", stage, [["accuracy", "training", "dot", soft], ["validation", "validation", "dash"], ["test", "test", "solid"]]
      .map(([field, ...more]) => seriesLine(named(...more), stage, field, inPercent, hundredfold)), "accuracy, %", { log: false, note: thinNote(run, stage) }),
    seriesChart(stage === "train" ? "Training loss" : "Loss before pruning", stage, [seriesLine(named("loss"), stage, "loss", short)], "loss", { note: thinNote(run, stage) })]);
  return [layersChart([{ ...bundle, name: "kept" }]), ...rounds, ...epochs].filter(Boolean);
}
/* Several bundles over each other, with one legend. The accuracy is one that all of them have. */
function overlayCharts(bundles) {
  const has = (field) => bundles.filter(({ runs: all }) => all.some((run) => run.series.train)).every(({ runs: all }) => all.some((run) => run.series.train?.[field].some(known)));
  const field = ["validation", "test", "accuracy"].find(has) ?? "accuracy", title = { validation: "Validation accuracy by epoch", test: "Test accuracy by epoch", accuracy: "Training accuracy by epoch" }[field];
  const lines = (...more) => bundles.map((bundle) => seriesLine(bundle, ...more)), together = { hidden: new Set(), keys: false };
  const charts = [
    seriesChart(title, "train", lines("train", field, inPercent, hundredfold), "accuracy, %", { log: false, ...together }),
    seriesChart("Training loss by epoch", "train", lines("train", "loss", short), "loss", together),
    seriesChart("Kept weights by round", "prune", lines("prune", "keep", (value) => `${short(value)} %`, (value, run) => 100 * share(value, run.prunable || 1)), "weights kept, % of all prunable", together),
    seriesChart("Saliency of the kept weights by round", "prune", lines("prune", "saliency", short), "saliency S(θ, c)", together),
    layersChart(bundles, together),
  ].filter(Boolean);
  if (!charts.length) return h("p", { class: "hint" }, "None of these runs has rounds or epochs yet.");
  const card = h("div", { class: "card" }, legend(bundles, together.hidden, () => { for (const plot of card.querySelectorAll(".plot")) draw(plot); }), h("div", { class: "grid" }, charts));
  return card;
}
function overlay() {
  const pinned = baseline(), members = new Map();
  for (const index of [...chosen].sort((a, b) => a - b)) if (!pinned?.runs.includes(index)) members.set(groupOf[index], [...(members.get(groupOf[index]) ?? []), runs[index]]);
  const drawnGroups = [...members.keys(), ...(pinned ? [pinned] : [])], vary = (read) => new Set(drawnGroups.map(read)).size > 1;
  const [places, protocols] = [vary((g) => `${g.model} on ${g.data}`), vary((g) => g.protocol)]; // a name says only what differs
  const named = (g) => titleOf(g) + (places && g.model ? `, ${g.model} on ${g.data}` : "") + (protocols && g.protocol ? `, ${g.protocol}` : "");
  const something = (run) => run.layers.length || Object.values(run.series).some(Boolean);
  const drawn = told([...members].filter(([, all]) => all.some(something)).map(([g, all]) => ({ method: g.method, name: named(g), runs: all })));
  if (pinned) drawn.unshift({ method: pinned.method, name: `baseline: ${named(pinned)}`, look: INK, dash: "dash", wide: true, runs: pinned.members });
  $("selected").textContent = `${plural(chosen.size, "run")} selected${pinned ? ", and the baseline" : ""}.`;
  $("overlays").replaceChildren(drawn.length ? overlayCharts(drawn) : h("p", { class: "hint" }, "Tick runs in the table, or draw all that are shown."));
}

/* Runs. */
function describe(run) {
  if (!run.settings) return run.folder;
  const settings = run.settings, more = variantOf(run);
  return `${settings.method}${run.dense ? "" : ` ${nominal(settings.sparsity)} %`}, seed ${settings.seed}, ${settings.model} on ${settings.data}${more ? `, ${more}` : ""}`;
}
const tile = (name, value, below) => (value === "–" || value === null ? null : h("div", {}, h("dt", {}, name), h("dd", {}, value, below ? h("small", {}, below) : null)));
function tiles(run) {
  const pruned = !run.dense;
  const shown = [
    known(run.accuracy) ? tile("Test accuracy", `${percent(run.accuracy)} %`, known(run.top5) ? `top-5 ${percent(run.top5)} %` : run.untrained ? "right after pruning" : "after the last epoch") : null,
    known(run.accuracy_at_best_validation) ? tile("At the best validation accuracy", `${percent(run.accuracy_at_best_validation)} %`, `epoch ${run.best_validation_epoch}, validation ${percent(run.best_validation)} %`) : null,
    pruned && known(run.sparsity) ? tile("Sparsity, nominal", `${sparse(run.sparsity)} %`, `${count(run.kept)} weights left`) : null,
    pruned && known(run.effective_sparsity) ? tile("Sparsity, effective", `${sparse(run.effective_sparsity)} %`, `${count(run.effective)} weights on a path`) : null,
    pruned && known(run.flops_effective) ? tile("FLOPs left", `${short(100 * share(run.flops_effective, run.flops_dense))} %`, known(run.flops_shrunk) ? `${short(100 * share(run.flops_shrunk, run.flops_dense))} % in a shrunk dense network` : null) : null,
    known(run.seconds.prune) && run.seconds.prune > 0 ? tile("Pruning", seconds(run.seconds.prune), run.settings && known(run.settings.rounds) ? `${plural(run.settings.rounds, "round")} of ${plural(run.settings.batches_per_round ?? 1, "batch").replace(/batchs$/, "batches")}` : null) : null,
    known(run.seconds.train) && run.seconds.train > 0 ? tile("Training", seconds(run.seconds.train), run.settings && known(run.settings.epochs) ? plural(run.settings.epochs, "epoch") : null) : null,
  ].filter(Boolean);
  return shown.length ? h("dl", { class: "tiles" }, shown) : null;
}
function more(title, build) {
  const details = h("details", { class: "more" }, h("summary", {}, title));
  details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(build()); });
  return details;
}
function layerTable(run) {
  const live = run.layers.some((layer) => known(layer.effective));
  const heads = ["Layer", "Shape", "Weights", "Kept", "Density %", ...(live ? ["On a path", "Effective density %"] : []), ""];
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Layers" }, h("table", { class: "whole" },
    h("thead", {}, h("tr", {}, heads.map((name, index) => h("th", { scope: "col", class: index > 1 ? "plain number" : "plain" }, name)))),
    h("tbody", {}, run.layers.map(({ name, shape, total, kept, effective }) => h("tr", {}, h("th", { scope: "row" }, label(name)), h("td", {}, shape.join(" × ")),
      [count(total), count(kept), short((100 * kept) / Math.max(1, total)), ...(live ? [count(effective), short((100 * effective) / Math.max(1, total))] : [])].map((text) => h("td", { class: "number" }, text)),
      h("td", {}, !kept ? h("span", { class: "badge bad" }, "dead") : effective === 0 ? h("span", { class: "badge warn" }, "idle") : "",
        run.collapsed.includes(name) ? h("span", { class: "badge bad" }, "cuts the path") : null))))));
}
function settingsTable(run) {
  const rows = [...Object.entries(run.settings || {}).filter(([, value]) => known(value)), ...Object.entries(run.environment)];
  return h("table", { class: "settings" }, h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, spoken(name)), h("td", { class: "mono" }, String(value))))));
}
const words = (run) => (run.words.length ? h("ul", { class: "words" }, run.words.map(([kind, text]) => h("li", { class: `word ${kind}` }, text))) : null);
function section(run) {
  const charts = runCharts(run);
  const choose = (id) => () => { $(id).value = String(run.index); compare(); remember(); $("compare").scrollIntoView(); $(id).focus({ preventScroll: true }); };
  return h("div", { class: "body" }, words(run), tiles(run), charts.length ? h("div", { class: "grid" }, charts) : null,
    run.layers.length ? more(`The ${run.layers.length} layers as a table`, () => layerTable(run)) : null,
    run.settings ? more("Settings and environment", () => h("div", { class: "card" }, settingsTable(run))) : null,
    h("div", { class: "actions" }, h("button", { type: "button", onclick: choose("run-a") }, "Compare as A"), h("button", { type: "button", onclick: choose("run-b") }, "Compare as B"),
      h("span", { class: "mono hint" }, run.folder)));
}
const sections = new Map();
let opened = null; // the run that was opened last
function detailsOf(run) {
  if (!sections.has(run.index)) {
    const settings = run.settings, dead = run.layers.some((layer) => layer.total && !layer.kept);
    const details = h("details", { class: "run", id: `run-${run.index}` }, h("summary", {},
      settings ? swatch(settings.method, groupOf[run.index].glyph) : h("span", {}, run.folder), settings ? h("b", { class: "num" }, run.dense ? "" : `${nominal(settings.sparsity)} %`) : null,
      settings ? h("span", { class: "where" }, `seed ${settings.seed} · ${settings.model} on ${settings.data}${variantOf(run) ? ` · ${variantOf(run)}` : ""}`) : null,
      h("span", { class: "badges" }, run.collapsed.length ? h("span", { class: "badge bad" }, "collapsed") : dead ? h("span", { class: "badge warn" }, "dead layers") : null,
        known(run.accuracy) ? h("span", { class: "num" }, `${percent(run.accuracy)} %`) : null, run.status === "done" ? null : stateBadge(run.status))));
    details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(section(run)); opened = details.open ? run : opened === run ? null : opened; remember(); });
    sections.set(run.index, details);
  }
  return sections.get(run.index);
}
const MANY = 60;
let everything = false;
function list() {
  const shown = everything ? shownRuns : shownRuns.slice(0, MANY), hidden = shownRuns.length - shown.length;
  $("list").replaceChildren(...shown.map(detailsOf), ...(hidden ? [h("button", { type: "button", onclick: () => { everything = true; list(); } }, `Show ${plural(hidden, "more run")}`)] : []),
    ...(shownRuns.length ? [] : [h("p", { class: "empty" }, "Nothing matches.")]));
}
function open(index) {
  if (!shownRuns.includes(runs[index])) { $("filters").reset(); select(); }
  if (!sections.has(index) || !sections.get(index).isConnected) { everything = true; list(); }
  const details = detailsOf(runs[index]);
  details.open = true;
  if (details.children.length === 1) details.append(section(runs[index]));
  details.scrollIntoView();
  details.querySelector("summary").focus({ preventScroll: true });
}

/* Two runs. */
const SCORES = [
  ["Test accuracy, %", (r) => r.accuracy, (v) => percent(v), 100, 2],
  ["Top-5 accuracy, %", (r) => r.top5, (v) => percent(v), 100, 2],
  ["Test accuracy at the best validation, %", (r) => r.accuracy_at_best_validation, (v) => percent(v), 100, 2],
  ["Sparsity, nominal, %", (r) => r.sparsity, sparse, 100, 3],
  ["Sparsity, effective, %", (r) => r.effective_sparsity, sparse, 100, 3],
  ["Weights left", (r) => r.kept, count, 1, 0],
  ["Weights on a path", (r) => r.effective, count, 1, 0],
  ["Dead layers", (r) => (r.layers.length ? r.layers.filter((layer) => !layer.kept).length : null), count, 1, 0],
  ["FLOPs left, %", (r) => share(r.flops_effective, r.flops_dense), (v) => (known(v) ? short(100 * v) : "–"), 100, 2],
  ["Saliency after the last round", (r) => r.series.prune?.saliency.at(-1), short, 1, 3],
  ["Pruning, s", (r) => r.seconds.prune, short, 1, 2],
  ["Training, s", (r) => r.seconds.train, short, 1, 2],
];
let onlyDifferences = true;
function compare() {
  const a = runs[Number($("run-a").value)], b = runs[Number($("run-b").value)];
  const head = (last) => h("thead", {}, h("tr", {}, ["", "A", "B", ...last].map((name, index) => h("th", { scope: "col", class: index && last.length ? "plain number" : "plain" }, name || h("span", { class: "quiet" }, "what")))));
  const scores = SCORES.filter(([, value]) => known(value(a)) || known(value(b))).map(([name, value, say, scale, digits]) => {
    const delta = known(value(a)) && known(value(b)) ? scale * (value(b) - value(a)) : null;
    return h("tr", {}, h("th", { scope: "row" }, name), [say(value(a)), say(value(b)), signed(delta, digits)].map((text) => h("td", { class: "number" }, text)));
  });
  const names = data.settings.filter((name) => known(setting(a, name)) || known(setting(b, name)));
  const differs = (name) => setting(a, name) !== setting(b, name);
  const rows = names.filter((name) => !onlyDifferences || differs(name)).map((name) => h("tr", { class: differs(name) ? "differs" : null },
    h("th", { scope: "row" }, spoken(name), differs(name) ? h("span", { class: "quiet" }, " (differs)") : null), [a, b].map((run) => h("td", { class: "mono" }, known(setting(run, name)) ? String(setting(run, name)) : "–"))));
  const check = h("input", { type: "checkbox", id: "only", onchange: (event) => { onlyDifferences = event.target.checked; compare(); $("only").focus(); } });
  check.checked = onlyDifferences;
  const apart = names.filter(differs).length;
  const charts = a === b ? [] : [overlayCharts(told([a, b].map((run, index) => ({ method: setting(run, "method"), name: `${"AB"[index]}: ${describe(run)}`, runs: [run] }))))];
  const side = (run, letter) => h("div", { class: "card" }, h("h3", {}, h("span", { class: "letter" }, letter), " ", swatch(setting(run, "method"), groupOf[run.index].glyph)), h("p", { class: "hint" }, link(run.index, describe(run))), words(run));
  $("comparison").replaceChildren(
    ...(a === b ? [h("p", { class: "hint" }, "A and B are the same run; choose another run to see differences.")] : []),
    h("div", { class: "side" }, side(a, "A"), side(b, "B")),
    h("div", { class: "side" },
      h("div", { class: "card" }, h("h3", {}, "Results"), scores.length ? h("table", {}, head(["B − A"]), h("tbody", {}, scores)) : h("p", { class: "hint" }, "Neither run has results yet.")),
      h("div", { class: "card" }, h("div", { class: "bar" }, h("h3", {}, apart ? `Settings: ${plural(apart, "difference")}` : "Settings: no difference"), h("label", { class: "check" }, check, "differences only")),
        rows.length ? h("table", { class: "settings" }, head([]), h("tbody", {}, rows)) : null)),
    ...charts);
}
function pair() {
  const options = () => runs.map((run) => h("option", { value: run.index }, describe(run)));
  $("run-a").replaceChildren(...options());
  $("run-b").replaceChildren(...options());
  const pruned = runs.filter((run) => run.layers.length && run.status === "done"), a = pruned[0] || runs[0];
  const b = pruned.find((run) => setting(run, "method") !== setting(a, "method") && setting(run, "sparsity") === setting(a, "sparsity"))
    || pruned.find((run) => run !== a) || runs.find((run) => run !== a) || a;
  $("run-a").value = String(a.index);
  $("run-b").value = String(b.index);
}
