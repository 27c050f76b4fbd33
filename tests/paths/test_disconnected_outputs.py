"""Silent outputs: columns of the outputs that no signal reaches, counted by a plain computation and by the account."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import zoo
from pair import eye, half, linears, off, x4
from test_paths import IMAGES, PRODUCTS, none
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from zoo import Net, keep_all

from barebones.accounting import account
from barebones.paths import trace
from barebones.running.inputs import call, tensors
from barebones.scope import parameters


def counted(model: nn.Module, masks: dict[str, Tensor], example: Any) -> tuple[int | None, int | None]:
    """Return what the account says, after a check that a trace without anything else finds the same."""
    counts = account(model, masks, example)
    traced = trace(model, masks, example, backward=False, counting=False)
    assert (traced.silent, traced.columns) == (counts.disconnected_outputs, counts.outputs)
    return counts.disconnected_outputs, counts.outputs


@pytest.mark.parametrize("seed", range(60))
def test_a_perceptron_by_products_of_its_masks(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    depth = int(torch.randint(2, 6, (), generator=generator))
    sizes = torch.randint(1, 9, (depth,), generator=generator).tolist()
    layers = [nn.Linear(a, b, bias=seed % 2 == 0) for a, b in pairwise(sizes)]
    net = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
    density = float(torch.rand((), generator=generator))
    masks = {
        f"{2 * i}.weight": torch.rand(la.weight.shape, generator=generator) < density for i, la in enumerate(layers)
    }
    reached = torch.ones(sizes[0], dtype=torch.bool)
    for mask in masks.values():
        reached = (mask & reached).any(1)
    expected = int((~reached).sum()), sizes[-1]
    assert counted(net, masks, torch.zeros(1 + seed % 3, sizes[0])) == expected


def zero_columns(model: nn.Module, masks: dict[str, Tensor], example: Any) -> tuple[int, int]:
    """Count columns that are zero in a real forward pass in which no weight or input is negative, and no bias acts."""
    model = zoo.exact(model).eval()
    with torch.no_grad():
        for name, p in parameters(model).items():
            p.copy_((p.abs() + 0.1) * masks.get(name, torch.tensor("bias" not in name and "position" not in name)))
        args, kwargs = tree_map(lambda t: t.double().abs() if t.is_floating_point() else t, call(example))
        outputs = [t for t in tensors(model(*args, **kwargs)) if t.is_floating_point() and t.dim() == 2]
    return sum(int((t == 0).all(0).sum()) for t in outputs), sum(t.shape[1] for t in outputs)


@pytest.mark.parametrize("name", [name for name in zoo.ZOO if name not in PRODUCTS and name not in ("layer", "scale")])
def test_every_network_of_the_zoo_by_its_own_forward_pass(name: str) -> None:
    model, example = zoo.build(name, trained=False)
    for seed, density in enumerate((0.05, 0.2, 0.4, 0.7, 1.0)):
        masks = zoo.draw_masks(name, model, density, seed)
        assert counted(model, masks, example) == zero_columns(model, masks, example)


def test_a_column_is_silent_if_it_is_so_for_all_samples() -> None:
    net = Net(lambda net, x: net.a(x) * torch.tensor([[1.0], [0.0]]), **linears())
    assert counted(net, {"a.weight": half, "b.weight": eye}, x4) == (2, 4)


def test_the_classifier_alone_can_disconnect_classes() -> None:
    masks = keep_all(IMAGES)
    masks["5.weight"][1] = False
    counts = account(IMAGES, masks, torch.zeros(1, 2, 4, 4))
    assert (counts.disconnected_outputs, counts.outputs, counts.collapsed, counts.empty) == (1, 2, [], [])
    assert "\nNo signal reaches 1 of 2 outputs." in str(counts)
    assert (counts.to_dict()["disconnected_outputs"], counts.to_dict()["outputs"]) == (1, 2)


def test_a_cut_network_gets_no_second_complaint() -> None:
    counts = account(IMAGES, none(keep_all(IMAGES), "3.weight"), torch.zeros(1, 2, 4, 4))
    assert (counts.collapsed, counts.disconnected_outputs, counts.outputs) == (["3.weight"], 2, 2)
    assert "COLLAPSED" in str(counts)
    assert "outputs" not in str(counts)


def test_two_outputs_count_together_and_a_cut_one_is_a_collapse() -> None:
    net = Net(lambda net, x: {"one": net.a(x), "two": [net.b(x)]}, **linears())
    assert counted(net, {"a.weight": half, "b.weight": eye}, x4) == (2, 8)
    counts = account(net, {"a.weight": eye, "b.weight": off}, x4)
    assert (counts.collapsed, counts.disconnected_outputs, counts.outputs) == (["b.weight"], 4, 8)
    assert "outputs" not in str(counts)


@pytest.mark.parametrize(
    "shape",
    [lambda y: y[0], lambda y: y.sum(), lambda y: y[:, None], lambda y: y[..., None, None]],
    ids=["vector", "number", "sequence", "image"],
)
def test_outputs_of_other_shapes_count_nothing(shape: Any) -> None:
    net = Net(lambda net, x: shape(net.a(x)), **linears())
    assert counted(net, {"a.weight": half, "b.weight": eye}, x4) == (0, 0)


def test_only_floats_that_depend_on_something_count() -> None:
    net = Net(lambda net, x: (net.a(x), net.a(x).argsort(1), torch.zeros(2, 5), torch.ones(2, 5)), **linears())
    assert counted(net, {"a.weight": half, "b.weight": eye}, x4) == (2, 4)


def test_columns_that_the_dense_network_does_not_reach_either_are_not_the_masks_doing() -> None:
    net = Net(lambda net, x: F.pad(net.a(x), (0, 3)), **linears())
    for mask, silent in ((half, 2), (eye, 0), (~off, 0)):
        counts = account(net, {"a.weight": mask, "b.weight": eye}, x4)
        assert (counts.disconnected_outputs, counts.outputs) == (silent, 7)


def test_without_an_example_nothing_is_known() -> None:
    counts = account(IMAGES, keep_all(IMAGES))
    assert (counts.disconnected_outputs, counts.outputs) == (None, None)
    assert "outputs" not in str(counts)
