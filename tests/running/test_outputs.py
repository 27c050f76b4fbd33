"""Running a model for its outputs or gradients leaves no trace, and two networks are compared by one rule."""

import random

import numpy.random
import pytest
import torch
import zoo
from references import Trace
from torch import nn

import barebones as bb
from barebones.running.backward import guarded
from barebones.running.modes import restored
from barebones.running.outputs import difference, mismatch, outputs, rounded, tolerance

INF, NAN = float("inf"), float("nan")


def test_random_numbers_start_from_the_seed_and_are_put_back():
    x, before = torch.zeros(2), torch.get_rng_state()
    draw = lambda net, x: x + torch.rand(2) + random.random() + float(numpy.random.rand())
    first, repeated, other = (outputs(zoo.Net(draw), x, seed) for seed in (0, 0, 1))
    assert torch.equal(first, repeated)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("expected", "actual", "gap"),
    [
        ([0.0, 4.0], [0.0, 4.0], 0.0),
        ([0.0, 4.0], [1.0, 4.0], 0.25),
        ([0.0, -4.0], [0.0, 4.0], 2.0),
        ([1e-15, 2e-15], [2e-15, 4e-15], 1.0),  # however small it is
        ([0.0, 0.0], [0.0, 1e-30], 1.0),
        ([NAN, INF, -INF, 1.0], [NAN, INF, -INF, 1.0], 0.0),
        ([NAN, 1.0], [0.0, 1.0], INF),
        ([1.0, 1.0], [NAN, 1.0], INF),
        ([INF, 2.0], [-INF, 2.0], INF),
        ([INF, 2.0], [INF, 1.0], 0.5),  # the scale is that of the finite values
        ([1.0], [1.0, 1.0], INF),
        ([], [], 0.0),
    ],
)
def test_a_difference_is_relative_to_the_largest_value(expected, actual, gap):
    assert difference(torch.tensor(expected), torch.tensor(actual)) == pytest.approx(gap)


def test_rounding_is_measured_where_large_values_cancel():
    """The sum of a number and its negative is noise, in which any order of summation may end."""
    x = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    layer = nn.Linear(100, 1, bias=False)
    layer.weight.data[:, 50:] = layer.weight.data[:, :50]
    layer.weight.data[:, 0] += 1e-7
    model = nn.Sequential(layer)
    example = torch.cat([x, -x], 1)
    expected, actual = outputs(model, example), outputs(model, example.flip(1)) * -1
    noise = lambda: rounded(model, example)
    assert mismatch(expected, actual, tolerance(model))
    assert not mismatch(expected, actual, tolerance(model), noise)
    assert mismatch(expected, expected + 1e-2, tolerance(model), noise)
    assert mismatch(torch.ones(2), torch.ones(2) * 2, 0.1, lambda: torch.ones(2) * NAN)  # a limit that is no number
    assert "differ by inf" in mismatch(expected, expected * NAN, tolerance(model), noise)


def test_randomness_is_not_taken_for_rounding():
    generator = torch.Generator().manual_seed(0)
    model = zoo.Net(lambda net, x: x + torch.rand(2, generator=generator))
    model.__deepcopy__ = lambda memo: model  # a generator cannot be copied
    expected, actual = outputs(model, torch.ones(2)), outputs(model, torch.ones(2))
    assert mismatch(expected, actual, 1e-4, lambda: rounded(model, torch.ones(2), expected=expected))


def test_every_tensor_has_its_own_scale_and_integers_are_not_compared():
    large, small, index = torch.tensor([1000.0]), torch.tensor([1.0]), torch.tensor([3])
    expected = {"large": large, "rest": (small, [index])}
    assert difference(expected, {"large": large + 1, "rest": (small, [index + 1])}) == pytest.approx(1e-3)
    assert difference(expected, {"large": large, "rest": (small + 1, [index])}) == pytest.approx(1.0)
    assert difference(expected, {"large": large, "rest": (small, [index[:0]])}) == INF
    assert difference(expected, large) == INF
    assert difference(torch.tensor([3 + 4j]), torch.tensor([3 - 4j])) == pytest.approx(8 / 5)


def test_the_tolerance_is_that_of_the_least_precise_parameter():
    nets = [nn.Linear(2, 2).to(dtype) for dtype in (torch.float64, torch.float32, torch.half)]
    assert tolerance(nets[0]) < tolerance(nets[1]) < tolerance(nets[2]) == tolerance(nn.Sequential(*nets[::-1]))


def test_expanded_buffers_are_put_back():
    model, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    model.register_buffer("same", torch.ones(2, 1, 1).expand(2, 3, 4))
    with Trace(model), restored(model):
        model(x)
        model.same[:, :1, :1] += torch.tensor([1.0, 2.0]).view(2, 1, 1)
    assert model.same.stride() == (1, 0, 0)
    model, batch = nn.Sequential(nn.Linear(4, 3)), (torch.randn(6, 4), torch.arange(6) % 3)
    model.register_buffer("same", torch.ones(1).expand(5))
    for method in ("snip", "synflow"):
        with Trace(model):
            bb.prune(model, [batch], 0.5, method, on_collapse="ignore")


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_network_with_a_sparse_buffer_is_pruned_and_counted(layout):
    forward = lambda net, x: net.last(torch.relu(net.first(torch.sparse.mm(net.graph, x.T).T)))
    graph = torch.eye(4).to_sparse(layout=layout)
    model = zoo.Net(forward, graph=graph, first=nn.Linear(4, 6), last=nn.Linear(6, 2))
    batches = [(torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 1]))]
    with restored(model):
        model.graph.values().mul_(2) if layout == torch.sparse_csr else model.graph.mul_(2)
    assert torch.equal(model.graph.to_dense(), torch.eye(4))
    for options in ({"method": "snip"}, {"method": "synflow"}, {"method": "force", "bn": "eval", "rounds": 2}):
        masks = bb.prune(model, batches, 0.5, **options, on_collapse="ignore").masks
        assert bb.account(model, masks, batches[0][0]).kept == 18
    masks = {"first.weight": torch.arange(24).view(6, 4) < 12}
    if layout == torch.sparse_coo:
        assert bb.shrink(model, masks, batches[0][0]).module.first.out_features == 3
    else:
        with pytest.raises(ValueError, match=r"cannot be copied \(.*Csr"):
            bb.shrink(model, masks, batches[0][0])


def test_a_group_norm_without_a_gradient_in_torch_is_an_error():
    norm, x = nn.GroupNorm(2, 4), torch.randn(2, 4, 5, 5)

    def gradients(x, unaided):
        y = norm(x)
        with guarded([y], unaided):
            return torch.autograd.grad([y], list(norm.parameters()), [torch.ones_like(y)])

    with pytest.raises(ValueError, match="no gradient of a group-norm"):
        gradients(x.contiguous(memory_format=torch.channels_last), True)
    torch.testing.assert_close(gradients(x.contiguous(memory_format=torch.channels_last), False), gradients(x, True))
