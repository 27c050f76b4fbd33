/* The search: words, fields such as seed:1 and sparsity>=98, and a minus before what to leave out. */
const setting = (run, name) => (run.settings ? run.settings[name] : null);
const asShown = (value) => (known(value) ? Number(percent(value, 6)) : null);
/* What the fields read, as the page shows it. Fractions are shown in percent: of those, 0.98 means 98. */
const PERCENT = {
  __proto__: null,
  sparsity: (run) => asShown(setting(run, "sparsity")),
  accuracy: (run) => (known(run.accuracy) ? Number(percent(run.accuracy)) : null),
  effective: (run) => (known(run.effective_sparsity) ? Number(sparse(run.effective_sparsity)) : null),
};
const FIELDS = {
  __proto__: null,
  ...Object.fromEntries(data.settings.map((name) => [spoken(name), (run) => setting(run, name)])),
  ...PERCENT,
  network: (run) => setting(run, "model"),
  state: (run) => [run.status, run.collapsed.length ? "collapsed" : null],
  pruning: (run) => run.seconds.prune,
  training: (run) => run.seconds.train,
  kept: (run) => run.kept,
  folder: (run) => [run.folder, ...run.folder.split("/")],
};
const valuesOf = (run, field) => [FIELDS[field](run)].flat().filter(known);
/* What a word without a field may name: whole values that stand in the table. */
const visible = (run) => ["method", "sparsity", "seed", "data", "network", "state", "folder", ...Object.keys(FIELDS).filter((name) => variantOf(run).split(", ").some((part) => part.startsWith(`${name} `)))]
  .flatMap((field) => valuesOf(run, field).map((value) => [value, field in PERCENT]));
const COMPARE = { ">=": (a, b) => a >= b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, "<": (a, b) => a < b };
const near = (a, b) => Math.abs(a - b) <= 1e-9 * Math.max(1, Math.abs(b));
function numberOf(word, inPercent) {
  const number = /^[-+.\d]/.test(word) ? Number(word.replace(/%$/, "")) : NaN;
  return inPercent && number > 0 && number < 1 && !word.endsWith("%") ? 100 * number : number;
}
function equals(value, word, inPercent) {
  if (typeof value === "number") return near(value, numberOf(word, inPercent));
  const pattern = word.split("*").map((part) => part.replace(/[\\^$.|?+()[\]{}]/g, "\\$&")).join(".*");
  return new RegExp(`^(?:${pattern})$`, "is").test(String(value));
}
const names = (run, word) => visible(run).some(([value, inPercent]) => equals(value, word, inPercent));
/* Return {test, problem}: whether a run is meant, and what is wrong with the text. */
function search(text) {
  const TERM = /(-)?(?:([a-z][\w-]*)(>=|<=|[:=<>]))?("[^"]*"?|\S+)/gi, terms = [];
  for (const [whole, minus, field, sign, word] of text.matchAll(TERM)) terms.push({ whole, minus, field: field?.toLowerCase().replaceAll("_", "-"), sign, word: word.replaceAll('"', "") });
  let problem = "";
  const tests = [];
  for (let at = 0; at < terms.length; at++) {
    let { whole, minus, field, sign, word } = terms[at];
    const next = terms[at + 1];
    if (!field && word.toLowerCase() in FIELDS && next && !next.field && !next.minus && !runs.some((run) => names(run, word))) [field, sign, word] = [word.toLowerCase(), ":", terms[++at].word]; // "seed 1"
    let test = (run) => names(run, word);
    if (field && !(field in FIELDS)) {
      const plain = whole.slice(minus ? 1 : 0);
      if (runs.some((run) => names(run, plain))) test = (run) => names(run, plain); // package.module:factory
      else problem ||= `There is no field “${field}”. The fields are ${Object.keys(FIELDS).sort().join(", ")}.`;
    } else if (sign in COMPARE) {
      const number = numberOf(word, field in PERCENT);
      if (Number.isNaN(number)) problem ||= `“${whole}” compares with no number; write, for example, ${field}${sign}1.`;
      test = (run) => valuesOf(run, field).some((value) => typeof value === "number" && (COMPARE[sign](value, number) || (sign.endsWith("=") && near(value, number))) && !(sign.length === 1 && near(value, number)));
    } else if (field) test = (run) => word.split(",").some((each) => valuesOf(run, field).some((value) => equals(value, each, field in PERCENT)));
    tests.push(minus ? (run) => !test(run) : test);
  }
  return { problem, test: (run) => !problem && tests.every((each) => each(run)) };
}
/* An example that finds something here. */
function example() {
  const run = runs.find((each) => each.settings && !each.dense) ?? runs.find((each) => each.settings);
  if (!run) return "unreadable";
  const other = runs.map((each) => setting(each, "method")).find((method) => known(method) && method !== run.settings.method);
  return `seed:${run.settings.seed} sparsity>=${asShown(run.settings.sparsity)}${other ? ` -method:${other}` : ""} ${run.status}`;
}
