"""Modes: what a run changes in a model is put back."""

import torch
from references import Trace
from torch import nn

from barebones import prune
from barebones.running.modes import restored


def test_expanded_buffers_are_put_back():
    model, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    model.register_buffer("same", torch.ones(2, 1, 1).expand(2, 3, 4))
    with Trace(model), restored(model):
        model(x)
        model.same[:, :1, :1] += torch.tensor([1.0, 2.0]).view(2, 1, 1)
    assert model.same.stride() == (1, 0, 0)


def test_a_network_with_an_expanded_buffer_is_pruned():
    model, batch = nn.Sequential(nn.Linear(4, 3)), (torch.randn(6, 4), torch.arange(6) % 3)
    model.register_buffer("same", torch.ones(1).expand(5))
    for method in ("snip", "synflow"):
        with Trace(model):
            prune(model, [batch], 0.5, method, on_collapse="ignore")
