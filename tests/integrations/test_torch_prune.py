"""torch.nn.utils.prune: its masks hold, count and shrink here, and the model's outputs do not change."""

import pytest
import torch
import zoo
from torch import nn
from torch.nn.utils import prune

import barebones as bb


def network() -> nn.Module:
    """A block in a block, and a linear layer that runs twice under two names."""
    block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(nn.ReLU(), nn.Conv2d(8, 8, 3)), nn.Flatten(), nn.ReLU())
    same, head = nn.Linear(32, 32), nn.Linear(32, 5)
    forward = lambda net, x: net.head(net.second(net.first(net.block(x)).relu()).relu())
    return zoo.Net(forward, block=block, first=same, second=same, head=head)


def globally(model, amount=0.7):
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    prune.global_unstructured([(m, "weight") for m in layers], prune.L1Unstructured, amount=amount)


def filters(model):
    prune.ln_structured(model.block[0], "weight", amount=3, n=2, dim=0)
    prune.custom_from_mask(model.block[0], "bias", model.block[0].weight_mask.amax((1, 2, 3)))


WEIGHTS = 8 * 27 + 8 * 72 + 32 * 32 + 32 * 5
CASES = {
    "global": (globally, ["block.0.weight", "block.1.1.weight", "first.weight", "head.weight"], round(0.3 * WEIGHTS)),
    "again": (lambda m: [globally(m), globally(m, 100)], None, WEIGHTS - round(0.7 * WEIGHTS) - 100),
    "filters and biases": (filters, ["block.0.bias", "block.0.weight"], 5 * 28),
    "nothing yet": (lambda m: prune.identity(m.head, "weight"), ["head.weight"], 160),
}


@pytest.mark.parametrize(("act", "names", "kept"), CASES.values(), ids=CASES)
def test_masks_come_over(act, names, kept):
    torch.manual_seed(0)
    model, images = network(), torch.randn(4, 3, 6, 6)
    plain = model.state_dict().keys()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # before pruning
    act(model)
    model(images).square().mean().backward()
    optimizer.step()
    before = model(images)

    masks = bb.from_torch_prune(model)

    assert torch.equal(model(images), before)
    assert sorted(model.state_dict()) == sorted(plain)
    assert sorted(masks) == sorted(names or masks)
    assert sum(int(m.sum()) for m in masks.values()) == kept
    bb.audit(model, masks)
    assert bb.account(model, masks, images).kept == kept
    torch.testing.assert_close(bb.shrink(model, masks, images).module(images), before)
    with bb.hold(model, masks, optimizer):  # the optimizer has the same parameters
        model(images).square().mean().backward()
        optimizer.step()
    bb.audit(model, masks)
    assert not torch.equal(model(images), before)
    bb.prune(model, [(images, torch.zeros(4, dtype=torch.long))], 0.5, "snip")


def tied(both=False, same=False):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    for layer in model if both else model[:1]:
        prune.custom_from_mask(layer, "weight", torch.eye(4) if same or layer is model[0] else torch.ones(4, 4))
    return model


REFUSED = {
    "not pruned": (lambda: nn.Linear(2, 2), "has pruned no parameter of this model; pass it before prune.remove"),
    "tied, pruned once": (tied, r"1\.weight shares a parameter whose pruning differs; give all its modules one mask"),
    "tied, two masks": (lambda: tied(both=True), r"0\.weight_orig shares a parameter whose pruning differs"),
    "not a module": (dict, "the model must be an nn.Module, not a dict"),
}


@pytest.mark.parametrize(("model", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_would_change_the_network_is_refused_and_nothing_is_touched(model, sentence):
    model = model()
    names = list(getattr(model, "state_dict", dict)())
    with pytest.raises(ValueError, match=sentence):
        bb.from_torch_prune(model)
    assert list(getattr(model, "state_dict", dict)()) == names


def test_a_tied_weight_with_one_mask_has_its_first_name():
    assert list(bb.from_torch_prune(tied(both=True, same=True))) == ["0.weight"]
