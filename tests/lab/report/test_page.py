"""The report's page in a browser."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_runs import until  # Playwright's own way is to evaluate text, which the page forbids
from report_runs import HOSTILE, SHAPES, run_with, write_run

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

    def go(at: str = address, width: int = 1280, height: int = 800, colors: str = "light") -> Any:
        page = browser.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=colors)
        page.set_default_timeout(60_000)  # a busy machine is slow
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url))
        page.goto(at)
        page.wait_for_selector("html[data-ready=true]")
        return page

    yield go
    for page in pages:
        page.close()
    assert complaints == []


def column(page: Any, name: str) -> list[str]:
    rows = page.evaluate(
        "[...document.querySelectorAll('#table tr')].map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
    )
    at = rows[0].index(name)
    return [row[at] for row in rows[1:] if len(row) == len(rows[0])]


def shown_at(opened: Opened, tmp_path: Path, **options: Any) -> Any:
    report.write(report.gather(tmp_path / "runs", effective=False), tmp_path / "own.html")
    return opened((tmp_path / "own.html").as_uri(), **options)


def test_it_loads_and_shows_everything(opened: Opened) -> None:
    page = opened()
    assert "runs" in page.title()
    assert page.locator("#summary").inner_text().startswith("13 runs:")
    assert page.locator("#table tbody tr").count() == 11
    assert "93.00 ± 3.61" in column(page, "Accuracy %")
    until(lambda: page.locator("#panels .scatterlayer .point").count() > 2)
    assert "OutOfMemoryError" in page.locator("#troubles").inner_text()
    assert HOSTILE in page.locator("#panels").inner_text()
    assert HOSTILE in page.locator("#table").inner_text()
    assert page.locator("img").count() == 0


def test_it_sorts_by_every_column(opened: Opened) -> None:
    page = opened()
    for button in page.locator("#table thead button").all():
        name = button.inner_text().strip()
        orders = set()
        for _ in range(2):
            button.click()
            assert page.evaluate("document.activeElement.innerText").strip() == name  # the focus stays
            orders.add(page.locator("#table thead th", has_text=name).get_attribute("aria-sort"))
        assert orders == {"ascending", "descending"}
    page.locator("#table thead button", has_text="Accuracy").click()
    shown = column(page, "Accuracy %")
    numbers = [float(cell.split()[0]) for cell in shown[:7]]
    assert numbers == sorted(numbers, reverse=True)
    assert shown[7:] == ["–"] * 4  # what is not known comes last


def found(page: Any, text: str) -> int:
    """Return how many runs a search finds."""
    page.fill("#text", text)
    searched = "new URLSearchParams(location.hash.slice(1)).get('q') ?? ''"  # written when all is drawn
    until(lambda: page.evaluate(searched) == text.strip())
    return len(column(page, "Method"))


def test_it_filters(opened: Opened) -> None:
    page = opened()
    page.check("#single")
    for text, many in [
        ("seed:1", 1), ("seed:1,2", 2), ("seed>0", 2), ("seed>=0", 12), ("seed<0", 0), ("seed>=many", 0),
        ("FORCE", 4), ("force 98", 3), ("98", 9), ("98%", 9), ("99.5", 2), ("forc", 0), ("for*", 4),
        ("sparsity>=98", 11), ("sparsity>98", 2), ("sparsity=99.5", 2), ("sparsity<=98", 10), ("sparsity<98", 1),
        ("-method:snip", 11), ("method:snip,grasp", 3), ("snip", 2), ("*snip", 3), ("collapsed", 1),
        ("state:failed", 1), ("-done -failed", 3), ("accuracy>=90", 4), ("accuracy:92", 1), ("network:small-vgg", 11),
        ("deeper", 1), ("seed:0 sparsity>=98 -method:snip failed", 1), ("  ", 13), ("rounds:400", 1), ("epochs:5", 12),
    ]:  # fmt: skip
        assert found(page, text) == many, text
    assert found(page, "constructor:1") == 0
    assert "There is no field “constructor”" in page.locator("#count").inner_text()
    page.get_by_role("button", name="Show all").click()
    page.select_option("#by-method", label="force")
    until(lambda: column(page, "Method") == ["force"] * 4)
    assert "4 of 13 runs" in page.locator("#count").inner_text()


def test_hashes_and_parts_of_folders_are_not_found(opened: Opened, content: dict[str, Any]) -> None:
    page = opened()
    hashes = {run["folder"].rpartition("-")[2] for run in content["runs"]}
    for part in ("digits-", "vgg", "1c2f", *(each[:4] for each in sorted(hashes)[:4])):
        assert found(page, part) == 0


def test_a_group_is_averaged_over_the_runs_that_are_shown(opened: Opened) -> None:
    page = opened()
    for text, accuracy in (("", "93.00 ± 3.61"), ("-seed:2", "91.00 ± 1.41"), ("seed:2", "97.00")):
        assert found(page, f"force 98 {text}") == 1
        assert column(page, "Accuracy %") == [accuracy]


def test_a_copied_run_does_not_count_twice(opened: Opened, tmp_path: Path) -> None:
    for name, seed, accuracy in (("a", 0, 0.9), ("b", 1, 0.8), ("copy", 1, 0.8), ("c", 2, None)):
        write_run(tmp_path / "runs", "force", 0.98, seed, accuracy, name=name, reached=1)
    page = shown_at(opened, tmp_path)
    assert column(page, "Accuracy %") == ["85.00 ± 7.07"]
    assert column(page, "State")[0].split("\n")[0] == "3 done1 unfinished"


def test_a_run_opens_and_shows_its_masks(opened: Opened) -> None:
    page = opened()
    page.locator("#table tbody tr", has_text="collapsed").locator("a").click()
    one = page.locator("#one")
    words = one.inner_text()
    for part in ("1 of 9 layers keeps no weight: features.20.", "Sparsity, effective", "Density of each layer",
                 "Accuracy in training", "Loss in training"):  # fmt: skip
        assert part in words
    layers = one.locator(".plot").first
    until(lambda: layers.evaluate("(plot) => plot.data?.[0].marker.symbol.filter((s) => s === 'x').length") == 1)
    one.get_by_text("layers as a table").press("Enter")
    until(lambda: one.locator("details[open] tbody tr").count() == len(SHAPES))
    assert "features.20" in one.locator("details[open] tr", has_text="empty").inner_text()
    page.locator("#table tbody tr", has_text="force").first.locator("a").first.click()
    assert "Weights by round of pruning" in one.inner_text()


def test_names_are_text_in_charts_too(opened: Opened, tmp_path: Path) -> None:
    names = ['<a href="https://example.org">x</a>', "<b>bold</b>&lt;", "<img src=x onerror=alert(1)>"]
    for at, model in enumerate(names):
        write_run(tmp_path / "runs", model=model, name=f"run-{at}")
    page = shown_at(opened, tmp_path)
    for box in page.locator("#table tbody input").all():
        box.check()
    plot = page.locator("#comparison .plot").first
    plot.scroll_into_view_if_needed()
    until(lambda: plot.locator(".legendtext").count() == 3)
    plot.hover()
    for at, name in enumerate(names):
        assert name in plot.locator(".legendtext").nth(at).text_content()
        until(lambda name=name: name in " ".join(page.locator(".hoverlayer").all_text_contents()))  # type: ignore[misc]
    assert page.locator(".plot svg a, .plot img, .plot tspan[style]").count() == 0


def test_ticked_rows_are_compared(opened: Opened) -> None:
    page = opened()
    for box in page.locator("#table tbody input").all():
        box.uncheck()
    assert "Tick rows" in page.locator("#comparison").inner_text()
    page.locator("#table tbody tr", has_text="93.00 ± 3.61").locator("input").check()
    page.locator("#table tbody tr", has_text="70.00").locator("input").check()
    rows = [row.split("\t") for row in page.locator("#comparison tr").all_inner_texts()]
    assert rows[0][1:] == ["force 98 %", "snip 98 %"]
    assert rows[1] == ["Test accuracy, %", "93.00 ± 3.61", "70.00"]
    assert ["method", "force", "snip"] in rows
    assert "epochs" not in {row[0] for row in rows}  # it does not differ
    plot = page.locator("#comparison figure", has_text="Validation accuracy").locator(".plot")
    plot.scroll_into_view_if_needed()
    until(lambda: plot.evaluate("(plot) => plot.data?.length") == 4)  # two edges of the band, and two lines
    upper, lower, mean, one = plot.evaluate("(plot) => plot.data.map((trace) => trace.y[0])")
    assert (upper, lower, mean, one) == pytest.approx((96.6056, 89.3944, 93.0, 70.0), rel=1e-4)
    page.check("#single")
    assert page.locator("#comparison thead th").count() == 1 + 4  # each seed on its own


def test_the_address_holds_what_was_chosen(opened: Opened, address: str) -> None:
    def here(page: Any) -> str:
        return str(page.evaluate("location.href"))  # page.url may lag

    page = opened()
    assert found(page, "sparsity>=98 -failed") > 1
    page.select_option("#by-method", label="force")
    until(lambda: "method=force" in here(page))
    page.locator("#table thead button", has_text="Accuracy").click()
    page.locator("#table tbody input").first.uncheck()
    page.locator("#table tbody a").last.click()
    page.get_by_role("link", name="Table").click()  # a link within the page keeps the choices
    again = opened(here(page))
    assert again.input_value("#text") == "sparsity>=98 -failed"
    assert again.input_value("#by-method") == "force"
    assert again.locator("th[aria-sort=descending]").inner_text().strip() == "Accuracy %"
    assert again.locator("#one p").all_inner_texts() == page.locator("#one p").all_inner_texts()
    assert again.locator("#comparison th").all_inner_texts() == page.locator("#comparison th").all_inner_texts()
    assert here(again) == here(page)
    assert opened(f"{address}#q=seed:1&run=none&ticks=none&method=none&sort=none&rows=none").input_value("#text")


def test_a_followed_page_loads_itself_anew(opened: Opened, content: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "live.html"
    path.write_text(report.page(content, refresh=4), encoding="utf-8")
    page = opened(path.as_uri() + "#q=force")
    path.write_text(report.page(content | {"title": "later"}), encoding="utf-8")
    until(lambda: page.locator("#title").inner_text() == "later")
    page.wait_for_selector("html[data-ready=true]")
    assert page.input_value("#text") == "force"


def test_light_and_dark(opened: Opened) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    page = opened()
    before = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) != before
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    assert opened(colors="dark").evaluate(paper) == page.evaluate(paper)
    again = opened(page.evaluate("location.href"))  # which holds the theme
    assert again.evaluate(paper) == page.evaluate(paper)


@pytest.mark.parametrize("width", [390, 320, 768])
def test_narrow_windows_do_not_overflow(opened: Opened, width: int) -> None:
    page = opened(width=width, height=844)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        plot.locator(".main-svg").first.wait_for(state="attached")
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    edges = page.evaluate("[...document.querySelectorAll('#table .badge')].map((b) => b.getBoundingClientRect().right)")
    assert max(edges) <= max(width, 390)  # the state can be seen without scrolling


def test_the_keyboard_reaches_every_control_and_each_has_a_name(opened: Opened) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the results"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.id") != "text":
        page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, select, input, [role=region]')].filter((e) => !(e.labels?.length"
        " || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.innerText.trim()))"
        ".map((e) => e.outerHTML)"
    )
    assert nameless == []


def test_a_large_sweep_stays_small_and_draws_what_is_in_view(content, opened, tmp_path) -> None:
    run, group = run_with(content, method="synflow"), content["groups"][0]
    many = [
        run | {"index": i, "folder": f"run-{i}", "settings": run["settings"] | {"seed": i % 3, "lr": i // 3}}
        for i in range(300)
    ]
    sets = [group | {"runs": [3 * i, 3 * i + 1, 3 * i + 2], "panel": [i]} for i in range(100)]
    page_file = tmp_path / "many.html"
    page_file.write_text(report.page(content | {"runs": many, "groups": sets}), encoding="utf-8")
    assert page_file.stat().st_size < 3_000_000
    page = opened(page_file.as_uri())
    until(lambda: 0 < page.locator(".plot .main-svg").count() < 20)
    assert page.locator("#panels .plot").count() == 100
