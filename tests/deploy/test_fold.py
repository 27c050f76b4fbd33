"""Folding: the layer does what its batch-norm did, and what cannot be folded stays as it is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import zoo
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from barebones.deploy.fold import NORMS, folded
from barebones.running.outputs import difference, outputs

RANGES = {"running_mean": (-1, 1), "running_var": (0.5, 2), "weight": (-1, 2), "bias": (-1, 1)}


def worn(model: nn.Module) -> nn.Module:
    """Give batch-norms the values of a trained network: no statistic is 0 or 1, and some scales are negative."""
    for module in model.modules():
        for name, (low, high) in RANGES.items() if isinstance(module, NORMS) else ():
            getattr(module, name).data.uniform_(low, high)
    return model


def norms(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, NORMS)]


def check(model: nn.Module, example: Any, left: list[str], tolerance: float = 1e-5) -> nn.Module:
    """Fold; check which batch-norms are left, that the model did not change, and that the copy computes the same."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copy = folded(model, example)
    assert norms(copy) == left
    assert model.training
    assert not copy.training
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in copy.modules())
    other = zoo.fresh(example)
    if isinstance(other, Tensor):
        other = other.to(example.dtype)
    assert difference(outputs(model.eval(), other), outputs(copy, other)) <= tolerance
    return copy


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", zoo.names())
def test_networks_of_the_zoo_have_no_batch_norm_left(name):
    left = {"plain": ["5"]}.get(name, [])  # it has no running statistics
    check(*zoo.build(name), left)


LAYERS = {
    "linear": (lambda: nn.Linear(4, 6), nn.BatchNorm1d, (5, 4)),
    "linear, no bias": (lambda: nn.Linear(4, 6, bias=False), nn.BatchNorm1d, (5, 4)),
    "conv2d, circular": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), nn.BatchNorm2d, (2, 4, 5, 5)),
    "conv2d, synchronized": (lambda: nn.Conv2d(4, 6, 3), nn.SyncBatchNorm, (2, 4, 5, 5)),
    "transposed 2d, grouped": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, groups=2), nn.BatchNorm2d, (2, 4, 5, 5)),
    # here the channels are not where batch-norm expects them
    "stays: linear, a sequence": (lambda: nn.Linear(4, 6), nn.BatchNorm1d, (2, 6, 4)),
    "stays: conv1d, no batch": (lambda: nn.Conv1d(3, 6, 3, padding=1), nn.BatchNorm1d, (3, 6)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_every_layer_folds(kind):
    layer, norm, shape = LAYERS[kind]
    model = nn.Sequential(layer(), norm(6), nn.ReLU(inplace=True))
    model[2].norm = model[1]  # a module under two names
    check(worn(model), torch.randn(shape), ["1"] if kind.startswith("stays") else [])


STAYS: dict[str, Callable[[Any, Tensor], Any]] = {
    "the layer is used twice": lambda net, x: net.m(net.a(net.a(x))),
    "the batch-norm is used twice": lambda net, x: net.m(net.b(F.relu(net.m(net.a(x))))),
    "two batch-norms read it": lambda net, x: net.m(y := net.a(x)) + net.n(y),
    "a sum reads it, too": lambda net, x: net.m(y := net.a(x)) + y,
    "a sum reads it before": lambda net, x: (y := net.a(x)).sum() * net.m(y),
    "a view of it is read": lambda net, x: net.m(y := net.a(x)) + y[:, :1],
    "its data are read through NumPy": lambda net, x: net.m(y := net.a(x)) + torch.from_numpy(y.detach().numpy()),
    "it is changed in place": lambda net, x: net.m(net.a(x).relu_()),
    "it is changed in place by position": lambda net, x: net.m(F.relu(net.a(x), True)),
    "it is changed through a view": lambda net, x: ((y := net.a(x)).view(-1).mul_(2), net.m(y))[1],
    "it is changed through its data": lambda net, x: ((y := net.a(x)).data.neg_(), net.m(y))[1],
    "it is written to by out=": lambda net, x: (y := net.a(x), torch.neg(y.clone(), out=y), net.m(y))[2],
    "it is read after the result changed in place": lambda net, x: F.relu(net.m(y := net.a(x)), True) + y,
    "it is returned": lambda net, x: (net.m(y := net.a(x)), {"features": y}),
    "a ReLU stands between": lambda net, x: net.m(F.relu(net.a(x))),
    "its weight is read elsewhere": lambda net, x: net.m(F.conv2d(net.a(x), net.a.weight)),
    "the batch-norm's weight is read": lambda net, x: net.m(net.a(x)) * net.m.weight.sum(),
    "batch-norm comes first": lambda net, x: net.a(net.m(x)),
    "the other pair folds: forward is called past the hooks": lambda net, x: net.m(net.a.forward(x)) + net.n(net.b(x)),
    "the other pair folds: a sum reads it": lambda net, x: net.n(net.b(net.m(y := net.a(x)) + y)),
}


def two_pairs(forward: Callable[[Any, Tensor], Any], **layers: nn.Module) -> nn.Module:
    """Return a network of two convolutions, `a` and `b`, and two batch-norms, `m` and `n`."""
    layers = dict(a=nn.Conv2d(3, 3, 3, padding=1), b=nn.Conv2d(3, 3, 1, bias=False)) | layers
    return worn(zoo.Net(forward, **layers, m=nn.BatchNorm2d(3), n=nn.BatchNorm2d(3)))


@pytest.mark.parametrize("why", STAYS)
def test_what_cannot_be_folded_stays(why):
    left = ["m"] if why.startswith("the other pair folds") else ["m", "n"]
    check(two_pairs(STAYS[why]), torch.randn(2, 3, 5, 5), left)


def test_a_result_that_changes_in_place_folds():
    check(
        two_pairs(lambda net, x: F.relu(net.m(net.a(x)), True) + net.n(net.b(x)).mul_(2)), torch.randn(2, 3, 5, 5), []
    )


def test_a_batch_norm_that_stays_in_train_mode_is_not_folded():
    class Stubborn(nn.Sequential):
        def train(self, mode: bool = True) -> nn.Module:
            return super().train()

    model = nn.Sequential(Stubborn(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    nn.init.zeros_(model[0][1].weight)  # it hides the statistics
    assert norms(folded(model, torch.randn(4, 3))) == ["0.1"]


@pytest.mark.parametrize("scale", [0.0, 1e-7, 1.0])
def test_the_comparison_does_not_depend_on_the_present_values(scale):
    """A layer is read in a way that folding does not see, behind a scale that hides it or makes it tiny."""
    model = zoo.Net(lambda net, x: (net.norm(y := net.layer(x)) + torch.tensor(y.tolist())) * net.scale,
                    layer=nn.Linear(3, 2), norm=nn.BatchNorm1d(2), scale=nn.Parameter(torch.tensor(scale)))  # fmt: skip
    with pytest.raises(ValueError, match=r"batch-norm cannot be folded in Net: .*the outputs differ by"):
        folded(worn(model), torch.randn(4, 3))


def test_a_weight_of_two_layers_stays():
    model = two_pairs(lambda net, x: net.n(net.b(net.m(net.a(x)))), a=nn.Conv2d(3, 3, 1))
    model.b.weight = model.a.weight
    copy = check(model, torch.randn(2, 3, 5, 5), ["m", "n"])
    assert copy.a.weight is copy.b.weight


def test_hooks_and_parametrizations_stay():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    model[0].register_forward_hook(lambda module, args, output: None)
    parametrizations.weight_norm(model[2])
    copy = folded(worn(model), torch.randn(2, 3, 5, 5))
    assert norms(copy) == ["1", "3"]
    assert copy[0]._forward_hooks


@pytest.mark.parametrize(("kind", "limit"), [(torch.float64, 1e-12), (torch.float16, 2e-2), (torch.bfloat16, 1e-1)])
def test_dtypes_and_memory_formats_stay(kind, limit):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(kind, memory_format=torch.channels_last)
    model[0].weight.requires_grad_(False)
    copy = check(worn(model), torch.randn(2, 3, 5, 5).to(kind), [], limit)
    assert copy[0].weight.dtype == copy[0].bias.dtype == kind
    assert copy[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not copy[0].weight.requires_grad


def test_pruned_weights_stay_zero():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    nn.init.zeros_(model[0].weight)
    nn.init.constant_(model[1].weight, -1)
    assert not folded(model, torch.zeros(1, 3))[0].weight.signbit().any()


def test_examples_are_what_the_model_is_called_with():
    model = zoo.Net(lambda net, x, times: {"out": net.norm(input=net.linear(x.relu_())) * times},
                    linear=nn.Linear(3, 2), norm=nn.BatchNorm1d(2))  # fmt: skip
    x, times = torch.randn(4, 3), torch.tensor(2.0)
    before = x.clone()
    for example in ((x, times), {"x": x, "times": times}, ((x,), {"times": times})):
        assert not norms(folded(model, example))
    assert torch.equal(x, before)  # the model changes its input in place; a copy of it


def test_random_numbers_and_wrappers_do_not_matter():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.ReLU())
    model.register_forward_hook(lambda module, args, output: output + torch.rand_like(output))
    x, before = torch.randn(4, 3), torch.get_rng_state()
    assert isinstance(folded(nn.DataParallel(model), x), nn.Sequential)
    assert torch.equal(before, torch.get_rng_state())


def test_outputs_that_differ_are_an_error():
    layers = [nn.Linear(3, 2), nn.BatchNorm1d(2)]
    model = zoo.Net(lambda net, x: net.steps[1](net.steps[0](x)), linear=layers[0], norm=layers[1],
                    steps=layers)  # fmt: skip # folding does not look into lists
    with pytest.raises(ValueError, match="batch-norm cannot be folded in Net: the outputs differ by"):
        folded(worn(model), torch.randn(4, 3))
