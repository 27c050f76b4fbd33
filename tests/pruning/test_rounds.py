"""The loop: criteria of one's own, the rules of revival, and networks that collapse."""

from dataclasses import replace

import pytest
import references
import torch
from pruning_runs import BATCHES
from references import equal, few, tiny, weights_of
from torch import Tensor, nn

from barebones import METHODS, Method, Probe, prune, rounds
from barebones.masks import kept


def test_a_method_of_ones_own_is_a_function():
    """Signed scores stay signed: nobody takes their absolute values."""
    method = Method(lambda probe: dict(probe.weights), rounds=3)
    model = tiny()
    masks = prune(model, sparsity=0.5, method=method, example=BATCHES[0][0], on_collapse="ignore").masks
    assert equal(masks, references.top(weights_of(model), 57))


def test_a_criterion_may_ask_for_everything():
    seen = []

    def criterion(probe):
        first = probe.gradient()
        second = probe.gradient()
        assert equal(first, second)
        product = probe.hessian_product()
        seen.append((probe.index, probe.keep, kept(probe.masks)))
        assert equal(probe.weights, dense)
        return {n: first[n] + product[n] + torch.rand(first[n].shape, generator=probe.generator) for n in first}

    model, dense = tiny(), weights_of(tiny())
    method = Method(criterion, rounds=2)
    first = list(rounds(Probe(model, BATCHES), method, 30))
    assert seen == [(0, first[0].keep, 114), (1, 30, first[0].keep)]
    assert equal(first[-1].masks, list(rounds(Probe(model, BATCHES), method, 30))[-1].masks)


def test_a_criterion_with_global_randomness_is_seeded_by_the_seed_and_the_round():
    def masks(outside: int, seed: int) -> list[dict[str, Tensor]]:
        torch.manual_seed(outside)
        method = Method(lambda probe: {n: torch.rand(w.shape) for n, w in probe.weights.items()}, 2, revive_until=1)
        return [r.masks for r in rounds(Probe(tiny(), BATCHES, seed=seed), method, 30)]

    assert all(equal(a, b) for a, b in zip(masks(1, 0), masks(2, 0), strict=True))
    assert not equal(masks(1, 0)[0], masks(1, 5)[0])


def test_integer_scores_stay_exact_over_rounds():
    scores = {"weight": torch.tensor([[2**24 + 1, 2**24, 2**24 + 3, 2**24 + 2]])}
    method = Method(lambda probe: dict(scores), rounds=2)
    assert list(rounds(Probe(nn.Linear(4, 1)), method, 1))[-1].masks["weight"].tolist() == [[False, False, True, False]]


def test_a_criterion_must_score_every_weight():
    for wrong in ({}, {"weight": torch.zeros(4)}, {"weight": torch.zeros(1, 4), "bias": torch.zeros(1)}):
        with pytest.raises(ValueError, match="must score every prunable weight"):
            list(rounds(Probe(nn.Linear(4, 1)), Method(lambda probe, w=wrong: w), 1))


def test_revival_into_empty_channels_can_be_forbidden():
    """Linear: the second row is empty after one round, and its weights score highest in the next."""
    turns = iter(
        [torch.tensor([[4.0, 3, 0], [0, 0, 0], [2, 0, 0]]), torch.tensor([[1.0, 0, 5], [9, 9, 9], [1, 5, 0]])] * 2
    )
    method = Method(lambda probe: {"weight": next(turns)}, 2, revive_until=1, schedule=lambda m, k, t: [3, 3])
    free = list(rounds(Probe(nn.Linear(3, 3)), method, 3))[-1]
    assert (free.recovered, free.recovered_empty) == (3, 3)
    assert free.masks["weight"].tolist() == [[False] * 3, [True] * 3, [False] * 3]
    held = list(rounds(Probe(nn.Linear(3, 3)), replace(method, revive_empty=False), 3))[-1]
    assert held.masks["weight"].tolist() == [[True, False, True], [False] * 3, [False, True, False]]
    assert (held.recovered, held.recovered_empty) == (2, 0)


def test_an_output_channel_of_a_transposed_convolution_is_its_second_dimension():
    """The weight is (in, out, size): out 1 is empty after one round, and must stay so."""
    turns = iter([torch.tensor([[4.0, 0], [3, 0], [0, 0]]), torch.tensor([[1.0, 9], [2, 9], [7, 9]])])
    method = Method(
        lambda probe: {"weight": next(turns).view(3, 2, 1)},
        rounds=2,
        revive_until=1,
        revive_empty=False,
        schedule=lambda m, k, t: [2, 2],
    )
    last = list(rounds(Probe(nn.ConvTranspose1d(3, 2, 1)), method, 2))[-1]
    assert last.masks["weight"].view(3, 2).tolist() == [[False, False], [True, False], [True, False]]
    assert last.recovered_empty == 0


def test_revival_of_scalars_and_vectors():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.linear = nn.Parameter(torch.tensor(2.0)), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.scale

    method = replace(METHODS["force"], rounds=3, revive_empty=False)
    probe = Probe(Scaled(), [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))], scope="*")
    for step in rounds(probe, method, 3):
        assert kept(step.masks) == step.keep
        assert {n: m.shape for n, m in step.masks.items()} == {n: w.shape for n, w in probe.weights.items()}


def test_a_layer_without_weights_is_no_obstacle():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].weight = nn.Parameter(torch.zeros(0, 3))
    model[0].bias = nn.Parameter(torch.zeros(0))
    method = Method(lambda probe: {n: torch.ones_like(w) for n, w in probe.weights.items()}, rounds=3, revive_until=1)
    assert [kept(s.masks) for s in rounds(Probe(model), method, 2)] == [5, 3, 2]


def test_pruned_weights_stay_out_even_where_live_ones_are_dead():
    """The official "minimum saliency" ties with live weights of score 0."""
    turns = iter([torch.tensor([[0.0, 0.0, 5.0, 5.0, 5.0, 5.0]]), torch.zeros(1, 6), torch.full((1, 6), -3.0)])
    method = Method(lambda probe: {"weight": next(turns)}, rounds=3, schedule=lambda m, k, t: [4, 3, 2])
    last = [s.masks["weight"].tolist()[0] for s in rounds(Probe(nn.Linear(6, 1)), method, 2)]
    assert last == [
        [False, False, True, True, True, True],
        [False, False, True, True, True, False],
        [False, False, True, True, False, False],
    ]


def collapsing() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A network whose gradients are all zero: its last activations are dead."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3, bias=False))
    nn.init.constant_(model[2].bias, -100.0)
    return model.double(), [(torch.randn(8, 4, dtype=torch.float64), torch.randint(3, (8,)))]


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.needs_data])
def test_vanished_gradients_keep_exactly_k(name):
    model, batches = collapsing()
    method = few(name)
    steps = list(rounds(Probe(model, batches), method, 5))
    assert [kept(s.masks) for s in steps] == method.schedule(78, 5, method.rounds)
    assert steps[-1].saliency == 0.0


def test_a_network_that_collapses_on_the_way_keeps_exactly_k():
    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(9) for m in (nn.Linear(6, 6, bias=False), nn.ReLU()))).double()
    batches = [(torch.rand(8, 6, dtype=torch.float64), torch.randint(6, (8,)))]
    for name in ("force", "iter-snip", "snip"):
        with pytest.warns(UserWarning, match="no signal passes"):
            result = prune(model, batches, 0.985, few(name, rounds=20))
        assert kept(result.masks) == 5
        assert result.collapsed
