"""Making a network faster or writing it leaves no trace: neither in the caller's random numbers nor in the model."""

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

from barebones.deploy.export import to_onnx, to_program, to_sparse
from barebones.deploy.fold import folded
from barebones.deploy.sparse import sparsify_for_cpu

FUNCTIONS: dict[str, Callable[[nn.Module, Any, Any, Path], Any]] = {
    "folded": lambda model, masks, x, path: folded(model, x),
    "sparsify_for_cpu": lambda model, masks, x, path: sparsify_for_cpu(model, masks, x),
    "sparsify_for_cpu without an example": lambda model, masks, x, path: sparsify_for_cpu(model, masks),
    "to_onnx": lambda model, masks, x, path: to_onnx(model, masks, x, path / "network.onnx"),
    "to_program": lambda model, masks, x, path: to_program(model, masks, x, path / "network.pt2"),
    "to_sparse": lambda model, masks, x, path: to_sparse(model, masks, path / "weights.safetensors"),
}


class Noise(nn.Module):
    """Draws from every global generator, and multiplies the draws by zero."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * (torch.rand(()) + random.random() + float(numpy.random.rand()))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("noise", ["torch", "all"])
def test_the_random_numbers_of_the_caller_stay(name, noise, tmp_path, request):
    if name == "to_onnx":
        request.getfixturevalue("onnx_packages")
    drawing = Noise() if noise == "all" else nn.Identity()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), drawing, nn.Dropout(0.5), nn.Linear(4, 2))
    masks, x = zoo.random_masks(model, 0.5), torch.randn(3, 4)
    with Trace(model), suppress(ValueError if noise == "all" else ()):  # exports do not know Python's random numbers
        FUNCTIONS[name](model, masks, x, tmp_path)
