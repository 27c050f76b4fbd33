"""Metrics: the same lines however often a run was interrupted, and the same numbers in TensorBoard."""

import json
import math
from pathlib import Path

import pytest
import torch
from lab_runs import interrupted, timeless

from barebones.lab.experiment import Experiment
from barebones.lab.metrics import Metrics, read
from barebones.lab.run import RunOptions, result_of, run

EPOCH = {"loss", "accuracy", "lr", "images_per_second", "seconds", "validation", "test", "epoch", "epochs", "stage"}
ROUND = {"keep", "pruned", "recovered", "saliency", "loss", "seconds", "layers", "round", "rounds", "stage"}


def line(stage: str, number: int, **numbers) -> dict:
    unit = "round" if stage == "prune" else "epoch"
    return {"stage": stage, unit: number, unit + "s": 9, **numbers}


LINES = [
    *(line("pretrain", n, loss=n / 3) for n in range(2)),
    *(line("prune", n, keep=100 - n, layers={"a": 3}) for n in range(3)),
    *(line("train", n, loss=n / 7, test={"top1": n / 9, "top5": None}) for n in range(4)),
]


def written(folder: Path, lines=LINES, end: str = "") -> Path:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(values) + "\n" for values in lines) + end)
    return path


def metrics(folder: Path, **options) -> tuple[Metrics, list]:
    reported: list = []
    return Metrics(folder, reported.append, **options), reported


def test_every_cut_of_a_file_leaves_whole_lines_and_is_mended(tmp_path):
    path = written(tmp_path, LINES[:4])
    content = path.read_bytes()
    ends = [i for i, byte in enumerate(content) if byte == ord("\n")]
    for cut in {*range(0, len(content) + 1, 9), *ends, *(end + 1 for end in ends)}:
        path.write_bytes(content[:cut])
        count = sum(end <= cut for end in ends)  # a line that lacks nothing but its end is whole
        _, reported = metrics(tmp_path)
        assert read(path) == LINES[:count]
        assert path.read_bytes() == b"".join(json.dumps(values).encode() + b"\n" for values in LINES[:count])
        assert reported == []


@pytest.mark.parametrize(
    ("stage", "after", "count"),
    [
        *[("pretrain", 0, 0), ("pretrain", 1, 1), ("prune", 0, 2), ("prune", 2, 4), ("prune", 3, 5)],
        *[("train", 0, 5), ("train", 3, 8), ("train", 100, 9)],
    ],
)
def test_rewinding_forgets_what_comes_after(stage, after, count, tmp_path):
    path = written(tmp_path)
    log, _ = metrics(tmp_path)
    log.rewind(stage, after)
    assert read(path) == LINES[:count]
    log(LINES[0])
    assert read(path) == [*LINES[:count], LINES[0]]


def test_numbers_that_json_does_not_know_are_null(tmp_path):
    log, reported = metrics(tmp_path)
    log(line("prune", 0, saliency=math.nan, loss=math.inf, layers={"a": -math.inf, "b": 1}))
    text = log.path.read_text()
    values = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (values["saliency"], values["loss"], values["layers"]) == (None, None, {"a": None, "b": 1})
    assert math.isnan(reported[0]["saliency"])


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulator.EventAccumulator(str(folder), size_guidance={accumulator.SCALARS: 0})
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def scalars(lines: list) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard is to show, in its 32 bits."""
    points: dict[str, list[tuple[int, float]]] = {}

    def add(prefix: str, number: int, values: dict) -> None:
        for name, value in values.items():
            if name in ("stage", "round", "rounds", "epoch", "epochs", "layers") or value is None:
                continue
            if isinstance(value, dict):
                add(f"{prefix}/{name}", number, value)
            else:
                points.setdefault(f"{prefix}/{name}", []).append((number, torch.tensor(value).float().item()))

    for one in lines:
        add(one["stage"], one.get("round", one.get("epoch")), one)
    return points


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_has_a_line_for_every_round_and_epoch_and_tensorboard_shows_them(networks, tmp_path):
    pytest.importorskip("tensorboard")
    experiment = Experiment(networks, "digits", "force", 0.8, rounds=4, epochs=4, batch=128).resolved()
    options, reported = RunOptions(tmp_path / "runs", tensorboard=True, save_every=0), []
    for stop in (16, 3, 0):
        interrupted(experiment, options, stop)
    folder = options.folder(experiment)
    before = read(folder / "metrics.jsonl")
    result = result_of(run(experiment, options, reported.append))
    lines = read(folder / "metrics.jsonl")
    assert timeless(lines) == timeless(before + reported)
    assert events(folder / "tensorboard") == scalars(lines)
    assert [(row["stage"], row.get("round", row.get("epoch"))) for row in lines] == [
        *(("prune", n) for n in range(4)),
        *(("train", n) for n in range(4)),
    ]
    rounds, epochs = lines[:4], lines[4:]
    assert all(row.keys() >= ROUND and row["rounds"] == 4 for row in rounds)
    assert all(row.keys() >= EPOCH and row["epochs"] == 4 for row in epochs)
    kept = [result["prunable"], *(row["keep"] for row in rounds)]
    for row, before, now in zip(rounds, kept, kept[1:], strict=False):
        assert before - row["pruned"] + row["recovered"] == now == sum(row["layers"].values())
        assert row["saliency"] > 0
    assert kept[-1] == result["kept"] == round(0.2 * result["prunable"])
    assert [row["lr"] for row in epochs] == pytest.approx([0.1, 0.1, 0.01, 0.001])  # digits: at 1/2 and 3/4
    assert all(row["images_per_second"] == pytest.approx(1294 / row["seconds"]) for row in epochs)
    assert epochs[-1]["test"] == result["test"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_tensorboard_saw_beyond_the_checkpoint_is_taken_back(tmp_path):
    pytest.importorskip("tensorboard")
    log, _ = metrics(tmp_path, tensorboard=True)
    for values in LINES:
        log(values)  # and killed: nothing is closed
    resumed, _ = metrics(tmp_path, tensorboard=True)
    resumed.rewind("train", 2)
    assert events(tmp_path / "tensorboard") == scalars(LINES[:7])
    resumed(line("train", 2, loss=5.0))
    resumed.close()
    assert events(tmp_path / "tensorboard") == scalars([*LINES[:7], line("train", 2, loss=5.0)])
    log.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_names_the_file(tmp_path):
    metrics = Metrics(tmp_path, lambda line: None)
    metrics.path.unlink()
    metrics.path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"cannot write .*metrics\.jsonl"):
        metrics({"stage": "train", "epoch": 0, "epochs": 1})
