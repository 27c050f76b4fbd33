"""The figures of the paper: what they run, from runs to rows to pictures, and mistakes."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import pytest
from figure_rows import ANALYSES, RUNS, TINY_FIGURES, context, drawn, made_up, touched
from rich.console import Console
from typer.testing import CliRunner

from barebones.cli.app import app
from barebones.lab.experiment.experiment import DENSE, FILE, Experiment
from barebones.lab.experiment.styles import look, looks
from barebones.lab.figures import plots, sources
from barebones.lab.figures import registry as lab_figures
from barebones.lab.figures.sources import FigureContext
from barebones.lab.records import tables
from barebones.lab.run import run as lab
from barebones.lab.run.options import RunOptions
from barebones.lab.run.run import Stopped
from barebones.lab.sweep.sweep import SweepResult
from barebones.names import SCALES
from barebones.paper import numbers
from barebones.paper.figures import FIGURES, accuracy, figure
from barebones.paper.figures import tables as paper_tables
from barebones.pruning.methods import METHODS


@pytest.mark.parametrize("name", RUNS)
def test_experiments_of_each_scale(name):
    smoke, short, full = ([each.resolved() for each in RUNS[name].experiments(scale)] for scale in SCALES)
    assert {each.data for each in smoke} == {"digits"}
    assert {each.epochs for each in smoke} == {1}
    assert "digits" not in {each.data for each in short + full}
    assert {each.model for each in short} == {each.model for each in full}
    assert max(each.epochs or 0 for each in short) <= 40
    for each in full:
        assert each.epochs == {"tiny-imagenet": 300, "imagenet": 90}.get(each.data, 350)
    assert len(set(full)) == len(full) >= len(short) > 0
    assert len(smoke) <= 18
    rows = RUNS[name].rows([made_up(each) for each in smoke])
    assert {row["source"] for row in rows} == {"ours"}  # the paper has no numbers of digits
    picture = drawn(name, rows)
    assert picture.startswith("| ") if FIGURES[name].is_table else picture.axes


def test_the_paper_scale_is_the_papers_protocol():
    listed = RUNS["cifar10"].experiments("paper")
    assert {each.sparsity for each in listed if each.method != DENSE} == {0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999}
    assert {each.seed for each in listed} == {0, 1, 2}
    assert {each.method for each in listed} == {
        "dense", "random", "snip", "snip-mb", "grasp", "grasp-mb", "iter-snip", "force",
    }  # fmt: skip
    force = next(each.resolved() for each in listed if each.method == "force")
    assert (force.rounds, force.batches_per_round) == (300, 1)
    early = RUNS["early-pruning"].experiments("paper")
    assert {(each.method, each.pretrain) for each in early} >= {("magnitude", 1), ("force", 0)}


def kinds(name: str) -> tuple[str, ...]:
    return ("md", "csv") if FIGURES[name].is_table else ("png", "svg", "pdf", "csv")


def test_a_table_is_markdown_and_marks_what_is_below_random_masks():
    rows = RUNS["cost"].rows([made_up(each) for each in RUNS["cost"].experiments("paper")])
    for row in rows:
        row["mean"] -= 0.5 * (row["method"] == "snip")
    head, *lines = drawn("cost", rows).splitlines()
    assert head == "| method | ours: time to mask | ours: accuracy (%) | paper: time to mask | paper: accuracy (%) |"
    assert [line.split(" | ")[2].startswith("**") for line in lines if "| SNIP (1 batch)" in line] == [True]
    assert "| FORCE (300 rounds) | 30 s | " in "\n".join(lines)
    assert lines[-1].endswith("Bold: below random masks. The paper's times are those of a Tesla K40m.")


@pytest.mark.parametrize("name", RUNS)
def test_drawn_from_records_and_again_from_the_table(name, tmp_path, monkeypatch):
    rendered = FIGURES[name].is_table or name == "cifar10"  # which takes most of the time
    if not rendered:
        monkeypatch.setattr(plots, "save", touched)
    rows = RUNS[name].rows([made_up(each) for each in RUNS[name].experiments("paper")])
    tables.write(rows, tmp_path / f"{name}.csv")
    written = figure(name, None, tmp_path / "a", context(tmp_path), source=tmp_path)
    assert [path.name for path in written] == [f"{name}.{kind}" for kind in kinds(name)]
    begins = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".md": b"| ", ".csv": b"source,"}
    assert all(path.read_bytes().startswith(begins[path.suffix]) for path in written[0 if rendered else -1 :])
    assert written[-1].read_bytes() == (tmp_path / f"{name}.csv").read_bytes()
    assert not (tmp_path / "runs").exists()
    if not FIGURES[name].is_table:
        (picture := drawn(name, rows)).draw_without_rendering()
        width, height = picture.get_size_inches()
        assert width <= plots.PAGE
        assert height <= plots.TALLEST
    theirs = [row for row in rows if row["source"] == "paper"]
    assert bool(theirs) == (name not in ("cifar100", "tiny-imagenet", "mobilenet", "controls"))
    assert all(row["where"] and 0 < row["mean"] < 1 for row in theirs)


@pytest.mark.parametrize(
    ("accuracies", "tops", "std"),
    [
        ([(0, 0.5), (1, 0.6), (2, 0.7)], [0.5, 0.6, 0.7], 0.1),
        ([(0, 0.5), (0, 0.1)], [0.5], None),  # a copy does not count, and a single seed has no deviation
        ([(0, 0.5), (0, 0.1), (1, 0.7)], [0.5, 0.7], 0.141421),
        ([(0, None), (0, 0.1)], [0.1], None),
    ],
)
def test_mean_and_deviation_of_a_point(accuracies, tops, std):
    base = replace(RUNS["cifar10"].experiments("paper")[0], method="force", sparsity=0.99)
    runs = [made_up(replace(base, seed=seed), top1=top) for seed, top in accuracies]
    rows = [row for row in RUNS["cifar10"].rows(runs) if row["source"] == "ours"]
    assert [row["top1"] for row in rows] == tops
    for row in rows:
        assert (row["seeds"], row["mean"]) == (len(tops), pytest.approx(sum(tops) / len(tops)))
        assert (row["std"] and round(row["std"], 6)) == std


def test_runs_at_other_sparsities_shrunk_and_on_another_device_are_drawn_too(tmp_path, stored):
    base = Experiment("vgg19", "cifar10", "force", 0.97, seed=7, epochs=40)
    others = [{"rounds": 20}, {"shrink": True}, {"shrink": True, "sparsity": 0.98}]
    stored += [made_up(base) | base.resolved("cuda").to_dict(), *(made_up(replace(base, **other)) for other in others)]
    rows = RUNS["cifar10"].load("cifar10", "short", tmp_path)[0]
    ours = [(row["sparsity"], row["rounds"], row["seeds"]) for row in rows if row["source"] == "ours"]
    assert ours == [(0.97, 300, 1), (0.98, 300, 1)]


def test_of_equal_runs_the_one_that_was_made_like_most_others_is_drawn(tmp_path, stored):
    base = Experiment("vgg19", "cifar10", "force", 0.99, epochs=40, precision="bf16")
    usual = [made_up(replace(base, seed=seed), top1=0.8) for seed in range(3)]
    unusual = [made_up(replace(base, precision="tf32", seed=seed), top1=0.7) for seed in range(2)]
    for stored[:] in ([*usual, *unusual], [*unusual, *usual]):
        rows = RUNS["cifar10"].load("cifar10", "short", tmp_path)[0]
        assert {(round(row["mean"], 9), row["seeds"]) for row in rows if row["source"] == "ours"} == {(0.8, 3)}


def test_smoke_pictures_say_that_they_show_nothing_about_the_methods(tmp_path):
    for scale, data, cautioned in (("smoke", "digits", True), ("short", "cifar10", False), ("smoke", None, False)):
        drawn = plots.canvas(3, 2)
        source = SimpleNamespace(compute=lambda *_, data=data: [{"data": data}])
        figure = lab_figures.Figure("nothing", source, lambda rows, drawn=drawn: drawn, ("", "", ""))  # type: ignore[arg-type]
        context = FigureContext(RunOptions(tmp_path), Console(quiet=True))
        lab_figures.write("nothing", figure, scale, tmp_path, context)
        assert ("shows nothing about the methods" in drawn.get_suptitle()) == cautioned


def test_failed_runs_leave_a_gap_and_are_reported(tmp_path, stored, monkeypatch):
    listed = RUNS["mobilenet"].experiments("smoke")
    done, failed = [made_up(each) for each in listed[:3]], made_up(listed[3], status="failed", top1=None)
    stranger = made_up(replace(listed[3], epochs=7), status="failed", top1=None)
    other_precision = made_up(replace(listed[3], precision="bf16"))
    monkeypatch.setattr(sources, "sweep", lambda *args, **options: SweepResult(3, 1, 0, 0, []))
    for source, others, incomplete in (
        (None, [failed], True),
        (tmp_path, [failed], True),
        (tmp_path, [stranger], False),
        (tmp_path, [failed, other_precision], False),
    ):
        stored[:] = [*done, *others]
        used = context(tmp_path)
        *_, table = figure("mobilenet", "smoke", tmp_path / "out", used, source=source)
        assert len(tables.read(table)) == 3 + (other_precision in others)
        assert used.failed == ["mobilenet"] * incomplete


def test_the_scale_with_most_runs_is_drawn(tmp_path, stored):
    long = Experiment("vgg19", "cifar10", "force", 0.99)
    stored += [made_up(long), made_up(replace(long, seed=1), status="failed", top1=None)]
    for short, scale in (([], "paper"), ([0, 1, 2], "short")):
        stored.extend(made_up(replace(long, seed=seed, epochs=40)) for seed in short)
        drawing = context(tmp_path)
        written = figure("cifar10", None, tmp_path / "out", drawing, source=tmp_path)
        assert {row["scale"] for row in tables.read(written[-1])} == {scale}
        assert drawing.failed == (["cifar10"] if scale == "paper" else [])  # of another scale it does not matter


def test_a_table_of_another_scale_is_ignored(tmp_path, stored):
    def table(scale: str, out: str = "") -> Path:
        return figure("mobilenet", scale, tmp_path / out, context(tmp_path), source=tmp_path)[-1]

    stored[:] = [made_up(each) for each in RUNS["mobilenet"].experiments("short")[:4]]
    written = table("short")
    short = written.read_bytes()
    assert {row["scale"] for row in tables.read(written)} == {"short"}
    stored.clear()
    assert table("short", "a").read_bytes() == short
    with pytest.raises(ValueError, match=r"at scale paper \(mobilenet\.csv in it is of scale short"):
        table("paper", "b")
    stored[:] = [made_up(each) for each in RUNS["mobilenet"].experiments("paper")[:4]]
    assert {row["scale"] for row in tables.read(table("paper", "b"))} == {"paper"}
    stored.clear()
    rows = tables.read(written)
    tables.write([row | {"scale": scale} for scale in ("short", "paper") for row in rows], written)
    assert table("short", "c").read_bytes() == short
    tables.write([{name: value for name, value in row.items() if name != "scale"} for row in rows], written)
    with pytest.raises(ValueError, match="of scale unknown"):
        table("short", "d")


@pytest.mark.parametrize("name", FIGURES)
def test_foreign_and_damaged_tables_are_reported_in_a_sentence(name, tmp_path):
    path, columns = tmp_path / f"{name}.csv", FIGURES[name].source.columns
    head = ",".join(columns)
    for text, sentence in (
        ("a,b\n1,2\n", "it has no column"),
        (f"{head}\n1,2\n", "row 1 has 2 fields"),
        (f"{head}\n" + "," * (len(columns) - 1), "its last line is incomplete"),
        (f"{head}\n" + ",".join(["ours"] * len(columns)) + "\n", "holds 'ours', not a number"),
        (f"{head}\n" + ",".join(["3"] * len(columns)) + "\n", "holds '3', not text"),
        (f"{head}\n" + "," * (len(columns) - 1) + "\n", "holds values that .* cannot be drawn from"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=sentence) as caught:
            figure(name, None, tmp_path / "out", context(tmp_path), source=tmp_path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_stopped_sweep_draws_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "sweep", lambda *args, **options: SweepResult(3, 0, 2, 0, []))
    with pytest.raises(Stopped):
        figure("mobilenet", "smoke", tmp_path / "out", context(tmp_path))
    with pytest.raises(Stopped):
        figure("parameters", "smoke", tmp_path / "out", context(tmp_path, stopping=lambda: True))
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("runs/*.csv"))


@pytest.mark.nightly
def test_every_figure_at_smoke_scale(computed, tmp_path, monkeypatch):
    """The runs are made here, one after the other, because workers take longer to start than these runs take."""
    runs = tmp_path / "runs"
    for name in ANALYSES:
        shutil.copytree(computed(name) / "runs", runs, dirs_exist_ok=True)
        monkeypatch.setitem(FIGURES, name, TINY_FIGURES[name])
    monkeypatch.setitem(accuracy.GRID, "smoke", ((0.98,), range(1)))  # so that the figures share their runs
    monkeypatch.setattr(accuracy, "SMOKE_ROUNDS", 2)
    monkeypatch.setitem(accuracy.ROUNDS, "smoke", (2,))
    monkeypatch.setitem(paper_tables.FEW_AND_MANY, "smoke", (2, 2))
    monkeypatch.setitem(paper_tables.IMAGENET, "smoke", ((0.98,), range(1)))
    monkeypatch.setattr(plots, "save", touched)  # other tests render the same pictures
    for name in RUNS:
        alone = RUNS[name].jobs == 1
        for experiment in (each.resolved() for each in RUNS[name].experiments("smoke")):
            existing, folder = runs / experiment.folder, (runs / sources.ALONE if alone else runs) / experiment.folder
            if existing.exists() and not folder.exists():
                shutil.copytree(existing, folder)
            lab.run(experiment, RunOptions(folder.parent))
    place = ["--runs", str(runs), "--device", "cpu", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["figure", "all", "--scale", "smoke", *place])
    assert done.exit_code == 0, done.output
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {f"{name}.{kind}" for name in FIGURES for kind in kinds(name)}


def test_numbers_of_the_paper_are_of_methods_that_can_be_told_apart():
    by_key = {(n.data, n.model, n.method, n.sparsity, n.rounds): n for n in numbers.ACCURACIES}
    assert len(by_key) == len(numbers.ACCURACIES)
    assert all(n.where and n.method in looks() for n in numbers.ACCURACIES)
    shown = [look(method) for method in (*METHODS, DENSE, FILE)]
    assert len({(each.color, each.marker) for each in shown}) == len({each.label for each in shown}) == len(shown)


def test_the_users_own_settings_change_nothing(tmp_path):
    source = RUNS["accuracy-vs-rounds"]
    rows = source.rows([made_up(each) for each in source.experiments("short")])
    files = []
    for number, size in enumerate((10.0, 30.0)):
        with matplotlib.rc_context({"font.size": size, "svg.hashsalt": str(number)}):
            with plots.styled():
                files.append(plots.save(FIGURES["accuracy-vs-rounds"].draw(rows), tmp_path / str(number)))
            assert matplotlib.rcParams["font.size"] == size
    for first, second in zip(*files, strict=True):
        assert first.read_bytes() == second.read_bytes()
        assert b"<dc:date>" not in first.read_bytes()


def test_unknown_names_and_folders(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "layers.csv").write_text("")
    for name, scale, source, sentence in (
        ("cifar-10", "smoke", None, "no figure 'cifar-10'; did you mean 'cifar10'"),
        ("layers", "tiny", None, "scale 'tiny' is unknown; choose one of smoke, short, paper"),
        ("layers", None, tmp_path / "nowhere", "there is no folder"),
        ("layers", None, tmp_path, r"holds neither layers\.csv"),
        ("layers", None, tmp_path / "empty", "holds no rows$"),
        ("layers", None, tmp_path / "empty" / "layers.csv", "layers.csv is a file; name a folder"),
    ):
        with pytest.raises(ValueError, match=sentence):
            figure(name, scale, tmp_path, context(tmp_path), source=source)


def test_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    runner = CliRunner()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        wrong = runner.invoke(app, ["figure", "layers", "--runs", str(tmp_path / "runs")])
    assert "pip install 'barebones[figures]'" in str(wrong.exception)
    assert not list(tmp_path.iterdir())  # the error comes before anything is computed
    listed = runner.invoke(app, ["figure", "--list"])
    assert listed.exit_code == 0
    for name in ("accuracy", *FIGURES):
        assert f"{name} " in listed.output
    place = ["--runs", str(tmp_path / "runs"), "--device", "cpu", "-o", str(tmp_path / "out")]
    written = runner.invoke(app, ["figure", "parameters", *place])
    assert written.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["parameters.csv", "parameters.md"]
    done = runner.invoke(app, ["figure", "all", "--from", str(tmp_path / "out"), *place])
    assert done.exit_code == 1
    assert "layers: " in done.output
    assert isinstance(runner.invoke(app, ["figure"]).exception, ValueError)
    [cached] = (tmp_path / "runs").glob("parameters-*.csv")
    cached.write_text("data\n")
    damaged = runner.invoke(app, ["figure", "parameters", *place])
    assert str(damaged.exception) == f"{cached} holds no rows; delete it to compute it again"
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "folder"):
        wrong = runner.invoke(app, ["figure", "layers", "--runs", str(tmp_path / "none"), "-o", str(out)])
        assert str(wrong.exception) == f"{tmp_path / 'file'} is not a folder; name a folder to write into"
    assert not (tmp_path / "none").exists()  # the error comes before anything is computed
    assert isinstance(runner.invoke(app, ["figure", "consistancy"]).exception, ValueError)
