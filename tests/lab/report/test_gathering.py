"""What the report gathers: everything about every run, and nothing of a run becomes markup."""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from report_runs import HOSTILE, SHAPES, Tags, masks_of, run_with, unpacked, words_of, write_run

from barebones.lab.experiment.experiment import DENSE
from barebones.lab.figures import report
from barebones.lab.figures.report.runs import LONGEST, _run, _words, gather, thinned
from barebones.lab.run import folder as files
from barebones.pruning.methods import METHODS, Method


def test_every_folder_is_there_with_its_state(content: dict[str, Any]) -> None:
    states = Counter(run["status"] for run in content["runs"])
    assert states == {"done": 9, "pruned": 1, "unfinished": 1, "failed": 1, "unreadable": 1}
    assert "deeper/" in run_with(content, method="synflow")["folder"]
    assert run_with(content, method="random")["status"] == "pruned"
    assert run_with(content, method="magnitude")["state"] == "pruned; trained 2 of 5 epochs"
    assert "OutOfMemoryError: too large" in words_of(run_with(content, method="iter-snip"))
    assert "not one of barebones's own" in words_of(run_with(content, model=HOSTILE))
    assert "Nothing is pruned: this is the dense network." in words_of(run_with(content, method=DENSE))
    cut = run_with(content, method="snip", sparsity=0.995)  # and trained all the same
    assert "0 on a path from input to output. No signal passes from input to output: collapsed" in words_of(cut)
    assert words_of(cut).endswith("1 of 9 layers keeps no weight: features.20.")
    assert "is skipped" not in words_of(cut)
    [torn] = [run for run in content["runs"] if run["folder"] == "torn"]
    assert "experiment.json" in words_of(torn)


def test_only_runs_that_are_trained_alike_share_a_panel(tmp_path: Path) -> None:
    for method in ("force", DENSE):
        for changes in ({}, {"epochs": 1}, {"lr": 0.01}, {"weight_decay": 0.0}, {"init": "xavier"}):
            write_run(tmp_path, method, 0.0 if method == DENSE else 0.98, **changes)
    write_run(tmp_path, "force", 0.98, rounds=9)
    write_run(tmp_path, "force", 0.98, control="shuffle")
    write_run(tmp_path, "snip", 0.98, loss="nll-on-logits")
    groups = gather(tmp_path, effective=False)["groups"]
    panels = {json.dumps(g["panel"]) for g in groups}
    assert len(panels) == 5
    for panel in panels:
        members = [g for g in groups if json.dumps(g["panel"]) == panel]
        assert [g["method"] for g in members if g["dense"]] == [DENSE]
        assert len({g["protocol"] for g in members}) == 1
    assert {g["protocol"].split(",")[0] for g in groups} == {"init kaiming-fan-in", "init xavier"}
    assert {g["line"] for g in groups if g["method"] == "force"} == {"", "rounds 6", "rounds 9", "shuffled"}


def test_each_variant_and_each_method_of_one_color_has_its_own_mark(tmp_path, monkeypatch) -> None:
    for rounds in range(2, 14):
        write_run(tmp_path, "force", rounds=rounds)
    for method in ("one", "two"):  # of one color
        monkeypatch.setitem(METHODS, method, Method(METHODS["snip"].criterion))
        write_run(tmp_path, method)
    for sparsity in (0.9, 0.98):
        write_run(tmp_path, "snip", sparsity)
    groups = gather(tmp_path, effective=False)["groups"]
    force = [(g["symbol"], g["dash"]) for g in groups if g["method"] == "force"]
    assert len(set(force)) == 12
    assert force[0] == ("circle", "solid")
    assert {(g["symbol"], g["dash"]) for g in groups if g["method"] == "snip"} == {("triangle-up", "solid")}
    one, two = ((g["symbol"], g["glyph"]) for g in groups if g["method"] in ("one", "two"))
    assert one != two


def test_layers_are_counted_and_followed(content: dict[str, Any]) -> None:
    run = run_with(content, method="force", sparsity=0.98, seed=0)
    masks = masks_of(1 - 0.98)
    assert [layer[:4] for layer in run["layers"]] == [
        [name, list(m.shape), m.numel(), int(m.sum())] for name, m in masks.items()
    ]
    assert all(0 < effective <= kept for *_, kept, effective in run["layers"])
    assert "Every layer keeps weights, and a signal passes." in words_of(run)
    assert run["effective"] == sum(layer[4] for layer in run["layers"]) < run["kept"]
    assert run["effective_sparsity"] == pytest.approx(1 - run["effective"] / run["prunable"])
    assert "of the kept weights are on no path from input to output." in words_of(run)


RUN = {"status": "done", "state": "", "problems": [], "dense": False, "untrained": False, "collapsed": [], "kept": 8}
RUN |= {"prunable": 20, "effective": 8, "outputs": 10, "disconnected_outputs": 0, "layers": []}


def test_layers_without_a_weight_on_a_path_are_named() -> None:
    layers = [["a.weight", (10,), 10, 5, 5], ["b.weight", (10,), 10, 3, 0]]
    words = " ".join(sentence for _, sentence in _words(RUN | {"layers": layers, "effective": 5}, None, None))
    assert "38% of the kept weights are on no path from input to output. No weight is on such a path in b." in words


def test_quick_counts_without_the_network(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barebones.lab.figures.report.runs.built", lambda *_: pytest.fail("a network was built"))
    run = run_with(gather(runs, effective=False), method="force", sparsity=0.98, seed=0)
    assert [layer[4] for layer in run["layers"]] == [None] * len(SHAPES)
    assert run["effective"] == run["kept"] // 2  # as the run itself had counted


def test_long_series_are_thinned_with_their_ends(content: dict[str, Any]) -> None:
    series = run_with(content, method="synflow")["series"]["prune"]
    assert (series["at"][0], series["at"][-1]) == (1, 400)
    assert len(series["at"]) == len(series["saliency"]) == LONGEST
    assert all(len(set(thinned(n))) == len(thinned(n)) <= LONGEST for n in (0, 1, LONGEST, LONGEST + 1, 1000))


def test_nothing_of_a_run_becomes_markup(content: dict[str, Any], text: str) -> None:
    seen = Tags(text)
    assert seen.tags.count("script") == 3
    assert "img" not in seen.tags
    for packed in seen.inside[:2]:  # Plotly, and the data
        assert re.fullmatch("[A-Za-z0-9+/=]+", packed)
    held = json.loads(unpacked(text))
    assert held["runs"] == content["runs"]
    assert HOSTILE in {run["settings"]["model"] for run in held["runs"] if run["settings"]}
    assert (held["looks"][DENSE]["light"], held["looks"][DENSE]["dark"]) == ("#000000", "#f4f4f4")


def test_names_of_folders_are_harmless_too(tmp_path: Path) -> None:
    bad = tmp_path / "<b>{{data}}{{policy}}&amp;"
    write_run(bad, name="<img src=x>", failed="{{script}} \u2028 \ud800 </script>", accuracy=None)
    report.write(gather(bad, effective=False), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<title>&lt;b&gt;{{data}}{{policy}}&amp;amp; – barebones report</title>" in page
    seen = Tags(page)
    assert (seen.tags.count("script"), seen.tags.count("b"), seen.tags.count("img")) == (3, 0, 0)
    assert json.loads(unpacked(page))["runs"][0]["folder"] == "<img src=x>"


def test_the_page_is_complete_in_itself(runs: Path, text: str, tmp_path: Path) -> None:
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[\w./]*", text))
    assert addresses == set()
    assert len(text) < 2_500_000
    policy = re.search('Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert not {"unsafe-inline", "unsafe-eval", "*", "blob:"} & set(re.split("[ ;']+", policy[1]))
    for hidden in (runs.parent, Path.home()):
        assert str(hidden) not in text + unpacked(text)
    for number in (1, 2):
        report.write(gather(runs), tmp_path / f"{number}.html")
    assert (tmp_path / "1.html").read_bytes() == (tmp_path / "2.html").read_bytes() == text.encode()


@pytest.mark.parametrize(
    ("name", "broken_text"),
    [
        (files.RESULT, "{"),
        (files.EXPERIMENT, '{"model": 3}'),
        (files.MASK, ""),
        ("metrics.jsonl", '{"stage": "train", "epoch": 0}\n'),
        ("failure.json", "{"),
    ],
)
def test_a_broken_file_is_named_and_the_others_go_on(tmp_path: Path, name: str, broken_text: str) -> None:
    write_run(tmp_path, "snip", 0.98, 0, 0.7)
    folder = write_run(tmp_path, "force", 0.98, 0, 0.9 if name in (files.RESULT, files.MASK) else None, name="broken")
    (folder / name).write_text(broken_text)
    content = gather(tmp_path)
    assert [run["accuracy"] for run in content["runs"] if run["folder"] != "broken"] == [0.7]
    [broken] = [run for run in content["runs"] if run["folder"] == "broken"]
    assert any(name in problem for problem in broken["problems"]), broken["problems"]
    assert name in words_of(broken)
    assert str(tmp_path) not in unpacked(report.page(content))


def test_a_folder_in_itself_ends(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "a" / "loop").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "b").symlink_to(tmp_path / "runs" / "a")
    assert len(gather(tmp_path / "runs", effective=False)["runs"]) == 1


def test_the_command(runs: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    code, out, _ = command("report", runs, "-o", tmp_path / "page.html", "--quick")
    assert code == 0
    assert "13 runs (9 done, 1 failed, 1 pruned, 1 unfinished, 1 unreadable)" in out
    assert "torn cannot be read in full: experiment.json" in out
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_mistakes_are_one_sentence(tmp_path, command, monkeypatch) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "file").touch()
    write_run(tmp_path / "some")
    for words, sentence in [
        ((tmp_path / "none",), "there is no run in"),
        ((tmp_path / "nowhere",), "there is no folder"),
        ((tmp_path / "some", "-o", tmp_path / "no" / "page.html"), "there is no folder"),
        ((tmp_path / "some", "-o", tmp_path / "none"), "is a folder; name a file"),
        ((tmp_path / "some", "-o", tmp_path / "no" / "page.html", "--watch"), "there is no folder"),
        ((tmp_path / "file", "--watch"), "is no folder"),
        ((tmp_path / "some", "-o", tmp_path / "page.html"), "drawn with Plotly: pip install 'barebones[report]'"),
    ]:
        if "Plotly" in sentence:
            monkeypatch.setitem(sys.modules, "plotly.offline", None)
            report.plotly.cache_clear()
        code, out, err = command("report", *words)
        assert (code, out.partition("Watching")[0]) == (2, "")
        assert sentence in err
        assert "Traceback" not in err
    assert not (tmp_path / "page.html").exists()


def test_a_followed_page_is_written_when_a_run_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(wraps=_run)
    monkeypatch.setattr("barebones.lab.figures.report.runs._run", counted)
    stops = iter([False] * 3 + [True] * 100)
    pages = report.follow(tmp_path / "runs", tmp_path / "page.html", False, lambda: next(stops), pause=0)
    write_run(tmp_path / "runs", "force", accuracy=None)
    assert [run["status"] for run in next(pages)["runs"]] == ["pruned"]
    assert refreshing(tmp_path / "page.html") == 10
    write_run(tmp_path / "runs", "snip")
    assert [run["status"] for run in next(pages)["runs"]] == ["pruned", "done"]
    assert counted.call_count == 2  # the first run has not changed, so it is not read again
    assert len(list(pages)) == 1
    assert refreshing(tmp_path / "page.html") is None
    (tmp_path / "empty").mkdir()
    assert not list(report.follow(tmp_path / "empty", tmp_path / "page.html", False, lambda: True))


def refreshing(page: Path) -> Any:
    return json.loads(unpacked(page.read_text(encoding="utf-8")))["refresh"]
