"""Biases in front of norms: the rounding errors of an empty channel must not be scored."""

import itertools
from collections.abc import Callable

import pytest
import torch
import zoo
from references import Trace, few
from torch import Tensor, nn

from barebones import METHODS, Masks, Probe, effective, prune
from barebones.masks import kept
from barebones.scope import prunable


def conv(i: int, o: int, k: int = 3, **options: int) -> list[nn.Module]:
    return [nn.Conv2d(i, o, k, padding=k // 2, **options), nn.BatchNorm2d(o), nn.ReLU()]


def pooled(*body: nn.Module, width: int = 32) -> nn.Module:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3))


def normed(norm: Callable[[int], nn.Module]) -> nn.Module:
    layers = [(nn.Conv2d(i, 32, 3, padding=1), norm(32), nn.ReLU()) for i in (2, 32)]
    return pooled(*itertools.chain(*layers))


def relu_first() -> nn.Module:
    layers = [(nn.Conv2d(i, 32, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(32)) for i in (2, 32, 32)]
    return pooled(*itertools.chain(*layers))


def transposed() -> nn.Module:
    layers = [(nn.ConvTranspose2d(i, 32, 3, padding=1, groups=2), nn.BatchNorm2d(32), nn.ReLU()) for i in (2, 32)]
    return pooled(*itertools.chain(*layers))


def perceptron() -> nn.Module:
    layers = [(nn.Linear(i, 40), nn.BatchNorm1d(40), nn.ReLU()) for i in (72, 40)]
    return nn.Sequential(nn.Flatten(), *itertools.chain(*layers), nn.Linear(40, 3))


def volumes() -> nn.Module:
    layers = [(nn.Conv3d(i, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU()) for i in (1, 32)]
    return nn.Sequential(nn.Unflatten(1, (1, 2)), *itertools.chain(*layers), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
                         nn.Linear(32, 3))  # fmt: skip


def residual() -> nn.Module:
    blocks = [(zoo.Residual(*conv(32, 32), *conv(32, 32)[:2]), nn.ReLU()) for _ in range(2)]
    return pooled(*conv(2, 32), *itertools.chain(*blocks))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: pooled(*conv(2, 32), *conv(32, 32), *conv(32, 32)),
    "residual": residual,
    "depthwise": lambda: pooled(*conv(2, 32), *conv(32, 32, groups=32), *conv(32, 32, 1)),
    "ReLU first": relu_first,
    "perceptron": perceptron,
    "volumes": volumes,
    "transposed": transposed,
    "instance": lambda: normed(nn.InstanceNorm2d),
    "group": lambda: normed(lambda width: nn.GroupNorm(4, width)),
    "layer": lambda: normed(lambda width: nn.GroupNorm(1, width)),
}


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


def without_empty_biases(model: nn.Module, masks: Masks, group: int = 1) -> nn.Module:
    """Set the biases of empty channels to zero in place, but for the last layer, which no norm follows."""
    for mask, layer in list(zip(masks.values(), layers_of(model), strict=True))[:-1]:
        if isinstance(layer, nn.ConvTranspose2d):
            used = torch.cat([part.any(0).flatten(1).any(1) for part in mask.chunk(layer.groups)])
        else:
            used = mask.flatten(1).any(1)
        layer.bias.data[~used.view(-1, group).any(1).repeat_interleave(group)] = 0.0
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_the_bias_of_an_empty_channel_in_front_of_a_norm_counts_as_zero(name):
    model, masks = build(name), with_empty_channels(build(name))
    expected_model = without_empty_biases(build(name), masks, {"group": 8, "layer": 32}.get(name, 1))
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


def test_networks_without_such_biases_are_not_run_once_more():
    counted = {}
    for bias in (True, False):
        model, calls = pooled(nn.Conv2d(2, 32, 3, bias=bias), nn.BatchNorm2d(32), nn.ReLU()), []
        model.register_forward_pre_hook(lambda *_, calls=calls: calls.append(None))
        model[-1].bias = None
        probe = Probe(model, data())
        with probe.at(with_empty_channels(model), 1, 10):
            probe.gradient()
        counted[bias] = len(calls)
    assert counted == {True: 2, False: 1}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_prunes_a_network_with_such_biases(name):
    model = build("plain")
    with Trace(model):
        result = prune(model, data(), 0.9, few(name), on_collapse="ignore")
    assert kept(result.masks) == round(0.1 * sum(w.numel() for w in prunable(model).values()))


def test_it_is_told_if_many_weights_are_on_no_path():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    batches = [(torch.randn(8, 4), torch.randint(3, (8,)))]
    with pytest.warns(
        UserWarning, match=r"^\d\d% of the kept weights are on no path .*bb.shrink removes such weights$"
    ):
        result = prune(model, batches, 0.7, "random", seed=3)
    assert result.effective == kept(effective(model, result.masks, batches[0][0]))
    assert f"on a path from input to output: {result.effective}" in str(result)
