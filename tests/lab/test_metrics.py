"""Metrics: the same lines however often a run was interrupted."""

import json
import math
from itertools import product
from pathlib import Path

import pytest
from lab_runs import interrupted, timeless, tiny

from barebones.lab.run.metrics import Metrics, read
from barebones.lab.run.run import RunOptions, run


def line(stage: str, number: int, **numbers) -> dict:
    unit = "round" if stage == "prune" else "epoch"
    clock = {"seconds": 0.5} | ({"elapsed": 0.5} if stage == "prune" else {})
    return {"stage": stage, unit: number, unit + "s": 9, **clock, **numbers}


LINES = [
    *(line("pretrain", n, loss=n / 3) for n in range(1, 3)),
    *(line("prune", n, keep=100 - n, layers={"a": 3}) for n in range(1, 4)),
    *(line("train", n, loss=n / 7, test={"top1": n / 9, "top5": None}) for n in range(1, 5)),
]

OWNER = "digits-tiny-snip-90-s0-0123456789"


def metrics(folder: Path, owner: str = OWNER, **options) -> tuple[Metrics, list]:
    reported: list = []
    return Metrics(folder / "metrics.jsonl", owner, reported.append, **options), reported


def written(folder: Path, lines=LINES, owner: str = OWNER) -> tuple[Path, list[dict]]:
    """The path of a file with these lines, and the marks before the first and after each line."""
    log, _ = metrics(folder, owner)
    log.rewind()
    marks = [log.mark()]
    for values in lines:
        log(values)
        marks.append(log.mark())
    log.close()
    return log.path, marks


def test_every_cut_of_a_file_leaves_whole_lines_and_is_mended(tmp_path):
    path, marks = written(tmp_path, LINES[:4])
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for cut in {*range(ends[0], len(content) + 1, 9), *(end - 1 for end in ends[1:]), *ends}:
        path.write_bytes(content[:cut])
        count = sum(end <= cut for end in ends) - 1
        assert read(path, OWNER) == LINES[:count]
        log, reported = metrics(tmp_path)
        log.rewind(marks[count])
        log.close()
        assert path.read_bytes() == content[: ends[count]]
        assert reported == []


def test_lost_and_changed_lines_are_told(tmp_path):
    path, marks = written(tmp_path)
    rows = path.read_text().splitlines(keepends=True)
    damaged = {
        "has lost 3 of 9 lines; delete its folder and run": rows[:7],
        "has lost 1 of 9 lines; delete": rows[:3] + rows[4:],
        "has other lines than those that the run had written": [*rows[:-1], rows[-2]],
    }
    for problem, left in damaged.items():
        path.write_text("".join(left))
        for use in (lambda: metrics(tmp_path)[0].rewind(marks[-1]), lambda: read(path, OWNER, marks[-1])):
            with pytest.raises(ValueError, match=problem):
                use()
    path.write_text("".join([*rows, rows[-1]]))
    with pytest.raises(ValueError, match="has more lines than the 9 that the run had written"):
        read(path, OWNER, marks[-1])
    path.write_text("".join([*rows[:3], "{}\n", *rows[3:]]))
    with pytest.raises(ValueError, match="is damaged in line 4; delete"):
        read(path)
    path.unlink()
    with pytest.raises(ValueError, match="has lost 9 of 9 lines; delete"):
        metrics(tmp_path)[0].rewind(marks[-1])
    assert read(path) == []


def test_numbers_that_json_does_not_know_are_null(tmp_path):
    log, reported = metrics(tmp_path)
    log.rewind()
    log(line("prune", 0, saliency=math.nan, loss=math.inf, layers={"a": -math.inf, "b": 1}))
    log.close()
    text = log.path.read_text().splitlines()[1]
    values = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (values["saliency"], values["loss"], values["layers"]) == (None, None, {"a": None, "b": 1})
    assert math.isnan(reported[0]["saliency"])


def test_a_run_has_a_line_for_every_round_and_epoch(tmp_path):
    experiment = tiny(sparsity=0.8, rounds=4, epochs=4, seed=0)
    options, reported = RunOptions(tmp_path / "runs", save_every=0), []
    for stop in (16, 3, 0):
        interrupted(experiment, options, stop)
    folder = options.folder(experiment)
    before = read(folder / "metrics.jsonl")
    result = run(experiment, options, reported.append)
    lines = read(folder / "metrics.jsonl")
    assert timeless(lines) == timeless(before + [line for line in reported if "part" not in line])
    told = [(row["stage"], row.get("round", row.get("epoch"))) for row in lines]
    assert told == list(product(("prune", "train"), range(1, 5)))
    rounds, epochs = lines[:4], lines[4:]
    assert {row["rounds"] for row in rounds} == {row["epochs"] for row in epochs} == {4}
    kept = [result["prunable"], *(row["keep"] for row in rounds)]
    for row, before, now in zip(rounds, kept, kept[1:], strict=False):
        assert before - row["pruned"] + row["recovered"] == now == sum(row["layers"].values())
        assert row["saliency"] > 0
    assert kept[-1] == result["kept"] == round(0.2 * result["prunable"])
    assert [row["lr"] for row in epochs] == pytest.approx([0.1, 0.1, 0.01, 0.001])  # digits: at 1/2 and 3/4
    assert all(row["images_per_second"] == pytest.approx(1294 / row["seconds"]) for row in epochs)
    assert epochs[-1]["test"] == result["test"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_names_the_file(tmp_path):
    log, _ = metrics(tmp_path)
    refused = pytest.raises(OSError, match=r"cannot write .*metrics\.jsonl")
    with open("/dev/full", "ab", buffering=0) as log.file, refused:
        log({"stage": "train", "epoch": 0, "epochs": 1})
