"""Randomized networks: every path carries a signal, and nothing else changes."""

import random

import numpy as np
import pytest
import torch
import zoo
from torch import Tensor, nn

from barebones.models import SmallResNet
from barebones.running.randomize import randomize_
from barebones.scope import matched, parameters


class Block(nn.Module):
    """A branch whose scales are zero, with a frequency buffer and an integer parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.gamma = nn.Parameter(torch.zeros(4, 1))
        self.alpha, self.phase = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(2, 3, dtype=torch.complex64))
        self.steps = nn.Parameter(torch.arange(3), requires_grad=False)
        self.register_buffer("frequencies", torch.ones(4))
        self.register_buffer("warmup", torch.zeros(1))
        self.register_buffer("drops", torch.tensor([1.0, 0.0, 1e-6, -2.0]))
        self.register_buffer("absent", None)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.warmup * self.alpha * self.gamma[:, 0] * self.norm(self.second(self.first(x)))


def test_zero_initialized_parts_get_values_that_are_not_zero():
    block = randomize_(Block(), seed=0)
    scales = torch.stack(
        [*block.gamma.flatten(), block.alpha, *block.warmup, *block.norm.weight, *block.norm.running_var]
    )
    assert scales.min() >= 0.5
    assert scales.max() <= 1.5
    assert all((p != 0).all() for p in (block.second.weight, block.second.bias, block.norm.running_mean))
    assert block.phase.dtype == torch.complex64
    assert (block.phase != 0).all()
    assert block.drops[[0, 3]].tolist() == [1, -2]
    assert block.drops[[1, 2]].min() >= 0.5
    x = torch.randn(3, 4)
    assert not torch.allclose(block.eval()(x), x, atol=0.1)
    assert block.steps.tolist() == [0, 1, 2]  # tables and integers keep their values
    assert block.norm.num_batches_tracked == 0
    assert torch.equal(block.frequencies, torch.ones(4))


@pytest.mark.parametrize("name", zoo.ZOO)
def test_pruned_weights_stay_zero_and_signals_keep_their_size(name):
    model, example = zoo.build(name)
    masks = zoo.draw_masks(name, model, 0.5)
    shapes = {key: (p.shape, p.dtype, p.is_contiguous()) for key, p in parameters(model).items()}
    randomize_(model, 1, matched(model, masks))
    assert {key: (p.shape, p.dtype, p.is_contiguous()) for key, p in parameters(model).items()} == shapes
    for _, parameter, mask in matched(model, masks):
        assert bool(((parameter != 0) == mask).all())
    for output in zoo.outputs(model, example):
        assert output.isfinite().all()
        assert 1e-3 < output.abs().max() < 1e3


def test_signals_keep_their_size_in_a_deep_and_very_sparse_network():
    layers = [layer for _ in range(40) for layer in (nn.Linear(64, 64), nn.ReLU())]
    net = nn.Sequential(*layers)
    masks = {name: torch.rand(p.shape) < 0.05 for name, p in net.named_parameters() if p.dim() > 1}
    output = randomize_(net, 0, matched(net, masks))(torch.randn(8, 64))
    assert 0.01 < output.std() < 1000


def test_draws_depend_on_the_seed_alone_and_leave_the_random_state_alone():
    nets = [SmallResNet(3, width=2) for _ in range(3)]
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    for net, seed in zip(nets, (0, 0, 1), strict=True):
        randomize_(net, seed)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()
    first, second, third = (nn.utils.parameters_to_vector(net.parameters()) for net in nets)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
