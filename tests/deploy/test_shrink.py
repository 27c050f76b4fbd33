"""A shrunk network computes what the masked one computes, is as small as it can be, trains, and expands again."""

import itertools
import threading
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
import shrinking
import torch
import zoo
from hypothesis import Phase, given, settings
from references import Trace, equal
from shrinking import BOTH, PIXELS, assert_alike, assert_sound, assert_trains_and_expands, fit, widths
from torch import nn
from torch.utils._pytree import tree_map
from zoo import Net, conv, keep_all

import barebones as bb
from barebones.paths import effective
from barebones.running.inputs import call, tensors
from barebones.scope import parameters

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning"),
]

PHASES = (Phase.explicit, Phase.generate)  # shrinking a counterexample would take minutes
NETWORKS = zoo.names(recurrent=False)


def modes(name: str) -> tuple[bool, ...]:
    return (False,) if zoo.ZOO[name].dropout_stays else BOTH


@pytest.mark.parametrize(
    ("name", "density"),
    [
        *itertools.product(zoo.ZOO, [0.3]),
        *itertools.product(NETWORKS[::2], [0.0]),
        *itertools.product(NETWORKS[1::4], [1.0]),
    ],
)
def test_the_outputs_are_those_of_the_masked_model(name, density):
    model, example = zoo.build(name)
    masks = zoo.draw_masks(name, model, density, seed=1)
    before = tree_map(torch.clone, example)
    with Trace(model):
        small = bb.shrink(model, masks, example)
    assert all(torch.equal(a, b) for a, b in zip(tensors(call(before)), tensors(call(example)), strict=True))
    assert_alike(example, zoo.masked(model, masks), small.module, small.expand(), modes=modes(name))
    assert_sound(small)
    shrinking.assert_keeps_paths(small, model, masks, example)
    if density == 1.0 and not zoo.ZOO[name].empty:
        assert equal(dict(small.module.state_dict()), dict(model.state_dict()))
        assert equal(small.masks, masks)
        assert not small.plan.layers
        assert equal(dict(bb.shrink(model, {}, example).module.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("name", NETWORKS)
def test_widths_are_multiples_and_trained_weights_go_back_into_the_original(name):
    model, example = zoo.build(name, trained=False)
    masks = zoo.draw_masks(name, model, 0.3, seed=1)
    small = bb.shrink(model, masks, example, multiple_of=4, before_training=True)
    assert_sound(small)
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            now, before = widths(small.module, path), widths(model, path)
            parts = name in ("unet", "unet-groups", "glu")  # inputs are parts of outputs, or outputs of several layers
            checked = slice(1) if parts else slice(2)
            assert all(n % 4 == 0 or n == b for n, b in zip(now[checked], before[checked], strict=True)), path
    if not small.plan.shifts:
        assert_alike(example, zoo.masked(model, masks), small.module, modes=modes(name))
    large = assert_trains_and_expands(small, example, modes(name))
    assert type(large) is type(model)
    assert all(not parameters(large)[name][~mask].any() for name, mask in masks.items())
    assert {n: p.dtype for n, p in large.named_parameters()} == {n: p.dtype for n, p in model.named_parameters()}
    other, _ = zoo.build(name, seed=1)
    other.load_state_dict(large.state_dict())
    assert_alike(example, small.module, other, modes=modes(name))


def linear(i: int, o: int) -> nn.Module:
    return nn.Linear(i, o, bias=False)


def convolution(i: int, o: int) -> nn.Module:
    return nn.Conv2d(i, o, 3, padding=1, bias=False)


def additive(stream: int, *hidden: int) -> nn.Sequential:
    """A residual network of linear layers."""
    blocks = [zoo.Residual(linear(stream, h), nn.ReLU(), linear(h, stream)) for h in hidden]
    return nn.Sequential(linear(3, stream), *blocks, linear(stream, 3))


def chain(kernel: Callable[[int, int], nn.Module], *widths: int) -> nn.Sequential:
    return nn.Sequential(*(f for i, o in itertools.pairwise((3, *widths, 2)) for f in (kernel(i, o), nn.ReLU())))


@pytest.mark.parametrize("make", [additive, partial(chain, linear), partial(chain, convolution)])
@settings(max_examples=6, phases=PHASES)
@given(
    st.integers(1, 5),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from([0.15, 0.3, 0.5, 0.7]),
    st.integers(0, 10**6),
)
def test_without_biases_a_channel_stays_if_and_only_if_it_is_on_a_path(make, first, rest, density, seed):
    generator = torch.Generator().manual_seed(seed)
    model = make(first, *rest)
    masks = {n: torch.rand(p.shape, generator=generator) < density for n, p in parameters(model).items()}
    x = torch.randn((4, 3) if parameters(model)["0.weight"].dim() == 2 else (4, 3, 4, 4), generator=generator)
    small = bb.shrink(model, masks, x)
    assert_alike(x, zoo.masked(model, masks), small.module)
    on_paths = effective(model, masks, x)
    layers = [name.removesuffix(".weight") for name in on_paths]
    read = [mask.transpose(0, 1).flatten(1).any(1) for mask in on_paths.values()]
    if make is additive:  # every other layer reads the stream, and those between write to it
        read[1::2] = [torch.stack(read[1::2]).any(0)] * len(read[1::2])
    assert [widths(small.module, layer)[0] for layer in layers[:-1]] == [int(channels.sum()) for channels in read[1:]]
    assert_trains_and_expands(small, x)


def test_the_precision_the_modes_and_the_frozen_are_as_they_were():
    model = nn.Sequential(*conv(2, 6), *conv(6, 6), nn.Conv2d(6, 3, 1))
    model[3].weight.requires_grad_(False)
    model[4].eval()
    masks = keep_all(model)
    masks["0.weight"][:2] = masks["6.weight"][:, 3:] = False
    for dtype in (torch.float, torch.half, torch.bfloat16, torch.double):
        model.to(dtype)
        small = bb.shrink(model, masks, PIXELS.to(dtype))
        assert [widths(small.module, str(i)) for i in (0, 3, 6)] == [(4, 2), (3, 4), (3, 3)]
        for result in (small.module, small.expand()):
            assert [m.training for m in result.modules()] == [m.training for m in model.modules()]
            assert [p.requires_grad for p in result.parameters()] == [p.requires_grad for p in model.parameters()]
            assert {b.dtype for b in result.state_dict().values()} == {dtype, torch.long}
        assert_alike(PIXELS, zoo.masked(model, masks), small.module)
    mixed = model.float()
    mixed[6].double()
    mixed[5] = Net(lambda net, x: torch.relu(x).double())
    small = bb.shrink(mixed, masks, PIXELS)
    assert small.module[6].weight.dtype == torch.double
    assert widths(small.module, "3") == (3, 4)


def test_switches_and_wrappers_do_not_matter(capfd):
    model, example = zoo.build("around")
    masks = zoo.draw_masks("around", model, 0.7)
    small = bb.shrink(model, masks, example)
    assert not small.plan.left
    torch.set_default_dtype(torch.double)
    try:
        others = [bb.shrink(nn.DataParallel(model), masks, example)]
    finally:
        torch.set_default_dtype(torch.float)
    for switch in (torch.inference_mode(), torch.no_grad(), torch.device("meta")):
        with switch:
            others.append(bb.shrink(model, masks, example))
    for other in others:
        assert other.plan == small.plan
        assert equal(dict(other.module.state_dict()), dict(small.module.state_dict()))
    fit(other.module, other.masks, example)
    assert capfd.readouterr() == ("", "")


def refused(message: str, model: nn.Module, masks: Any, example: Any, **options: Any) -> None:
    with Trace(model), pytest.raises(ValueError, match=message) as caught:
        bb.shrink(model, masks, example, **options)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_done_is_an_error_of_one_sentence():
    model, x = zoo.build("mlp")
    masks = keep_all(model)
    refused("masks do not fit", model, {"0.weight": torch.ones(6, 5) > 0}, x)
    refused("does not run on the example", model, masks, {"x": x})
    refused("without elements", model, masks, x[:0])
    with pytest.raises(ValueError, match="meta device"):
        bb.shrink(deepcopy(model).to("meta"), masks, x)
    refused("multiple_of must be a whole number", model, masks, x, multiple_of=0)
    uncopied = Net(lambda net, x: net.layer(x), layer=nn.Linear(4, 6))
    for held in (SimpleNamespace(last=uncopied.layer(x)), threading.Lock()):
        uncopied.held = held
        refused("cannot be copied", uncopied, {}, x)
    calls = itertools.count()
    counting = lambda net, x: net.second(torch.relu(net.first(x))) + next(calls)
    random = Net(counting, first=nn.Linear(4, 6), second=nn.Linear(6, 3))
    refused("random", random, {"first.weight": torch.arange(24).view(6, 4) < 12}, x)


@pytest.mark.usefixtures("careless")
@pytest.mark.parametrize("scale", [1, 1e-14, 0])
def test_a_wrong_network_is_never_returned(scale):
    """If too many channels were chosen, the comparison would show it, even if all outputs are zero at first."""
    model, example = zoo.build("vgg", trained=False)
    with torch.no_grad():
        for parameter in list(model.children())[-1].parameters():
            parameter.mul_(scale)
    masks = keep_all(model)
    small = bb.shrink(model, masks, example)
    assert_alike(example, zoo.masked(model, masks), small.module)
    assert_trains_and_expands(small, example)
    assert small.plan.parameters[0] == small.plan.parameters[1]
    assert small.plan.left
    assert "Channels without a signal stay" in str(small.plan)
