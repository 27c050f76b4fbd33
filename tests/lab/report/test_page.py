"""The report's page in a browser."""

import csv
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from report_runs import HOSTILE, SHAPES, run_with, write_run

from barebones.lab.experiment.styles import look
from barebones.lab.figures import report

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]  # the page is no Python


@pytest.fixture(scope="module")
def address(text: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Any]:
    """A browser in which all pages share one process, which has compiled their scripts already."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    driver = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser: pip install playwright")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with driver.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=[*quiet, "--process-per-site"])
        context = chromium.new_context()
        context.new_page().goto(address)  # it stays open, so that the process does
        yield context
        chromium.close()


Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    """The page in a window of its own; whatever the console complains about fails the test."""
    complaints: list[str] = []
    pages = []

    def go(at: str = address, width: int = 1280, height: int = 800, colours: str = "light") -> Any:
        page = browser.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=colours)
        page.set_default_timeout(60_000)  # a busy machine is slow
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url))
        page.goto(at)
        page.wait_for_selector("html[data-ready=true]")
        page.locator(".plot .main-svg").first.wait_for(state="attached")
        return page

    yield go
    for page in pages:
        page.evaluate("localStorage.clear()")  # the theme
        page.close()
    assert complaints == []


def column(page: Any, name: str) -> list[str]:
    rows = page.evaluate(
        "[...document.querySelectorAll('#table tr')].map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
    )
    at = rows[0].index(name)
    return [row[at] if len(row) > at else "" for row in rows[1:]]


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
    assert page.locator("#summary").inner_text().startswith("13 runs:")
    assert page.locator("#table tbody tr").count() == 11
    assert page.locator("details.run").count() == 13
    until(lambda: page.locator("#facets .scatterlayer .point").count() > 5)
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
    assert column(page, "Accuracy %")[-4:] == ["–"] * 4  # what is not known comes last
    page.locator("#table thead button", has_text="Method").click()
    methods = column(page, "Method")
    assert methods[:-1] == sorted(methods[:-1])


def test_it_filters(opened: Opened) -> None:
    page = opened()
    page.select_option("#by-method", label="force")
    assert set(column(page, "Method")) == {"force"}
    assert page.locator("details.run").count() == 4
    assert "4 of 13 runs" in page.locator("#count").inner_text()
    page.fill("#text", "99.5")
    until(lambda: page.locator("#table tbody tr").count() == 1)
    page.fill("#text", "there is no such run")
    until(lambda: "No run matches" in page.locator("#table tbody").inner_text())
    page.get_by_role("button", name="Show all").click()
    until(lambda: page.locator("details.run").count() == 13)
    page.check("input[name=rows][value=runs]", force=True)
    assert page.locator("#table tbody tr").count() == 13


def found(page: Any, text: str) -> list[str]:
    """Return the rows of the runs that a search finds."""
    page.check("input[name=rows][value=runs]", force=True)
    page.fill("#text", text)
    page.locator("#text").press("Enter")
    searched = "new URLSearchParams(location.hash.slice(1)).get('q') ?? ''"  # written when all is drawn
    until(lambda: page.evaluate(searched) == text.strip())
    rows = page.locator("#table tbody tr").all_inner_texts()
    return [] if "No run matches" in rows[0] else rows


def test_the_search_knows_words_fields_and_comparisons(opened: Opened) -> None:
    page = opened()
    for text, many in [
        ("seed:1", 1), ("seed 1", 1), ("seed:1,2", 2), ("seed>0", 2), ("seed>=0", 12), ("seed<0", 0),
        ("force", 4), ("FORCE", 4), ("force 98", 3), ("98", 9), ("98%", 9), ("99.5", 2), ("forc", 0), ("for*", 4),
        ("sparsity>=98", 11), ("sparsity>98", 2), ("sparsity:0.98", 9), ("sparsity=99.5", 2), ("sparsity<98", 1),
        ("method:snip", 2), ("-method:snip", 11), ("method:snip,grasp", 3), ("snip", 2), ("*snip", 3),
        ("failed", 1), ("state:failed", 1), ("pruned", 1), ("unfinished", 1), ("collapsed", 1), ("-done -failed", 3),
        ("accuracy>=90", 4), ("accuracy:92", 1), ("accuracy<50", 1), ("network:small-vgg", 11), ("deeper", 1),
        ("seed:0 sparsity>=98 -method:snip failed", 1), ("  ", 13), ("rounds:400", 1), ("epochs:5", 12),
    ]:  # fmt: skip
        assert len(found(page, text)) == many, text
    assert len(found(page, page.get_attribute("#text", "placeholder"))) >= 1
    for wrong, sentence in [
        ("sed:1", "There is no field “sed”"),
        ("seed>=many", "compares with no number"),
        ("constructor:1", "no field"),
    ]:
        assert found(page, wrong) == []
        assert sentence in page.locator("#count").inner_text()


def test_hashes_and_parts_of_folders_are_not_found(opened: Opened, content: dict[str, Any]) -> None:
    page = opened()
    hashes = {run["folder"].rpartition("-")[2] for run in content["runs"]}
    for part in ("digits-", "vgg", *(each[:4] for each in sorted(hashes)[:4])):
        assert found(page, part) == []


def test_a_group_is_averaged_over_the_runs_that_are_shown(opened: Opened) -> None:
    page = opened()
    page.fill("#text", "force 98")
    until(lambda: column(page, "Accuracy %") == ["93.00 ± 3.61"])
    page.fill("#text", "force 98 -seed:2")
    until(lambda: column(page, "Accuracy %") == ["91.00 ± 1.41"])
    page.fill("#text", "force 98 seed:2")
    until(lambda: column(page, "Accuracy %") == ["97.00"])


def shown_at(opened: Opened, tmp_path: Path, runs: Path, **options: Any) -> Any:
    report.write(runs, tmp_path / "own.html", effective=False)
    return opened((tmp_path / "own.html").as_uri(), **options)


def test_a_copied_run_does_not_count_twice(opened: Opened, tmp_path: Path) -> None:
    for name, seed, accuracy in (("a", 0, 0.9), ("b", 1, 0.8), ("copy", 1, 0.8), ("c", 2, None)):
        write_run(tmp_path / "runs", "force", 0.98, seed, accuracy, name=name, reached=1)
    page = shown_at(opened, tmp_path, tmp_path / "runs")
    assert column(page, "Accuracy %") == ["85.00 ± 7.07"]
    assert column(page, "State") == ["3 done 1 unfinished"]


def test_the_networks_with_most_runs_come_first(opened: Opened, tmp_path: Path) -> None:
    write_run(tmp_path / "runs", model="a-net:make")
    for seed in range(2):
        write_run(tmp_path / "runs", model="z-net:make", seed=seed)
    page = shown_at(opened, tmp_path, tmp_path / "runs")
    assert page.locator(".facet h3").all_inner_texts() == ["z-net:make on digits", "a-net:make on digits"]
    assert page.locator("#by-model option").all_inner_texts() == ["all", "z-net:make", "a-net:make"]


def test_a_dense_line_stands_only_beside_runs_that_are_trained_alike(opened: Opened, tmp_path: Path) -> None:
    for changes in ({"epochs": 1}, {"epochs": 5}):
        write_run(tmp_path / "runs", **changes)
    write_run(tmp_path / "runs", "dense", 0.0, 0, 0.99, epochs=1)
    page = shown_at(opened, tmp_path, tmp_path / "runs")
    one, five = (page.locator(".facet", has_text=f"epochs {epochs}").inner_text() for epochs in (1, 5))
    assert "dense" in one.splitlines()
    assert "dense" not in five.splitlines()
    assert "the dense network was trained in another way" in five


@pytest.mark.parametrize("width", [1280, 390])
def test_the_state_can_be_seen_without_scrolling(opened: Opened, width: int) -> None:
    page = opened(width=width, height=844)
    for rows in ("groups", "runs"):
        page.check(f"input[name=rows][value={rows}]", force=True)
        edges = page.evaluate(
            "[...document.querySelectorAll('#table .badge')].map((b) => b.getBoundingClientRect().right)"
        )
        assert max(edges) <= width


def test_a_run_opens_and_shows_its_masks(opened: Opened) -> None:
    page = opened()
    assert page.locator("details.run .plot").count() == 0  # drawn when it is opened
    page.locator("#table tbody tr", has_text="1 collapsed").locator("a").click()
    section = page.locator("details.run[open]")
    section.locator(".bars .point").first.wait_for()
    words = section.inner_text()
    assert "An empty layer, with no weight left: features.20." in words
    assert "dead layer" in section.locator(".legend").first.inner_text()
    assert "Sparsity, effective" in words
    section.get_by_text("layers as a table").click()
    until(lambda: section.locator("table tbody tr").count() == len(SHAPES))
    page.locator("details.run:not([open])", has_text="force").first.locator("summary").click()
    force = page.locator("details.run[open]", has_text="force").first
    force.locator(".body").wait_for()  # the browser tells of the opening when it has time
    for title in ("Density of each layer", "Pruned and recovered", "Saliency", "Accuracy in training"):
        assert title in force.inner_text()


def shown_tip(page: Any) -> str:
    return " ".join(page.locator(".hoverlayer .hovertext, .hoverlayer .legend").all_text_contents())


def test_names_are_text_in_charts_too(opened: Opened, tmp_path: Path) -> None:
    names = ['<a href="https://example.org">x</a>', "<b>bold</b>&lt;", "<img src=x onerror=alert(1)>"]
    for model in names:
        write_run(tmp_path / "runs", model=model, name=f"run-{names.index(model)}")
    page = shown_at(opened, tmp_path, tmp_path / "runs")
    page.click("#draw-all")
    plot = page.locator("#overlays .plot").first
    plot.locator(".main-svg").first.wait_for()
    plot.focus()
    plot.press("Home")
    for name in names:
        until(lambda name=name: name in shown_tip(page))  # type: ignore[misc]
    assert page.locator(".plot svg a, .plot img, .plot tspan[style]").count() == 0


def test_the_charts_tell_their_numbers(opened: Opened) -> None:
    page = opened()
    plot = page.locator(".facet", has_text="small-vgg on digits").locator(".plot").first
    plot.scroll_into_view_if_needed()
    plot.locator(".point").first.wait_for()
    mark = plot.locator(".point").first.bounding_box()
    page.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    until(lambda: "accuracy" in shown_tip(page))
    plot.focus()
    plot.press("Home")
    until(lambda: page.locator("#live").inner_text() != "")
    first = page.locator("#live").inner_text()
    plot.press("ArrowRight")
    until(lambda: page.locator("#live").inner_text() != first)
    assert "accuracy" in shown_tip(page)
    plot.press("Escape")
    until(lambda: shown_tip(page) == "")


def ticks(page: Any, plot: Any, axis: str) -> list[tuple[float, float]]:
    """Return the places and labels of the ticks of a chart, in its units."""
    return plot.evaluate(
        "(plot, axis) => [...plot.querySelectorAll(`.${axis}tick text`)].map((tick) => [plot._fullLayout[axis + 'axis']"
        ".p2c(0), tick.__data__.x, Number(tick.textContent.replace('−', '-'))]).map(([, at, label]) => [at, label])",
        axis,
    )


@pytest.mark.parametrize("accuracies", [(0.825, 0.875), (0.8, 0.9), (0.9101, 0.9104), (0.1, 0.99)])
def test_ticks_stand_where_their_labels_say(opened: Opened, tmp_path: Path, accuracies: tuple[float, float]) -> None:
    for sparsity, accuracy in zip((0.9, 0.99), accuracies, strict=True):
        write_run(tmp_path / "runs", "snip", sparsity, 0, accuracy)
    page = shown_at(opened, tmp_path, tmp_path / "runs")
    accuracy, cost = page.locator(".facet .plot").all()
    until(lambda: len(ticks(page, accuracy, "y")) > 1 and len(ticks(page, cost, "x")) > 0)
    for place, label in ticks(page, accuracy, "y") + ticks(page, cost, "y"):
        assert label == pytest.approx(place, abs=1e-9)
    for place, label in ticks(page, cost, "x"):
        assert label == pytest.approx(10**place, rel=1e-6)
    for place, label in ticks(page, accuracy, "x"):
        assert label == pytest.approx(100 * (1 - 10**-place), abs=1e-6)


def test_the_legend_hides_a_line_and_shows_it_again(opened: Opened) -> None:
    page = opened()
    panel = page.locator(".facet", has_text="small-vgg on digits")
    until(lambda: panel.locator(".plot").first.locator(".point").count() > 0)
    before = panel.locator(".plot").first.locator(".point").count()
    button = panel.locator(".toggle", has_text="force")
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    until(lambda: panel.locator(".plot").first.locator(".point").count() == before - 2)
    page.keyboard.press("Enter")
    until(lambda: panel.locator(".plot").first.locator(".point").count() == before)


def test_a_chart_zooms_and_is_saved(opened: Opened) -> None:
    page = opened()
    plot = page.locator(".facet .plot").first
    plot.scroll_into_view_if_needed()
    width = "(plot) => plot._fullLayout.yaxis.range[1] - plot._fullLayout.yaxis.range[0]"
    before = plot.evaluate(width)
    plot.locator("[data-title='Zoom in']").click()
    until(lambda: plot.evaluate(width) < 0.9 * before)
    plot.locator("[data-title='Reset axes']").click()
    until(lambda: plot.evaluate(width) == pytest.approx(before))
    plot.focus()
    page.keyboard.press("+")
    until(lambda: plot.evaluate(width) < 0.9 * before)
    page.keyboard.press("0")
    until(lambda: plot.evaluate(width) == pytest.approx(before))
    for kind, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        with page.expect_download() as download:
            plot.locator(f"[data-title='Save as {kind}']").click()
        assert download.value.suggested_filename.endswith(f".{kind.lower()}")
        picture = Path(download.value.path()).read_bytes()
        assert picture.startswith(start)
        assert len(picture) > 5000


def test_a_method_has_the_same_colour_everywhere(opened: Opened) -> None:
    page = opened(colours="light")
    colours = page.evaluate(
        "[...document.querySelectorAll('#table tbody tr, .legend li')].filter((r) => /^force/.test(r.innerText.trim()"
        ")).map((r) => getComputedStyle(r.querySelector('.glyph')).color)"
    )
    red, green, blue = (int(look("force").colour[i : i + 2], 16) for i in (1, 3, 5))
    assert len(colours) >= 3
    assert set(colours) == {f"rgb({red}, {green}, {blue})"}


def test_runs_are_drawn_over_each_other_with_bands(opened: Opened) -> None:
    page = opened()
    page.locator("#table tbody tr", has_text="93.00 ± 3.61").locator("input").check()
    page.locator("#table tbody tr", has_text="70.00").locator("input").check()
    card = page.locator("#overlays .card")
    assert card.locator("h4").all_inner_texts()[:3] == [
        "Validation accuracy by epoch",
        "Training loss by epoch",
        "Kept weights by round",
    ]
    assert card.locator(".legend").first.locator("button").all_inner_texts() == ["force 98 %", "snip 98 %"]
    accuracy = card.locator(".plot").first
    until(lambda: accuracy.evaluate("(plot) => plot.data?.length") == 4)  # two edges of the band, and two lines
    upper, lower, mean, one = accuracy.evaluate("(plot) => plot.data.map((trace) => [...trace.y])")
    assert mean == pytest.approx([93.0] * 5)
    assert upper == pytest.approx([96.6056] * 5, rel=1e-4)
    assert lower == pytest.approx([89.3944] * 5, rel=1e-4)
    assert one == pytest.approx([70.0] * 5)
    assert "4 runs selected" in page.locator("#selected").inner_text()
    page.click("#draw-all")
    until(lambda: card.locator(".legend").first.locator("button").count() == 10)  # all groups with rounds or epochs
    page.click("#draw-none")
    assert page.locator("#overlays .plot").count() == 0


def test_a_pinned_baseline_is_drawn_and_compared_with(opened: Opened) -> None:
    page = opened()
    page.select_option("#pin", label="snip 98 %, small-vgg on digits")
    rows = dict(zip(column(page, "Accuracy %"), column(page, "vs. baseline"), strict=True))
    assert (rows["93.00 ± 3.61"], rows["10.00"], rows["70.00"], rows["–"]) == ("+23", "−60", "0", "–")
    assert "baseline: snip 98 %" in page.locator(".facet", has_text="small-vgg on digits").inner_text()
    assert "baseline: snip 98 %" in page.locator("#overlays .legend").first.inner_text()
    page.select_option("#pin", label="none")
    assert "vs. baseline" not in page.locator("#table thead").inner_text()


def saved(page: Any, button: str) -> str:
    with page.expect_download() as download:
        page.click(button)
    return Path(download.value.path()).read_text(encoding="utf-8")


def test_the_table_is_saved_as_csv_and_latex(opened: Opened, tmp_path: Path) -> None:
    formula = '=1+1,"x"'
    for seed, accuracy in enumerate((0.9, 0.92)):
        write_run(tmp_path / "runs", "force", 0.98, seed, accuracy, name=f"folder_{seed}")
    write_run(tmp_path / "runs", "snip", 0.995, 0, None, model=formula, name="100%_{}~^&$#\\")
    page = shown_at(opened, tmp_path, tmp_path / "runs")
    rows = list(csv.reader(io.StringIO(saved(page, "#csv"))))
    assert rows[0][:5] == ["Method", "Sparsity %", "State", "Accuracy %", "Deviation %"]
    assert ["force", "98", "2 done", "91.00", "1.41"] in [row[:5] for row in rows]
    [snip] = [row for row in rows if row[0] == "snip"]
    assert (snip[1:5], snip[rows[0].index("Network")]) == (["99.5", "1 pruned", "", ""], f"'{formula}")
    page.check("input[name=rows][value=runs]", force=True)
    table = saved(page, "#latex")
    assert r"\begin{tabular}{lrlr" in table
    assert r"force & 98 & done & 1 & 92.00 &" in table
    assert r"100\%\_\{\}\textasciitilde{}\textasciicircum{}\&\$\#\textbackslash{}" in table
    page.check("input[name=rows][value=groups]", force=True)
    assert r"91.00 $\pm$ 1.41" in saved(page, "#latex")


def test_the_address_holds_filter_selection_and_run(opened: Opened, address: str) -> None:
    def here(page: Any) -> str:
        return str(page.evaluate("location.href"))  # page.url may lag

    page = opened()
    page.fill("#text", "sparsity>=98 -failed")
    until(lambda: "#q=" in here(page))  # the table is drawn anew a moment after the last key
    page.select_option("#by-method", label="force")
    page.locator("#table thead button", has_text="Accuracy").click()
    page.locator("#table tbody input").first.check()
    page.select_option("#pin", label="snip 98 %, small-vgg on digits")
    page.locator("details.run summary").nth(1).click()
    until(lambda: all(f"{name}=" in here(page) for name in ("method", "sort", "draw", "pin", "run")))
    again = opened(here(page))
    assert again.input_value("#text") == "sparsity>=98 -failed"
    assert again.locator("#by-method option:checked").inner_text() == "force"
    assert again.locator("th[aria-sort=descending]").inner_text().strip() == "Accuracy %"
    assert "vs. baseline" in again.locator("#table thead").inner_text()
    assert again.locator("#table tbody input:checked").count() == 1
    assert again.locator("details.run[open]").count() == 1
    assert here(again) == here(page)
    assert opened(f"{address}#q=seed:1&run=none&draw=none&pin=none&method=none&sort=none&a=none").input_value("#text")
    page.get_by_role("link", name="Table").click()
    assert here(again) == here(page)  # a link within the page keeps the choices


def test_a_followed_page_loads_itself_anew(opened: Opened, content: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "live.html"
    path.write_text(report.page(content, refresh=4), encoding="utf-8")
    page = opened(path.as_uri() + "#q=force")
    path.write_text(report.page(content | {"title": "later"}), encoding="utf-8")
    until(lambda: page.locator("#title").inner_text() == "later")
    page.wait_for_selector("html[data-ready=true]")
    assert page.input_value("#text") == "force"
    assert page.get_by_role("button", name="Pause").count() == 0  # the last page is at rest


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
    assert "Density of each layer" in shown.inner_text()
    page.uncheck("#only")
    assert shown.locator("table.settings tbody tr").count() > 10
    page.click("#swap")
    assert "99.5" in page.locator("#run-a option:checked").inner_text()


def test_light_and_dark(opened: Opened) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    page = opened(colours="light")
    before = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) != before
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    assert opened(colours="dark").evaluate(paper) == page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) == before


def test_the_keyboard_is_enough(opened: Opened) -> None:
    page = opened()
    here = "((e) => e.id || e.classList.contains('plot') && 'plot' || e.innerText)(document.activeElement)"

    def tab_to(target: str, most: int = 100) -> None:
        for _ in range(most):
            page.keyboard.press("Tab")
            if page.evaluate(here).strip().startswith(target):
                outline = page.evaluate(
                    "[document.activeElement, document.activeElement.nextElementSibling].some("
                    "(e) => e && getComputedStyle(e).outlineStyle !== 'none')"
                )
                assert outline, f"the focus on {target} cannot be seen"
                return
        raise AssertionError(f"no way to {target}")

    page.keyboard.press("Tab")
    assert page.evaluate(here) == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.evaluate(here) == "main"
    tab_to("text")
    page.keyboard.type("seed 0")
    tab_to("by-method")
    assert "of 13 runs" in page.locator("#count").inner_text()  # nothing waits to be redrawn behind the focus
    page.keyboard.type("snip")
    until(lambda: page.locator("#table tbody tr").count() == 2)
    tab_to("plot")
    page.keyboard.press("ArrowRight")
    until(lambda: "accuracy" in page.locator("#live").inner_text())
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
    page.locator("details.run .bars .point").first.wait_for()
    page.evaluate("document.querySelectorAll('details.more').forEach((d) => { d.open = true; })")
    page.wait_for_timeout(100)
    assert overflow(page) == 0


def test_a_large_sweep_stays_usable(content: dict[str, Any], opened: Opened, tmp_path: Path) -> None:
    run, group = run_with(content, method="synflow"), content["groups"][0]
    many = [
        run | {"index": i, "folder": f"run-{i}", "settings": run["settings"] | {"seed": i % 3, "lr": i // 3}}
        for i in range(300)
    ]
    sets = [group | {"index": i, "runs": [3 * i, 3 * i + 1, 3 * i + 2], "variant": f"lr {i}"} for i in range(100)]
    page_file = tmp_path / "many.html"
    page_file.write_text(report.page(content | {"runs": many, "groups": sets}), encoding="utf-8")
    assert page_file.stat().st_size < 3_000_000
    page = opened(page_file.as_uri())
    assert page.locator("details.run").count() == 60
    page.get_by_role("button", name="Show 240 more runs").click()
    assert page.locator("details.run").count() == 300


def test_it_prints(opened: Opened) -> None:
    page = opened(colours="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#filters").is_visible()
    assert page.pdf().startswith(b"%PDF")
