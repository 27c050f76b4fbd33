"""Tracking: each tracker shows the numbers of metrics.jsonl, each of them once, however often a run was interrupted."""

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import sleep

import pytest
import torch
from lab_runs import interrupted, tiny
from test_metrics import LINES

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run.folder import read_json, reserved
from barebones.lab.run.options import RunOptions
from barebones.lab.run.run import run
from barebones.lab.run.tracking import PROJECT, TRACKERS, Tracked, tracking

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages of the trackers

Points = dict[str, list[tuple[int, float]]]
EXPERIMENT = Experiment("small-vgg", "digits", "snip", 0.9).resolved()


def tensorboard(folder: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    reader = EventAccumulator(str(folder / "tensorboard"), size_guidance={SCALARS: 0})
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def wandb(folder: Path) -> Points:
    from wandb.proto.wandb_internal_pb2 import Record

    [log] = (folder / "wandb").glob("offline-run-*/*.wandb")
    for _ in range(300):  # its own process writes the file, and may still do so
        points: Points = {}
        for data in records(log.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            items = record.history.item
            add(points, {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
            if record.HasField("exit"):
                return points
        sleep(0.1)
    pytest.fail("wandb did not finish its file within 30 seconds")


def records(data: bytes, block: int = 2**15) -> Iterator[bytes]:
    """Yield the records of a LevelDB log: each in parts that do not cross the end of a block."""
    place, parts = 7, b""  # the file begins with seven bytes of its own
    while place + 7 <= len(data):
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # the only part, or the last
            yield parts
            parts = b""
        if (left := block - place % block) < 7:
            place += left


def add(points: Points, row: dict) -> None:
    """Add the points of one row, in which a stage has its round or epoch beside its numbers."""
    for name, value in row.items():
        stage = name.split("/")[0]
        axis = f"{stage}/{'round' if stage == 'prune' else 'epoch'}"
        if axis in row and name != axis:
            points.setdefault(name, []).append((row[axis], value))


def mlflow(folder: Path) -> Points:
    from mlflow import MlflowClient

    client = MlflowClient()
    [tracked] = client.search_runs([client.get_experiment_by_name(PROJECT).experiment_id])
    assert tracked.info.run_name == folder.name
    history = {name: client.get_metric_history(tracked.info.run_id, name) for name in tracked.data.metrics}
    return {name: [(each.step, each.value) for each in points] for name, points in history.items()}


READERS = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}


@pytest.fixture(params=[pytest.param(n, marks=() if n == "tensorboard" else pytest.mark.slow) for n in TRACKERS])
def tracker(request, tmp_path, monkeypatch):
    """The name of a tracker, set up to work offline in a folder of the test."""
    name = request.param
    if find_spec(name) is None:
        pytest.skip(f"needs {name}: pip install 'barebones[{name}]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    if name == "mlflow":
        database = find_spec("sqlalchemy") is not None
        address = f"sqlite:///{tmp_path}/m.db" if database else str(tmp_path / "mlruns")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        logging.getLogger("mlflow").setLevel(logging.ERROR)
    return name


def scalars(lines: list) -> Points:
    """What a tracker is to show."""
    points: Points = {}

    def add(prefix: str, number: int, values: dict) -> None:
        for name, value in values.items():
            if name in ("stage", "round", "rounds", "epoch", "epochs", "layers") or value is None:
                continue
            if isinstance(value, dict):
                add(f"{prefix}/{name}", number, value)
            else:
                points.setdefault(f"{prefix}/{name}", []).append((number, value))

    for one in lines:
        add(one["stage"], one.get("round", one.get("epoch")), one)
    return points


@pytest.fixture
def folder(tmp_path):
    with reserved(tmp_path / EXPERIMENT.folder, EXPERIMENT, "0123456789abcdef") as folder:
        yield folder


def test_a_run_may_have_several_trackers_and_a_resumed_one_tells_them_its_first_lines_again(tmp_path, monkeypatch):
    seen: dict[str, list] = {"tensorboard": [], "wandb": []}
    for name, events in seen.items():
        fake = Tracked(lambda index, *_, events=events: events.append(index), events.append)
        monkeypatch.setitem(TRACKERS, name, (lambda *args, fake=fake: fake, ""))
    experiment = tiny(method="random", epochs=1)
    options = RunOptions(tmp_path / "runs", track=["tensorboard", "wandb", "wandb"], save_every=0)
    interrupted(experiment, options, 4)
    run(experiment, options)
    first, second = [0, False], [0, 1, True]  # the round, the epoch, and whether it is the end
    assert seen == dict.fromkeys(seen, first + second)


def test_lines_that_a_killed_run_writes_again_are_not_tracked_twice(tracker, folder):
    killed = tracking(tracker, folder, EXPERIMENT)
    track = killed.__enter__()
    for index, values in enumerate(LINES[:7]):
        track(index, values)
    if tracker == "wandb":  # it writes in the background, and knows runs that are open in a process
        with suppress(KeyboardInterrupt):
            killed.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with tracking(tracker, folder, EXPERIMENT) as track:
        for index, values in [*enumerate(LINES[:5]), *enumerate(LINES)]:  # up to the checkpoint, and from the start
            track(index, values)
    expected = scalars(LINES)
    if tracker == "tensorboard":  # it has 32 bits
        expected = {n: [(step, torch.tensor(v).float().item()) for step, v in each] for n, each in expected.items()}
    assert READERS[tracker](folder.path) == expected


def test_mlflow_knows_the_settings_and_whether_the_run_has_ended(folder, tmp_path, monkeypatch):
    client = pytest.importorskip("mlflow", reason="needs mlflow: pip install 'barebones[mlflow]'").MlflowClient
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlruns"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    states = []
    for stopped in (True, False):
        with suppress(KeyboardInterrupt), tracking("mlflow", folder, EXPERIMENT) as track:
            track(0, LINES[0])
            identifier = read_json(folder.path / "tracked.json", folder.run)["mlflow"]
            states.append(client().get_run(identifier).info.status)
            if stopped:
                raise KeyboardInterrupt
        states.append(client().get_run(identifier).info.status)
    assert states == ["RUNNING", "KILLED", "RUNNING", "FINISHED"]
    assert client().get_run(identifier).data.params["method"] == "snip"


def test_the_errors_of_a_tracker_are_one_sentence(folder, monkeypatch):
    pytest.importorskip("mlflow", reason="needs mlflow: pip install 'barebones[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://nowhere")
    for remedy in (r"set MLFLOW_TRACKING_URI to", r"delete .*tracked\.json to track it as a new one$"):
        with pytest.raises(ValueError, match=rf"^mlflow cannot track the run \(.*\); {remedy}"):
            tracking("mlflow", folder, EXPERIMENT).__enter__()
        folder.write("tracked.json", {"mlflow": "0123"})
