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

FUNCTIONS: dict[str, Callable[[nn.Module, Any, Any, Path], Any]] = {
    "to_onnx": lambda model, masks, x, path: to_onnx(model, masks, x, path / "network.onnx"),
    "to_onnx in int8": lambda model, masks, x, path: to_onnx(model, masks, x, path / "network.onnx", int8=[x]),
    "to_program": lambda model, masks, x, path: to_program(model, masks, x, path / "network.pt2"),
    "save_weights": lambda model, masks, x, path: bb.save_weights(model, masks, path / "weights.safetensors"),
}


class Noise(nn.Module):
    """Draws from every global generator, and multiplies the draws by zero."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * (torch.rand(()) + random.random() + float(numpy.random.rand()))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("noise", ["torch", "all"])
def test_the_random_numbers_of_the_caller_stay(name, noise, tmp_path, request):
    if name.startswith("to_onnx"):
        request.getfixturevalue("onnx_packages")
    drawing = Noise() if noise == "all" else nn.Identity()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), drawing, nn.Dropout(0.5), nn.Linear(4, 2))
    masks, x = zoo.random_masks(model, 0.5), torch.randn(3, 4)
    levels = [logging.getLogger(name).level for name in export.CHATTY]
    with Trace(model), suppress(ValueError if noise == "all" else ()):  # exports do not know Python's random numbers
        FUNCTIONS[name](model, masks, x, tmp_path)
    assert [logging.getLogger(name).level for name in export.CHATTY] == levels


def noisy(net: Any, x: Tensor) -> Tensor:
    """Add noise from generators of the network's own."""
    noise = torch.rand((), generator=net.noise) + net.python.random() + net.numpy.random() + net.older.rand()
    return net.last(torch.relu(net.first(x))) + 1e-3 * float(noise)


BATCHES = [(torch.randn(4, 4), torch.tensor([0, 1, 0, 1]))]
ALL: dict[str, Callable[[nn.Module, Any, Any, Path], Any]] = FUNCTIONS | {
    "prune": lambda model, masks, x, path: bb.prune(model, BATCHES, 0.5, "iter-snip", rounds=3, on_collapse="ignore"),
    "account": lambda model, masks, x, path: bb.account(model, masks, x),
    "shrink": lambda model, masks, x, path: bb.shrink(model, masks, x),
}


@pytest.mark.parametrize("name", ALL)
def test_generators_that_the_network_owns_stay(name, tmp_path, request):
    if name.startswith("to_onnx"):
        request.getfixturevalue("onnx_packages")
    own = {"noise": torch.Generator(), "python": random.Random(0), "older": numpy.random.RandomState(0)}
    model = zoo.Net(noisy, first=nn.Linear(4, 6), last=nn.Linear(6, 2), numpy=numpy.random.default_rng(0), **own)
    masks, x = zoo.keep_all(model), torch.randn(3, 4)
    # Some refuse a network that draws from them, or cannot export it; they must not have moved them either.
    with Trace(model), suppress(ValueError):
        ALL[name](model, masks, x, tmp_path)
