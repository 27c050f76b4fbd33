"""What a run may be continued with, and what else a caller could change without noticing."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import barebones as bb
from barebones.running import digest

FORCE = replace(bb.METHODS["force"], rounds=4)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4)).double()


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(12, 6, generator=generator).double(), torch.randint(4, (12,), generator=generator))
        for _ in range(4)
    ]


def begun(model: nn.Module, **options) -> bb.Round:
    seen: list[bb.Round] = []
    bb.prune(model, batches(), 0.5, FORCE, on_round=seen.append, on_collapse="ignore", **options)
    return seen[1]


def resume(model: nn.Module, after: bb.Round, data=None, **options) -> bb.Pruned:
    return bb.prune(model, data or batches(), 0.5, FORCE, after=after, on_collapse="ignore", **options)


def change_sign(model):
    model[0].weight.data.neg_()


def change_bias(model):
    model[4].bias.data.add_(1)


def change_norm(model):
    model[1].weight.data.mul_(2)


@pytest.mark.parametrize("change", [change_sign, change_bias, change_norm])
def test_other_weights_are_refused_prunable_or_not(change):
    model = network()
    after = begun(model)
    resume(model, after)
    change(model)
    with pytest.raises(ValueError, match="other weights"):
        resume(model, after)


def test_running_statistics_count_where_they_are_used():
    for bn, refused in (("batch", False), ("eval", True)):
        model = network()
        after = begun(model, bn=bn)
        model[1].running_mean.add_(1)
        if refused:
            with pytest.raises(ValueError, match="other weights"):
                resume(model, after, bn=bn)
        else:
            resume(model, after, bn=bn)


def test_another_mode_is_refused():
    model = network()
    after = begun(model)
    with pytest.raises(ValueError, match="other settings: training"):
        resume(model.eval(), after)


def test_other_batches_are_refused_also_with_all_signs_changed():
    model = network()
    after = begun(model)
    with pytest.raises(ValueError, match="other batches"):
        resume(model, after, [(-x, y) for x, y in batches()])


@dataclass
class Pair:
    x: Tensor
    y: Tensor


def test_batches_of_dataclasses_are_looked_into():
    model = network()

    def objective(model: nn.Module, batch: Pair) -> Tensor:
        return F.cross_entropy(model(batch.x), batch.y)

    data = [Pair(x, y) for x, y in batches()]
    seen: list[bb.Round] = []
    bb.prune(model, data, 0.5, FORCE, objective=objective, on_round=seen.append, on_collapse="ignore")
    resume(model, seen[0], data, objective=objective)
    with pytest.raises(ValueError, match="other batches"):
        resume(model, seen[0], data[::-1], objective=objective)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.5)),
        (partial(F.cross_entropy, label_smoothing=0.1), partial(F.cross_entropy, label_smoothing=0.2)),
    ],
)
def test_another_loss_is_refused(one, other):
    model = network()
    after = begun(model, loss=one)
    resume(model, after, loss=one)
    with pytest.raises(ValueError, match="other settings: objective"):
        resume(model, after, loss=other)


def test_a_loss_is_known_by_name_and_not_by_address():
    after = begun(network(), loss=partial(lambda reduce, output, target: reduce(output**2), torch.mean))
    assert "0x" not in after.plan["objective"]


def test_a_dense_run_continues_nothing():
    model = network()
    with pytest.raises(ValueError, match="sparsity=0 removes nothing"):
        bb.prune(model, batches(), 0, FORCE, after=begun(model))


def test_a_digest_sees_signs_shapes_and_types():
    x = torch.randn(64, dtype=torch.float64)
    flipped = x.clone()
    flipped[[3, 9]] *= -1
    variants = [x, -x, flipped, x.view(8, 8), x.view(4, 16), x.float(), torch.zeros(8), torch.zeros(4).double()]
    assert len({int(digest.content([v])) for v in variants}) == len(variants)


def test_a_digest_does_not_depend_on_the_layout():
    x = torch.randn(3, 5, 7, 9)
    assert int(digest.content([x])) == int(digest.content([x.to(memory_format=torch.channels_last)]))
    y = torch.arange(200_000, dtype=torch.float32)  # more than a row of words
    assert int(digest.content([y])) != int(digest.content([y.flip(0)]))
    assert int(digest.content([y[1:]])) == int(digest.content([y[1:].clone()]))


def test_a_criterion_that_changes_the_weights_is_found_out():
    with pytest.raises(ValueError, match="weights were changed while it was pruned"):
        bb.prune(network(), batches(), 0.5, bb.Method(lambda p: {n: w.abs_() for n, w in p.weights.items()}))


def test_an_objective_may_call_backward():
    model = network()
    model[0].weight.grad = torch.ones_like(model[0].weight)

    def objective(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward(retain_graph=True)
        return loss

    bb.prune(model, batches(), 0.5, FORCE, objective=objective, on_collapse="ignore")
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert all(p.grad is None for p in list(model.parameters())[1:])


def test_grasps_temperature_is_the_same_for_a_loss_and_an_objective():
    def objective(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    model = network()
    a = bb.prune(model, batches(), 0.5, "grasp", on_collapse="ignore").masks
    b = bb.prune(model, batches(), 0.5, "grasp", objective=objective, on_collapse="ignore").masks
    assert float(bb.agreement(a, b)) == 1.0


def test_what_cannot_be_checked_is_said():
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    with pytest.warns(UserWarning, match="was not checked: there is no example= input"):
        bb.prune(model, None, 0.9, "random")
    with pytest.raises(ValueError, match="was not checked"):
        bb.prune(model, None, 0.9, "random", on_collapse="raise")
    bb.prune(model, None, 0.9, "random", on_collapse="raise", example=torch.ones(1, 8))


@pytest.mark.parametrize("method", list(bb.METHODS))
def test_the_default_device_does_not_matter(method, tmp_path):
    model, data = network(), batches()
    expected = bb.prune(model, data, 0.5, method, on_collapse="ignore").masks
    with torch.device("meta"):
        result = bb.prune(model, data, 0.5, method, on_collapse="ignore")
        result.save(tmp_path / "masks")
        loaded, _ = bb.load_masks(tmp_path / "masks", model)
        bb.account(model, loaded, data[0][0])
    assert all(torch.equal(expected[name], loaded[name]) for name in expected)


def test_the_header_tells_the_method_from_its_relatives():
    model = network()
    about = [
        bb.prune(model, batches(), 0.5, method, on_collapse="ignore", rounds=3).about
        for method in ("force", "iter-snip", "hybrid")
    ]
    assert [a["revive_until"] for a in about] == [1.0, 0.0, 0.9]
    assert all(a["schedule"] == "exponential" and a["weights"] == about[0]["weights"] for a in about)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda m, d: bb.prune(m, d, 0.5, lambda probe: probe.weights), r"wrap your criterion in bb\.Method"),
        (lambda m, d: bb.prune(m, d, 0.5, None), "neither a name nor"),
        (lambda m, d: bb.prune(m, d, 0.5, "force", rounds=2.5), "rounds=2.5: it must be a whole number"),
        (lambda m, d: next(bb.rounds(m, "force", 3)), r"takes a bb\.Probe"),
        (lambda m, d: bb.hold(m, bb.prune(m, d, 0.5, "snip"), torch.optim.SGD(m.parameters())), r"pass result\.masks"),
        (lambda m, d: bb.agreement(bb.prune(m, d, 0.5, "snip"), {}), r"pass result\.masks"),
        (lambda m, d: bb.prune(m, lambda i: None, 0.5, "snip"), r"batches\(0\) must return"),
    ],
)
def test_likely_mistakes_get_a_sentence(call, match):
    with pytest.raises(ValueError, match=match):
        call(network(), batches())
