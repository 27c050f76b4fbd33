"""Resuming: a round continues the run that it belongs to bit for bit, and no other run."""

from collections.abc import Callable
from dataclasses import make_dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pruning_runs import BATCHES, FORCE, run, same, steps_of
from references import equal, tiny
from torch import nn

from barebones import METHODS, Round, prune


def changed(change: Callable[[nn.Module], object]) -> nn.Module:
    model = tiny()
    with torch.no_grad():
        change(model)
    return model


OTHER_RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "nearly the same batches": (dict(batches=[(x + 1e-9, y) for x, y in BATCHES]), "other batches"),
    "other targets": (dict(batches=[(x, y.flip(0)) for x, y in BATCHES]), "other batches"),
    "later batches": (dict(batches=BATCHES[1:]), "other batches"),
    "another initialization": (dict(model=tiny(seed=1)), "other weights"),
    "one sign": (dict(model=changed(lambda m: m[9].weight[0, 0].neg_())), "other weights"),
    "a bias": (dict(model=changed(lambda m: m[7].bias.add_(1))), "other weights"),
    "a norm": (dict(model=changed(lambda m: m[1].weight.mul_(2))), "other weights"),
    "another scope": (dict(exclude="9.*"), r"other (weights|settings: counts)"),
    "another mode": (dict(model=tiny().eval()), "other settings: training"),
    "another count": (dict(keep=19), "other settings: counts"),
    "more rounds": (dict(changes=dict(rounds=5)), "other settings: .*counts"),
    "more batches": (dict(changes=dict(batches_per_round=2)), "other settings: .*batches"),
    "no revival": (dict(changes=dict(revive_until=0.0)), "other settings: .*revive"),
    "no revival of channels": (dict(changes=dict(revive_empty=False)), "other settings: .*revive_empty"),
    "a floor": (dict(changes=dict(at_least=1)), "other settings: .*at_least"),
    "another criterion": (dict(changes=dict(criterion=METHODS["grasp"].criterion)), "other settings: .*criterion"),
    "another seed": (dict(seed=1), "other settings: .*seed"),
    "another mode of norms": (dict(bn="eval"), "other settings: .*bn"),
    "another loss": (dict(loss="nll-on-logits"), "other settings: .*objective"),
}


@pytest.mark.parametrize("name", OTHER_RUNS)
def test_another_run_is_refused(name):
    options, match = OTHER_RUNS[name]
    with pytest.raises(ValueError, match=match):
        run(**options, after=steps_of("force")[0])


SHIFTED = changed(lambda m: m[1].running_mean.add_(1))
SMOOTH = [partial(F.cross_entropy, label_smoothing=amount) for amount in (0.1, 0.2)]
MODULES = [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.5)]

Pair = make_dataclass("Pair", ["x", "y"])
PAIRS = dict(batches=[Pair(x, y) for x, y in BATCHES], objective=lambda m, b: F.cross_entropy(m(b.x), b.y))


@pytest.mark.parametrize(
    ("options", "changes", "match"),
    [
        (dict(loss=SMOOTH[0]), dict(loss=SMOOTH[1]), "other settings: objective"),
        (dict(loss=MODULES[0]), dict(loss=MODULES[1]), "other settings: objective"),
        (dict(bn="eval"), dict(model=SHIFTED), "other weights"),
        (PAIRS, dict(batches=PAIRS["batches"][::-1]), "other batches"),
    ],
    ids=["partial", "module", "statistics", "dataclasses"],
)
def test_a_run_with_special_options_continues_and_another_is_refused(options, changes, match):
    first, *rest = run(**options)
    assert same(run(**options, after=first), rest)
    with pytest.raises(ValueError, match=match):
        run(**options | changes, after=first)


def test_what_does_not_decide_the_scores_may_differ():
    """Running statistics that are not used, and the order of the masks."""
    assert same(run(model=SHIFTED, after=steps_of("force")[0]), steps_of("force")[1:])
    first, *rest = steps_of("grasp-taylor")
    assert same(run("grasp-taylor", after=replace(first, masks=dict(reversed(first.masks.items())))), rest)


def test_a_loss_is_known_by_name_and_not_by_address():
    first = run(loss=partial(lambda reduce, output, target: reduce(output**2), torch.mean))[0]
    assert "0x" not in first.plan["objective"]


@pytest.mark.parametrize("index", [-1, 1, 2, 3, 10**12])
def test_a_round_with_another_index_is_not_continued(index):
    first = steps_of("force")[0]
    problem = f"this round keeps {first.keep} weights, but round {index + 1} of this run does not"
    with pytest.raises(ValueError, match=problem):
        run("force", after=replace(first, index=index))


def test_files_keep_the_order_of_the_layers(tmp_path):
    """That of the model, in which "10" comes after "2"."""
    model = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(3, 3), nn.Tanh())))
    first = run(model=model, batches=[(torch.randn(8, 3), torch.randint(3, (8,)))])[0]
    first.save(tmp_path / "round")
    loaded = Round.load(tmp_path / "round")
    assert equal(loaded.masks, first.masks)
    assert loaded.record == first.record


def test_prune_continues_too(tmp_path):
    rounds_before: list[Round] = []
    all_steps = prune(tiny(), BATCHES, 0.8, FORCE, on_round=rounds_before.append, on_collapse="ignore")
    rounds_before[1].save(tmp_path / "round")
    rest = prune(tiny(), BATCHES, 0.8, FORCE, after=Round.load(tmp_path / "round"), on_collapse="ignore")
    assert equal(rest.masks, all_steps.masks)
    assert [record.index for record in rest.rounds] == [2, 3]
    over = prune(tiny(), BATCHES, 0.8, FORCE, after=all_steps.last, on_collapse="ignore")
    assert equal(over.masks, all_steps.masks)
    assert over.rounds == []
    for sparsity, after, match in ((0.5, "round.bin", "after= is the last Round"), (0, over.last, "removes nothing")):
        with pytest.raises(ValueError, match=match):
            prune(tiny(), BATCHES, sparsity, FORCE, after=after)
