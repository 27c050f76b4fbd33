"""Paths: effective weights and collapse, for all networks of the zoo; and no trace is left."""

from __future__ import annotations

import random
from typing import Any

import pytest
import references
import torch
import torch.nn.functional as F
import zoo
from torch import Tensor, nn
from zoo import Net

from barebones.paths import collapsed, effective
from barebones.scope import parameters

Masks = dict[str, Tensor]


def weights(model: nn.Module) -> Masks:
    """Return masks that keep every weight of two or more dimensions."""
    return {name: torch.ones(p.shape, dtype=torch.bool) for name, p in parameters(model).items() if p.dim() > 1}


def none(masks: Masks, *names: str) -> Masks:
    return masks | {name: torch.zeros_like(masks[name]) for name in names}


eye, off = torch.eye(4, dtype=torch.bool), torch.zeros(4, 4, dtype=torch.bool)
half = eye & torch.tensor([True, True, False, False])
x4 = torch.randn(2, 4)


def linears(**more: Any) -> dict[str, Any]:
    return {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), **more}


@pytest.mark.parametrize("name", zoo.names(exact_paths=True))
def test_weights_off_the_paths_change_nothing(name: str) -> None:
    """Removing the weights that lie on no path does not change the outputs of a network without biases."""
    model, example = zoo.build(name, trained=False)
    with torch.no_grad():
        for parameter_name, parameter in parameters(model).items():
            if "bias" in parameter_name or "position" in parameter_name:
                parameter.zero_()
    removed = 0
    for seed in range(6):
        masks = zoo.draw_masks(name, model, (0.1, 0.3, 0.6)[seed % 3], seed)
        on_paths = effective(model, masks, example)
        assert all((on_paths[n] <= masks[n]).all() for n in masks)
        removed += sum(int((masks[n] ^ on_paths[n]).sum()) for n in masks)
        before, after = (zoo.outputs(zoo.masked(model, kept), example) for kept in (masks, on_paths))
        for a, b in zip(before, after, strict=True):
            torch.testing.assert_close(a, b)
    assert removed > 0 or name == "one"


@pytest.mark.parametrize("name", zoo.ZOO)
def test_a_dense_network_does_not_collapse(name: str) -> None:
    model, example = zoo.build(name)
    before = references.Trace(model)
    masks = {n: torch.ones_like(mask) for n, mask in zoo.random_masks(model, 0.5).items()}
    assert collapsed(model, masks, example) == []
    masks |= {layer: torch.zeros_like(masks[layer]) for layer in zoo.ZOO[name].empty}
    assert collapsed(model, masks, example) == list(zoo.ZOO[name].empty)
    before.check()


def test_everything_is_effective_in_a_dense_transformer() -> None:
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
    padding = torch.tensor([[False, False, True]])
    example = ((torch.randn(1, 3, 8),), {"src_key_padding_mask": padding})
    for train in (True, False):  # in eval mode torch has a fast path outside of Python
        on_paths = effective(encoder.train(train), weights(encoder), example)
        assert all(mask.all() for mask in on_paths.values())


# ---- collapse ----


def test_a_layer_that_cuts_is_named() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 1), nn.Flatten())
    net.append(nn.Linear(12, 2))
    x, full = torch.randn(1, 2, 4, 4), weights(net)
    assert collapsed(net, full, x) == []
    assert collapsed(net, none(full, "3.weight"), x) == ["3.weight"]
    assert collapsed(net, none(full, "0.weight", "5.weight"), x) == ["0.weight", "5.weight"]
    assert collapsed(net, none(full, *full), x) == list(full)


def test_a_way_around_is_no_collapse() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.stem(x)
        return net.head(net.down(x) + net.two(net.one(x)))

    net = Net(forward, **{name: nn.Linear(4, 4) for name in ("stem", "down", "one", "two", "head")})
    full = weights(net)
    assert collapsed(net, none(full, "one.weight"), x4) == []
    assert collapsed(net, none(full, "down.weight"), x4) == []
    assert collapsed(net, none(full, "one.weight", "stem.weight"), x4) == ["stem.weight"]
    both = none(full, "one.weight", "down.weight")  # neither alone, but no way is left
    assert collapsed(net, both, x4) == ["down.weight", "one.weight"]


def test_where_the_signal_ends_without_an_empty_layer() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    top = torch.tensor([True, True, False, False])
    masks = {"0.weight": (~off) & top[:, None], "2.weight": (~off) & ~top}
    assert collapsed(net, masks, x4) == ["2.weight"]
    assert not any(mask.any() for mask in effective(net, masks, x4).values())


def test_one_of_two_outputs_out_of_reach() -> None:
    net = Net(lambda net, x: (net.a(x), net.b(x)), **linears())
    assert collapsed(net, {"a.weight": eye, "b.weight": off}, x4) == ["b.weight"]


def test_softmax_weights_do_not_replace_what_they_weigh() -> None:
    net = Net(lambda net, x: net.a(x) * F.softmax(net.b(x), -1), **linears())
    assert collapsed(net, {"a.weight": off, "b.weight": eye}, x4) == ["a.weight"]
    assert collapsed(net, {"a.weight": eye, "b.weight": off}, x4) == []


# ---- no trace, wrappers, errors ----


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
    seen: list[Any] = []
    net.norm.register_full_backward_hook(lambda *_: seen.append(1))
    net.norm.weight.register_hook(lambda g: seen.append(1))
    before = references.Trace(net)
    memory, calls, attributes = net.memory.clone(), list(net.calls), {key: id(v) for key, v in vars(net).items()}
    masks = {"stem.weight": half, "lstm.weight_hh_l0": torch.ones(16, 4) > 0}
    with torch.inference_mode() if train else torch.no_grad():
        if fail:
            with pytest.raises(ValueError, match="could not follow the paths through Net: no more") as caught:
                effective(net, masks, x4)
            assert isinstance(caught.value.__cause__, RuntimeError)
        else:
            assert effective(net, masks, x4)["stem.weight"].equal(half)
    before.check()
    assert {key: id(value) for key, value in vars(net).items()} == attributes
    assert net.memory.equal(memory)
    assert net.calls == calls
    assert not seen


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


def test_the_flag_does_not_matter() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0), nn.BatchNorm1d(4), nn.Linear(4, 4))
    masks = {"0.weight": half, "3.weight": ~off}
    counts = [effective(net.train(train), masks, x4[:1])["3.weight"].sum() for train in (True, False)]
    assert counts == [8, 8]


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


def test_masks_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="no parameter c"):
        effective(Net(lambda net, x: net.a(x), **linears()), {"c.weight": eye}, x4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", [name for name in zoo.ZOO if name != "packed lstm"])  # its lengths stay on the CPU
def test_a_gpu_finds_the_same(name: str) -> None:
    model, example = zoo.build(name)
    masks = zoo.draw_masks(name, model, 0.3, seed=1)
    here = effective(model, masks, example)
    there = effective(model.cuda(), masks, example)  # masks and example are still on the CPU
    assert all(there[n].equal(here[n]) for n in masks)
