"""The report: everything of every run is on the page, nothing of a run becomes markup, and it works in a browser."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from barebones.accounting import LayerAccount
from barebones.files.masks import save_masks
from barebones.lab import folder as files
from barebones.lab import report
from barebones.lab import run as lab
from barebones.lab.experiment import DENSE, Experiment
from barebones.lab.looks import look
from barebones.lab.report.runs import LONGEST, gather, thinned
from barebones.models import build
from barebones.pruning.methods import GREY, METHODS, Method
from barebones.scope import prunable

HOSTILE = "</script><script>document.title='broken in'</script><img src=x onerror=alert(1)>"
ROUNDS, EPOCHS = 6, 5


def shapes() -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in prunable(build("small-vgg", 10, 8, 1)).items()}


SHAPES = shapes()


def masks_of(density: float, dead: str | None = None) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = {name: torch.rand(shape, generator=generator) < 3 * density for name, shape in SHAPES.items()}
    return found | ({dead: torch.zeros(SHAPES[dead], dtype=torch.bool)} if dead else {})


def metrics(rounds: int, epochs: int, accuracy: float, total: int) -> str:
    lines: list[dict[str, Any]] = []
    for i in range(rounds):
        keep = round(total * 0.5 ** (i + 1))
        lines.append({"stage": "prune", "round": i, "rounds": rounds, "keep": keep, "pruned": keep + 10 * (i > 0)})
        lines[-1] |= {"recovered": 10 * (i > 0), "recovered_empty": 0, "saliency": 50.0 / (i + 1), "loss": 2.3}
    for i in range(epochs):
        test = {"top1": accuracy, "top5": None, "loss": 0.3}
        lines.append({"stage": "train", "epoch": i, "epochs": epochs, "lr": 0.1, "loss": 2.0 / (i + 1)})
        lines[-1] |= {"accuracy": 0.9, "validation": test, "test": test if i + 1 == epochs else None, "seconds": 1.0}
    return "".join(json.dumps(line) + "\n" for line in lines)


def put(
    runs: Path,
    method: str = "force",
    sparsity: float = 0.98,
    seed: int = 0,
    accuracy: float | None = 0.9,
    *,
    dead: str | None = None,
    failed: str | None = None,
    rounds: int = ROUNDS,
    name: str | None = None,
    **settings: Any,
) -> Path:
    """A run folder as the lab writes it: finished with an accuracy, else stopped after pruning, or failed."""
    chosen: dict[str, Any] = {"model": "small-vgg", "data": "digits", "epochs": EPOCHS} | settings
    chosen |= {"rounds": rounds} if METHODS.get(method, METHODS["snip"]).rounds > 1 else {}
    experiment = Experiment(method=method, sparsity=sparsity, seed=seed, **chosen).resolved()
    folder = runs / (name or experiment.folder)
    folder.mkdir(parents=True)
    files.write_json(folder / files.EXPERIMENT, experiment.to_dict())
    masks = {n: torch.ones(s, dtype=torch.bool) for n, s in SHAPES.items()} if method == "dense" else None
    masks = masks or masks_of(1 - sparsity, dead)
    total, kept = sum(m.numel() for m in masks.values()), sum(int(m.sum()) for m in masks.values())
    numbers = {"prunable": total, "kept": kept, "effective": kept // 2, "sparsity": 1 - kept / total}
    numbers |= {"effective_sparsity": 1 - kept // 2 / total, "flops_dense": 100, "flops_effective": 7}
    collapsed = [dead] if dead else []
    about = {"experiment": experiment.to_dict(), "account": numbers, "collapsed": collapsed, "seconds": 0.5}
    save_masks(masks, folder / files.MASK, **about)
    reached = EPOCHS if accuracy is not None else 0
    (folder / "metrics.jsonl").write_text(
        metrics(experiment.rounds or 0 if method != "dense" else 0, reached, accuracy or 0, total)
    )
    result = {
        "experiment": experiment.to_dict(),
        "test": {"top1": accuracy, "top5": None},
        "collapsed": collapsed,
        **numbers,
        "best_validation": {"epoch": 3, "validation": 0.93, "test": 0.91},
        "seconds": {"prune": 0.0 if method == "dense" else 0.5 + seed, "train": 60.0},
        "environment": {"torch": "2"},
    }
    if failed is not None:
        files.write_json(
            folder / "failure.json", {"experiment": experiment.to_dict(), "reason": failed, "traceback": "no"}
        )
    elif accuracy is not None:
        files.write_json(folder / files.RESULT, result)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with all that can happen."""
    folder = tmp_path_factory.mktemp("sweep") / "runs"
    for seed, accuracy in enumerate([0.90, 0.92, 0.97]):
        put(folder, "force", 0.98, seed, accuracy)
    put(folder, "force", 0.995, 0, 0.8)
    put(folder, "snip", 0.98, 0, 0.7)
    put(folder, "snip", 0.995, 0, 0.1, dead="features.20.weight")
    put(folder, "dense", 0.0, 0, 0.99)
    put(folder, "random", 0.98, 0, None)
    put(folder, "iter-snip", 0.98, 0, None, failed="OutOfMemoryError: too large")
    put(folder, "grasp", 0.98, 0, 0.6, model=HOSTILE, name="hostile")
    put(folder / "deeper", "synflow", 0.98, 0, 0.5, rounds=400)
    (folder / "torn").mkdir()
    (folder / "torn" / files.EXPERIMENT).write_text("{")
    (folder / "notes").mkdir()
    (folder / "records.csv").write_text("not a run")
    return folder


@pytest.fixture(scope="module")
def found(runs: Path) -> dict[str, Any]:
    return gather(runs)


@pytest.fixture(scope="module")
def text(found: dict[str, Any]) -> str:
    return report.page(found)


def the(found: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    [run] = [r for r in found["runs"] if r["settings"] and all(r["settings"][k] == v for k, v in wanted.items())]
    return run


def said(run: dict[str, Any]) -> str:
    return " ".join(sentence for _, sentence in run["words"])


def test_every_folder_is_there_with_its_state(found: dict[str, Any]) -> None:
    states = [run["status"] for run in found["runs"]]
    assert {s: states.count(s) for s in set(states)} == {"done": 9, "unfinished": 1, "failed": 1, "unreadable": 1}
    assert "deeper/" in the(found, method="synflow")["folder"]
    assert the(found, method="random")["state"] == "pruned"
    assert "OutOfMemoryError: too large" in said(the(found, method="iter-snip"))
    [torn] = [run for run in found["runs"] if run["folder"] == "torn"]
    assert "experiment.json" in said(torn)


def test_seeds_are_averaged(found: dict[str, Any]) -> None:
    [group] = [g for g in found["groups"] if g["method"] == "force" and g["sparsity"] == 0.98]
    values = [0.90, 0.92, 0.97]
    assert (group["seeds"], group["accuracy"]) == (3, pytest.approx(fmean(values)))
    assert group["deviation"] == pytest.approx(stdev(values))
    assert group["prune_seconds"] == pytest.approx(1.5)
    [alone] = [g for g in found["groups"] if g["method"] == "random"]
    assert (alone["accuracy"], alone["deviation"], alone["states"]) == (None, None, {"unfinished": 1})


def test_all_means_of_a_group_are_over_the_same_finished_runs(tmp_path: Path) -> None:
    put(tmp_path, "force", 0.98, 0, 0.9)
    put(tmp_path, "force", 0.98, 1, 0.8)
    put(tmp_path, "force", 0.98, 1, 0.8, name="z-copy")
    put(tmp_path, "force", 0.98, 2, None, dead="features.20.weight")
    found = gather(tmp_path, effective=False)
    [group] = found["groups"]
    runs = [the({"runs": [r for r in found["runs"] if r["folder"] != "z-copy"]}, seed=seed) for seed in (0, 1)]
    assert (group["seeds"], group["prune_seconds"]) == (2, pytest.approx(1.0))
    assert group["effective_sparsity"] == pytest.approx(fmean(run["effective_sparsity"] for run in runs))
    assert group["states"] == {"done": 3, "unfinished": 1}


def test_settings_that_tell_groups_apart_are_named(tmp_path: Path) -> None:
    put(tmp_path, "force", seed=0)
    put(tmp_path, "force", seed=0, rounds=9)
    assert sorted(g["variant"] for g in gather(tmp_path, effective=False)["groups"]) == ["rounds 6", "rounds 9"]


def test_layers_are_counted_and_followed(found: dict[str, Any]) -> None:
    run = the(found, method="force", sparsity=0.98, seed=0)
    masks = masks_of(1 - 0.98)
    assert [layer[:4] for layer in run["layers"]] == [
        [name, list(m.shape), m.numel(), int(m.sum())] for name, m in masks.items()
    ]
    assert all(0 < effective <= kept for *_, kept, effective in run["layers"])
    assert run["effective"] == sum(layer[4] for layer in run["layers"]) < run["kept"]
    assert run["effective_sparsity"] == pytest.approx(1 - run["effective"] / run["prunable"])
    assert "lie on no path" in said(run)


def test_dead_layers_and_collapse_are_called_out_in_words(found: dict[str, Any]) -> None:
    run = the(found, method="snip", sparsity=0.995)
    assert "Collapsed: no signal passes from input to output, cut at features.20." in said(run)
    assert "A dead layer, with no weight left: features.20." in said(run)
    assert "None of them lies on a path from input to output, so they do nothing." in said(run)
    assert "idle" not in said(run)
    assert "Every layer keeps weights, and a signal passes." in said(the(found, method="snip", sparsity=0.98))
    assert "dense network" in said(the(found, method="dense"))


def test_idle_layers_are_called_out_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path)
    layers = [LayerAccount("a.weight", (10,), 10, 5, 5), LayerAccount("b.weight", (10,), 10, 3, 0)]
    monkeypatch.setattr("barebones.lab.report.runs.account", lambda *_: SimpleNamespace(layers=layers))
    [run] = gather(tmp_path)["runs"]
    assert "An idle layer, whose weights lie on no path from input to output: b." in said(run)
    assert "3 of them (37.5 %) lie on no path" in said(run)
    assert "Every layer keeps" not in said(run)


def test_quick_counts_without_the_network(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barebones.lab.report.runs.build", lambda *_: pytest.fail("a network was built"))
    run = the(gather(runs, effective=False), method="force", sparsity=0.98, seed=0)
    assert [layer[4] for layer in run["layers"]] == [None] * len(SHAPES)
    assert run["effective"] == run["kept"] // 2  # as the run itself had counted


def test_a_network_that_a_run_names_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "evil_for_report.py").write_text("raise SystemExit('imported')\ndef make(): ...\n")
    folder = put(tmp_path / "runs", "force", model="evil_for_report:make")
    sys.path.insert(0, str(tmp_path))
    try:
        run = report.gather(folder)["runs"][0]
    finally:
        sys.path.remove(str(tmp_path))
    assert "evil_for_report" not in sys.modules
    assert "not one of barebones's own" in said(run)
    assert run["layers"][0][3] > 0


def test_long_series_are_thinned_with_their_ends(found: dict[str, Any]) -> None:
    series = the(found, method="synflow")["series"]["prune"]
    assert (series["all"], series["at"][0], series["at"][-1]) == (400, 1, 400)
    assert len(series["at"]) == len(series["saliency"]) == LONGEST
    assert all(len(set(thinned(n))) == len(thinned(n)) <= LONGEST for n in (0, 1, LONGEST, LONGEST + 1, 1000))


class Tags(HTMLParser):
    """The tags of a page, and what its scripts hold."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"]:
            self.inside.append(data)


def test_nothing_of_a_run_becomes_markup(found: dict[str, Any], text: str) -> None:
    seen = Tags(text)
    assert seen.tags.count("script") == 2
    assert "img" not in seen.tags
    embedded = seen.inside[0]
    assert not set("<>&") & set(embedded)
    held = json.loads(embedded)
    assert held["runs"] == found["runs"]
    assert HOSTILE in {run["settings"]["model"] for run in held["runs"] if run["settings"]}


def test_names_of_folders_are_harmless_too(tmp_path: Path) -> None:
    bad = tmp_path / "<b>{{data}}{{policy}}&amp;"
    put(bad, name="<img src=x>", failed="{{script}} \u2028 \ud800 </script>", accuracy=None)
    write_to = tmp_path / "report.html"
    report.write(bad, write_to, effective=False)
    page = write_to.read_text(encoding="utf-8")
    assert "<title>&lt;b&gt;{{data}}{{policy}}&amp;amp; – barebones report</title>" in page
    seen = Tags(page)
    assert (seen.tags.count("script"), seen.tags.count("b"), seen.tags.count("img")) == (2, 0, 0)
    assert json.loads(seen.inside[0])["runs"][0]["folder"] == "<img src=x>"


def test_the_page_is_complete_in_itself(runs: Path, text: str, tmp_path: Path) -> None:
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[\w./]*", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # the name of a language, never fetched
    assert str(runs.parent) not in text
    assert str(Path.home()) not in text
    for number in (1, 2):
        report.write(runs, tmp_path / f"{number}.html")
    assert (tmp_path / "1.html").read_bytes() == (tmp_path / "2.html").read_bytes() == text.encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (files.RESULT, "{"),
        (files.RESULT, "[]"),
        (files.RESULT, "{}"),
        (files.RESULT, "[" * 100_000),
        (files.EXPERIMENT, ""),
        (files.EXPERIMENT, "[1]"),
        (files.EXPERIMENT, '{"model": 3}'),
        (files.EXPERIMENT, '{"from_the_future": 1}'),
        (files.MASK, "no"),
        (files.MASK, ""),
        ("metrics.jsonl", "nothing\n"),
        (
            "metrics.jsonl",
            '{"stage": "train", "epoch": 0}\n{"stage": "prune", "round": 1, "keep": "x", "loss": 1e999}\n',
        ),
        ("failure.json", "{"),
    ],
)
def test_a_broken_file_is_named_and_the_others_go_on(tmp_path: Path, name: str, content: str) -> None:
    put(tmp_path, "snip", 0.98, 0, 0.7)
    folder = put(tmp_path, "force", 0.98, 0, 0.9 if name in (files.RESULT, files.MASK) else None, name="broken")
    (folder / name).write_text(content)
    found = gather(tmp_path)
    assert [run["accuracy"] for run in found["runs"] if run["folder"] != "broken"] == [0.7]
    [broken] = [run for run in found["runs"] if run["folder"] == "broken"]
    if "stage" not in content:
        assert any(name in problem for problem in broken["problems"]), broken["problems"]
        assert name in said(broken)
    assert str(tmp_path) not in report.page(found)


def test_other_values_than_numbers_do_not_reach_the_page(tmp_path: Path) -> None:
    folder = put(tmp_path)
    result = json.loads((folder / files.RESULT).read_text())
    result |= {"kept": "many", "flops_dense": 10**400, "collapsed": "all", "environment": [1], "effective": None}
    (folder / files.RESULT).write_text(json.dumps(result).replace("0.91", "NaN"))
    (folder / files.MASK).unlink()
    [run] = gather(tmp_path)["runs"]
    assert (run["kept"], run["flops_dense"], run["environment"]) == (None, None, {})
    assert run["accuracy_at_best_validation"] is None
    report.page(gather(tmp_path))


def test_a_folder_in_itself_ends(tmp_path: Path) -> None:
    put(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "a" / "loop").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "b").symlink_to(tmp_path / "runs" / "a")
    assert len(gather(tmp_path / "runs", effective=False)["runs"]) == 1


def test_one_run_is_a_report_too(tmp_path: Path) -> None:
    folder = put(tmp_path)
    assert [run["folder"] for run in gather(folder)["runs"]] == [folder.name]


def test_a_method_registered_at_run_time_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "brave", replace(METHODS["snip"], label="Brave", colour="#123456", marker="h"))
    monkeypatch.setitem(METHODS, "shy", Method(METHODS["snip"].criterion))
    for method in ("brave", "shy"):
        put(tmp_path, method)
    seen = json.loads(Tags(report.page(gather(tmp_path, effective=False))).inside[0])
    assert [group["method"] for group in seen["groups"]] == ["brave", "shy"]
    shown = {name: (each["light"], each["marker"]) for name, each in seen["looks"].items()}
    assert shown["brave"] == ("#123456", "h")
    assert shown["shy"] == shown[""] == (GREY, ".")
    assert shown["force"] == look("force")[1:]
    assert seen["looks"][DENSE] == {"light": "#000000", "dark": "#f4f4f4", "marker": "o"}


def test_the_page_knows_no_method(text: str) -> None:
    [script] = [part for part in Tags(text).inside if "use strict" in part]
    assert not [name for name in (*METHODS, DENSE) if f'"{name}"' in script]


def test_a_real_run(tmp_path: Path) -> None:
    chosen = Experiment(model="small-vgg", data="digits", method="force", sparsity=0.98, rounds=3, epochs=1)
    place = lab.RunOptions(runs=tmp_path)
    result = lab.result_of(lab.run(chosen.resolved(), place))
    [run] = gather(tmp_path)["runs"]
    assert (run["status"], run["accuracy"], run["kept"]) == ("done", result["test"]["top1"], result["kept"])
    assert run["effective"] == result["effective"] == sum(layer[4] for layer in run["layers"])
    assert run["series"]["prune"]["at"] == [1, 2, 3]
    assert run["series"]["train"]["test"] == [pytest.approx(result["test"]["top1"], rel=1e-4)]
    assert not run["problems"]


def test_the_command(runs: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    code, out, _ = command("report", runs, "-o", tmp_path / "page.html", "--quick")
    assert code == 0
    assert "12 runs (9 done, 1 failed, 1 unfinished, 1 unreadable)" in out
    assert "torn cannot be read in full: experiment.json" in out
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_mistakes_are_one_sentence(tmp_path: Path, command: Callable[..., Any]) -> None:
    (tmp_path / "none").mkdir()
    put(tmp_path / "some")
    for words, sentence in [
        ((tmp_path / "none",), "there is no run in"),
        ((tmp_path / "nowhere",), "there is no folder"),
        ((tmp_path / "some", "-o", tmp_path / "no" / "page.html"), "there is no folder"),
        ((tmp_path / "some", "-o", tmp_path / "none"), "is a folder; name a file"),
    ]:
        code, out, err = command("report", *words)
        assert (code, out) == (2, "")
        assert sentence in err
        assert "Traceback" not in err


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    driver = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser: pip install playwright")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with driver.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=quiet)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address(text: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    """The page in a window of its own; whatever the console complains about fails the test."""
    complaints: list[str] = []
    contexts = []

    def go(at: str = address, width: int = 1280, height: int = 800, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url))
        page.goto(at)
        page.wait_for_selector("html[data-ready=true]")
        return page

    yield go
    for context in contexts:
        context.close()
    assert complaints == []


def column(page: Any, name: str) -> list[str]:
    heads = page.locator("#table thead th").all_inner_texts()
    at = [head.strip() for head in heads].index(name)
    return [row.locator("th, td").nth(at).inner_text().strip() for row in page.locator("#table tbody tr").all()]


def until(true: Callable[[], bool]) -> None:
    """Wait for it; Playwright's own way is to evaluate text, which the page forbids."""
    end = monotonic() + 10
    while not true():
        assert monotonic() < end, "it did not come true"
        sleep(0.02)


def overflow(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def test_it_loads_and_shows_everything(opened: Opened) -> None:
    page = opened()
    assert "runs" in page.title()
    assert page.locator("#summary").inner_text().startswith("12 runs:")
    assert page.locator("#table tbody tr").count() == 10
    assert page.locator("details.run").count() == 12
    assert page.locator("#facets svg .mark").count() > 5
    assert "93.00 ± 3.61" in column(page, "Accuracy %")
    assert "OutOfMemoryError" in page.locator("#troubles").inner_text()
    assert HOSTILE in page.locator("#facets").inner_text() + page.locator("#table").inner_text()
    assert page.locator("img").count() == 0


def test_it_sorts_by_every_column(opened: Opened) -> None:
    page = opened()
    for button in page.locator("#table thead button").all():
        name = button.inner_text().strip()
        button.click()
        head = page.locator("#table thead th", has_text=name)
        first = head.get_attribute("aria-sort")
        button.click()
        assert {first, head.get_attribute("aria-sort")} == {"ascending", "descending"}
        assert page.locator("#table thead th[aria-sort=none]").count() == page.locator("#table thead th").count() - 1
    page.locator("#table thead button", has_text="Accuracy").click()
    shown = [float(cell.split()[0]) for cell in column(page, "Accuracy %") if cell != "–"]
    assert shown == sorted(shown, reverse=True)
    assert len(shown) == 7
    assert column(page, "Accuracy %")[-3:] == ["–"] * 3  # what is not known comes last
    page.locator("#table thead button", has_text="Method").click()
    methods = column(page, "Method")
    assert methods[:-1] == sorted(methods[:-1])


def test_it_filters(opened: Opened) -> None:
    page = opened()
    page.select_option("#by-method", label="force")
    assert set(column(page, "Method")) == {"force"}
    assert page.locator("details.run").count() == 4
    assert "4 of 12 runs" in page.locator("#count").inner_text()
    page.fill("#text", "99.5")
    until(lambda: page.locator("#table tbody tr").count() == 1)
    page.fill("#text", "there is no such run")
    until(lambda: "No run matches" in page.locator("#table tbody").inner_text())
    page.get_by_role("button", name="Show all").click()
    until(lambda: page.locator("details.run").count() == 12)
    page.check("input[name=rows][value=runs]", force=True)
    assert page.locator("#table tbody tr").count() == 12


def test_a_run_opens_and_shows_its_masks(opened: Opened) -> None:
    page = opened()
    assert page.locator("details.run svg .bar-live").count() == 0  # drawn when it is opened
    page.locator("#table tbody tr", has_text="1 collapsed").locator("a").click()
    section = page.locator("details.run[open]")
    section.locator("svg .bar-kept").first.wait_for()
    words = section.inner_text()
    assert "A dead layer, with no weight left: features.20." in words
    assert section.locator(".deadmark").count() == 1
    assert "Sparsity, effective" in words
    section.get_by_text("layers as a table").click()
    until(lambda: section.locator("table tbody tr").count() == len(SHAPES))
    page.locator("details.run:not([open])", has_text="force").first.locator("summary").click()
    force = page.locator("details.run[open]", has_text="force").first
    force.locator(".body").wait_for()  # the browser tells of the opening when it has time
    for title in ("Density of each layer", "Pruned and recovered", "Saliency", "Accuracy in training"):
        assert title in force.inner_text()


def test_the_charts_tell_their_numbers(opened: Opened) -> None:
    page = opened()
    plot = page.locator(".facet", has_text="small-vgg on digits").locator(".plot").first
    plot.scroll_into_view_if_needed()
    mark = plot.locator(".mark").first.bounding_box()
    page.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    assert "accuracy" in plot.locator(".tip").inner_text()
    plot.focus()
    plot.press("Home")
    first = plot.locator(".tip").inner_text()
    plot.press("ArrowRight")
    assert plot.locator(".tip").inner_text() != first
    assert page.locator("#live").inner_text() != ""
    plot.press("Escape")
    assert not plot.locator(".tip").is_visible()


def test_a_method_has_the_same_colour_everywhere(opened: Opened) -> None:
    page = opened(color_scheme="light")
    colours = page.evaluate(
        "[...document.querySelectorAll('#table tbody tr')].filter((r) => r.innerText.includes('force'))"
        ".map((r) => getComputedStyle(r.querySelector('.mark')).fill)"
    )
    red, green, blue = (int(look("force").colour[i : i + 2], 16) for i in (1, 3, 5))
    assert set(colours) == {f"rgb({red}, {green}, {blue})"}


def test_two_runs_are_compared(opened: Opened) -> None:
    page = opened()
    for which, label in (("a", "force 98 %, seed 0"), ("b", "force 99.5 %, seed 0")):
        option = page.locator(f"#run-{which} option", has_text=label).first
        page.select_option(f"#run-{which}", value=option.get_attribute("value"))
    shown = page.locator("#comparison")
    assert "Settings: 1 difference" in shown.inner_text()
    [row] = shown.locator("tr.differs").all()
    assert row.inner_text().split()[-2:] == ["0.98", "0.995"]
    assert "−10" in shown.inner_text()  # per cent of accuracy
    assert shown.locator("svg .bar-b").count() > 0
    page.uncheck("#only")
    assert shown.locator("table.settings tbody tr").count() > 10
    page.click("#swap")
    assert "99.5" in page.locator("#run-a option:checked").inner_text()


def test_light_and_dark(opened: Opened) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    page = opened(color_scheme="light")
    before = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) != before
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    assert opened(color_scheme="dark").evaluate(paper) == page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) == before


def test_the_keyboard_is_enough(opened: Opened) -> None:
    page = opened()
    here = "((e) => e.id || e.classList.contains('plot') && 'plot' || e.innerText)(document.activeElement)"

    def tab_to(wanted: str, most: int = 60) -> None:
        for _ in range(most):
            page.keyboard.press("Tab")
            if page.evaluate(here).strip().startswith(wanted):
                outline = page.evaluate(
                    "[document.activeElement, document.activeElement.nextElementSibling].some("
                    "(e) => e && getComputedStyle(e).outlineStyle !== 'none')"
                )
                assert outline, f"the focus on {wanted} cannot be seen"
                return
        raise AssertionError(f"no way to {wanted}")

    page.keyboard.press("Tab")
    assert page.evaluate(here) == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.evaluate(here) == "main"
    tab_to("text")
    page.keyboard.type("seed 0")
    tab_to("by-method")
    assert "of 12 runs" in page.locator("#count").inner_text()  # nothing waits to be redrawn behind the focus
    page.keyboard.type("snip")
    until(lambda: page.locator("#table tbody tr").count() == 2)
    tab_to("plot")
    page.keyboard.press("ArrowRight")
    assert page.locator(".tip:visible").count() == 1
    tab_to("Accuracy %")
    page.keyboard.press("Enter")
    assert page.locator("th[aria-sort=descending]").inner_text().strip() == "Accuracy %"
    assert page.evaluate(here).strip() == "Accuracy %"  # the focus stays
    tab_to("run-a")
    page.keyboard.press("ArrowDown")
    tab_to("snip")  # a run
    while page.evaluate("document.activeElement.tagName") != "SUMMARY":
        tab_to("snip")
    page.keyboard.press("Enter")
    page.locator("details.run[open] .body").wait_for()


def test_every_control_has_a_name(opened: Opened) -> None:
    page = opened()
    page.locator("details.run summary").nth(3).click()
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, select, input, [tabindex=\"0\"]')].filter((e) => !(e.labels?.length"
        " || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.innerText.trim()))"
        ".map((e) => e.outerHTML)"
    )
    assert nameless == []


@pytest.mark.parametrize("width", [390, 320, 768])
def test_narrow_windows_do_not_overflow(opened: Opened, width: int) -> None:
    page = opened(width=width, height=844)
    assert overflow(page) == 0
    page.evaluate("document.querySelectorAll('details.run').forEach((d) => { d.open = true; })")
    page.locator("details.run svg .bar-live").first.wait_for()
    page.evaluate("document.querySelectorAll('details.more').forEach((d) => { d.open = true; })")
    page.wait_for_timeout(100)
    assert overflow(page) == 0


def test_a_large_sweep_stays_usable(found: dict[str, Any], opened: Opened, tmp_path: Path) -> None:
    run, group = the(found, method="synflow"), found["groups"][0]
    many = [
        run | {"index": i, "folder": f"run-{i}", "settings": run["settings"] | {"seed": i % 3, "lr": i // 3}}
        for i in range(300)
    ]
    sets = [group | {"index": i, "runs": [3 * i, 3 * i + 1, 3 * i + 2], "variant": f"lr {i}"} for i in range(100)]
    page_file = tmp_path / "many.html"
    page_file.write_text(report.page(found | {"runs": many, "groups": sets}), encoding="utf-8")
    assert page_file.stat().st_size < 6_000_000
    page = opened(page_file.as_uri())
    assert page.locator("details.run").count() == 60
    page.get_by_role("button", name="Show 240 more runs").click()
    assert page.locator("details.run").count() == 300


def test_it_prints(opened: Opened) -> None:
    page = opened(color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#filters").is_visible()
    assert page.pdf().startswith(b"%PDF")
