"""Resuming: a round continues the run that it belongs to bit for bit, and no other run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import equal, few, pairs, tiny
from torch import Tensor, nn

from barebones import METHODS, Method, Probe, Round, prune, rounds
from barebones.pruning.batches import Source

FORCE = few("force")
BATCHES = pairs(5)


def start(
    model: nn.Module | None = None,
    batches: Source = BATCHES,
    method: Method = FORCE,
    keep: int = 20,
    after: Round | None = None,
    **options: Any,
) -> list[Round]:
    """Prune a small network, from its start or after a round."""
    return list(rounds(Probe(model or tiny(), batches, **options), method, keep, after))


def changed(change: Callable[[nn.Module], object]) -> nn.Module:
    model = tiny()
    with torch.no_grad():
        change(model)
    return model


SMOOTH = partial(F.cross_entropy, label_smoothing=0.1), partial(F.cross_entropy, label_smoothing=0.2)
MODULES = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.5)

OTHER_RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "nearly the same batches": (dict(batches=[(x + 1e-9, y) for x, y in BATCHES]), "other batches"),
    "batches of other signs": (dict(batches=[(-x, y) for x, y in BATCHES]), "other batches"),
    "other targets": (dict(batches=[(x, y.flip(0)) for x, y in BATCHES]), "other batches"),
    "later batches": (dict(batches=BATCHES[1:]), "other batches"),
    "another initialization": (dict(model=tiny(seed=1)), "other weights"),
    "one sign": (dict(model=changed(lambda m: m[9].weight[0, 0].neg_())), "other weights"),
    "all signs": (dict(model=changed(lambda m: m[9].weight.neg_())), "other weights"),
    "a bias": (dict(model=changed(lambda m: m[7].bias.add_(1))), "other weights"),
    "a norm": (dict(model=changed(lambda m: m[1].weight.mul_(2))), "other weights"),
    "another scope": (dict(exclude="9.*"), r"other (weights|settings: counts)"),
    "another mode": (dict(model=tiny().eval()), "other settings: training"),
    "another count": (dict(keep=19), "other settings: counts"),
    "more rounds": (dict(method=replace(FORCE, rounds=5)), "other settings: .*counts"),
    "more batches": (dict(method=replace(FORCE, batches=2)), "other settings: .*batches"),
    "no revival": (dict(method=replace(FORCE, revive_until=0.0)), "other settings: .*revive"),
    "no revival of channels": (dict(method=replace(FORCE, revive_empty=False)), "other settings: .*revive_empty"),
    "a floor": (dict(method=replace(FORCE, at_least=1)), "other settings: .*at_least"),
    "another criterion": (
        dict(method=replace(FORCE, criterion=METHODS["iter-grasp"].criterion)),
        "other settings: .*criterion",
    ),
    "another seed": (dict(seed=1), "other settings: .*seed"),
    "another mode of norms": (dict(bn="eval"), "other settings: .*bn"),
    "another loss": (dict(loss="nll-on-logits"), "other settings: .*objective"),
}


@pytest.mark.parametrize("name", OTHER_RUNS)
def test_another_run_is_refused(name):
    changes, match = OTHER_RUNS[name]
    with pytest.raises(ValueError, match=match):
        start(**changes, after=start()[0])


@pytest.mark.parametrize(("loss", "other"), [SMOOTH, MODULES], ids=["partial", "module"])
def test_a_loss_with_other_settings_is_refused(loss, other):
    first, *rest = start(loss=loss)
    assert equal(start(loss=loss, after=first)[-1].masks, rest[-1].masks)
    with pytest.raises(ValueError, match="other settings: objective"):
        start(loss=other, after=first)


def test_a_loss_is_known_by_name_and_not_by_address():
    first = start(loss=partial(lambda reduce, output, target: reduce(output**2), torch.mean))[0]
    assert "0x" not in first.plan["objective"]


@pytest.mark.parametrize(("bn", "refused"), [("batch", False), ("eval", True)])
def test_running_statistics_count_where_they_are_used(bn, refused):
    first = start(bn=bn)[0]
    model = changed(lambda m: m[1].running_mean.add_(1))
    if refused:
        with pytest.raises(ValueError, match="other weights"):
            start(model, bn=bn, after=first)
    else:
        start(model, bn=bn, after=first)


@dataclass
class Pair:
    x: Tensor
    y: Tensor


def test_batches_that_are_dataclasses_are_compared_too():
    options = dict(objective=lambda model, batch: F.cross_entropy(model(batch.x), batch.y))
    batches = [Pair(x, y) for x, y in BATCHES]
    first = start(batches=batches, **options)[0]
    start(batches=batches, after=first, **options)
    with pytest.raises(ValueError, match="other batches"):
        start(batches=batches[::-1], after=first, **options)


def test_what_is_no_round_is_refused():
    with pytest.raises(ValueError, match=r"after= is the last Round of a run"):
        prune(tiny(), BATCHES, 0.5, FORCE, after="round.bin")


def test_a_dense_run_continues_nothing():
    with pytest.raises(ValueError, match="sparsity=0 removes nothing"):
        prune(tiny(), BATCHES, 0, FORCE, after=start()[0])


def test_masks_in_another_order_are_the_same_masks():
    method = few("grasp-taylor", rounds=3)
    all_steps = start(method=method)
    turned = replace(all_steps[0], masks=dict(reversed(all_steps[0].masks.items())))
    assert equal(start(method=method, after=turned)[-1].masks, all_steps[-1].masks)


def test_files_keep_the_order_of_the_layers(tmp_path):
    model = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(3, 3, dtype=torch.float64), nn.Tanh())))
    batches = [(torch.randn(8, 3, dtype=torch.float64), torch.randint(3, (8,)))]
    method = few("grasp-taylor", rounds=3)
    all_steps = start(model, batches, method, keep=9)
    all_steps[0].save(tmp_path / "round")
    loaded = Round.load(tmp_path / "round")
    assert list(loaded.masks) == list(all_steps[0].masks)
    assert loaded.record == all_steps[0].record
    assert equal(start(model, batches, method, keep=9, after=loaded)[-1].masks, all_steps[-1].masks)


def test_prune_continues_too(tmp_path):
    seen: list[Round] = []
    all_steps = prune(tiny(), BATCHES, 0.8, FORCE, on_round=seen.append, on_collapse="ignore")
    seen[1].save(tmp_path / "round")
    rest = prune(tiny(), BATCHES, 0.8, FORCE, after=Round.load(tmp_path / "round"), on_collapse="ignore")
    assert equal(rest.masks, all_steps.masks)
    assert [record.index for record in rest.rounds] == [2, 3]
    over = prune(tiny(), BATCHES, 0.8, FORCE, after=all_steps.last, on_collapse="ignore")
    assert equal(over.masks, all_steps.masks)
    assert over.rounds == []
