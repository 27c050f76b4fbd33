"""The records in results/: every number of its README stands in a record, and every record is in the queue."""

import re
from pathlib import Path

from barebones.lab.folder import finished
from barebones.lab.looks import looks
from barebones.lab.recipes import experiments
from barebones.lab.records import records

RESULTS = Path(__file__).parents[1] / "results"
README = (RESULTS / "README.md").read_text(encoding="utf-8")
METHODS = {look.label: method for method, look in looks().items()}


def accuracies(**settings: object) -> list[tuple[str, bool]]:
    """The test accuracies in %, as the README prints them, of the records with these settings."""
    chosen = [row for row in records(RESULTS) if all(row[name] == value for name, value in settings.items())]
    return [(f"{100 * row['top1']:.2f}", row["collapsed"]) for row in chosen]


def test_every_cell_of_the_table_is_a_record():
    heads, _, *rows = re.findall(r"^\|(.*)\|$", README, re.MULTILINE)
    sparsities = [round(float(head.strip(" %")) / 100, 6) for head in heads.split("|")[1:]]
    assert len(rows) == 10
    for row in rows:
        label, *cells = (cell.strip() for cell in row.split("|"))
        for sparsity, cell in zip(sparsities, cells, strict=True):
            settings = {"model": "vgg19", "epochs": 40, "method": METHODS[label], "sparsity": sparsity, "seed": 0}
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
    assert f"{len(records(RESULTS))} of\nthem are finished" in README


def rows_of(page: str) -> list[list[str]]:
    """The cells of the rows of a page that begin with the label of a method."""
    text = (RESULTS.parent / "docs" / page).read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in row.split("|")] for row in re.findall(r"^\|(.*)\|$", text, re.MULTILINE)]
    return [row for row in rows if row[0] in METHODS]


def result(label: str, sparsity: float) -> dict:
    settings = {"model": "vgg19", "epochs": 40, "method": METHODS[label], "sparsity": sparsity, "seed": 0}
    [row] = [row for row in records(RESULTS) if all(row[name] == value for name, value in settings.items())]
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
    assert {row["folder"] for row in records(RESULTS)} <= queued
