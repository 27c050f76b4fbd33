"""The display of a sweep: a live table in a terminal, otherwise one sentence for each run that begins or ends."""

from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..run.heartbeat import clock
from .pool import DONE, FAILED, QUEUED, RUNNING, SKIPPED, Job, Pool

LATEST = 5  # finished runs in the table, and as many failed ones


def live_table(pool: Pool, console: Console) -> AbstractContextManager[Any]:
    """Return a context in which a terminal shows the table of a sweep; elsewhere it does nothing."""
    if not console.is_terminal:
        return nullcontext()

    def draw() -> RenderableType:
        over = pool.stopping and not pool.count(RUNNING)
        return "" if over else table(pool, monotonic())  # Rich cuts a table that is too high, and cannot erase it

    return Live(get_renderable=draw, console=console, refresh_per_second=2, transient=True)


def sentence(job: Job) -> str:
    if job.state == RUNNING and job.warning:
        return f"warning  {job.label}: {job.warning}"
    if job.state == RUNNING:
        return f"started  {job.label}"
    if job.state == DONE:
        return f"done     {job.label}: test accuracy {percent(job.accuracy)}, {clock(job.ended - job.began)}"
    if job.state == QUEUED:
        return f"again    {job.label}, alone: {job.reason}" if job.alone else f"busy     {job.label}: {job.reason}"
    if job.state == SKIPPED:
        return f"skipped  {job.label}: another process has finished it"
    return f"{job.state:<8} {job.label}" + (f": {job.reason}" if job.state == FAILED else "")


def status(pool: Pool) -> str:
    """Return in one line how many jobs are in which state, and how far the first jobs are."""
    running = [job for job in pool.jobs.values() if job.state == RUNNING]
    told = [f"{job.label}: {job.line['stage']} {job.progress}" for job in running[:LATEST] if job.line]
    return "; ".join([_counts(pool), *told])


def _counts(pool: Pool) -> str:
    return ", ".join(f"{pool.count(state)} {state}" for state in (QUEUED, RUNNING, DONE, FAILED))


def table(pool: Pool, now: float) -> Group:
    """Return counts and times, then the running jobs and the latest that failed or finished."""
    before = f"; {skipped} done before" if (skipped := pool.count(SKIPPED)) else ""
    left = pool.left(now)
    times = f"{clock(now - pool.began)} elapsed" + (f", about {clock(left)} left" if left is not None else "")
    rows = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "left", "right", "right", "left"):
        rows.add_column(no_wrap=True, overflow="ellipsis", justify=justify)
    jobs = {state: [job for job in pool.jobs.values() if job.state == state] for state in (RUNNING, DONE, FAILED)}
    for job in jobs[RUNNING]:
        stage = job.line.get("stage", "")
        rows.add_row("running", Text(job.label), stage, job.progress, percent(job.accuracy), _alarm(job))
    for job in sorted(jobs[DONE], key=lambda job: -job.ended)[:LATEST]:
        cells = "done", Text(job.label), "", clock(job.ended - job.began), percent(job.accuracy), _alarm(job)
        rows.add_row(*cells, style="green")
    failed = [_one_line(sentence(job), "red") for job in sorted(jobs[FAILED], key=lambda job: -job.ended)[:LATEST]]
    return Group(_one_line(_counts(pool) + before, "bold"), _one_line(times, "bold"), *failed, rows)


def _alarm(job: Job) -> Text:
    return Text(job.short, "red" if job.short.startswith("collapsed") else "yellow")


def _one_line(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def percent(accuracy: float | None) -> str:
    """Return an accuracy in percent; nothing if it is not known.

    >>> percent(0.9123), percent(None)
    ('91.23 %', '')
    """
    return "" if accuracy is None else f"{100 * accuracy:.2f} %"
