"""The advisor and the commands around shrinking: what they print and refuse, but not how fast anything is."""

import io
import json
import re
import sys
from copy import deepcopy

import pytest
import torch
import zoo
from rich.console import Console
from torch import Tensor, nn

import barebones as bb
from barebones.deploy.advice import advise, advisor, measuring, training
from barebones.deploy.advice.variants import Variant
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run import loading


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    monkeypatch.setattr(measuring, "PAUSE", 0.0)


@pytest.fixture
def without_onnx(monkeypatch) -> None:
    """Hide the packages that the advisor exports with, which also saves their time."""
    monkeypatch.setitem(sys.modules, "onnx", None)


def advice(model: nn.Module, masks: dict[str, Tensor], example: Tensor, batches: list[int], train_batch: int) -> str:
    """Return what the advisor prints."""
    console = Console(file=io.StringIO(), width=120)
    options = dict(batches=batches, train_batch=train_batch, repeats=1, device="cpu", precision="fp32")
    advise(console, model, masks, example, **options)
    return console.file.getvalue()


@pytest.mark.slow
def test_the_advisor_measures_all_variants_and_gives_a_verdict():
    model, example = zoo.build("flatten")
    printed = advice(model, zoo.draw_masks("flatten", model, density=0.4), example, batches=[1, 3], train_batch=4)
    for batch in (1, 3):
        assert f"inference, float32, batch {batch}" in printed
        assert re.search(rf"Batch {batch}: .*(is the fastest|pruning does not pay)", printed)
        assert re.search(rf"Batch {batch}: \d+ of \d+ layers are faster sparse", printed)
    for name in ("dense PyTorch", "masked", "shrunk", "shrunk + sparse", "dense onnxruntime", "shrunk onnxruntime"):
        assert len(re.findall(rf"{re.escape(name)}\b", printed)) >= 2
    assert "training step, batch 4, fp32" in printed
    assert "shrunk to multiples of 8, channels last" in printed


def strides(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: p.stride() for name, p in network.named_parameters()}


def test_training_steps_keep_the_memory_format_of_each_network(monkeypatch):
    trained = []
    monkeypatch.setattr(training, "hold", lambda network, masks, optimizer: trained.append(strides(network)))
    model, example = zoo.build("flatten")
    masks = zoo.draw_masks("flatten", model, density=0.4)
    training.measure_steps(model, masks, example, 2, 1, torch.device("cpu"), "fp32")
    small, wide = bb.shrink(model, masks, example), bb.shrink(model, masks, example, multiple_of=8)
    last = deepcopy(model).to(memory_format=torch.channels_last)
    assert trained == [strides(network) for network in (model, last, small.module, wide.module)]
    assert trained[0] != trained[1]


def test_a_network_that_cannot_be_channels_last_is_measured_as_it_is(without_onnx):
    model = zoo.Net(lambda net, x: net.head(net.features(x).relu().view(len(x), -1)),  # pixels and channels as one
                    features=nn.Conv2d(1, 8, 3, padding=1), head=nn.Linear(8 * 64, 10))  # fmt: skip
    masks = {"features.weight": torch.rand(8, 1, 3, 3) < 0.3}
    printed = advice(model, masks, torch.randn(2, 1, 8, 8), batches=[1], train_batch=2)
    assert "shrunk to multiples of 8 " in printed
    assert "channels last" not in printed


def test_a_collapsed_network_is_named(without_onnx):
    model, example = zoo.build("collapsed")
    printed = advice(model, zoo.draw_masks("collapsed", model, density=0.4), example, batches=[1], train_batch=0)
    assert "No signal passes from input to output, because these layers are empty: 3.weight." in printed


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        (1.2, "pruning does not pay here. masked, the fastest pruned variant, runs at 0.50 times the speed of dense "
              "onnxruntime."),
        (0.1, "shrunk + sparse is the fastest, 10.0 times as fast as dense PyTorch and 5.0 times as fast as dense "
              "onnxruntime, the fastest dense variant."),
    ],
)  # fmt: skip
def test_the_verdict_says_whether_pruning_pays(seconds, sentence):
    times = {"dense PyTorch": 1.0, "masked": 1.0, "shrunk + sparse": seconds, "dense onnxruntime": 0.5}
    compared = [Variant(name, nn.Identity(), seconds={1: value}) for name, value in times.items()]
    assert next(advisor.verdict(compared, [1])) == f"Batch 1: {sentence}"


# the commands


@pytest.fixture(scope="module")
def mask(tmp_path_factory) -> str:
    """A mask file that says what it is for."""
    experiment = Experiment("small-resnet", "digits", "random", 0.97, rounds=1, epochs=1).resolved()
    path = tmp_path_factory.mktemp("masks") / "mask.safetensors"
    masks = zoo.random_masks(loading.initial(experiment), 0.03)
    bb.save_masks(masks, path, method="random", experiment=experiment.to_dict())
    return str(path)


@pytest.mark.slow
def test_the_command_measures_without_onnxruntime_too(mask, command, without_onnx):
    done = command("bench", "speed", mask, "--batch", 1, "--repeats", 1, "--train-batch", 0)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"Of 54,096 prunable weights 9[89]\.\d\d% are removed", done.out)
    assert "inference, float32, batch 1" in done.out
    assert "onnx is missing: pip install 'barebones[export]'" in done.out
    assert "training step" not in done.out


def test_shrink_shows_the_plan(mask, command):
    printed = command("shrink", mask).out
    assert re.search(r"Parameters 55,834 → [\d,]+ \(", printed)
    assert "FLOPs of an image" in printed
    plan = json.loads(command("shrink", mask, "--json", "--multiple-of", 4).out)
    assert plan["parameters"][0] == 55_834
    assert plan["flops"][1] < plan["flops"][0]
    assert all(layer["outputs"][1] % 4 == 0 or layer["outputs"][1] == layer["outputs"][0] for layer in plan["layers"])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("shrink garbage", "garbage"),
        ("bench speed .", "not the folder of a run"),
        ("bench speed garbage --precision fp64", "precision 'fp64'"),
        ("bench speed garbage --device tpu", "device 'tpu'"),
    ],
)
def test_mistakes_are_errors(words, problem, mistake, tmp_path):
    (tmp_path / "garbage").write_bytes(b"garbage")
    mistake(problem, *words.split())
