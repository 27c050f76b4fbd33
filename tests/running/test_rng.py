"""Random numbers are put back, and replayed: networks of different widths see the same ones, and nothing is dropped."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from barebones.running import rng
from barebones.running.rng import Replayed


def drop_path(x: Tensor) -> Tensor:
    return x * x.new_empty(len(x), *[1] * (x.dim() - 1)).bernoulli_(0.5)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout of channels": lambda x: F.dropout1d(x.unsqueeze(-1), 0.3)[..., 0],
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "feature alpha dropout": lambda x: F.feature_alpha_dropout(x.unsqueeze(-1), 0.3, training=True)[..., 0],
    "stochastic depth": lambda x: x * (torch.rand(len(x), 1) + 0.7).floor(),
    "noise": lambda x: x + torch.randn_like(x) + torch.rand([]),
    "noise of a normal": lambda x: torch.normal(x, 0.1) + torch.normal(1.0, 0.1, x.shape),
    "in place": lambda x: x + torch.empty_like(x).uniform_(-1, 1),
    "exponential": lambda x: x + torch.empty_like(x).exponential_(2.0),
    "integers": lambda x: x + torch.randint(5, x.shape) + torch.randint(2, 9, x.shape),
    "integers like": lambda x: x + torch.randint_like(x, 5) + torch.empty_like(x).random_(3),
    "gumbel": lambda x: x + F.gumbel_softmax(torch.ones_like(x[:, :2]), hard=True)[:, :1],
    "rrelu in place": lambda x: F.rrelu(x * 1, 0.1, 0.4, training=True, inplace=True),
    "permutation": lambda x: x[torch.randperm(len(x))],
    "bernoulli": lambda x: drop_path(x) * torch.bernoulli(torch.full_like(x, 0.4)),
    "multinomial": lambda x: x[torch.multinomial(torch.ones(len(x)), 3)],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("tracked", [False, True])
def test_draws_do_not_depend_on_the_number_of_channels(name, tracked):
    wide = torch.randn(4, 19)
    results = []
    for columns in (19, 19, 3):
        x = wide[:, :columns].clone().requires_grad_(tracked)
        torch.manual_seed(len(results))
        with Replayed(seed=1):
            y = FUNCTIONS[name](x)
            gradient = torch.autograd.grad(y.sum(), x)[0] if tracked and y.requires_grad else torch.zeros(1, 1)
        results.append((y.detach(), gradient))
    for y, gradient in results[1:]:
        assert torch.equal(y, results[0][0][:, : y.shape[1]])
        assert torch.equal(gradient, results[0][1][:, : gradient.shape[1]])
    assert any((y != 0).any() for y, _ in results)


def test_draws_differ_between_samples_calls_and_seeds():
    with Replayed(seed=0):
        first, second = torch.rand(8, 2), torch.rand(8, 2)
    with Replayed(seed=7):
        third = torch.rand(8, 2)
    assert len({*first[:, 0].tolist(), *second[:, 0].tolist(), *third[:, 0].tolist()}) == 24


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_and_attention_drop_nothing(kind):
    rnn, x = kind(3, 4, num_layers=2, dropout=0.9), torch.randn(5, 2, 3)
    attention = nn.MultiheadAttention(4, 2, dropout=0.9)
    with Replayed(seed=0):
        first = attention(*[rnn(x)[0]] * 3)[0]
    with Replayed(seed=1):
        second = attention(*[rnn(x)[0]] * 3)[0]
    assert torch.equal(first, second)


def test_random_numbers_of_a_device_are_put_back(monkeypatch):
    own = [torch.Generator(), torch.Generator()]
    module = SimpleNamespace(default_generators=own, current_device=lambda: 1)
    monkeypatch.setattr(torch, "xpu", module)
    monkeypatch.setattr(torch.mps, "_get_default_mps_generator", lambda: own[0])
    for name, used in {"xpu": 1, "xpu:0": 0, "mps": 0}.items():
        before = own[used].get_state()
        with rng.forked(torch.device(name), seed=3):
            assert own[used].initial_seed() == 3
            torch.rand(1, generator=own[used])
        assert torch.equal(own[used].get_state(), before)
    assert rng.generators(torch.device("meta")) == rng.generators(torch.device("cpu")) == [torch.default_generator]
