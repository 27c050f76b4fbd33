"""The advisor and the commands around small networks: what they print, refuse and leave behind; never how fast."""

import io
import json
import re
from copy import deepcopy

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from typer.testing import CliRunner

import barebones as bb
from barebones.cli.app import app
from barebones.deploy.advice import advise, advisor, measuring, training, variants
from barebones.lab import stored
from barebones.lab.experiment import Experiment

pytest.importorskip("torch_pruning", reason="shrinking needs Torch-Pruning")

EXPERIMENT = Experiment("small-resnet", "digits", "random", 0.97, rounds=1, epochs=1).resolved()


@pytest.fixture(scope="module")
def mask(tmp_path_factory) -> str:
    """A mask file that says what it is for."""
    path = tmp_path_factory.mktemp("masks") / "mask.safetensors"
    model = stored.initial(EXPERIMENT)
    generator = torch.Generator().manual_seed(0)
    masks = {n: torch.rand(p.shape, generator=generator) < 0.03 for n, p in bb.prunable(model).items()}
    bb.save_masks(masks, path, method="random", experiment=EXPERIMENT.to_dict())
    return str(path)


@pytest.fixture(autouse=True)
def hasty(monkeypatch) -> None:
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    monkeypatch.setattr(measuring, "PAUSE", 0.0)


def said(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert done.exit_code == code, done.output
    if code == 0 and done.exception:
        raise done.exception
    return done.output


def test_the_advisor_prints_every_way_and_a_verdict(mask):
    words = said("bench", "speed", mask, "--batch", "1", "--batch", "3", "--repeats", "1", "--train-batch", "4")
    for batch in (1, 3):
        assert f"inference, float32, batch {batch}" in words
        assert re.search(rf"Batch {batch}: .*(is the fastest|pruning does not pay)", words)
        assert re.search(rf"Batch {batch}: \d+ of \d+ layers are faster sparse", words)
    for name in ("dense PyTorch", "masked", "shrunk", "shrunk + sparse", "dense onnxruntime", "shrunk onnxruntime"):
        assert len(re.findall(rf"{re.escape(name)}\b", words)) >= 2
    assert "training step, batch 4, fp32" in words
    assert "shrunk to multiples of 8, channels last" in words
    assert "96.98% are removed" in words


def test_shrunk_networks_are_measured_as_they_are_returned(monkeypatch):
    seen = []
    monkeypatch.setattr(training, "hold", lambda network, masks, optimizer: seen.append(strides(network)))
    model, example = stored.initial(EXPERIMENT), torch.randn(2, 1, 8, 8)
    generator = torch.Generator().manual_seed(0)
    masks = {n: torch.rand(p.shape, generator=generator) < 0.1 for n, p in bb.prunable(model).items()}
    training.measure_steps(model, masks, example, batch=2, repeats=1, device=torch.device("cpu"), precision="fp32")
    small, wide = bb.shrink(model, masks, example), bb.shrink(model, masks, example, multiple_of=8)
    last = deepcopy(model).to(memory_format=torch.channels_last)
    assert seen == [strides(network) for network in (model, last, small.module, wide.module)]
    assert seen[0] != seen[1]


class Viewed(nn.Module):
    """Its pixels and channels in one row, which channels last cannot be without a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8 * 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).relu().view(x.shape[0], -1))


def test_a_network_that_cannot_be_channels_last_is_measured_as_it_is():
    example, masks = torch.randn(2, 1, 8, 8), {"features.weight": torch.rand(8, 1, 3, 3) < 0.3}
    console = Console(file=io.StringIO(), width=120)
    options = {"batches": [1], "train_batch": 2, "repeats": 1, "device": "cpu", "precision": "fp32"}
    advise(console, Viewed(), masks, example, **options)
    words = console.file.getvalue()
    assert "shrunk to multiples of 8 " in words
    assert "channels last" not in words


def strides(network):
    return {name: p.stride() for name, p in network.named_parameters()}


def test_the_verdict_says_whether_pruning_pays():
    compared = [
        variants.Variant("dense PyTorch", torch.nn.Identity(), seconds={1: 1.0}),
        variants.Variant("masked", torch.nn.Identity(), seconds={1: 1.0}),
        variants.Variant("shrunk + sparse", torch.nn.Identity(), seconds={1: 1.2}),
        variants.Variant("dense onnxruntime", torch.nn.Identity(), seconds={1: 0.5}),
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


def test_onnxruntime_may_be_absent(mask, monkeypatch):
    monkeypatch.setattr(variants, "find_spec", lambda name: None)
    words = said("bench", "speed", mask, "--batch", "1", "--repeats", "1", "--train-batch", "0")
    assert "pip install 'barebones[export]'" in words
    assert "training step" not in words


def test_shrink_shows_the_plan(mask):
    words = said("shrink", mask)
    assert re.search(r"Parameters 55,834 → [\d,]+ \(", words)
    assert "FLOPs of an image" in words
    told = json.loads(said("shrink", mask, "--json", "--multiple-of", "4"))
    assert told["parameters"][0] == 55_834
    assert told["flops"][1] < told["flops"][0]
    assert all(layer["outputs"][1] % 4 == 0 or layer["outputs"][1] == layer["outputs"][0] for layer in told["layers"])


@pytest.mark.parametrize("command", [("shrink",), ("bench", "speed")])
def test_what_is_not_there_or_no_mask_is_an_error(command, tmp_path):
    with pytest.raises(ValueError, match="there is no"):
        CliRunner().invoke(app, [*command, str(tmp_path / "none")], catch_exceptions=False)
    (tmp_path / "garbage").write_bytes(b"garbage")
    with pytest.raises(ValueError, match="garbage"):
        CliRunner().invoke(app, [*command, str(tmp_path / "garbage")], catch_exceptions=False)
    with pytest.raises(ValueError, match="not the folder of a run"):
        CliRunner().invoke(app, [*command, str(tmp_path)], catch_exceptions=False)


def test_an_unknown_precision_or_device_is_an_error(mask):
    with pytest.raises(ValueError, match="precision 'fp64' is unknown"):
        CliRunner().invoke(app, ["bench", "speed", mask, "--precision", "fp64"], catch_exceptions=False)
    with pytest.raises(ValueError, match="device 'tpu' is unknown"):
        CliRunner().invoke(app, ["bench", "speed", mask, "--device", "tpu"], catch_exceptions=False)
