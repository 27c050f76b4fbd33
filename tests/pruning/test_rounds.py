"""The loop: criteria of one's own, the rules of revival, and networks that collapse."""

from dataclasses import replace
from typing import Any

import pytest
import references
import torch
import zoo
from pruning_runs import BATCHES, FORCE, run, same
from references import equal, few, tiny, weights_of
from torch import nn

from barebones import METHODS, Method, Probe, prune, rounds
from barebones.masks import kept


def test_a_method_of_ones_own_is_a_function():
    """Signed scores stay signed: nobody takes their absolute values."""
    method = Method(lambda probe: dict(probe.weights), rounds=3)
    model = tiny()
    masks = prune(model, sparsity=0.5, method=method, example=BATCHES[0][0], on_collapse="ignore").masks
    assert equal(masks, references.top(weights_of(model), 57))


def test_a_criterion_may_ask_for_everything():
    calls = []

    def criterion(probe):
        first = probe.gradient()
        second = probe.gradient()
        assert equal(first, second)
        product = probe.hessian_product()
        calls.append((probe.index, probe.keep, kept(probe.masks)))
        assert equal(probe.weights, dense)
        return {n: first[n] + product[n] + torch.rand(first[n].shape, generator=probe.generator) for n in first}

    model, dense = tiny(), weights_of(tiny())
    method = Method(criterion, rounds=2)
    first = list(rounds(Probe(model, BATCHES), method, 30))
    assert calls == [(0, first[0].keep, 114), (1, 30, first[0].keep)]
    assert equal(first[-1].masks, list(rounds(Probe(model, BATCHES), method, 30))[-1].masks)


def test_a_criterion_with_global_randomness_is_seeded_by_the_seed_and_the_round():
    method = Method(lambda probe: {n: torch.rand(w.shape) for n, w in probe.weights.items()}, 2, revive_until=1)
    first, repeated, other = (run(method, seed=seed) for seed in (0, 0, 5))
    assert same(first, repeated)
    assert not equal(first[0].masks, other[0].masks)


def scripted(*scores: list[Any], counts: list[int], **options: Any) -> Method:
    """Return a method that gives these scores to the one weight of a layer, round by round."""
    turns = [torch.tensor(turn).float() for turn in scores]
    return Method(lambda probe: {"weight": turns[probe.index].view(probe.weights["weight"].shape)}, len(counts),
                  schedule=lambda m, k, t: counts, **options)  # fmt: skip


def test_revival_into_empty_channels_can_be_forbidden():
    """The second row is empty after one round, and its weights score highest in the next."""
    scores = [[4, 3, 0], [0, 0, 0], [2, 0, 0]], [[1, 0, 5], [9, 9, 9], [1, 5, 0]]
    method = scripted(*scores, counts=[3, 3], revive_until=1)
    free, held = (run(replace(method, revive_empty=e), 3, nn.Linear(3, 3), None)[-1] for e in (True, False))
    assert (free.recovered, free.recovered_empty) == (3, 3)
    assert free.masks["weight"].tolist() == [[False] * 3, [True] * 3, [False] * 3]
    assert (held.recovered, held.recovered_empty) == (2, 0)
    assert held.masks["weight"].tolist() == [[True, False, True], [False] * 3, [False, True, False]]


def test_an_output_channel_of_a_transposed_convolution_is_its_second_dimension():
    """The weight is (in, out, size): out 1 is empty after one round, and must stay so."""
    method = scripted([[4, 0], [3, 0], [0, 0]], [[1, 9], [2, 9], [7, 9]], counts=[2, 2], revive_until=1)
    last = run(replace(method, revive_empty=False), 2, nn.ConvTranspose1d(3, 2, 1), None)[-1]
    assert last.masks["weight"].view(3, 2).tolist() == [[False, False], [True, False], [True, False]]
    assert last.recovered_empty == 0


def test_revival_of_scalars_and_vectors():
    model = zoo.Net(
        lambda net, x: net.linear(x) * net.scale, scale=nn.Parameter(torch.ones(())), linear=nn.Linear(3, 2)
    )
    batches = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]
    for step in run(FORCE, 3, model, batches, scope="*", changes=dict(revive_empty=False)):
        assert kept(step.masks) == step.keep
        assert {n: m.shape for n, m in step.masks.items()} == {n: p.shape for n, p in model.named_parameters()}


def test_a_layer_without_weights_is_no_obstacle():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].weight = nn.Parameter(torch.zeros(0, 3))
    model[0].bias = nn.Parameter(torch.zeros(0))
    method = Method(lambda probe: {n: torch.ones_like(w) for n, w in probe.weights.items()}, rounds=3, revive_until=1)
    assert [kept(s.masks) for s in rounds(Probe(model), method, 2)] == [5, 3, 2]


def test_pruned_weights_stay_out_even_where_live_ones_are_dead():
    """The official "minimum saliency" ties with live weights of score 0."""
    method = scripted([0, 0, 5, 5, 5, 5], [0] * 6, [-3] * 6, counts=[4, 3, 2])
    steps = run(method, 2, nn.Linear(6, 1), None)
    assert [s.masks["weight"].flatten().nonzero().flatten().tolist() for s in steps] == [
        [2, 3, 4, 5],
        [2, 3, 4],
        [2, 3],
    ]


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.needs_data])
def test_vanished_gradients_keep_exactly_k(name):
    model, x = zoo.build("mlp")
    nn.init.constant_(model[0].bias, -100.0)  # no activation is alive
    nn.init.zeros_(model[2].weight)
    steps = run(name, 5, model, [(x, torch.tensor([0, 1, 2, 0]))])
    assert [kept(s.masks) for s in steps] == few(name).schedule(42, 5, few(name).rounds)
    assert steps[-1].saliency == 0.0
