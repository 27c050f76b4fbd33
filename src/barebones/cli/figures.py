"""Commands that show results: figure, report."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..messages import counted
from ..names import AXES, SCALES
from .options import Jobs, RetryFailed, check_folder, check_output, completion, split, with_options
from .terminal import say, stoppable


def listed() -> dict[str, list[str]]:
    """Return what each figure shows and costs, from a file that `make results` writes: to count takes seconds."""
    return json.loads(Path(__file__).with_name("figures.json").read_text("utf-8"))


def _list(asked: bool) -> None:
    if not asked:
        return
    table = Table.grid(padding=(0, 2))
    for name, (about, costs) in listed().items():
        table.add_row(Text(name, style="bold", no_wrap=True), Text.assemble(about, "\n", (costs, "dim")))
    Console().print("barebones figure NAME --scale SCALE", table, "Times: smoke on two CPU cores, others on an H200.")
    raise typer.Exit


@with_options(experiment=False)
def figure(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The name of a figure (see --list), or all.", autocompletion=completion([*listed(), "all"])
        ),
    ] = None,
    list_all: Annotated[
        bool,
        typer.Option(
            "--list",
            is_eager=True,
            callback=_list,
            help="List all figures, with what each shows and how long it takes.",
        ),
    ] = False,
    scale: Annotated[
        str | None,
        typer.Option(
            help=f"Size of the experiments: {', '.join(SCALES)}. smoke uses digits; paper is the full protocol.",
            show_default=SCALES[0],
        ),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Run nothing; draw the runs, or NAME.csv, that are in this folder.")
    ] = None,
    x: Annotated[
        str | None,
        typer.Option(
            help=f"Of the figure accuracy: what accuracy is drawn against, one of {', '.join(AXES)}.",
            show_default="sparsity",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Of the figure accuracy: runs with this setting, such as method=force,hybrid; repeatable."),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Folder to write NAME.png, .svg, .pdf and .csv into; NAME.md and .csv of tables."
        ),
    ] = Path("figures"),
    jobs: Jobs = None,
    retry_failed: RetryFailed = False,
    **options: Any,
) -> None:
    """Draw a figure of the paper, or your own runs: write the picture and its numbers.

    For a figure of the paper, the experiments that are missing are run first. `accuracy` draws any runs.

    Example: barebones figure accuracy --from runs
    """
    from ..lab.figures import accuracy
    from ..paper import figures

    if name is None:
        raise ValueError("name a figure; run `barebones figure --list` to see all figures")
    if name != accuracy.NAME and (x or only):
        raise ValueError(f"--{'x' if x else 'only'} is an option of `barebones figure {accuracy.NAME}`; leave it out")
    check_folder(out)
    _, run_options = split(options)
    if name == accuracy.NAME:
        if scale is not None:
            raise ValueError(f"the figure {accuracy.NAME} draws the runs that there are; leave out --scale")
        written, left_out = accuracy.write(source or run_options.runs, x or "sparsity", out, only or ())
        for line in (*map(str, written), *(f"left out: {sentence}" for sentence in left_out)):
            say(line)
        if left_out:
            raise typer.Exit(1)
        return
    names = list(figures.FIGURES) if name == "all" else [name]
    figures.named(names[0])
    with stoppable("stopped; the same command resumes with what is missing") as stopping:
        context = figures.FigureContext(run_options, Console(emoji=False), jobs, retry_failed, stopping)
        for each in names:
            try:
                for path in figures.figure(each, scale, out, context, source):
                    say(str(path))
            except (ValueError, OSError) as error:
                if len(names) == 1:
                    raise
                say(f"{each}: {error}")
                context.failed.append(each)
    if context.failed:
        say(f"not drawn, or not complete: {', '.join(context.failed)}")
        raise typer.Exit(1)


def report(
    runs: Annotated[Path, typer.Argument(help="Folder that contains the run folders, or one run folder.")] = Path(
        "runs"
    ),
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write the page to.")] = Path("report.html"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip the effective weights of each layer, which take a second per mask.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write the page again whenever a run changes, until Ctrl-C stops it.")
    ] = False,
) -> None:
    """Write one page about all runs: tables, charts, layers, comparisons. It needs nothing but a browser.

    Example: barebones report runs -o report.html
    """
    from rich.progress import Progress

    from ..lab.figures.report import follow, gather, plotly, write

    check_output(out)
    plotly()  # if it is missing, that is told before the work
    if watch:
        with stoppable("") as stopping:
            before = ""
            say(f"Watching {runs}; Ctrl-C stops.")
            for content in follow(runs, out, not quick, stopping):
                if (now := _counted(content)) != before:
                    say(f"{now} in {out}; open it in a browser.")
                before = now
        return
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading runs")
        content = gather(runs, not quick, lambda done, total: bar.update(task, completed=done, total=total))
        write(content, out)
    for run in content["runs"]:
        for problem in run["problems"]:
            say(f"{run['folder']} cannot be read in full: {problem}")
    say(f"{_counted(content)} in {out}; open it in a browser.")


def _counted(content: Mapping[str, Any]) -> str:
    states = Counter(run["status"] for run in content["runs"])
    counts = ", ".join(f"{states[state]} {state}" for state in sorted(states))
    return f"{counted(states.total(), 'run')} ({counts}) {'is' if states.total() == 1 else 'are'}"
