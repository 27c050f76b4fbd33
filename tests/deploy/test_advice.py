"""The advisor and the commands around shrinking: what they print and refuse, but not how fast anything is."""

import io
import json
import re
from copy import deepcopy

import pytest
import torch
import zoo
from rich.console import Console
from torch import Tensor, nn

import barebones as bb
from barebones.deploy.advice import advise, advisor, measuring, training, variants
from barebones.lab import stored
from barebones.lab.experiment import Experiment

pytest.importorskip("torch_pruning", reason="shrinking needs Torch-Pruning")


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    monkeypatch.setattr(measuring, "PAUSE", 0.0)


@pytest.fixture
def without_onnx(monkeypatch) -> None:
    """Hide the packages that the advisor exports with, which also saves their time."""
    monkeypatch.setattr(variants, "find_spec", lambda name: None)


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


def strides(network):
    return {name: p.stride() for name, p in network.named_parameters()}


def test_training_steps_keep_the_memory_format_of_each_network(monkeypatch):
    seen = []
    monkeypatch.setattr(training, "hold", lambda network, masks, optimizer: seen.append(strides(network)))
    model, example = zoo.build("flatten")
    masks = zoo.draw_masks("flatten", model, density=0.4)
    device = torch.device("cpu")
    training.measure_steps(model, masks, example, batch=2, repeats=1, device=device, precision="fp32")
    small, wide = bb.shrink(model, masks, example), bb.shrink(model, masks, example, multiple_of=8)
    last = deepcopy(model).to(memory_format=torch.channels_last)
    assert seen == [strides(network) for network in (model, last, small.module, wide.module)]
    assert seen[0] != seen[1]


class Viewed(nn.Module):
    """A network that views pixels and channels as one dimension, which fails if they are channels last in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8 * 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).relu().view(x.shape[0], -1))


def test_a_network_that_cannot_be_channels_last_is_measured_as_it_is(without_onnx):
    masks = {"features.weight": torch.rand(8, 1, 3, 3) < 0.3}
    printed = advice(Viewed(), masks, torch.randn(2, 1, 8, 8), batches=[1], train_batch=2)
    assert "shrunk to multiples of 8 " in printed
    assert "channels last" not in printed


def test_a_collapsed_network_is_named(without_onnx):
    model, example = zoo.build("collapsed")
    printed = advice(model, zoo.draw_masks("collapsed", model, density=0.4), example, batches=[1], train_batch=0)
    assert "No signal passes from input to output, because these layers are empty: 3.weight." in printed


def test_the_verdict_says_whether_pruning_pays():
    compared = [
        variants.Variant("dense PyTorch", nn.Identity(), seconds={1: 1.0}),
        variants.Variant("masked", nn.Identity(), seconds={1: 1.0}),
        variants.Variant("shrunk + sparse", nn.Identity(), seconds={1: 1.2}),
        variants.Variant("dense onnxruntime", nn.Identity(), seconds={1: 0.5}),
    ]
    assert next(advisor.verdict(compared, [1])) == (
        "Batch 1: pruning does not pay here. masked, the fastest pruned variant, runs at 0.50 times the speed of "
        "dense onnxruntime."
    )
    compared[2].seconds[1] = 0.1
    assert next(advisor.verdict(compared, [1])) == (
        "Batch 1: shrunk + sparse is the fastest, 10.0 times as fast as dense PyTorch and 5.0 times as fast as "
        "dense onnxruntime, the fastest dense variant."
    )


# the commands


@pytest.fixture(scope="module")
def mask(tmp_path_factory) -> str:
    """A mask file that says what it is for."""
    experiment = Experiment("small-resnet", "digits", "random", 0.97, rounds=1, epochs=1).resolved()
    path = tmp_path_factory.mktemp("masks") / "mask.safetensors"
    generator = torch.Generator().manual_seed(0)
    weights = bb.prunable(stored.initial(experiment))
    masks = {name: torch.rand(weight.shape, generator=generator) < 0.03 for name, weight in weights.items()}
    bb.save_masks(masks, path, method="random", experiment=experiment.to_dict())
    return str(path)


def test_the_command_measures_without_onnxruntime_too(mask, command, without_onnx):
    done = command("bench", "speed", mask, "--batch", 1, "--repeats", 1, "--train-batch", 0)
    assert (done.code, done.err) == (0, "")
    assert "96.98% are removed" in done.out
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


@pytest.mark.parametrize("words", [("shrink",), ("bench", "speed")])
def test_a_missing_or_wrong_mask_is_an_error(words, command, tmp_path):
    (tmp_path / "garbage").write_bytes(b"garbage")
    for source, problem in {"none": "there is no", "garbage": "garbage", ".": "not the folder of a run"}.items():
        done = command(*words, source)
        assert done.code == 2
        assert problem in done.err


def test_an_unknown_precision_or_device_is_an_error(mask, command):
    assert "precision 'fp64'" in command("bench", "speed", mask, "--precision", "fp64").err
    assert "device 'tpu'" in command("bench", "speed", mask, "--device", "tpu").err
