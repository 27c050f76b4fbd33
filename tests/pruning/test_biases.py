"""Biases in front of norms: the rounding errors of an empty channel must not be scored."""

import itertools
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import zoo
from references import Trace, few
from torch import Tensor, nn

from barebones import METHODS, Masks, Probe, effective, prune
from barebones.masks import kept
from barebones.scope import prunable


def pooled(*body: nn.Module) -> nn.Module:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3))


def stacked(layer: Any, norm: Any, i: int = 2, width: int = 32, depth: int = 2, **options: Any) -> list[nn.Module]:
    """Return layers of that many channels, each with a norm and a ReLU."""
    layers = [layer(inputs, width, **options) for inputs in (i, *[width] * (depth - 1))]
    return [part for each in layers for part in (each, norm(width), nn.ReLU())]


def conv(norm: Any = nn.BatchNorm2d, **options: Any) -> list[nn.Module]:
    return stacked(nn.Conv2d, norm, kernel_size=3, padding=1, **options)


def residual() -> nn.Module:
    blocks = [(zoo.Residual(*conv(i=32)[:-1]), nn.ReLU()) for _ in range(2)]
    return pooled(*conv(depth=1), *itertools.chain(*blocks))


def relu_first() -> nn.Module:
    parts = conv(depth=3)
    return pooled(*(part for at in (0, 3, 6) for part in (parts[at], parts[at + 2], parts[at + 1])))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: pooled(*conv(depth=3)),
    "residual": residual,
    "depthwise": lambda: pooled(*conv(depth=1), *conv(i=32, depth=1, groups=32), *conv(i=32, depth=1)),
    "ReLU first": relu_first,
    "perceptron": lambda: nn.Sequential(nn.Flatten(), *stacked(nn.Linear, nn.BatchNorm1d, 72, 40), nn.Linear(40, 3)),
    "volumes": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2)), *stacked(nn.Conv3d, nn.BatchNorm3d, 1, kernel_size=3, padding=1),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, 3),
    ),
    "transposed": lambda: pooled(*stacked(nn.ConvTranspose2d, nn.BatchNorm2d, kernel_size=3, padding=1, groups=2)),
    "instance": lambda: pooled(*conv(nn.InstanceNorm2d)),
    "group": lambda: pooled(*conv(lambda width: nn.GroupNorm(4, width))),
    "layer": lambda: pooled(*conv(lambda width: nn.GroupNorm(1, width))),
    "single": lambda: pooled(*conv(lambda width: nn.GroupNorm(width, width))),
}  # fmt: skip


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name]()


def data(count: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Three classes that differ in their mean image."""
    generator = torch.Generator().manual_seed(1)
    means = torch.randn(3, 2, 6, 6, generator=generator)
    labels = [torch.randint(3, (32,), generator=generator) for _ in range(count)]
    return [(means[y] + torch.randn(32, 2, 6, 6, generator=generator), y) for y in labels]


def with_empty_channels(model: nn.Module) -> Masks:
    """Return masks in which some output channels of every layer, and a whole group of each norm, keep no weight."""
    masks = Masks({name: torch.rand(w.shape) < 0.5 for name, w in prunable(model).items()})
    for mask, layer in zip(masks.values(), layers_of(model), strict=True):
        if isinstance(layer, nn.ConvTranspose2d):
            mask[:, :4] = False  # the first outputs of either group
        else:
            mask[: max(4, len(mask) // 2 - 2) if len(mask) > 3 else 1] = False
    return masks


def layers_of(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd | nn.Linear)]


def without_empty_biases(model: nn.Module, masks: Masks) -> nn.Module:
    """Set the biases of empty channels to zero in place, but for the last layer, which no norm follows."""
    for mask, layer in list(zip(masks.values(), layers_of(model), strict=True))[:-1]:
        if isinstance(layer, nn.ConvTranspose2d):
            used = torch.cat([part.any(0).flatten(1).any(1) for part in mask.chunk(layer.groups)])
        else:
            used = mask.flatten(1).any(1)
        layer.bias.data[~used] = 0.0
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_the_bias_of_an_empty_channel_in_front_of_a_norm_counts_as_zero(name):
    model, masks = build(name), with_empty_channels(build(name))
    expected_model = build(name) if name in ("group", "layer") else without_empty_biases(build(name), masks)
    gradients = []
    for each in (model, expected_model):
        probe = Probe(each, data())
        with Trace(each), probe.at(masks, 1, 10):
            gradients.append({name: g.clone() for name, g in probe.gradient().items()})
    assert all(torch.equal(gradients[0][n], gradients[1][n]) for n in masks)


@pytest.mark.parametrize("name", NETWORKS)
def test_force_keeps_weights_that_are_on_a_path(name):
    model, batches = build(name), data()
    result = prune(model, batches, 0.95, "force", rounds=30)
    assert result.effective == kept(effective(model, result.masks, batches[0][0][:1]))
    assert result.effective >= 0.8 * kept(result.masks)


def test_other_biases_are_scored_as_they_are():
    """A class without weights, a bias that no norm subtracts, and batch-norms that use their running statistics."""
    plain = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.ReLU(), nn.Linear(8, 3))
    for model, bn in ((plain, "batch"), (build("plain"), "eval")):
        masks = with_empty_channels(model)
        probe = Probe(model, data(), bn=bn)
        with probe.at(masks, 1, 10):
            before = [layer.bias.clone() for layer in layers_of(model)]
            probe.gradient()
            assert all(torch.equal(layer.bias, b) for layer, b in zip(layers_of(model), before, strict=True))


def gated(net: Any, x: Tensor) -> Tensor:
    return net.head(net.norm(net.a(x) + net.b(x) * net.c(x).sigmoid()))


def three(**parts: nn.Module) -> dict[str, nn.Module]:
    return {"a": nn.Linear(6, 8), "b": nn.Linear(6, 8), "c": nn.Linear(6, 8), "head": nn.Linear(8, 3)} | parts


class Scaled(nn.Module):
    """A norm of scaled values, which fills a list that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.rand(8, 1) + 1), nn.BatchNorm1d(8)

    def forward(self, x: Tensor, outputs: list[Tensor]) -> None:
        outputs.append(self.norm(x * self.scale.view(8)))


def scaled(net: Any, x: Tensor) -> Tensor:
    outputs: list[Tensor] = []
    net.block(net.a(x), outputs)
    return net.head(outputs[0])


class InputsFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


SHARING = lambda net, x: F.linear(x, net.a.weight + torch.cat([net.b.weight, net.c.weight]))
FIRST = lambda net, x: net.head(net.norm(net.a(x)))
NORM = {"norm": nn.BatchNorm1d(8)}
HALVES = {name: nn.Linear(6, 4) for name in "bc"}
# A forward pass, its layers, options, the layers that lose half of their channels, and those whose biases count as zero
SCORED: dict[str, tuple[Any, ...]] = {
    "gradients that share memory": (SHARING, HALVES, {}, "", ""),
    "a layer between": (lambda net, x: net.head(net.norm(net.mix(net.a(x)).tanh())), {"mix": nn.Linear(8, 8)} | NORM,
                        {"exclude": "mix.*"}, "a", ""),
    "a product of signals": (gated, NORM, {}, "abc", "a"),
    "norms in scope": (FIRST, NORM, {"scope": "*.weight"}, "a", "a"),
    "all in scope": (FIRST, NORM, {"scope": "all"}, "a", "a"),
    "scales in another shape": (scaled, {"block": Scaled()}, {}, "a", "a"),
    "inputs first": (FIRST, {"a": InputsFirst()} | NORM, {"scope": "*.weight"}, "", ""),
    "a batch that is changed": (lambda net, x: net.head(net.norm(net.a(x.mul_(3)))), NORM, {}, "a", "a"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCORED)
def test_scores_are_those_at_the_masked_weights(name):
    forward, parts, options, emptied, silent = SCORED[name]
    torch.manual_seed(0)
    net = zoo.Net(forward, **three(**parts)).double()
    batch = torch.randn(16, 6, dtype=torch.float64), torch.randint(3, (16,))
    probe, before = Probe(net, [batch], **options), deepcopy(net.state_dict())
    masks = {n: torch.ones_like(p) > 0 for n, p in probe.parameters.items()}
    masks |= {f"{layer}.weight": masks[f"{layer}.weight"] & (torch.arange(8) > 3)[:, None] for layer in emptied}
    if "a.bias" in masks:
        masks["a.bias"][-1] = False
    with probe.at(masks, 0, 10):
        found = [{n: g.clone() for n, g in METHODS["force"].criterion(probe).items()} for _ in range(2)]
    assert all(torch.equal(value, before[n]) for n, value in net.state_dict().items() if "running" not in n)
    with torch.no_grad():
        for n, mask in masks.items():
            net.get_parameter(n).mul_(mask)
        for layer in silent:
            net.get_parameter(f"{layer}.bias")[:4] = 0
    loss = F.cross_entropy(net(batch[0].clone()), batch[1])
    expected = torch.autograd.grad(loss, list(probe.parameters.values()), allow_unused=True, materialize_grads=True)
    for n, gradient in zip(masks, expected, strict=True):
        assert all(torch.equal(each[n], (before[n] * gradient).abs()) for each in found), n


def test_the_biases_of_layers_with_one_weight_count_as_zero():
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    net = nn.Sequential(first, nn.BatchNorm1d(6), nn.ReLU(), second, nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    nn.init.uniform_(first.bias, 0.3, 1)
    nn.init.uniform_(second.bias, 0.3, 1)
    probe = Probe(net, [(torch.randn(37, 6), torch.randint(3, (37,)))])
    masks = {n: torch.ones_like(p) > 0 for n, p in probe.parameters.items()}
    masks["0.weight"][:3] = False
    with probe.at(masks, 0, 1):
        assert not probe.gradient()["0.weight"][:3].any()


def test_biases_are_put_back_after_an_error_and_frozen_ones_stay_frozen():
    model, calls = build("plain"), []
    for layer in layers_of(model):
        layer.bias.requires_grad_(False)

    def objective(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        calls.append(None)
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        if len(calls) == 3:  # the second round: once to find the biases, once with those of empty channels at zero
            raise RuntimeError("stop")
        return loss

    with Trace(model), pytest.raises(RuntimeError, match="stop"):
        prune(model, data(), 0.95, few("force"), objective=objective, example=data()[0][0][:1])


def test_it_is_told_if_many_weights_are_on_no_path():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    batches = [(torch.randn(8, 4), torch.randint(3, (8,)))]
    with pytest.warns(
        UserWarning, match=r"^\d\d% of the kept weights are on no path .*bb.shrink removes such weights$"
    ):
        result = prune(model, batches, 0.7, "random", seed=3)
    assert result.effective == kept(effective(model, result.masks, batches[0][0]))
    assert f"on a path from input to output: {result.effective}" in str(result)
