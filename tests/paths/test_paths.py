"""Paths: effective weights, collapse and silent outputs, for all networks of the zoo; and no trace is left."""

import random
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import references
import torch
import torch.nn.functional as F
import zoo
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from zoo import Net, eye, half, keep_all, linears, off, x4

from barebones.accounting import account
from barebones.paths import effective
from barebones.running.inputs import call, tensors
from barebones.scope import parameters

Masks = dict[str, Tensor]
# Products of two signals: paths count both factors even where one of them is zero, and gradients do not. A norm over
# several channels: each of them may change the others, and here the changes cancel.
PRODUCTS = {"glu", "bilinear", "encoder", "separate", "fused", "sdpa", "two inputs",
            "two sizes", "language", "lstm", "lstm both ways", "lstm with projections", "gru", "cells",
            "packed lstm", "group"}  # fmt: skip


def none(masks: Masks, *names: str) -> Masks:
    return masks | {name: torch.zeros_like(masks[name]) for name in names}


def with_gradients(model: nn.Module, masks: Masks, example: Any) -> Masks:
    """Return the kept weights with a gradient if no weight or input is negative: these are the weights on a path."""
    for module in model.modules():
        for name, pool in module.named_children():
            if isinstance(pool, nn.MaxPool1d | nn.MaxPool2d):  # its gradient shows one path only
                mean = nn.AvgPool1d if isinstance(pool, nn.MaxPool1d) else nn.AvgPool2d
                setattr(module, name, mean(pool.kernel_size, pool.stride, pool.padding))
    model = zoo.exact(model).eval()
    with torch.no_grad():
        for name, p in parameters(model).items():
            p.copy_((p.abs() + 0.1) * masks.get(name, torch.tensor("bias" not in name and "position" not in name)))
    args, kwargs = tree_map(lambda t: t.double().abs() if t.is_floating_point() else t, call(example))
    outputs = [t for t in tensors(model(*args, **kwargs)) if t.is_floating_point()]
    sum(t.sum() for t in outputs if t.requires_grad).backward()  # type: ignore[union-attr]
    weights = {name: parameters(model)[name] for name in masks}
    return {n: torch.zeros_like(masks[n]) if w.grad is None else masks[n] & (w.grad != 0) for n, w in weights.items()}


@pytest.mark.parametrize("name", zoo.ZOO)
def test_weights_on_paths_are_those_that_matter(name: str) -> None:
    """Weights on a path have gradients, and without biases the others can go without a change of the outputs."""
    model, example = zoo.build(name, trained=False)
    with torch.no_grad():
        for parameter_name, parameter in parameters(model).items():
            if "bias" in parameter_name or "position" in parameter_name:
                parameter.zero_()
    removed = 0
    for seed, density in enumerate((0.1, 0.3, 0.6)):
        masks = zoo.draw_masks(name, model, density, seed)
        on_paths = effective(model, masks, example)
        assert all((on_paths[n] <= masks[n]).all() for n in masks)
        if name != "layer":  # through its norm, each channel gets a gradient from all others
            expected = with_gradients(deepcopy(model), masks, example)
            assert all((expected[n] <= on_paths[n]).all() for n in masks)
            assert name in PRODUCTS or all(expected[n].equal(on_paths[n]) for n in masks)
        removed += sum(int((masks[n] ^ on_paths[n]).sum()) for n in masks)
        if zoo.ZOO[name].exact_paths:
            before, after = (zoo.outputs(zoo.masked(model, kept), example) for kept in (masks, on_paths))
            for a, b in zip(before, after, strict=True):
                torch.testing.assert_close(a, b)
    assert removed > 0 or name == "lstm"


def test_everything_is_effective_in_a_dense_transformer() -> None:
    encoder = nn.TransformerEncoder(zoo.ZOO["encoder"].make(), 2, enable_nested_tensor=False)
    example = ((torch.randn(1, 3, 6),), {"src_key_padding_mask": torch.tensor([[False, False, True]])})
    for train in (True, False):  # in eval mode torch has a fast path outside of Python
        on_paths = effective(encoder.train(train), keep_all(encoder), example)
        assert all(mask.all() for mask in on_paths.values())


def around(net: Any, x: Tensor) -> Tensor:
    x = net.stem(x)
    return net.head(net.down(x) + net.two(net.one(x)))


AROUND = Net(around, **{name: nn.Linear(4, 4) for name in ("stem", "down", "one", "two", "head")})
IMAGES = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 1), nn.Flatten(),
                       nn.Linear(12, 2))  # fmt: skip
TWO_OUTPUTS = Net(lambda net, x: (net.a(x), net.b(x)), **linears())
WEIGHED = Net(lambda net, x: net.a(x) * F.softmax(net.b(x), -1), **linears())


@pytest.mark.parametrize(
    ("net", "empty", "expected"),
    [
        (IMAGES, "3", "3"),
        (IMAGES, "0 3 5", "0 3 5"),
        (AROUND, "one", ""),
        (AROUND, "one stem", "stem"),
        (AROUND, "one down", "down one"),  # neither alone, but no way is left
        (TWO_OUTPUTS, "b", "b"),
        (WEIGHED, "a", "a"),  # the weights of a softmax do not replace what they weigh
        (WEIGHED, "b", ""),
    ],
)
def test_layers_that_cut_are_named(net: nn.Module, empty: str, expected: str) -> None:
    masks = none(keep_all(net), *(f"{layer}.weight" for layer in empty.split()))
    example = torch.randn(1, 2, 4, 4) if net is IMAGES else x4
    assert account(net, masks, example).collapsed == [f"{layer}.weight" for layer in expected.split()]


@pytest.mark.parametrize(("rows", "sizes"), [(-1, [6, 6, 1, 1, 1, 1]), (6, [6, 6, 1, 6, 6, 6])])
def test_each_empty_layer_is_tried_with_one_sample_where_that_is_enough(rows: int, sizes: list[int]) -> None:
    seen = []

    def forward(net: Any, x: Tensor) -> Tensor:
        seen.append(len(x))
        return net.head(net.one(x) + x.reshape(rows, 4) + net.two(x))

    net = Net(forward, **{name: nn.Linear(4, 4) for name in ("one", "two", "head")})
    masks = none(keep_all(net), "one.weight", "two.weight", "head.weight")
    assert account(net, masks, torch.randn(6, 4)).collapsed == ["head.weight"]
    assert seen == sizes  # with these masks, with dense ones, with one sample, and without each empty layer


def test_where_the_signal_ends_without_an_empty_layer() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    top = torch.tensor([True, True, False, False])
    masks = {"0.weight": (~off) & top[:, None], "2.weight": (~off) & ~top}
    assert account(net, masks, x4).collapsed == ["2.weight"]
    assert not any(mask.any() for mask in effective(net, masks, x4).values())


def silent(model: nn.Module, masks: Masks, example: Any) -> tuple[int | None, int | None]:
    counts = account(model, masks, example)
    return counts.disconnected_outputs, counts.outputs


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        (lambda net, x: net.a(x) * torch.tensor([[1.0], [0.0]]), (2, 4)),  # reached in one sample of two
        (lambda net, x: {"one": net.a(x), "two": [net.b(x)]}, (2, 8)),
        (lambda net, x: (net.a(x), net.a(x).argsort(1), torch.zeros(2, 5), torch.ones(2, 5)), (2, 4)),  # no signals
        (lambda net, x: F.pad(net.a(x), (0, 3)), (2, 7)),  # no signal reaches the padding in the dense network either
        (lambda net, x: net.a(x)[0], (0, 0)),
        (lambda net, x: net.a(x)[:, None], (0, 0)),
    ],
    ids=["one sample", "two", "constants", "padding", "vector", "sequence"],
)
def test_which_columns_are_silent(forward: Any, expected: tuple[int, int]) -> None:
    net = Net(forward, **linears())
    assert silent(net, {"a.weight": half, "b.weight": eye}, x4) == expected
    assert silent(net, {"a.weight": ~off, "b.weight": eye}, x4) == (0, expected[1])


def test_the_classifier_alone_can_disconnect_classes() -> None:
    masks = keep_all(IMAGES)
    masks["5.weight"][1] = False
    counts = account(IMAGES, masks, torch.zeros(1, 2, 4, 4))
    assert (counts.disconnected_outputs, counts.outputs, counts.collapsed, counts.empty) == (1, 2, [], [])
    assert "\nNo signal reaches 1 of 2 outputs." in str(counts)
    assert (counts.to_dict()["disconnected_outputs"], counts.to_dict()["outputs"]) == (1, 2)


def busy(net: Any, x: Tensor) -> Tensor:
    net.calls.append(1)
    net.last = net.stem(F.dropout(x, 0.5))
    net.count += 1
    net.memory.add_(torch.rand(()))
    net.register_buffer("late", net.last.mean().detach())
    random.random()
    y, _ = net.lstm(net.norm(net.last))
    if net.fail:
        raise RuntimeError("no more")
    return net.tied(y)


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_no_trace(fail: bool, train: bool) -> None:
    net = Net(busy, stem=nn.Linear(4, 4), norm=nn.BatchNorm1d(4), lstm=nn.LSTM(4, 4), tied=nn.Linear(4, 4),
              calls=[], count=torch.zeros(()), fail=fail)  # fmt: skip
    net.memory = torch.zeros(())
    net.tied.weight = net.stem.weight
    net.stem.bias.requires_grad_(False)
    net.norm.train(train)
    net(x4).sum().backward() if not fail else None
    hook_calls: list[Any] = []
    net.norm.register_full_backward_hook(lambda *_: hook_calls.append(1))
    net.norm.weight.register_hook(lambda g: hook_calls.append(1))
    memory, calls, attributes = net.memory.clone(), list(net.calls), {key: id(v) for key, v in vars(net).items()}
    masks = {"stem.weight": half, "lstm.weight_hh_l0": torch.ones(16, 4) > 0}
    refused = pytest.raises(ValueError, match="could not follow the paths through Net: no more")
    with (
        references.Trace(net),
        torch.inference_mode() if train else torch.no_grad(),
        refused if fail else nullcontext(),
    ):
        assert effective(net, masks, x4)["stem.weight"].equal(half)
    assert {key: id(value) for key, value in vars(net).items()} == attributes
    assert net.memory.equal(memory)
    assert net.calls == calls
    assert not hook_calls


@pytest.mark.slow
def test_wrapped_and_compiled_models() -> None:
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    masks = {"0.weight": half, "2.weight": ~off}
    expected = effective(plain, masks, x4)
    for model in (
        nn.DataParallel(plain),
        torch.compile(plain),
        nn.DataParallel(torch.compile(plain)),  # type: ignore[arg-type]
        nn.Sequential(torch.compile(plain[0]), plain[1], plain[2]),
    ):
        on_paths = effective(model, masks, x4)  # type: ignore[arg-type]
        assert all(on_paths[name].equal(mask) for name, mask in expected.items())


def inference(net: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return net.a(x)


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (Net(lambda net, x: net.a(x[:, :3]), **linears()), "through Net: mat1 and mat2"),
        (Net(lambda net, x: net.a(x).argmax(1), **linears()), "none of its outputs is a float tensor"),
        (Net(inference, **linears()), "inference_mode"),
    ],
)
def test_what_cannot_be_followed(net: Net, why: str) -> None:
    with pytest.raises(ValueError, match=f"could not follow the paths .*{why}") as caught:
        effective(net, {"a.weight": eye}, x4)
    assert caught.value.__cause__ is not None


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in zoo.ZOO if name != "packed lstm"])  # its lengths stay on the CPU
def test_a_gpu_finds_the_same(name: str) -> None:
    model, example = zoo.build(name)
    masks = zoo.draw_masks(name, model, 0.3, seed=1)
    here = effective(model, masks, example)
    on_gpu = effective(model.cuda(), masks, example)  # masks and example are still on the CPU
    assert all(on_gpu[n].equal(here[n]) for n in masks)
