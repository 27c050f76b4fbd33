"""Run folders with damaged, lost, foreign and exchanged files: the truth or an error in one sentence, nothing else."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_runs import names, timeless
from suites import cases

from barebones.files.masks import masks_digest
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.figures.report import gather
from barebones.lab.records.records import record
from barebones.lab.run import loading
from barebones.lab.run.folder import finished, progress, recorded
from barebones.lab.run.metrics import read
from barebones.lab.run.run import RunOptions, run
from barebones.running import digest

FINISHED, UNFINISHED = cases(120), cases(30)  # a run that goes on takes longer
STRANGERS = ({"seed": 1}, {"method": "iter-snip", "sparsity": 0.5}, {"rounds": 4}, {"pretrain": 2})


def flip(draw: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 1, 2, 8])):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def cut(draw: random.Random, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content))])


def lose_lines(draw: random.Random, path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    first = draw.randrange(len(lines))
    path.write_bytes(b"".join(lines[:first] + lines[first + draw.randint(1, 3) :]))


def edit(draw: random.Random, path: Path) -> None:
    """Change a digit, as a hand or a script may do it."""
    content = bytearray(path.read_bytes())
    digits = [place for place, byte in enumerate(content) if chr(byte).isdecimal()] or [0]
    content[draw.choice(digits)] = ord(draw.choice("0123456789"))
    path.write_bytes(content)


def remove(draw: random.Random, path: Path) -> None:
    path.unlink()


def mutated(draw: random.Random, folder: Path, others: list[Path]) -> str:
    """Damage a file of the folder, or put a file of another run, stage or name in its place; say what was done."""
    way = draw.choice([flip, flip, flip, edit, cut, lose_lines, remove, None, None, None])
    if way is not None:
        name = draw.choice(names(folder))
        way(draw, folder / name)
        return f"{way.__name__} {name}"
    source = draw.choice(others)
    taken = draw.choice(names(source))
    name = taken if draw.random() < 0.7 else draw.choice(names(folder))
    shutil.copy(source / taken, folder / name)
    return f"{name} replaced by {source.parent.name}/{source.name}/{taken}"


def exported(folder: Path) -> Any:
    _, model, masks = loading.load(folder, trust=True)
    return digest.hexadecimal(model.parameters()), masks_digest(masks)


def lines(folder: Path) -> Any:
    result = finished(folder)
    return result and (read(folder / "metrics.jsonl", recorded(folder)[1], result["metrics"]) or None)


def row(folder: Path) -> Any:
    told = record(folder)
    return told if told and told["status"] == "done" else None


def page(folder: Path) -> Any:
    [told] = gather(folder, effective=False)["runs"]
    return None if told["problems"] or told["status"] != "done" else {name: told[name] for name in SHOWN}


SHOWN = ("settings", "accuracy", "seconds", "kept", "effective_sparsity", "collapsed")
READERS = (finished, row, page, lines, exported)  # None: the file is not there, or is reported as unreadable


def outcome(reader: Callable[[Path], Any], folder: Path) -> Any:
    """Return what a reader tells; None if it raises an error of one line."""
    try:
        return reader(folder)
    except (ValueError, OSError) as error:
        message = str(error)
    assert len(message.splitlines()) == 1
    return None


def test_no_reader_of_a_finished_run_tells_anything_but_the_truth(staged, tmp_path):
    whole = staged()["done"]
    others = [folder for settings in ({}, *STRANGERS) for folder in staged(**settings).values()]
    truth = [reader(whole) for reader in READERS]
    assert None not in truth
    for case in range(FINISHED):
        draw = random.Random(f"finished {case}")
        folder = Path(shutil.copytree(whole, tmp_path / str(case) / whole.name))
        done = mutated(draw, folder, others)
        for reader, expected in zip(READERS, truth, strict=True):
            assert outcome(reader, folder) in (None, expected), (case, done, reader.__name__)
        shutil.rmtree(tmp_path / str(case))


def resumed(folder: Path, settings: dict[str, Any]) -> Any:
    """Run to the end, and return what does not depend on the clock."""
    result = run(Experiment.from_dict(settings), RunOptions(folder.parent, save_every=1e9))
    told = {name: result[name] for name in ("test", "best_validation", "weights", "kept", "effective", "collapsed")}
    return told, *(timeless(lines(folder)), exported(folder))


@pytest.mark.parametrize("stage", ["pretrain", "prune", "train"])
def test_no_run_goes_on_from_anything_but_its_own_files(stage, staged, tmp_path):
    whole = staged()
    others = [folder for settings in ({}, *STRANGERS) for folder in staged(**settings).values()]
    settings, truth = recorded(whole["done"])[0], None
    accepted = 0
    for case in range(UNFINISHED // 3):
        draw = random.Random(f"{stage} {case}")
        folder = Path(shutil.copytree(whole[stage], tmp_path / str(case) / whole[stage].name))
        done = "nothing" if truth is None else mutated(draw, folder, others)
        outcome(progress, folder)
        outcome(lambda folder: gather(folder, effective=False), folder)
        told = outcome(lambda folder: resumed(folder, settings), folder)
        truth = truth or told
        assert told in (None, truth), (case, done)
        accepted += told is not None
        shutil.rmtree(tmp_path / str(case))
    assert truth is not None
    assert accepted < UNFINISHED // 3
