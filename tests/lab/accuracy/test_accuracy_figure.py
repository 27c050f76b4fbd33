"""The figure of any runs: how they are grouped, what is drawn and printed, and mistakes."""

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from lab_runs import made_up_result, write_file

from barebones.lab.experiment.experiment import DENSE, Experiment
from barebones.lab.figures import plots
from barebones.lab.figures.accuracy import AXES, arranged, draw
from barebones.lab.records import records, tables

BASE = Experiment("small-vgg", "digits", "snip", 0.9, epochs=2)
DAMAGED = f"{BASE.resolved().folder} is unreadable: result.json is damaged"
SPARSITIES = (0.5, 0.6, 0.7, 0.8, 0.825, 0.875, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999)


def run(folder: Path, experiment: Experiment, top1: float = 0.9, **changes: Any) -> None:
    """Write the result of a run that never happened."""
    resolved = experiment.resolved()
    sparsity = 0.0 if resolved.method == DENSE else resolved.sparsity
    changes = {"sparsity": sparsity, "effective_sparsity": sparsity, **changes}
    write_file(folder / resolved.folder, resolved, "result.json", made_up_result(resolved, top1, **changes))


def rows(*experiments: Experiment, **changes: Any) -> list[dict[str, Any]]:
    """Records of runs that never happened, one for each experiment."""
    blank = dict.fromkeys(records.COLUMNS) | {"status": "done", "top1": 0.9, "collapsed": False, "prune_seconds": 2.0}
    settings = [experiment.resolved().to_dict() for experiment in experiments]
    known = [{"effective_sparsity": s["sparsity"], "flops_left": 1 - s["sparsity"]} | s for s in settings]
    return records.arranged(blank | row | {"folder": str(n)} | changes for n, row in enumerate(known))


def drawn(experiments: list[Experiment], x: str = "sparsity", **changes: Any) -> list[Any]:
    with plots.styled():
        return list(draw(arranged(rows(*experiments, **changes), AXES[x])[1], AXES[x]))


FORCE, UNPRUNED = replace(BASE, method="force"), replace(BASE, method=DENSE, sparsity=0.0)
FIRST, SECOND = (replace(BASE, method="file", mask=digit * 64, seed=int(digit)) for digit in "12")
ONE, TWO = "Digits, small VGG (2 epochs, 1 seed)", "Digits, small VGG (2 epochs, 2 seeds)"
MINE, BRIEF = "Digits, my.nets:one (2 epochs, 1 seed)", "Digits, small VGG (1 epoch, 1 seed)"


@pytest.mark.parametrize(
    ("experiments", "expected"),
    [
        ([BASE, FORCE, UNPRUNED, replace(FORCE, seed=1)], {TWO: ["Dense", "SNIP", "FORCE"]}),
        ([replace(FORCE, rounds=5), replace(FORCE, rounds=1)], {ONE: ["FORCE, 1 round", "FORCE, 5 rounds"]}),
        ([BASE, replace(BASE, shrink=True)], {ONE: ["SNIP", "SNIP, shrink"]}),
        ([replace(BASE, model="my.nets:one"), replace(BASE, epochs=1)], {MINE: ["SNIP"], BRIEF: ["SNIP"]}),
        # A dense network that was trained for one epoch is none to compare networks of five epochs with.
        ([replace(UNPRUNED, epochs=1), replace(BASE, epochs=5)],
         {"Digits, small VGG (1 seed)": ["Dense, 1 epoch", "SNIP, 5 epochs"]}),
        ([BASE, replace(BASE, sparsity=0.99, lr=0.01)], {ONE: ["SNIP, lr 0.01", "SNIP, lr 0.1"]}),
        ([replace(BASE, control=control) for control in ("invert", "none", "reinitialize", "shuffle")],
         {ONE: ["SNIP", "SNIP, inverted", "SNIP, reinitialized", "SNIP, shuffled"]}),
        ([FIRST, SECOND], {TWO: ["Mask file"]}),
        ([FIRST, replace(SECOND, seed=1)], {ONE: ["Mask file, mask 11111111", "Mask file, mask 22222222"]}),
        ([BASE, replace(BASE, mask="1" * 64)], {ONE: ["SNIP", "SNIP, mask 11111111"]}),
        ([replace(FORCE, revive_empty=False)], {ONE: ["FORCE, no revive empty"]}),
        ([FORCE], {ONE: ["FORCE"]}),
    ],
)  # fmt: skip
def test_runs_are_grouped_by_what_differs(experiments: list[Experiment], expected: dict[str, list[str]]):
    panels = arranged(rows(*experiments), AXES["sparsity"])[1]
    assert {title: [line.label for line in lines] for title, lines in panels.items()} == expected


def test_time_is_compared_at_one_sparsity_and_along_the_rounds():
    runs = [replace(FORCE, sparsity=sparsity, rounds=rounds) for sparsity, rounds in product((0.9, 0.99), (5, 20))]
    panels = arranged(rows(*runs, UNPRUNED), AXES["time"])[1]
    assert [title.partition(" (")[0] for title in panels] == [
        "Digits, small VGG, 90 % removed", "Digits, small VGG, 99 % removed",
    ]  # fmt: skip
    for lines in panels.values():
        assert [(line.label, len(line.points)) for line in lines] == [("Dense", 1), ("FORCE", 2)]


def test_each_seed_counts_once_and_copies_do_not():
    copied = rows(*(replace(BASE, seed=seed) for seed in (0, 0, 1)))
    for row, top1 in zip(copied, (0.5, 0.1, 0.7), strict=True):
        row["top1"] = top1
    shown, panels = arranged(copied, AXES["sparsity"])
    [[line]] = panels.values()
    assert line.points[0].mean == pytest.approx(60)
    assert line.points[0].std == pytest.approx(14.142, abs=1e-3)
    assert [(row["top1"], row["seeds"]) for row in shown] == [(0.5, 2), (0.7, 2)]


CASES: dict[str, tuple[list[Experiment], str, dict[str, Any]]] = {
    "many sparsities": ([replace(BASE, sparsity=s) for s in SPARSITIES], "sparsity", {}),
    "FLOPs": ([replace(BASE, sparsity=s) for s in SPARSITIES], "flops", {}),
    "no weight on a path": ([replace(BASE, sparsity=s) for s in (0.9, 0.99)], "effective", {"effective_sparsity": 1.0}),
    "one time": ([BASE], "time", {}),
    "only dense": ([replace(BASE, method=DENSE, sparsity=0.0)], "sparsity", {}),
    "nothing removed": ([replace(BASE, sparsity=0.0)], "sparsity", {}),
    "all methods": (
        [replace(BASE, method=m, sparsity=s) for m in ("force", "snip", "grasp", "random", "erk") for s in (0.9, 0.99)],
        "sparsity", {"collapsed": True},
    ),
    "long labels": (
        [replace(BASE, method="force", rounds=r, lr=lr, weight_decay=w, shrink=b) for r in (5, 60) for lr in (0.1, 0.01)
         for w in (0.1, 0.25) for b in (True, False)],
        "sparsity", {},
    ),
    "very long labels": (
        [replace(BASE, method="force", rounds=r, lr=r / 7, weight_decay=r / 7, shrink=r > 1, pretrain=r, momentum=r / 7)
         for r in (1, 2, 3)],
        "sparsity", {},
    ),
    "many networks": ([replace(BASE, model=f"package.module_{n}:a_long_name") for n in range(11)], "sparsity", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_nothing_overlaps_is_cut_or_is_too_tall(case: str):
    experiments, x, changes = CASES[case]
    pages = drawn(experiments, x, **changes)
    assert len(pages) == (2 if case == "many networks" else 1)
    for page in pages:
        page.draw_without_rendering()
        width, height = page.get_size_inches() * page.dpi
        assert height <= plots.TALLEST * page.dpi
        boxes = [page.legends[0].get_window_extent()]
        for axes in (axes for axes in page.axes if axes.axison):
            boxes.append(axes.get_tightbbox())
            ticks = sorted((t.get_window_extent() for t in axes.get_xticklabels() if t.get_text()), key=lambda b: b.x0)
            assert len(ticks) >= 1
            for left, right in pairwise(ticks):
                assert left.x1 < right.x0
        for box in boxes:
            assert -1 <= box.x0 < box.x1 <= width + 1
            assert -1 <= box.y0 < box.y1 <= height + 1
        assert not any(page.legends[0].get_window_extent().overlaps(axes.get_window_extent()) for axes in page.axes)


def test_ticks_tell_the_sparsity_exactly():
    [page] = drawn([replace(BASE, sparsity=s) for s in (0.825, 0.875, 0.9)])
    page.draw_without_rendering()
    ticks = zip(page.axes[0].get_xticks(), page.axes[0].get_xticklabels(), strict=True)
    assert all(float(label.get_text()) == pytest.approx(100 * (1 - place)) for place, label in ticks)


def test_bands_are_drawn_over_seeds_and_crosses_on_collapsed_runs():
    experiments = [replace(BASE, sparsity=s, seed=seed) for s in (0.9, 0.99) for seed in (0, 1)]
    for spread, bands in ((0.0, 0), (0.1, 1)):
        shown = rows(*experiments, collapsed=True)
        for row in shown:
            row["top1"] = 0.5 + spread * row["seed"]
        with plots.styled():
            [page] = draw(arranged(shown, AXES["sparsity"])[1], AXES["sparsity"])
        axes = page.axes[0]
        assert len(axes.collections) == bands
        assert [len(line.get_xdata()) for line in axes.lines if line.get_marker() == "x"] == [2]
        assert [text.get_text() for text in page.legends[0].get_texts()] == ["SNIP", "collapsed"]


def test_no_two_lines_look_alike():
    experiments = [replace(BASE, method=m, rounds=r) for m in ("force", "iter-snip") for r in (1, 2, 3, 4, 5, 6, 7)]
    [page] = drawn([BASE, *experiments])
    looks = [(str(line.get_color()), line.get_marker()) for line in page.axes[0].lines]
    assert len(set(looks)) == len(looks) == 15


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed, top1 in enumerate((0.5, 0.7)):
        run(tmp_path / "runs", replace(BASE, seed=seed), top1)
        run(tmp_path / "runs", replace(BASE, seed=seed, sparsity=0.99), top1 / 2)
    run(tmp_path / "runs", replace(BASE, method=DENSE, sparsity=0.0), 0.95)
    return tmp_path / "runs"


@pytest.mark.parametrize("x", ["sparsity", "time", "epoch"])
def test_the_command_writes_pictures_and_tables(x: str, runs: Path, command):
    done = command("figure", "accuracy", "--x", x, "-o", "out")  # runs/ is where runs are
    names = [f"accuracy.{kind}" for kind in ("png", "svg", "pdf", "csv")]
    assert (done.code, done.err, done.out.split()) == (0, "", [str(Path("out", name)) for name in names])
    png, svg, pdf, table = (Path("out", name) for name in names)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert svg.read_text(encoding="utf-8").rstrip().endswith("</svg>")
    assert pdf.read_bytes().startswith(b"%PDF")
    found = [row for row in tables.read(table) if row["sparsity"] == 0.9]
    assert [(row["seed"], row["line"], row["seeds"]) for row in found] == [(0, "SNIP", 2), (1, "SNIP", 2)]
    assert found[0]["top1_mean"] == pytest.approx(0.6)
    assert found[0]["x"] == {"sparsity": 0.9, "time": 1.5, "epoch": 10}[x]

    again = command("figure", "accuracy", "--from", "out", "--x", x, "-o", "again")  # from its own table
    assert again.code == 0
    for name in names:
        assert Path("again", name).read_bytes() == Path("out", name).read_bytes(), name

    for source in ("runs", "out"):
        only = "sparsity=0.9", "method=SNIP", "revive-empty=true", "seed=1", "evolve=none"
        assert command("figure", "accuracy", "--from", source, *(w for o in only for w in ("--only", o))).code == 0
        assert [row["seed"] for row in tables.read(Path("figures/accuracy.csv"))] == [1]


def test_one_run_is_drawn_by_its_folder(tmp_path: Path, command):
    run(tmp_path, BASE)
    folder = tmp_path / BASE.resolved().folder
    write_file(folder, BASE.resolved(), "experiment.json", BASE.resolved().to_dict())
    assert command("figure", "accuracy", "--from", folder).code == 0
    assert len(tables.read(Path("figures/accuracy.csv"))) == 1


def test_runs_that_cannot_be_drawn_are_named(runs: Path, command):
    failed, unknown = (replace(BASE, method="force", seed=seed).resolved() for seed in (0, 1))
    content = {"experiment": failed.to_dict(), "reason": "no luck"}
    write_file(runs / failed.folder, failed, "failure.json", content)
    run(runs, unknown, effective_sparsity=None)
    done = command("figure", "accuracy", "--x", "effective")
    assert done.code == 1
    assert done.out.splitlines()[-2:] == [
        f"left out: {failed.folder} is failed: no luck",
        f"left out: {unknown.folder} has no number of effective sparsity",
    ]
    assert len(tables.read(Path("figures/accuracy.csv"))) == 5


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("accuracy --from nowhere", "there is no folder nowhere; name the one that holds the run folders"),
        ("accuracy --from empty", "empty holds no finished run"),
        ("accuracy --from damaged", f"damaged holds no finished run; {DAMAGED}"),
        ("cifar10 --from damaged", f"damaged holds no finished run of the figure cifar10 ({DAMAGED}"),
        ("accuracy --from foreign", "is not the table of this figure: it has no column data"),
        ("accuracy --from unknown --x effective", "has no number of effective sparsity; choose another --x"),
        ("accuracy --x accuracy", "there is no axis 'accuracy'; choose one of sparsity, effective, flops, time"),
        ("accuracy --scale smoke", "draws the runs that there are; leave out --scale"),
        ("layers --x flops", "--x is an option of `barebones figure accuracy`"),
        ("layers --only seed=1", "--only is an option of `barebones figure accuracy`"),
        ("accuracy --from unknown --only sead=1", "there is no setting 'sead'; did you mean 'seed'?"),
        ("accuracy --from unknown --only seed=0 --only method=force", "no run has method=force; there are snip"),
        ("acuracy", "there is no figure 'acuracy'; did you mean 'accuracy'?"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(words: str, problem: str, tmp_path: Path, mistake):
    for name in ("empty", "foreign"):
        (tmp_path / name).mkdir()
    for folder in ("unknown", "damaged"):
        run(tmp_path / folder, BASE, effective_sparsity=None)
    (tmp_path / "damaged" / BASE.resolved().folder / "result.json").write_text("{")
    (tmp_path / "foreign" / "accuracy.csv").write_text("a,b\n1,2\n")
    mistake(problem, "figure", *words.split())
    assert not (tmp_path / "figures").exists()
