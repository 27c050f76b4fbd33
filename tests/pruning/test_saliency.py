"""The FORCE objective S(theta, c) against its equation, and the overlap of masks."""

import pytest
import references
import torch
import torch.nn.functional as F
from references import Trace, ones, pairs, tiny, weights_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from barebones import agreement, rounds, saliency
from barebones.pruning.methods import METHODS
from barebones.pruning.probe import Probe

BATCHES = pairs(3)


def some_masks(seed: int = 0, density: float = 0.5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(w.shape, generator=generator) < density for name, w in weights_of(tiny()).items()}


@pytest.mark.parametrize("over", ["kept", "all"])
def test_the_objective_is_equation_6(over):
    model = tiny()
    trace = Trace(model)
    for masks in (ones(weights_of(model)), some_masks(), some_masks(1, 0.05)):
        expected = references.objective_value(model, masks, BATCHES, over)
        assert saliency(model, masks, BATCHES, over=over) == pytest.approx(expected, rel=1e-10)
    trace.check()


def test_zeroed_weights_only_add():
    masks = some_masks()
    assert saliency(tiny(), masks, BATCHES, over="all") > saliency(tiny(), masks, BATCHES)
    everything = ones(weights_of(tiny()))
    assert saliency(tiny(), everything, BATCHES, over="all") == pytest.approx(saliency(tiny(), everything, BATCHES))


def test_empty_masks_have_none():
    masks = {name: torch.zeros_like(m) for name, m in some_masks().items()}
    assert saliency(tiny(), masks, BATCHES) == 0.0


def test_it_is_what_a_round_reports():
    model = tiny()
    first, second = rounds(Probe(model, BATCHES[:1]), METHODS["force"].__class__(METHODS["force"].criterion, 2), 30)
    assert second.saliency == saliency(model, first.masks, BATCHES[:1])


def test_the_count_of_batches():
    masks = some_masks()
    expected = references.objective_value(tiny(), masks, BATCHES[:2])
    assert saliency(tiny(), masks, BATCHES, count=2) == pytest.approx(expected, rel=1e-10)
    assert saliency(tiny(), masks, lambda index: BATCHES[:2], count=1) == pytest.approx(expected, rel=1e-10)
    loader = DataLoader(TensorDataset(BATCHES[0][0], BATCHES[0][1]), batch_size=4)
    halves = [(x, y) for x, y in loader]
    assert saliency(tiny(), masks, loader) == pytest.approx(
        references.objective_value(tiny(), masks, halves), rel=1e-10
    )


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_must_be_positive(count):
    with pytest.raises(ValueError, match=r"count|at least one"):
        saliency(tiny(), some_masks(), BATCHES, count=count)


def test_no_batches_are_an_error():
    empty = DataLoader(TensorDataset(torch.zeros(0, 1, 6, 6), torch.zeros(0)), batch_size=4)
    for batches in ([], empty):
        with pytest.raises(ValueError, match="batches is empty"):
            saliency(tiny(), some_masks(), batches)
    with pytest.raises(ValueError, match="count="):
        saliency(tiny(), some_masks(), (pair for pair in BATCHES))


def test_masks_of_some_layers_in_any_order():
    model = tiny()
    masks = some_masks()
    backwards = dict(reversed(masks.items()))
    assert saliency(model, backwards, BATCHES) == saliency(model, masks, BATCHES)
    one = {"9.weight": masks["9.weight"]}
    full = {**ones(weights_of(model)), **one}
    g = references.sensitivity(model, full, BATCHES)["9.weight"]
    assert saliency(model, one, BATCHES) == pytest.approx(float(g[one["9.weight"]].abs().sum()), rel=1e-10)


def test_names_are_names_and_not_patterns():
    model = nn.Sequential(nn.ModuleDict({"a[0]": nn.Linear(3, 2), "a0": nn.Linear(3, 2)}))
    masks = {"0.a[0].weight": torch.ones(2, 3, dtype=torch.bool)}
    objective = lambda m, batch: F.cross_entropy(m[0]["a[0]"](batch[0]) + m[0]["a0"](batch[0]), batch[1])
    batches = [(torch.ones(2, 3), torch.tensor([0, 1]))]
    assert saliency(model, masks, batches, objective=objective) >= 0


@pytest.mark.parametrize(
    ("masks", "options", "match"),
    [
        ({}, dict(over="both"), "choose 'kept'"),
        ({"nothing": torch.ones(1, dtype=torch.bool)}, {}, "nothing"),
        ({"9.weight": torch.ones(3, 3)}, {}, r"9\.weight.*bool tensor"),
        ({"9.weight": torch.ones(2, 3, dtype=torch.bool)}, {}, r"9\.weight.* shape"),
    ],
    ids=["over", "name", "type", "shape"],
)
def test_wrong_masks_and_options(masks, options, match):
    with pytest.raises(ValueError, match=match):
        saliency(tiny(), masks, BATCHES, **options)


def test_agreement_is_the_share_that_both_keep():
    a = {"u": torch.tensor([True, True, False, False]), "v": torch.tensor([[True], [False]])}
    b = {"u": torch.tensor([True, False, True, False]), "v": torch.tensor([[True], [False]])}
    overlap = agreement(a, b)
    assert overlap.layers == {"u": 0.5, "v": 1.0}
    assert float(overlap) == overlap.overall == pytest.approx(2 / 3)
    assert float(agreement(a, a)) == 1.0
    nothing = {name: torch.zeros_like(m) for name, m in a.items()}
    assert float(agreement(nothing, nothing)) == 1.0
    assert float(agreement(a, nothing)) == 0.0
    assert float(agreement(a, b)) == float(agreement(b, a))
    with pytest.raises(ValueError, match=r"two different models.*v"):
        agreement(a, {"u": a["u"]})
    with pytest.raises(ValueError, match=r"two different models.*v"):
        agreement(a, {"u": a["u"], "v": a["v"].T})
