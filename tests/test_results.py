"""The records in results/: every accuracy in its README and in docs/ is that of a record, and each is in the queue."""

import re
from functools import cache
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from barebones.lab.folder import finished, recorded
from barebones.lab.looks import looks
from barebones.lab.recipes import experiments
from barebones.lab.records import records
from barebones.models import MODELS
from barebones.paper.numbers import ABOUT, ABOVE, ACCURACIES
from barebones.pruning.controls import CONTROLS

RESULTS = Path(__file__).parents[1] / "results"
README = (RESULTS / "README.md").read_text(encoding="utf-8")
METHODS = {look.label: method for method, look in looks().items()}
VGG19 = {"model": "vgg19", "epochs": 40}


@cache
def finished_runs() -> list[dict]:
    return records(RESULTS)


def accuracies(**settings: object) -> list[tuple[str, bool]]:
    """The test accuracies in %, as the README prints them, of the records with these settings."""
    chosen = [row for row in finished_runs() if all(row[name] == value for name, value in settings.items())]
    return [(f"{100 * row['top1']:.2f}", row["collapsed"]) for row in chosen]


def test_every_cell_of_the_table_is_a_record():
    heads, _, *rows = re.findall(r"^\|(.*)\|$", README, re.MULTILINE)
    sparsities = [round(float(head.strip(" %")) / 100, 6) for head in heads.split("|")[1:]]
    assert len(rows) == 10
    for row in rows:
        label, *cells = (cell.strip() for cell in row.split("|"))
        for sparsity, cell in zip(sparsities, cells, strict=True):
            settings = VGG19 | {"method": METHODS[label], "sparsity": sparsity, "seed": 0, "control": "none"}
            expected = [f"{top1} (collapsed)" if collapsed else top1 for top1, collapsed in accuracies(**settings)]
            assert [cell] == (expected or [""]), settings


def test_the_sentences_match_the_records():
    for accuracy, settings in {
        "91.61": {"model": "vgg19", "method": "dense"},
        "89.53": {"model": "resnet50", "method": "force", "epochs": 350},
        "90.21": {"model": "resnet50", "method": "hybrid", "epochs": 350},
    }.items():
        assert accuracies(**settings) == [(accuracy, False)]
        assert accuracy in README
    assert f"{len(finished_runs())} of\nthem are finished" in README
    unsealed = [row for row in finished_runs() if recorded(RESULTS / row["folder"])[1].initial is None]
    assert f"{len(unsealed)} of these runs are older than the seals" in README


def rows_of(page: str) -> list[list[str]]:
    """The cells of the rows of a page that begin with the label of a method."""
    text = (RESULTS.parent / "docs" / page).read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in row.split("|")] for row in re.findall(r"^\|(.*)\|$", text, re.MULTILINE)]
    return [row for row in rows if row[0] in METHODS]


def result(label: str, sparsity: float) -> dict:
    settings = VGG19 | {"method": METHODS[label], "sparsity": sparsity, "seed": 0, "control": "none"}
    [row] = [row for row in finished_runs() if all(row[name] == value for name, value in settings.items())]
    return finished(RESULTS / row["folder"])


def test_the_tables_of_the_pages_are_those_of_the_records():
    for label, *accuracies, flops in rows_of("choosing.md"):
        results = [result(label, sparsity) for sparsity in (0.9, 0.99, 0.995, 0.999)]
        assert accuracies == [f"{100 * each['test']['top1']:.2f}" for each in results]
        assert flops == f"{results[2]['flops_shrunk'] / results[2]['flops_dense']:.0%}".replace("%", " %")
    for label, *cells in rows_of("effective-sparsity.md"):
        of = result(label, 0.999)
        assert of["kept"] == 20024
        assert cells == [
            f"{of['effective']:,}", f"{100 * of['effective_sparsity']:.3f} %", f"{100 * of['test']['top1']:.2f}"
        ]  # fmt: skip


def test_every_record_is_in_the_queue():
    queued = {experiment.resolved("cuda").folder for experiment in experiments(str(RESULTS / "queue.toml"))}
    assert {row["folder"] for row in finished_runs()} <= queued


# docs/results.md

PAGE = (RESULTS.parent / "docs" / "results.md").read_text(encoding="utf-8")
COMPARED = ("hybrid", "force", "iter-snip", "synflow", "iter-grasp", "snip-mb", "grasp-mb", "erk", "random", "snip")
STUDENT = 4.303  # half of a 95 % interval of three seeds, in standard errors


def by_seed(**settings: object) -> dict[int, float]:
    """The test accuracies in % of the records with these settings."""
    chosen = [row for row in finished_runs() if all(row[name] == value for name, value in settings.items())]
    return {row["seed"]: 100 * row["top1"] for row in chosen}


def record_of(method: str, sparsity: float, control: str) -> dict:
    settings = VGG19 | {"method": method, "sparsity": sparsity, "control": control, "seed": 0}
    [row] = [row for row in finished_runs() if all(row[name] == value for name, value in settings.items())]
    return finished(RESULTS / row["folder"])


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def seeds_table() -> list[str]:
    """Three seeds at 99.5 %."""
    lines = []
    for method in COMPARED:
        seeds = by_seed(**VGG19, method=method, sparsity=0.995, control="none")
        values = [seeds[seed] for seed in range(3)]
        half = STUDENT * stdev(values) / sqrt(3)
        lines.append(line(looks()[method].label, *(f"{v:.2f}" for v in values), f"{fmean(values):.2f} ± {half:.2f}"))
    return lines


def second_seeds_table() -> list[str]:
    """Two seeds at 99.9 %."""
    lines = []
    for method in COMPARED:
        seeds = by_seed(**VGG19, method=method, sparsity=0.999, control="none")
        cells = [f"{seeds[seed]:.2f}" if seed in seeds else "" for seed in range(2)]
        lines.append(line(looks()[method].label, *cells))
    return lines


def controls_table() -> list[str]:
    lines = []
    for sparsity in (0.995, 0.999):
        for method in ("hybrid", "force", "iter-snip"):
            results = [record_of(method, sparsity, control) for control in ("none", "redraw", "shuffle", "invert")]
            cells = [f"{100 * each['test']['top1']:.2f}" + " (cut)" * bool(each["collapsed"]) for each in results]
            lines.append(line(looks()[method].label, f"{100 * sparsity:g} %", *cells))
    return lines


def effective_table() -> list[str]:
    lines = []
    for sparsity in (0.995, 0.999):
        for method in ("hybrid", "force", "iter-snip"):
            results = [record_of(method, sparsity, control) for control in ("none", "shuffle", "invert")]
            cells = [f"{each['effective']:,}" for each in results]
            lines.append(line(looks()[method].label, f"{100 * sparsity:g} %", f"{results[0]['kept']:,}", *cells))
    return lines


def paper_table() -> list[str]:
    """Every number of the paper on CIFAR-10 beside the mean of our records of the same rounds and batches."""
    lines = []
    for number in ACCURACIES:
        rows = [
            row
            for row in finished_runs()
            if all(row[name] == getattr(number, name) for name in ("data", "model", "method", "sparsity"))
            and row["control"] == "none"
            and number.rounds in (None, row["rounds"])
            and number.batches in (None, row["batches"])
        ]
        if rows:
            ours = fmean(100 * row["top1"] for row in rows)
            epochs = {row["epochs"] for row in rows}
            says = {ABOUT: "about ", ABOVE: "over "}.get(number.says, "")
            lines.append(
                line(
                    f"{MODELS[number.model].label}, {100 * number.sparsity:g} %", looks()[number.method].label,
                    f"{epochs.pop()}", f"{len(rows)}", f"{ours:.2f}", f"{says}{100 * number.top1:.1f}",
                    f"{ours - 100 * number.top1:+.1f}".replace("-", "−"),
                )
            )  # fmt: skip
    return lines


def test_the_page_of_results_has_the_tables_of_the_records():
    for lines in (seeds_table(), second_seeds_table(), controls_table(), effective_table(), paper_table()):
        assert "\n".join(lines) in PAGE
    assert f"{len(finished_runs())} finished runs" in PAGE


def test_every_accuracy_in_the_sentences_of_the_page_is_in_a_table():
    sentences = "\n".join(row for row in PAGE.splitlines() if not row.startswith("|"))
    tables = "\n".join([*seeds_table(), *second_seeds_table(), *controls_table(), *paper_table()])
    dense = by_seed(**VGG19, method="dense")[0]
    best = {f"{100 * row['top1_at_best_validation']:.2f}" for row in finished_runs() if row["epochs"] == 350}
    hybrid = by_seed(model="resnet50", method="hybrid")[0]
    known = {*re.findall(r"\b\d\d\.\d\d\b", tables), f"{dense:.2f}", f"{hybrid:.2f}", *best}
    assert set(re.findall(r"\b\d\d\.\d\d\b", sentences)) <= known


def test_the_numbers_at_the_top_of_the_readme_are_those_of_the_page():
    text = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    lines = [row for row in text.splitlines() if row.startswith(("| ResNet-50, ", "| VGG-19, "))]
    assert len(lines) == 4
    assert set(lines) <= set(paper_table())


def test_the_controls_of_the_page_are_those_of_the_library():
    assert [name for name in CONTROLS if f"`{name}`" in PAGE] == ["shuffle", "redraw", "invert"]
