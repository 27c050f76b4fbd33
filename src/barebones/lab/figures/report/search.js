/* The search: words, fields such as seed:1 and sparsity>=98, and a minus before what to leave out. */
/* What the fields read, as the page shows it: sparsities and accuracies are in percent. */
const shown = (write, value) => (known(value) ? Number(write(value)) : null);
const FIELDS = {
  __proto__: null,
  ...Object.fromEntries(data.settings.map((name) => [spoken(name), (run) => setting(run, name)])),
  sparsity: (run) => shown(nominal, setting(run, "sparsity")),
  accuracy: (run) => shown(percent, run.accuracy),
  effective: (run) => shown(sparse, run.effective_sparsity),
  network: (run) => setting(run, "model"),
  state: (run) => [run.status, run.collapsed.length ? "collapsed" : null],
  pruning: (run) => run.seconds.prune,
  training: (run) => run.seconds.train,
  folder: (run) => [run.folder, ...run.folder.split("/")],
};
const NAMED = ["method", "sparsity", "seed", "data", "network", "state", "folder"]; // where a word without a field is looked for
const numberOf = (word) => (/^[-+.\d]/.test(word) ? Number(word.replace(/%$/, "")) : NaN);
const COMPARE = { ">=": (a, b) => a >= b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, "<": (a, b) => a < b };
/* Whether a value is the word as a whole, where * stands for any text. */
function equals(value, word) {
  if (typeof value === "number") return value === numberOf(word);
  const pattern = word.split("*").map((part) => part.replace(/[\\^$.|?+()[\]{}]/g, "\\$&")).join(".*");
  return new RegExp(`^(?:${pattern})$`, "is").test(String(value));
}
/* Return {test, problem}: whether a run is meant, and what is wrong with the text. */
function search(text) {
  const TERM = /(-)?(?:([a-z][\w-]*)(>=|<=|[:=<>]))?("[^"]*"?|\S+)/gi;
  let problem = "";
  const tests = [...text.matchAll(TERM)].map(([, minus, name, sign, quoted]) => {
    const field = name && spoken(name.toLowerCase()), word = quoted.replaceAll('"', ""), words = field ? word.split(",") : [word];
    if (field && !(field in FIELDS)) problem = `There is no field “${field}”. The fields are ${Object.keys(FIELDS).sort().join(", ")}.`;
    const meant = (value) => (sign in COMPARE ? typeof value === "number" && COMPARE[sign](value, numberOf(word)) : words.some((each) => equals(value, each)));
    return (run) => (field ? [field] : NAMED).some((each) => [FIELDS[each](run)].flat().filter(known).some(meant)) !== Boolean(minus);
  });
  return { problem, test: (run) => !problem && tests.every((each) => each(run)) };
}
