"""Random numbers are put back, and replayed for other widths; randomized networks carry signals; digests of tensors."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import zoo
from references import Trace
from torch import Tensor, nn

from barebones.models import SmallResNet
from barebones.running import digest, rng
from barebones.running.randomize import randomize_
from barebones.running.rng import Replayed
from barebones.scope import matched, parameters

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
    "bernoulli": lambda x: x * x.new_empty(len(x), 1).bernoulli_(0.5) * torch.bernoulli(torch.full_like(x, 0.4)),
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


@pytest.mark.parametrize("name", zoo.ZOO)
def test_pruned_weights_stay_zero_and_signals_keep_their_size(name):
    model, example = zoo.build(name)
    masks = zoo.draw_masks(name, model, 0.5)
    shapes = {key: (p.shape, p.dtype, p.is_contiguous()) for key, p in parameters(model).items()}
    randomize_(model, 1, matched(model, masks))
    assert {key: (p.shape, p.dtype, p.is_contiguous()) for key, p in parameters(model).items()} == shapes
    for _, parameter, mask in matched(model, masks):
        assert bool(((parameter != 0) == mask).all())
    for output in zoo.outputs(model, example):
        assert output.isfinite().all()
        assert 1e-3 < output.abs().max() < 1e3


def test_signals_keep_their_size_in_a_deep_and_very_sparse_network():
    layers = [layer for _ in range(40) for layer in (nn.Linear(64, 64), nn.ReLU())]
    net = nn.Sequential(*layers)
    masks = {name: torch.rand(p.shape) < 0.05 for name, p in net.named_parameters() if p.dim() > 1}
    output = randomize_(net, 0, matched(net, masks))(torch.randn(8, 64))
    assert 0.01 < output.std() < 1000


def test_draws_depend_on_the_seed_alone_and_leave_the_random_state_alone():
    nets = [SmallResNet(3, width=2) for _ in range(3)]
    with Trace(nn.Identity()):
        for net, seed in zip(nets, (0, 0, 1), strict=True):
            randomize_(net, seed)
    first, second, third = (nn.utils.parameters_to_vector(net.parameters()) for net in nets)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def digest_of(tensor: torch.Tensor) -> int:
    return int(digest.of_tensors([tensor]))


def test_a_digest_sees_signs_shapes_and_types():
    x = torch.randn(64, dtype=torch.float64)
    two_signs = x.clone()
    two_signs[[3, 9]] *= -1
    variants = [x, -x, two_signs, x.view(8, 8), x.view(4, 16), x.float(), torch.zeros(8), torch.zeros(4).double()]
    assert len({digest_of(variant) for variant in variants}) == len(variants)


def test_a_digest_does_not_depend_on_the_layout():
    x = torch.randn(3, 5, 7, 9)
    assert digest_of(x) == digest_of(x.to(memory_format=torch.channels_last))
    y = torch.arange(200_000, dtype=torch.float32)  # more than a row of words
    assert digest_of(y) != digest_of(y.flip(0))
    assert digest_of(y[1:]) == digest_of(y[1:].clone())
