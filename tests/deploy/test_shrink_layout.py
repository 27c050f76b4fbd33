"""The weights of a shrunk network are channels last in memory if it runs so; expanded, they have the old order."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import zoo
from references import Trace, equal
from shrinking import PIXELS, assert_alike, assert_sound, assert_trains_and_expands
from torch import Tensor, nn
from zoo import Net, conv, keep_all

import barebones as bb

pytestmark = pytest.mark.usefixtures("one_thread")

LAST = torch.channels_last


def strides(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: p.stride() for name, p in network.named_parameters()}


def is_channels_last(network: nn.Module) -> bool:
    return all(p.is_contiguous(memory_format=LAST) for p in network.parameters() if p.dim() == 4)


def is_contiguous(network: nn.Module) -> bool:
    return all(p.is_contiguous() for p in network.parameters())


@pytest.mark.parametrize("name", ["vgg", "mobile", "conv1d", "conv3d", "encoder"])
def test_weights_of_images_are_channels_last_unless_asked_otherwise(name):
    model, example = zoo.build(name)
    images = any(p.dim() == 4 for p in model.parameters())
    assert images == (name in ("vgg", "mobile"))
    masks = zoo.draw_masks(name, model, 0.5, seed=1)
    small, kept = (bb.shrink(model, masks, example, channels_last=last) for last in (True, False))
    assert small.plan == kept.plan
    assert not small.plan.layout
    assert is_channels_last(small.module)
    assert is_contiguous(kept.module)
    assert (strides(small.module) != strides(kept.module)) == images
    assert equal(dict(small.module.state_dict()), dict(kept.module.state_dict()))
    assert equal(small.masks, kept.masks)
    assert strides(deepcopy(small.module)) == strides(small.module)
    assert_alike(example, zoo.masked(model, masks), small.module)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("name", "every"), [("mobile", None), ("vgg", 1), ("unet", 2)], ids=["none", "all", "mixed"])
def test_an_expanded_network_has_the_order_of_the_original(name, every, last):
    model, example = zoo.build(name, trained=False)
    for p in [p for p in model.parameters() if p.dim() == 4][::every] if every else []:
        p.data = p.data.to(memory_format=LAST)
    small = bb.shrink(model, zoo.draw_masks(name, model, 0.5), example, channels_last=last)
    expected = last or every == 1
    assert is_channels_last(small.module) or not expected
    assert strides(small.expand()) == strides(model)
    large = assert_trains_and_expands(small, example)
    assert is_channels_last(small.module) or not expected
    assert strides(large) == strides(model)


class _ViewedBackward(torch.autograd.Function):
    """In the backward pass, look at the gradient as rows."""

    @staticmethod
    def forward(context: Any, h: Tensor) -> Tensor:
        return h * 1

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        return grad.view(len(grad), -1).view(grad.shape)


def viewed(h: Tensor) -> Tensor:
    return h.view(len(h), -1).view(h.shape)


RUN, TRAIN = "it does not run with channels last (view size", "it does not train with channels last (view size"
VIEWS: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "everywhere": (lambda net, h: viewed(h), RUN),
    "train": (lambda net, h: viewed(h) if net.training else h, RUN),
    "random": (lambda net, h: viewed(h) + torch.rand_like(h) if net.training else h, RUN),
    "larger": (lambda net, h: h if h.shape[2] == 6 else viewed(h), RUN),
    "backward": (lambda net, h: _ViewedBackward.apply(h), TRAIN),  # type: ignore[no-untyped-call]
    "strides": (lambda net, h: h.as_strided(h.shape, torch.empty(h.shape).stride()), "the outputs differ by"),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_network_that_needs_its_order_keeps_it_and_the_plan_says_why(view):
    look, why = VIEWS[view]
    forward = lambda net, x: net.second(look(net, torch.relu(net.first(x)))).mean((2, 3))
    model = Net(forward, first=nn.Conv2d(2, 6, 3), second=nn.Conv2d(6, 3, 1))
    masks = keep_all(model)
    masks["first.weight"][:2] = masks["second.weight"][:, :2] = False
    with Trace(model):
        small, kept = (bb.shrink(model, masks, PIXELS, channels_last=last) for last in (True, False))
    assert why in small.plan.layout
    assert small.plan.to_dict()["layout"] == small.plan.layout
    assert f"The weights keep their order in memory: {small.plan.layout}." in " ".join(str(small.plan).split())
    assert is_contiguous(small.module)
    assert not kept.plan.layout
    assert_alike(PIXELS, zoo.masked(model, masks), small.module, modes=(False,) if view == "random" else (False, True))
    assert_sound(small)
    assert_trains_and_expands(small, PIXELS, modes=(False,))


def unteachable(net: Any, x: Tensor) -> Tensor:
    """Write over what the gradients need."""
    h = torch.sigmoid(net.first(x))
    y = net.second(h)
    return y if not net.training else y + h.mul_(2).mean()


def test_networks_that_cannot_be_trained_or_run_in_their_own_precision():
    small = bb.shrink(Net(unteachable, first=nn.Conv2d(2, 6, 3), second=nn.Conv2d(6, 3, 1)), {}, PIXELS)
    assert not small.plan.layout
    assert is_channels_last(small.module)
    half = nn.Sequential(*conv(2, 6), nn.Conv2d(6, 3, 1)).half()
    small = bb.shrink(half, {}, PIXELS)  # the example is float32: only in float64 both have the same type
    assert "it does not run in its own precision" in small.plan.layout
    assert is_contiguous(small.module)
    frozen = nn.Sequential(*conv(2, 6), nn.Conv2d(6, 3, 1)).requires_grad_(False)
    assert is_channels_last(bb.shrink(frozen, {}, PIXELS).module)


def test_masks_are_expanded_also_by_deterministic_algorithms_and_only_those_of_the_small_network():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    masks = {"0.weight": torch.ones(5, 4) > 0, "2.weight": torch.ones(3, 5) > 0}
    masks["0.weight"][1], masks["2.weight"][:, 1] = False, False
    small = bb.shrink(model, masks, torch.randn(2, 4))
    torch.use_deterministic_algorithms(True)
    try:
        expanded = small.expand_masks(small.masks)
    finally:
        torch.use_deterministic_algorithms(False)
    assert {name: mask.tolist() for name, mask in expanded.items()} == {n: m.tolist() for n, m in masks.items()}
    with pytest.raises(ValueError, match=r"0\.weight"):
        small.expand_masks(masks)
