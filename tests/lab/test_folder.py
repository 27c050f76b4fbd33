"""A run's folder: its owner, full disks, damaged files, and how far the run has come."""

import errno
import json
import os
import re
import shutil
from dataclasses import replace
from unittest.mock import Mock

import pytest
from lab_runs import assert_same_run, interrupted

from barebones.files import container as files
from barebones.lab.run import run as lab
from barebones.lab.run.folder import finished, write_json
from barebones.lab.run.lock import Busy
from barebones.lab.run.network import Network
from barebones.lab.run.run import run


@pytest.mark.parametrize("stage", ["prune", "train"])
@pytest.mark.parametrize("fate", ["deleted", "replaced", "moved"])
def test_a_run_whose_folder_is_gone_stops_and_writes_nothing_more(stage, fate, short, options, tmp_path, undisturbed):
    folder, began = options.folder(short), []

    def lose(line: dict) -> None:
        if line["stage"] == stage and not began:
            if fate == "moved":
                folder.rename(tmp_path / "elsewhere")
            else:
                shutil.rmtree(folder)
            began.append(line)
            if fate == "replaced":  # by another process with the same command
                run(short, options)

    with pytest.raises(Busy, match=f"^{re.escape(str(folder))} was taken over by another process, moved or deleted"):
        run(short, replace(options, save_every=1e9), lose)
    assert folder.exists() == (fate == "replaced")
    if fate == "replaced":
        assert_same_run(folder, undisturbed(short))


def test_a_run_that_another_process_has_finished_meanwhile_is_not_repeated(short, options, monkeypatch):
    def slow(*arguments, **more) -> Network:
        monkeypatch.undo()
        run(short, options)  # while this process builds its network
        monkeypatch.setattr(lab, "pruned", lambda *args: pytest.fail("work is done again"))
        monkeypatch.setattr(lab, "Training", lambda *args, **more: pytest.fail("work is done again"))
        return Network(*arguments, **more)

    monkeypatch.setattr(lab, "Network", slow)
    assert run(short, options) == finished(options.folder(short))


@pytest.mark.parametrize("until", ["train", "prune"])
def test_a_finished_run_in_a_read_only_folder_gives_its_result(until, short, options, monkeypatch):
    first = run(short, options)
    folder = options.folder(short)
    (folder / "checkpoint.safetensors").write_bytes(b"left over")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def refuse(*args, **options) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("mkdir", "unlink", "replace", "rename", "remove"):
        monkeypatch.setattr(os, name, refuse)
    for name in ("Network", "Metrics", "Training", "pruned"):
        monkeypatch.setattr(lab, name, lambda *args, **options: pytest.fail("work is done again"))
    ending = run(short, options, until=until)
    monkeypatch.undo()
    assert ending == json.loads(json.dumps(first)) if until == "train" else ending["kept"] == first["kept"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("changes", [{"at_least": 100_000}, {"sparsity": 1 - 1e-9}, {"batch_size": 100_000}])
def test_a_refused_experiment_leaves_no_folder(changes, short, options, tmp_path):
    inside = replace(options, runs=tmp_path / "new" / "runs")
    with pytest.raises(ValueError, match=r"at_least|leaves none|cannot be drawn"):
        run(replace(short, **changes), inside)
    assert not (tmp_path / "new").exists()


def test_running_again_deletes_only_what_a_run_has_written(short, options):
    result, again = run(short, options), replace(options, overwrite=True)
    folder = options.folder(short)
    (folder / "exported").mkdir()
    mine = [folder / "notes.txt", folder / "exported" / "network.onnx"]
    for path in mine:
        path.write_text("mine")
    assert run(short, again)["weights"] == result["weights"]
    assert [path.read_text() for path in mine] == ["mine", "mine"]


@pytest.mark.parametrize("what", ["is a link", "is not the folder of a run", "belongs to another run"])
def test_running_again_deletes_nothing_of_a_folder_that_is_not_a_runs(what, short, options, tmp_path):
    folder = options.folder(short)
    folder.parent.mkdir()
    place = tmp_path / "elsewhere" if what == "is a link" else folder
    place.mkdir()
    (place / "result.json").write_text("mine")
    if what == "is a link":
        folder.symlink_to(place)
    if what == "belongs to another run":
        write_json(place / "experiment.json", {}, "another-run")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(ValueError, match=what):
        run(short, replace(options, overwrite=True))
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_a_refused_experiment_deletes_no_folder_of_the_user_and_no_work(short, options, monkeypatch):
    folder = options.folder(short)
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="leaves none"):
        run(replace(short, sparsity=1 - 1e-9), options)
    assert [path.name for path in options.runs.iterdir()] == [folder.name]
    monkeypatch.setattr(lab.Stages, "train", Mock(side_effect=ValueError("not today")))
    with pytest.raises(ValueError, match="not today"):
        run(short, options)
    assert {"notes.txt", "mask.safetensors"} <= {path.name for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 1, 2, 5, 11])
def test_a_disk_that_fills_up_spoils_nothing_and_the_run_resumes(room, short, options, undisturbed, monkeypatch):
    folder, expected, real, files_left = options.folder(short), undisturbed(short), os.fsync, room

    def fsync(descriptor: int) -> None:
        nonlocal files_left
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            files_left -= 1
            if files_left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="No space left on device"):
            run(short, options)
    assert not (folder / "result.json").exists()
    assert not list(folder.glob(".*.tmp"))
    for path in folder.glob("*.safetensors"):
        kind = {"mask": "masks", "round": "round", "checkpoint": "checkpoint", "weights": "sparse"}[path.stem]
        files.read(path, f"barebones-{kind}", 1)
    run(short, options)
    assert_same_run(folder, expected)


def test_what_a_killed_process_was_writing_is_cleared(short, options):
    folder = options.folder(short)
    folder.mkdir(parents=True)
    (folder / ".0123456789abcdef.tmp").write_bytes(b"half")
    (folder / ".notes.tmp").write_text("mine")
    interrupted(short, options, 0)
    assert not (folder / ".0123456789abcdef.tmp").exists()
    assert (folder / ".notes.tmp").read_text() == "mine"
