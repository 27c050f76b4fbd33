"""Gradients of a network on an example: they are those of autograd, and nothing is left behind."""

import pytest
import torch
from torch import nn

from barebones.running.backward import gradients


def test_gradients_are_those_of_a_random_sum_of_the_outputs() -> None:
    net, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), torch.randn(5, 3).double()
    net[0].bias.requires_grad_(False)
    wanted = [*net.parameters(), nn.Parameter(torch.zeros(1))]
    outputs, found = gradients(net, x, wanted)
    factors = torch.randn(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    expected = torch.autograd.grad((net(x) * factors).sum(), [net[0].weight, net[2].weight, net[2].bias])
    torch.testing.assert_close(outputs[0], net(x).detach())
    torch.testing.assert_close([found[0], found[2], found[3]], list(expected))
    assert found[1] is None
    assert found[4] is None
    assert all(p.grad is None for p in wanted)


def test_a_group_norm_without_a_gradient_in_torch_is_an_error() -> None:
    norm, x = nn.GroupNorm(2, 4), torch.randn(2, 4, 5, 5)
    outputs, (scale, shift) = gradients(norm, x, list(norm.parameters()))
    assert outputs[0].shape == x.shape
    assert scale is not None
    assert shift is not None
    with pytest.raises(ValueError, match="no gradient of a group-norm"):
        gradients(norm, x.contiguous(memory_format=torch.channels_last), list(norm.parameters()), unaided=True)
    found = gradients(norm, x.contiguous(memory_format=torch.channels_last), list(norm.parameters()))[1]
    torch.testing.assert_close(found, [scale, shift])
