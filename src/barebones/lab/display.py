"""The display of a sweep: a live table in a terminal, otherwise one sentence for each run that begins or ends."""

from __future__ import annotations

from time import monotonic

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .crew import DONE, FAILED, QUEUED, REFRESH, RUNNING, SKIPPED, STOPPED, Crew, Job

LATEST = 5  # finished runs in the table


class Display:
    """Shows a sweep on a console, within a `with` block."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self.drawn_at = 0.0
        self.said_stopping = False

    def __enter__(self) -> Display:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def announce(self, job: Job) -> None:
        """Print that a job has begun or ended, where there is no live table."""
        if self.live is None:
            self._print(sentence(job))

    def refresh(self, crew: Crew) -> None:
        """Draw the live table again, if it is time; without one, say once that the runs are stopping."""
        if self.live is None:
            if crew.stopping and not self.said_stopping and (running := crew.count(RUNNING)):
                self.said_stopping = True
                self._print(f"stopping {running} runs, which save a checkpoint; interrupt again to kill them")
        elif monotonic() - self.drawn_at >= REFRESH:
            self.drawn_at = monotonic()
            self.live.update(table(crew, self.drawn_at, self.console.size.height), refresh=True)

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def sentence(job: Job) -> str:
    """Return the state of a job in one line."""
    if job.state == RUNNING:
        return f"started  {job.label}"
    if job.state == DONE:
        return f"done     {job.label}: test accuracy {percent(job.accuracy)}, {clock(job.ended - job.began)}"
    if job.state == QUEUED:
        return f"again    {job.label}, alone: {job.reason}"
    return f"{job.state:<8} {job.label}" + (f": {job.reason}" if job.state in (FAILED, STOPPED) and job.reason else "")


def table(crew: Crew, now: float, height: int) -> Group:
    """Return counts and times, then running, latest finished and failed jobs, in fewer than `height` lines."""
    counts = ", ".join(f"{crew.count(state)} {state}" for state in (QUEUED, RUNNING, DONE, FAILED))
    before = f"; {skipped} done before" if (skipped := crew.count(SKIPPED)) else ""
    left = crew.left(now)
    times = f"{clock(now - crew.began)} elapsed" + (f", about {clock(left)} left" if left is not None else "")
    saving = crew.stopping and crew.count(RUNNING)
    note = "; stopping, the runs save a checkpoint; Ctrl-C again kills them" if saving else ""

    lines = max(height - 3, 3)
    jobs = {state: [job for job in crew.jobs.values() if job.state == state] for state in (RUNNING, DONE, FAILED)}
    running = jobs[RUNNING][: max(lines // 2, 1)]
    finished = sorted(jobs[DONE], key=lambda job: -job.ended)[: min(LATEST, lines // 4)]
    lines -= len(running) + len(finished)
    hidden = len(jobs[FAILED]) - lines + 1 if len(jobs[FAILED]) > lines else 0
    failed = [f"failed   {job.label}: {job.reason}" for job in jobs[FAILED][: len(jobs[FAILED]) - hidden]]
    failed += [f"failed   … and {hidden} more"] if hidden else []

    rows = Table.grid(padding=(0, 2))
    for number in range(6):
        rows.add_column(no_wrap=True, overflow="ellipsis", justify="left" if number < 3 else "right")
    for job in running:
        done, total = job.progress
        progress = f"{done}/{total}" if total else ""
        job_left = job.left(now)
        eta = f"{clock(job_left)} left" if job_left is not None else ""
        rows.add_row("running", Text(job.label), job.line.get("stage", ""), progress, percent(job.accuracy), eta)
    for job in finished:
        duration = clock(job.ended - job.began)
        rows.add_row("done", Text(job.label), "", "", percent(job.accuracy), duration, style="green")
    header = (_one_line(counts + before, "bold"), _one_line(times + note, "bold"))
    return Group(*header, rows, *(_one_line(line, "red") for line in failed))


def _one_line(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def percent(accuracy: float | None) -> str:
    """
    >>> percent(0.9123), percent(None)
    ('91.23 %', '')
    """
    return "" if accuracy is None else f"{100 * accuracy:.2f} %"


def clock(seconds: float) -> str:
    """
    >>> clock(7), clock(3750)
    ('0:07', '1:02:30')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
