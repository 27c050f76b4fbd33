"""Making a network faster or writing it leaves no trace: neither in the caller's random numbers nor in the model."""

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy.random
import pytest
import torch
import zoo
from references import Trace
from torch import Tensor, nn

import barebones as bb
from barebones.deploy import export
from barebones.deploy.export import to_onnx, to_program

BATCHES = [(torch.randn(4, 4), torch.tensor([0, 1, 0, 1]))]
FUNCTIONS: dict[str, Callable[[nn.Module, Any, Any, Path], Any]] = {
    "to_onnx": lambda model, masks, x, path: to_onnx(model, masks, x, path / "network.onnx"),
    "to_onnx in int8": lambda model, masks, x, path: to_onnx(model, masks, x, path / "network.onnx", int8=[x]),
    "to_program": lambda model, masks, x, path: to_program(model, masks, x, path / "network.pt2"),
    "save_weights": lambda model, masks, x, path: bb.save_weights(model, masks, path / "weights.safetensors"),
    "prune": lambda model, masks, x, path: bb.prune(model, BATCHES, 0.5, "iter-snip", rounds=3, on_collapse="ignore"),
    "account": lambda model, masks, x, path: bb.account(model, masks, x),
    "shrink": lambda model, masks, x, path: bb.shrink(model, masks, x),
}


def noise_of_the_caller(net: Any, x: Tensor) -> Tensor:
    """Draw from every global generator, and multiply the draws by zero."""
    return x + 0 * (torch.rand(()) + random.random() + float(numpy.random.rand()))


def noise_of_its_own(net: Any, x: Tensor) -> Tensor:
    noise = torch.rand((), generator=net.noise) + net.python.random() + net.numpy.random() + net.older.rand()
    return x + 1e-3 * float(noise)


def with_noise(kind: str) -> nn.Module:
    if kind == "dropout":
        return nn.Identity()
    if kind == "of the caller":
        return zoo.Net(noise_of_the_caller)
    own = {"noise": torch.Generator(), "python": random.Random(0), "older": numpy.random.RandomState(0)}
    return zoo.Net(noise_of_its_own, numpy=numpy.random.default_rng(0), **own)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("noise", ["dropout", "of the caller", "of its own"])
def test_random_numbers_of_the_caller_and_of_the_network_stay(name, noise, tmp_path, request):
    if name.startswith("to_onnx"):
        request.getfixturevalue("onnx_packages")
    noisy = with_noise(noise)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), noisy, nn.Dropout(0.5), nn.Linear(6, 2))
    masks, x = zoo.random_masks(model, 0.5), torch.randn(3, 4)
    levels = [logging.getLogger(name).level for name in export.CHATTY]
    # Some refuse a network that draws so, or cannot export it; they must not have moved its numbers either.
    with Trace(model), suppress(() if noise == "dropout" else ValueError):
        FUNCTIONS[name](model, masks, x, tmp_path)
    assert [logging.getLogger(name).level for name in export.CHATTY] == levels
