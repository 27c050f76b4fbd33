"""The FORCE objective S(theta, c) against its equation, and the overlap of masks."""

import pytest
import references
import torch
import torch.nn.functional as F
from references import Trace, ones, pairs, tiny, weights_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from barebones import agreement, saliency

BATCHES = pairs(3)


def some_masks(seed: int = 0, density: float = 0.5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(w.shape, generator=generator) < density for name, w in weights_of(tiny()).items()}


@pytest.mark.parametrize("over", ["kept", "all"])
def test_the_objective_is_equation_6(over):
    model = tiny()
    for masks in (ones(weights_of(model)), some_masks(), some_masks(1, 0.05), some_masks(density=0)):
        expected = references.objective_value(model, masks, BATCHES, over)
        with Trace(model):
            assert saliency(model, masks, BATCHES, over=over) == pytest.approx(expected, rel=1e-10)


def test_the_count_of_batches():
    loader = DataLoader(TensorDataset(*BATCHES[0]), batch_size=4)
    for batches, count, read in [
        (BATCHES, 2, BATCHES[:2]),
        (lambda index: BATCHES[:2], 1, BATCHES[:2]),
        (loader, None, list(loader)),
    ]:
        expected = references.objective_value(tiny(), some_masks(), read)
        assert saliency(tiny(), some_masks(), batches, count=count) == pytest.approx(expected, rel=1e-10)


def test_masks_of_some_layers_in_any_order_by_name():
    model, masks = tiny(), some_masks()
    assert saliency(model, dict(reversed(masks.items())), BATCHES) == saliency(model, masks, BATCHES)
    mask = masks["9.weight"]
    g = references.sensitivity(model, ones(weights_of(model)) | {"9.weight": mask}, BATCHES)["9.weight"]
    expected = pytest.approx(float(g[mask].abs().sum()), rel=1e-10)
    assert saliency(model, {"9.weight": mask}, BATCHES) == expected
    model = nn.Sequential(nn.ModuleDict({"a[0]": nn.Linear(3, 2), "a0": nn.Linear(3, 2)}))  # names are no patterns
    objective = lambda m, batch: F.cross_entropy(m[0]["a[0]"](batch[0]) + m[0]["a0"](batch[0]), batch[1])
    batches, masks = [(torch.ones(2, 3), torch.tensor([0, 1]))], {"0.a[0].weight": torch.ones(2, 3) > 0}
    assert saliency(model, masks, batches, objective=objective) >= 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(over="both"), "choose 'kept'"),
        (dict(count=0), r"count|at least one"),
        (dict(count=-1), r"count|at least one"),
        (dict(batches=[]), "batches is empty"),
        (dict(batches=DataLoader(TensorDataset(torch.zeros(0, 1)))), "batches is empty"),
        (dict(batches=iter(BATCHES)), "count="),
        (dict(masks={"nothing": torch.ones(1, dtype=torch.bool)}), "nothing"),
        (dict(masks={"9.weight": torch.ones(3, 3)}), r"9\.weight.*bool tensor"),
        (dict(masks={"9.weight": torch.ones(2, 3, dtype=torch.bool)}), r"9\.weight.* shape"),
    ],
)
def test_wrong_masks_and_options(options, match):
    with pytest.raises(ValueError, match=match):
        saliency(tiny(), **dict(masks=some_masks(), batches=BATCHES) | options)


def test_agreement_is_the_share_that_both_keep():
    a = {"u": torch.tensor([True, True, False, False]), "v": torch.tensor([[True], [False]])}
    b = {"u": torch.tensor([True, False, True, False]), "v": torch.tensor([[True], [False]])}
    overlap = agreement(a, b)
    assert overlap.layers == {"u": 0.5, "v": 1.0}
    assert float(overlap) == overlap.overall == pytest.approx(2 / 3)
    assert float(agreement(a, a)) == 1.0
    empty = {name: torch.zeros_like(m) for name, m in a.items()}
    assert float(agreement(empty, empty)) == 1.0
    assert float(agreement(a, empty)) == 0.0
    assert float(agreement(a, b)) == float(agreement(b, a))
