/* One run, and two runs side by side: charts, layers, settings. */
/* Charts of one run, or of two runs A and B. */
function layersChart(pair) {
  const [first, second] = pair;
  const names = first.layers.map((layer) => layer.name);
  const both = second && second.layers.length === names.length && second.layers.every((layer, index) => layer.name === names[index]);
  if (!names.length || (second && !both)) return null;
  const drawnRuns = second ? [first, second] : [first];
  const density = (layer, field) => (layer.total ? layer[field] / layer.total : 0);
  const densities = drawnRuns.flatMap((run) => run.layers.flatMap((layer) => [density(layer, "kept"), known(layer.effective) && !second ? density(layer, "effective") : 0])).filter((d) => d > 0);
  const least = Math.min(0.1, ...densities), log = least < 0.05;
  const floor = log ? Math.max(-7, Math.floor(Math.log10(least) - 0.15)) : 0;
  const live = !second && first.layers.every((layer) => known(layer.effective));
  const keys = second ? drawnRuns.map((run, index) => ({ name: `${index ? "B" : "A"}: ${describe(run)}`, colour: colour(setting(run, "method")), kind: "s", bare: true }))
    : null;
  return chart({
    class: "full", title: "Density of each layer", keys,
    note: [live ? "pale: kept, full: kept and on a path from input to output" : second ? "filled: A, outlined: B" : null, log ? "log scale" : null].filter(Boolean).join("; "),
    label: `Density of each layer, from input to output: ${names.length} layers`,
    draw(width) {
      const f = frame(width, 260, { domain: [0, names.length], ticks: nice(1, names.length, width / 60).ticks.filter((t) => t >= 1 && Number.isInteger(t)).map((t) => t - 0.5),
        format: (t) => String(t + 0.5), name: "layer, from input to output" },
      log ? { domain: [floor, 0], ticks: decades(floor, 0, 6), format: (t) => tidy((100 * 10 ** t).toFixed(5)), name: "weights kept, % of the layer" }
        : { domain: [0, 1], ticks: [0, 0.25, 0.5, 0.75, 1], format: (t) => String(100 * t), name: "weights kept, % of the layer" });
      const stops = [], slot = (f.right - f.left) / names.length, gap = Math.max(slot * 0.2, slot - 26 * drawnRuns.length);
      const y = (d) => f.py(log ? Math.max(floor, Math.log10(d)) : d);
      drawnRuns.forEach((run, which) => run.layers.forEach((layer, index) => {
        const wide = (slot - gap) / drawnRuns.length, x = f.left + index * slot + gap / 2 + which * wide;
        const group = s("g", { class: "m", ...colour(setting(run, "method")) });
        const box = (d, name) => d > 0 && group.append(s("rect", { class: name, x: x.toFixed(1), width: Math.max(1, wide - (which || second ? 1 : 0)).toFixed(1), y: y(d).toFixed(1), height: Math.max(1, f.bottom - y(d)).toFixed(1) }));
        if (live) { box(density(layer, "kept"), "bar-kept"); box(density(layer, "effective"), "bar-live"); }
        else box(density(layer, "kept"), which ? "bar-b" : "bar-live");
        if (!layer.kept) {
          const at = x + wide / 2, up = f.bottom - 8, r = Math.min(4, wide / 2);
          group.append(s("path", { class: "deadmark", d: `M${at - r},${up - r}l${2 * r},${2 * r}m0,${-2 * r}l${-2 * r},${2 * r}` }));
        }
        f.svg.append(group);
      }));
      names.forEach((name, index) => stops.push({
        x: f.left + (index + 0.5) * slot, y: Math.min(...drawnRuns.map((run) => (run.layers[index].kept ? y(density(run.layers[index], "kept")) : f.bottom - 14))), cross: [f.top, f.bottom],
        title: `${index + 1}. ${label(name)}`,
        lines: [first.layers[index].shape.join(" × "), ...drawnRuns.flatMap((run, which) => {
          const layer = run.layers[index], before = second ? `${"AB"[which]}: ` : "";
          return [`${before}${count(layer.kept)} of ${count(layer.total)} kept, ${short(100 * density(layer, "kept"))} %`,
            ...(known(layer.effective) && !second ? [`${count(layer.effective)} on a path, ${short(100 * density(layer, "effective"))} %`] : []),
            ...(layer.kept ? [] : [`${before}dead`])];
        })] }));
      return { svg: f.svg, stops };
    },
  });
}
/* Lines over rounds or epochs: each is {name, colour, at, values, dash, class, say}; say turns a value into words. */
function linesChart({ title, name, unit, lines, log, share, yName, planned }) {
  const drawn = lines.filter((line) => line.values.some(known));
  if (!drawn.length) return null;
  const all = drawn.flatMap((line) => line.values.filter((value) => known(value) && (!log || value > 0)));
  if (!all.length) return null;
  const thin = drawn.map((line) => line.thin).find(Boolean);
  return chart({
    title, note: thin, label: `${title}: ${drawn.map((line) => line.name).join(", ")}`,
    keys: drawn.length > 1 ? drawn.map((line) => ({ name: line.name, colour: line.colour, dash: line.dash, class: line.class })) : null,
    draw(width) {
      let axis;
      if (share) axis = percents(all, 0.1);
      else if (log) {
        const low = Math.log10(Math.min(...all)), high = Math.log10(Math.max(...all)), room = Math.max(0.05, (high - low) * 0.06);
        axis = { domain: [low - room, high + room], ticks: decades(low - room, high + room, 6), format: (t) => plain(10 ** t) };
      } else {
        const low = Math.min(...all), high = Math.max(...all), room = (high - low || Math.abs(high) || 1) * 0.08;
        const domain = [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
        axis = { domain, ticks: nice(...domain, 5).ticks, format: short };
      }
      const from = Math.min(...drawn.map((line) => line.at[0])), to = Math.max(...drawn.map((line) => line.at.at(-1)));
      const f = frame(width, 240, { domain: from === to ? [from - 0.5, to + 0.5] : [from, to], ticks: nice(from, to, width / 80).ticks.filter(Number.isInteger), format: (t) => t.toLocaleString("en-GB"), name }, { ...axis, name: unit === "%" ? `${yName}, %` : yName });
      const y = (value) => f.py(share ? 100 * value : log ? Math.log10(value) : value), stops = new Map();
      for (const line of drawn) {
        const parts = [[]];
        line.values.forEach((value, index) => {
          if (!known(value) || (log && value <= 0)) { if (known(value) || !line.sparse) parts.push([]); }
          else parts.at(-1).push([f.px(line.at[index]), y(value)]);
          const x = line.at[index];
          if (!stops.has(x)) stops.set(x, { x: f.px(x), y: f.bottom, cross: [f.top, f.bottom], title: `${name} ${x.toLocaleString("en-GB")}${planned ? ` of ${planned}` : ""}`, lines: [] });
          const stop = stops.get(x);
          if (known(value)) { stop.lines.push(`${line.name} ${line.say(value, index)}`); if (!log || value > 0) stop.y = Math.min(stop.y, y(value)); }
        });
        f.svg.append(s("g", { class: `m ${line.class || ""}`, ...line.colour }, parts.map((part) => part.length > 1 ? s("path", { class: "curve", d: path(part), "stroke-dasharray": line.dash })
          : part.length ? s("path", { class: "mark", d: outline("o", part[0][0], part[0][1], 3.5) }) : null)));
      }
      return { svg: f.svg, stops: [...stops.values()].filter((stop) => stop.lines.length) };
    },
  });
}
const thinNote = (series, noun) => (series.all > series.at.length ? `${series.at.length} of ${count(series.all)} ${noun} drawn` : null);
function roundCharts(pair) {
  const charts = [], two = pair.length > 1, before = (which) => (two ? `${"AB"[which]} ` : "");
  const stages = pair.map((run, which) => ({ run, which, series: run.series.prune })).filter(({ series }) => series && series.at.length > 1);
  if (!stages.length) return charts;
  const planned = two ? null : stages[0].series.planned;
  const line = ({ run, which, series }, field, name, dash, change = (v) => v, say = short) => ({
    name: before(which) + name, colour: colour(setting(run, "method")), at: series.at, thin: thinNote(series, "rounds"), dash,
    values: series[field].map((value) => (known(value) ? change(value) : null)), say });
  const changes = stages.flatMap((each) => {
    const total = each.run.prunable || 1, part = (value) => (100 * value) / total;
    const say = (field) => (value, index) => `${count(each.series[field][index])} (${short(value)} %)`;
    const fields = [["pruned", "pruned", null], ["recovered", "recovered", "6 4"], ["recovered_empty", "recovered in empty channels", "2 4"]];
    return (two ? fields.slice(0, 2) : fields).filter(([field]) => each.series[field].some((value) => value > 0))
      .map(([field, name, dash]) => ({ ...line(each, field, name, two && each.which && !dash ? "9 3 2 3" : dash, part), say: say(field), class: null }));
  });
  charts.push(linesChart({ title: "Pruned and recovered in each round", name: "round", planned, yName: "weights, % of all prunable", log: true, lines: changes }));
  charts.push(linesChart({ title: "Saliency of the kept weights", name: "round", planned, yName: "saliency S(θ, c)", lines: stages.map((each) => line(each, "saliency", "saliency", two && each.which ? "6 4" : null)),
    log: spread(stages.flatMap((each) => each.series.saliency)) > 30 }));
  return charts;
}
const spread = (values) => { const numbers = values.filter((v) => known(v)); return numbers.length && numbers.every((v) => v > 0) ? Math.max(...numbers) / Math.min(...numbers) : 0; };
function trainCharts(pair) {
  const charts = [], two = pair.length > 1;
  for (const stage of two ? ["train"] : ["pretrain", "train"]) {
    const stages = pair.map((run, which) => ({ run, which, series: run.series[stage] })).filter(({ series }) => series && series.at.length);
    if (!stages.length) continue;
    const say = (value) => `${percent(value)} %`, planned = two ? null : stages[0].series.planned;
    const line = ({ run, which, series }, field, name, dash, soft) => ({ name: (two ? `${"AB"[which]} ` : "") + name, at: series.at, values: series[field], say, dash,
      colour: colour(setting(run, "method")), class: soft ? "soft-line" : null, thin: thinNote(series, "epochs"), sparse: true });
    const tested = (each) => each.series.test.filter(known).length > 1;
    const lines = stages.flatMap((each) => two
      ? [line(each, tested(each) ? "test" : "validation", tested(each) ? "test" : "validation", each.which ? "6 4" : null)]
      : [line(each, "accuracy", "training", null, true), line(each, "validation", "validation", "6 4"), line(each, "test", "test", null)]);
    const title = stage === "train" ? "Accuracy in training" : "Accuracy in the dense epochs before pruning";
    charts.push(linesChart({ title, name: "epoch", planned, unit: "%", yName: "accuracy", share: true, lines }));
    charts.push(linesChart({ title: stage === "train" ? "Training loss" : "Loss before pruning", name: "epoch", planned, yName: "loss", lines: stages.map((each) => ({ ...line(each, "loss", "loss", two && each.which ? "6 4" : null), say: short })) }));
  }
  return charts;
}

/* Runs. */
function describe(run) {
  if (!run.settings) return run.folder;
  const settings = run.settings, more = variantOf(run);
  return `${settings.method}${run.dense ? "" : ` ${nominal(settings.sparsity)} %`}, seed ${settings.seed}, ${settings.model} on ${settings.data}${more ? `, ${more}` : ""}`;
}
const tile = (name, value, below) => (value === "–" || value === null ? null : h("div", {}, h("dt", {}, name), h("dd", {}, value, below ? h("small", {}, below) : null)));
const share = (part, whole) => (known(part) && whole ? part / whole : null);
function tiles(run) {
  const pruned = !run.dense;
  const shown = [
    known(run.accuracy) ? tile("Test accuracy", `${percent(run.accuracy)} %`, known(run.top5) ? `top-5 ${percent(run.top5)} %` : "after the last epoch") : null,
    known(run.accuracy_at_best_validation) ? tile("At the best validation accuracy", `${percent(run.accuracy_at_best_validation)} %`, `epoch ${run.best_validation_epoch + 1}, validation ${percent(run.best_validation)} %`) : null,
    pruned && known(run.sparsity) ? tile("Sparsity, nominal", `${sparse(run.sparsity)} %`, `${count(run.kept)} weights left`) : null,
    pruned && known(run.effective_sparsity) ? tile("Sparsity, effective", `${sparse(run.effective_sparsity)} %`, `${count(run.effective)} weights on a path`) : null,
    pruned && known(run.flops_effective) ? tile("FLOPs left", `${short(100 * share(run.flops_effective, run.flops_dense))} %`, known(run.flops_shrunk) ? `${short(100 * share(run.flops_shrunk, run.flops_dense))} % in a shrunk dense network` : null) : null,
    known(run.seconds.prune) && run.seconds.prune > 0 ? tile("Pruning", seconds(run.seconds.prune), run.settings && known(run.settings.rounds) ? `${plural(run.settings.rounds, "round")} of ${plural(run.settings.batches ?? 1, "batch").replace(/batchs$/, "batches")}` : null) : null,
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
  const charts = [layersChart([run]), ...roundCharts([run]), ...trainCharts([run])].filter(Boolean);
  const choose = (id) => () => { $(id).value = String(run.index); compare(); $("compare").scrollIntoView(); $(id).focus({ preventScroll: true }); };
  return h("div", { class: "body" }, words(run), tiles(run), charts.length ? h("div", { class: "grid" }, charts) : null,
    run.layers.length ? more(`The ${run.layers.length} layers as a table`, () => layerTable(run)) : null,
    run.settings ? more("Settings and environment", () => h("div", { class: "card" }, settingsTable(run))) : null,
    h("div", { class: "actions" }, h("button", { type: "button", onclick: choose("run-a") }, "Compare as A"), h("button", { type: "button", onclick: choose("run-b") }, "Compare as B"),
      h("span", { class: "mono hint" }, run.folder)));
}
const sections = new Map();
function detailsOf(run) {
  if (!sections.has(run.index)) {
    const settings = run.settings, dead = run.layers.some((layer) => layer.total && !layer.kept);
    const details = h("details", { class: "run", id: `run-${run.index}` }, h("summary", {},
      settings ? swatch(settings.method, groupOf[run.index].marker) : h("span", {}, run.folder), settings ? h("b", { class: "num" }, run.dense ? "" : `${nominal(settings.sparsity)} %`) : null,
      settings ? h("span", { class: "where" }, `seed ${settings.seed} · ${settings.model} on ${settings.data}${variantOf(run) ? ` · ${variantOf(run)}` : ""}`) : null,
      h("span", { class: "badges" }, run.collapsed.length ? h("span", { class: "badge bad" }, "collapsed") : dead ? h("span", { class: "badge warn" }, "dead layers") : null,
        known(run.accuracy) ? h("span", { class: "num" }, `${percent(run.accuracy)} %`) : null, run.status === "done" ? null : stateBadge(run.status))));
    details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(section(run)); });
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
function follow() {
  const match = /^#run-(\d+)$/.exec(location.hash);
  if (match && runs[Number(match[1])]) open(Number(match[1]));
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
    const difference = delta === null ? "–" : Math.abs(delta) < 0.5 * 10 ** -digits ? "0" : (delta > 0 ? "+" : "−") + Math.abs(delta).toLocaleString("en-GB", { maximumFractionDigits: digits });
    return h("tr", {}, h("th", { scope: "row" }, name), [say(value(a)), say(value(b)), difference].map((text) => h("td", { class: "number" }, text)));
  });
  const names = data.settings.filter((name) => known(setting(a, name)) || known(setting(b, name)));
  const differs = (name) => setting(a, name) !== setting(b, name);
  const rows = names.filter((name) => !onlyDifferences || differs(name)).map((name) => h("tr", { class: differs(name) ? "differs" : null },
    h("th", { scope: "row" }, spoken(name), differs(name) ? h("span", { class: "quiet" }, " (differs)") : null), [a, b].map((run) => h("td", { class: "mono" }, known(setting(run, name)) ? String(setting(run, name)) : "–"))));
  const check = h("input", { type: "checkbox", id: "only", onchange: (event) => { onlyDifferences = event.target.checked; compare(); $("only").focus(); } });
  check.checked = onlyDifferences;
  const apart = names.filter(differs).length;
  const charts = a === b ? [] : [layersChart([a, b]), ...roundCharts([a, b]), ...trainCharts([a, b])].filter(Boolean);
  const side = (run, letter) => h("div", { class: "card" }, h("h3", {}, h("span", { class: "letter" }, letter), " ", swatch(setting(run, "method"), groupOf[run.index].marker)), h("p", { class: "hint" }, h("a", { href: `#run-${run.index}` }, describe(run))), words(run));
  $("comparison").replaceChildren(
    ...(a === b ? [h("p", { class: "hint" }, "A and B are the same run; choose another run to see differences.")] : []),
    h("div", { class: "side" }, side(a, "A"), side(b, "B")),
    h("div", { class: "side" },
      h("div", { class: "card" }, h("h3", {}, "Results"), scores.length ? h("table", {}, head(["B − A"]), h("tbody", {}, scores)) : h("p", { class: "hint" }, "Neither run has results yet.")),
      h("div", { class: "card" }, h("div", { class: "bar" }, h("h3", {}, apart ? `Settings: ${plural(apart, "difference")}` : "Settings: no difference"), h("label", { class: "check" }, check, "differences only")),
        rows.length ? h("table", { class: "settings" }, head([]), h("tbody", {}, rows)) : null)),
    ...(charts.length ? [h("div", { class: "card" }, h("div", { class: "grid" }, charts))] : []));
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
