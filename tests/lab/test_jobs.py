"""Jobs: a sweep shows what its workers tell, each change once, and its table fits the terminal."""

import io
import json
from pathlib import Path

import pytest
from lab_runs import made_up_result, write_file
from rich.console import Console

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.sweep import jobs
from barebones.lab.sweep.jobs import Job, Jobs, live_table, sentence, status, table
from barebones.messages import plain_text

LINE = {"stage": "train", "epoch": 2, "epochs": 10, "accuracy": 0.6, "validation": {"top1": 0.7}}
STARTED = {"state": "running", "began": 5.0, "reason": "", "warning": ""}
BUSY = {"state": "queued", "reason": jobs.BUSY}


def job(seed: int = 0) -> Job:
    return Job(Experiment("small-vgg", "digits", "random", 0.9, seed=seed, epochs=1).resolved())


class Told:
    """The jobs of a sweep, and what its workers tell."""

    def __init__(self, folder: Path, number: int = 2) -> None:
        self.folder, self.jobs = folder / ".sweep", Jobs([job(seed) for seed in range(number)], folder)
        (self.folder / "round").mkdir(parents=True)

    def __call__(self, worker: str, *changes: dict, job: int = 0, end: str = "\n") -> list[str]:
        run = list(self.jobs.all)[job]
        with (self.folder / "round" / f"{worker}.jsonl").open("a") as file:
            file.write("".join(json.dumps({"run": run} | change) + end for change in changes))
        return self.read()

    def read(self) -> list[str]:
        return [" ".join(sentence(job).replace(job.label, "").split()) for job in self.jobs.read(self.folder)]


@pytest.fixture
def told(tmp_path) -> Told:
    return Told(tmp_path)


def test_each_change_of_a_job_is_a_sentence(told):
    assert told("1", BUSY) == [f"busy : {jobs.BUSY}"]
    assert told("2", BUSY) == []  # known
    assert status(told.jobs) == "2 queued, 0 running, 0 done, 0 failed"
    assert told("1", STARTED) == ["started"]
    assert told("2", BUSY) == []  # another worker of this sweep has it
    assert told("1", {"warning": "a. b.", "short": "collapsed"}) == ["warning : a. b."]
    assert told("1", LINE_OF := {"line": {"stage": "train", "epoch": 3, "epochs": 40, "part": 0.25}}) == []
    label = next(iter(told.jobs.all.values())).label
    assert status(told.jobs) == f"1 queued, 1 running, 0 done, 0 failed; {label}: train 2.2 of 40 epochs"
    assert told("1", BUSY) == [f"busy : {jobs.BUSY}"]  # which has taken it over
    again = {"state": "queued", "alone": True, "reason": "out of memory"}
    assert told("1", STARTED, LINE_OF, again)[-1] == "again , alone: out of memory"
    assert told("3", BUSY) == [f"busy : {jobs.BUSY}"]  # another sweep tries it
    assert told("3", STARTED, {"line": LINE}) == ["started"]
    done = {"state": "done", "ended": 72.0, "accuracy": 0.9}
    assert told("3", done) == ["done : test accuracy 90.00 %, 1:07"]
    assert told("3", {"state": "failed", "ended": 7.0, "reason": "no luck"}, job=1) == ["failed : no luck"]
    assert told.read() == []


def test_half_a_line_waits_for_its_other_half_and_is_left_out_without_it(told):
    assert told("1", STARTED, end="") == []
    with (told.folder / "round" / "1.jsonl").open("a") as file:
        file.write("\n")
    assert told.read() == ["started"]
    assert told("2", STARTED, end="") == told("2", STARTED) == []  # the disk was full for a moment
    assert told("2", STARTED, job=1) == ["started"]


def test_what_another_process_has_finished_is_skipped_and_what_this_sweep_did_is_done(told):
    for each in told.jobs.all.values():
        folder = told.jobs.runs / each.experiment.folder
        write_file(folder, each.experiment, "result.json", made_up_result(each.experiment))
    assert told("2", {"state": "skipped"}) == []  # its own worker may have told, but not be read yet
    assert told("2", {"state": "skipped"}, job=1) == ["skipped : another process has finished it"]
    done = {"state": "done", "ended": 6.0, "accuracy": 0.9}
    assert told("1", STARTED, done, job=1)[-1] == "done : test accuracy 90.00 %, 0:01"  # told late
    assert told.read() == []
    assert [each.state for each in told.jobs.all.values()] == ["skipped", "done"]


def test_the_table_shows_counts_times_running_finished_and_failed_jobs(tmp_path):
    listed = [job(seed) for seed in range(40)]
    for number, each in enumerate(listed):
        each.state = ("queued", "running", "done", "failed")[number % 4]
        each.reason, each.began, each.ended = "too [bold]large[/bold]", 100.0, 200.0 + number
        if each.state == "running":
            each.hear(tmp_path, {"line": LINE})
    jobs = Jobs(listed, tmp_path)
    jobs.began = 100.0
    lines = plain_text(table(jobs, 120.0)).splitlines()
    assert lines[:2] == ["10 queued, 10 running, 10 done, 10 failed", "0:20 elapsed, about 0:40 left"]
    assert [line.split()[0] for line in lines[2:]] == ["failed"] * 5 + ["running"] * 10 + ["done"] * 5
    assert lines[2] == f"failed   {listed[39].label}: too [bold]large[/bold]"
    assert lines[7].split()[2:] == ["train", "2", "of", "10", "epochs", "70.00", "%"]
    assert lines[-5].split()[:3] == ["done", listed[38].label, "2:18"]


def test_in_a_terminal_there_is_a_live_table_that_fits_it(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=6)
    jobs = Jobs([job(seed) for seed in range(9)], tmp_path)
    for each in jobs.all.values():
        each.state = "running"
    with live_table(jobs, console) as live:
        live.refresh()
        jobs.stopping = True
        for each in jobs.all.values():
            each.state = "stopped"  # the end of the sweep
    text = console.file.getvalue()
    assert "0 queued, 9 running" in text
    assert text.count("digits-small-vgg") == 3  # the screen has no room for nine
