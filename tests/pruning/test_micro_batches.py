"""Micro-batches: the model sees no more samples at once, and the gradients are those of whole batches."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
import zoo
from references import equal, few, pairs, tiny
from torch import nn

import barebones as bb
from barebones import Probe, rounds


def plain() -> nn.Module:
    """The network without its batch-norms."""
    return nn.Sequential(*(layer for layer in tiny() if not isinstance(layer, nn.BatchNorm2d)))


def untracked() -> nn.Module:
    layers = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten()
    return nn.Sequential(*layers).double()


def averaged() -> nn.Module:
    """The network's mean output: it has no samples."""
    return nn.Sequential(plain(), zoo.Net(lambda _, x: x.mean(0)))


def seen(model: nn.Module) -> list[int]:
    """Return a list that gets the size of every batch that the model sees."""
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    return sizes


@pytest.mark.parametrize("name", ["force", "snip-mb", "grasp", "grasp-mb"])
@pytest.mark.parametrize("micro", [1, 3, 8, 20])
def test_micro_batches_give_the_scores_of_whole_batches(name, micro):
    method, model = few(name, 1, 3), plain()
    expected, sizes = Probe(plain(), pairs(3)), seen(model)
    probe = Probe(model, pairs(3), micro_batch=micro)
    found = []
    for each in (expected, probe):
        with each.at(None, 0, 20, method.batches_per_round):
            found.append(method.criterion(each))
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(probe.saliency, expected.saliency)
    torch.testing.assert_close(probe.loss_value, expected.loss_value)
    assert max(sizes) == min(micro, 8)


def test_rounds_resume_with_another_micro_batch():
    steps = list(rounds(Probe(plain(), pairs(4), micro_batch=3), few("force"), 20))
    again = list(rounds(Probe(plain(), pairs(4), micro_batch=5), few("force"), 20, after=steps[1]))
    assert [equal(a.masks, b.masks) for a, b in zip(steps[2:], again, strict=True)] == [True, True]


def test_batches_of_other_forms_are_split():
    expected = bb.prune(plain(), pairs(2), 0.5, "snip", on_collapse="ignore").masks
    forms = [
        ([{"x": x, "y": [y], "kind": "digits"} for x, y in pairs(2)],
         dict(objective=lambda model, batch: F.cross_entropy(model(batch["x"]), batch["y"][0]))),
        ([(x, {"label": y}) for x, y in pairs(2)], dict(loss=lambda out, y: F.cross_entropy(out, y["label"]))),
    ]  # fmt: skip
    for batches, options in forms:
        model = plain()
        sizes = seen(model)
        found = bb.prune(model, batches, 0.5, "snip", **options, micro_batch=3, on_collapse="ignore")
        assert equal(found.masks, expected)
        assert max(sizes) == 3


NO_SCALAR = nn.CrossEntropyLoss(reduction="none")


@pytest.mark.parametrize(
    ("model", "options", "match"),
    [
        (tiny(), {}, r'batch-norms need the statistics of the whole \(1, 4\); use bn="eval"'),
        (tiny(), dict(micro_batch=1), "batch-norms need the statistics"),  # torch itself refuses a single sample
        (untracked(), dict(bn="eval"), r"batch-norms need the statistics of the whole \(1\)"),
        (averaged(), dict(loss=lambda output, _: output.sum()), r"split into samples.*objective="),
        (
            plain(),
            dict(batches=[(*pairs(1)[0], torch.ones(2))], objective=lambda m, b: m(b[0])),
            "cannot be split into",
        ),
        *((plain(), dict(micro_batch=wrong), r"micro_batch=.*at least 1") for wrong in (0, -1, 2.5)),
        *((plain(), dict(batches=[(*pairs(1)[0], 1)], micro_batch=m), "a batch is a pair") for m in (None, 3)),
        *(
            (plain(), dict(loss=nn.CrossEntropyLoss(reduction="none"), micro_batch=m), "a scalar tensor")
            for m in (None, 3)
        ),
    ],
)
def test_what_cannot_be_split_is_refused(model, options, match):
    options = dict(batches=pairs(1), micro_batch=4) | options
    with pytest.raises(ValueError, match=match):
        bb.prune(model, sparsity=0.5, method="snip", **options)


def test_batch_norms_with_running_statistics_or_whole_batches_are_no_obstacle():
    whole = bb.prune(tiny(), pairs(1), 0.5, "snip", bn="eval", on_collapse="ignore").masks
    assert equal(bb.prune(tiny(), pairs(1), 0.5, "snip", bn="eval", micro_batch=3, on_collapse="ignore").masks, whole)
    assert bb.prune(tiny(), pairs(1), 0.5, "snip", micro_batch=8, on_collapse="ignore").masks


CLASSES = torch.tensor([1.0, 5, 9]).double()
NO_MEANS = [
    nn.CrossEntropyLoss(reduction="sum"),
    nn.CrossEntropyLoss(CLASSES),
    nn.CrossEntropyLoss(CLASSES, label_smoothing=0.1),
    nn.CrossEntropyLoss(ignore_index=2),
    partial(F.cross_entropy, weight=CLASSES),
    partial(F.nll_loss, ignore_index=1),
    lambda output, target: F.cross_entropy(output, target, reduction="none").square().mean().sqrt(),
    lambda output, target: F.cross_entropy(output, target.where(target < 2, -100)),
    lambda output, target: F.cross_entropy(output - output.mean(0), target),
]
MEANS = [
    nn.CrossEntropyLoss(label_smoothing=0.1),
    nn.MultiMarginLoss(weight=CLASSES),
    lambda output, target: nn.BCEWithLogitsLoss(CLASSES)(output, F.one_hot(target, 3).double()),
    lambda output, target: F.cross_entropy(output, F.one_hot(target, 3).double(), CLASSES),
    lambda output, target: F.cross_entropy(output.mul_(2), target),
    F.cross_entropy,
    "nll-on-logits",
]


@pytest.mark.parametrize("number", range(len(NO_MEANS) + len(MEANS)))
@pytest.mark.parametrize("seed", range(4))
def test_parts_of_a_batch_lead_to_the_masks_of_the_whole_or_are_refused(number, seed):
    """The last layer may be close to zero: the losses of all samples are then equal, but not their gradients."""
    loss, model, batches = [*NO_MEANS, *MEANS][number], plain(), pairs(2, seed)
    model[-1].weight.data.mul_(1e-9 if seed % 2 else 1)
    batches = [(batches[0][0], torch.zeros_like(batches[0][1])), (batches[1][0], batches[1][1].sort().values)]
    options = dict(loss=loss, batches_per_round=2, on_collapse="ignore")
    whole = bb.prune(model, batches, 0.5, "snip-mb", **options).masks
    refused = []
    try:
        found = bb.prune(model, batches, 0.5, "snip-mb", micro_batch=3 + seed // 2, **options).masks
    except ValueError as error:
        refused = [error]
    assert "the loss is no mean over the samples" in str(refused) or float(bb.agreement(found, whole)) == 1
    assert not refused or number < len(NO_MEANS)


def test_a_loss_in_low_precision_is_a_mean_although_it_is_rounded():
    model, batches = plain().to(torch.bfloat16), [(images.bfloat16(), labels) for images, labels in pairs(40)]
    for batch in batches:
        bb.prune(model, [batch], 0.5, "snip", micro_batch=3, on_collapse="ignore")
