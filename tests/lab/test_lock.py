"""Locks: one owner at a time, on any node; who lost its lock writes nothing more."""

import json
import os
import random
import resource
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from lab_runs import names, until

from barebones.files import container
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run import lock as locks
from barebones.lab.run.folder import TRACKED, reserved
from barebones.lab.run.lock import Busy, Lock, locked


def test_a_folder_has_one_owner_and_nothing_stays_behind(tmp_path):
    with locked(tmp_path) as first:
        first.check()
        assert names(tmp_path) == ["lock-1"]
        with pytest.raises(Busy, match="another process is running in"), locked(tmp_path):
            pytest.fail("it has an owner")
    assert names(tmp_path) == []
    with locked(tmp_path) as again:
        assert again.attempt == 1


def test_a_lock_that_cannot_be_written_is_not_left_behind(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # like a full disk
    try:
        with pytest.raises(OSError, match=r"cannot write .*lock-1"), locked(tmp_path):
            pytest.fail("it says nothing about its owner")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == []


@pytest.mark.parametrize("change", [{"process": 2**22 + 1}, {"began": "1"}])
def test_the_lock_of_a_dead_process_of_this_node_is_taken_over_at_once(change, tmp_path):
    (tmp_path / "lock-3").write_text(json.dumps(locks._here() | change))
    with locked(tmp_path) as mine:
        assert names(tmp_path) == ["lock-4"]
        mine.check()


@pytest.mark.parametrize("content", [json.dumps({"node": "another", "process": 1, "began": "1"}), "", "[1]", "{"])
def test_the_lock_of_another_node_is_taken_over_after_three_missed_renewals(content, tmp_path):
    path = tmp_path / "lock-1"
    path.write_text(content)
    age = lambda seconds: os.utime(path, (path.stat().st_atime, time.time() - seconds))
    age(25)
    with pytest.raises(Busy), locked(tmp_path):
        pytest.fail("it was renewed not long ago")
    age(31)
    with locked(tmp_path) as mine:
        assert mine.attempt == 2


def test_a_lock_is_renewed_while_its_process_works(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "RENEWED_EVERY", 0.01)
    with locked(tmp_path) as mine:
        os.utime(mine.path, (0, 0))
        until(lambda: mine.path.stat().st_mtime > 0)


def test_containers_of_one_node_are_like_nodes(tmp_path, monkeypatch):
    """Numbers of processes are those of their container, so nobody can tell from outside whether one is dead."""
    monkeypatch.setattr(locks, "_runs", lambda owner: False)
    with locked(tmp_path):
        locks.check_free(tmp_path)  # its process is dead
        monkeypatch.setattr(os, "readlink", lambda path: "pid:[42]")
        with pytest.raises(Busy):
            locks.check_free(tmp_path)


@pytest.mark.parametrize("when", ["while it encodes", "after its check"])
def test_a_file_that_a_frozen_owner_was_writing_is_not_put_in_place(when, tmp_path, monkeypatch):
    def take_over() -> None:
        (tmp_path / "run" / "lock-2").touch()
        for unfinished in (tmp_path / "run").glob(".*.tmp"):
            unfinished.unlink()

    def replace(source: str, target: str) -> None:
        take_over()
        real(source, target)

    real, experiment = os.replace, Experiment("small-vgg", "digits", epochs=1).resolved()
    with reserved(tmp_path / "run", experiment, "0" * 16) as folder:
        folder.write(TRACKED, {"wandb": "1"})
        before = (folder.path / TRACKED).read_bytes()
        with pytest.raises(Busy, match="taken over"), folder.writing(TRACKED):  # noqa: PT012
            if when == "after its check":
                monkeypatch.setattr(os, "replace", replace)
            with container.atomically(folder.path / TRACKED) as file:
                file.write(b"{}")
                if when == "while it encodes":
                    take_over()
        assert (folder.path / TRACKED).read_bytes() == before
        assert not list(folder.path.glob(".*.tmp"))


class Actor:
    """A process that takes locks, renews, freezes, wakes up, writes and publishes, one step at a time."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.lock: Lock | None = None
        self.writing: ExitStack | None = None
        self.frozen = False

    def act(self, draw: random.Random, log: list[tuple[str, int]]) -> None:
        if self.frozen:
            self.frozen = draw.random() < 0.7
        elif self.lock is None:
            with suppress(Busy):
                self.lock = locks._taken(self.folder)
                for attempt in locks._attempts(self.folder):
                    if attempt < self.lock.attempt:
                        (self.folder / f"lock-{attempt}").unlink(missing_ok=True)
                for unfinished in self.folder.glob(".*.tmp"):
                    unfinished.unlink()
        else:
            match draw.choice(["freeze", "renew", "write", "publish", "leave"]):
                case "freeze":
                    self.frozen = True
                case "renew":
                    self.lock.renew()
                case "write" if self.writing is None:
                    self.writing = ExitStack()
                    with container.put_only_if(self.lock.check):
                        file = self.writing.enter_context(container.atomically(self.folder / "result"))
                    file.write(f"{self.lock.attempt}".encode())
                case "publish" if self.writing is not None:
                    try:
                        self.writing.close()
                        log.append((self.name, self.lock.attempt))
                        self.writing = None
                    except Busy:
                        self.drop()
                case "leave" if self.writing is None and self.lock._is_there():
                    self.lock.path.unlink()
                    self.drop()

    def drop(self) -> None:
        assert self.lock is not None
        self.lock.file.close()
        self.lock = self.writing = None


@pytest.mark.parametrize("seed", range(50))
def test_in_any_order_of_events_only_the_latest_owner_publishes(seed, tmp_path, monkeypatch):
    """Time is drawn, too: locks get old in jumps, whether their owners are frozen or merely slow."""
    draw = random.Random(seed)
    monkeypatch.setattr(locks, "_runs", lambda owner: True)
    actors = [Actor(tmp_path, name) for name in "abc"]
    for _ in range(80):
        for path in tmp_path.glob("lock-*"):
            if draw.random() < 0.2:
                os.utime(path, (0, path.stat().st_mtime - draw.choice([5, 31])))
        log: list[tuple[str, int]] = []
        draw.choice(actors).act(draw, log)
        there = locks._attempts(tmp_path)
        assert len(there) <= 1
        for _, attempt in log:
            assert attempt == max(there)
            assert (tmp_path / "result").read_text() == f"{attempt}"
        owners = []
        for actor in actors:
            with suppress(Busy):
                if actor.lock is not None:
                    actor.lock.check()
                    owners.append(actor.name)
        assert len(owners) <= 1
    with ExitStack() as stack:
        for actor in actors:
            if actor.lock is not None:
                stack.callback(actor.drop)
