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


def worn(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give batch-norms the values of a trained network: no statistic is 0 or 1, and some scales are negative."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, NORMS) and module.running_mean is not None:
            for tensor, low, high in (
                (module.running_mean, -1, 1),
                (module.running_var, 0.5, 2),
                (module.weight, -1, 2),
                (module.bias, -1, 1),
            ):
                if tensor is not None:
                    with torch.no_grad():
                        tensor.uniform_(low, high, generator=generator)
    return model


def norms(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, NORMS)]


def noise(*shape: int, seed: int = 0, **kind: Any) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(**kind)


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


class Net(nn.Module):
    """Two convolutions, two batch-norms, and a forward function given by the test."""

    def __init__(self, forward: Callable[["Net", Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1, bias=False)
        self.m, self.n = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", zoo.names())
def test_networks_of_the_zoo_have_no_batch_norm_left(name):
    left = {"plain": ["5"]}.get(name, [])  # it has no running statistics
    check(*zoo.build(name), left)


LAYERS = {
    "linear": (lambda: nn.Linear(4, 6), nn.BatchNorm1d, (5, 4)),
    "linear, no bias": (lambda: nn.Linear(4, 6, bias=False), nn.BatchNorm1d, (5, 4)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), nn.BatchNorm1d, (2, 4, 7)),
    "conv2d, circular": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), nn.BatchNorm2d, (2, 4, 5, 5)),
    "conv2d, grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d, (2, 4, 5, 5)),
    "conv2d, depthwise": (lambda: nn.Conv2d(6, 6, 3, groups=6, bias=False), nn.BatchNorm2d, (2, 6, 5, 5)),
    "conv2d, synchronized": (lambda: nn.Conv2d(4, 6, 3), nn.SyncBatchNorm, (2, 4, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(4, 6, 2), nn.BatchNorm3d, (2, 4, 3, 3, 3)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 6, 3, bias=False), nn.BatchNorm1d, (2, 4, 5)),
    "transposed 2d, grouped": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, groups=2), nn.BatchNorm2d, (2, 4, 5, 5)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(4, 6, 2), nn.BatchNorm3d, (2, 4, 3, 3, 3)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_every_layer_folds(kind):
    layer, norm, shape = LAYERS[kind]
    check(worn(nn.Sequential(layer(), norm(6), nn.ReLU(inplace=True))), noise(*shape), [])


STAYS: dict[str, tuple[Callable[[Net, Tensor], Any], list[str]]] = {
    "the layer is used twice": (lambda s, x: s.m(s.a(s.a(x))), ["m", "n"]),
    "the batch-norm is used twice": (lambda s, x: s.m(s.b(F.relu(s.m(s.a(x))))), ["m", "n"]),
    "the batch-norm reads its own output": (lambda s, x: s.m(s.m(s.a(x))), ["m", "n"]),
    "two batch-norms read it": (lambda s, x: s.m(y := s.a(x)) + s.n(y), ["m", "n"]),
    "a sum reads it, too": (lambda s, x: s.m(y := s.a(x)) + y, ["m", "n"]),
    "a sum reads it before": (lambda s, x: (y := s.a(x)).sum() * s.m(y), ["m", "n"]),
    "a view of it is read": (lambda s, x: s.m(y := s.a(x)) + y[:, :1], ["m", "n"]),
    "its data are read": (lambda s, x: s.m(y := s.a(x)) + y.data * 2, ["m", "n"]),
    "its data are read through NumPy": (
        lambda s, x: s.m(y := s.a(x)) + torch.from_numpy(y.detach().numpy()),
        ["m", "n"],
    ),
    "it is changed in place": (lambda s, x: s.m(s.a(x).relu_()), ["m", "n"]),
    "it is returned": (lambda s, x: (s.m(y := s.a(x)), {"features": y}), ["m", "n"]),
    "a ReLU stands between": (lambda s, x: s.m(F.relu(s.a(x))), ["m", "n"]),
    "its weight is read elsewhere": (lambda s, x: s.m(F.conv2d(s.a(x), s.a.weight)), ["m", "n"]),
    "the layer's weight regularizes": (lambda s, x: s.m(s.a(x)) + s.a.weight.sum(), ["m", "n"]),
    "the batch-norm's weight is read": (lambda s, x: s.m(s.a(x)) * s.m.weight.sum(), ["m", "n"]),
    "forward is called past the hooks": (lambda s, x: s.m(s.a.forward(x)) + s.n(s.b(x)), ["m"]),
    "only one of two pairs": (lambda s, x: s.n(s.b(s.m(y := s.a(x)) + y)), ["m"]),
    "batch-norm comes first": (lambda s, x: s.a(s.m(x)), ["m", "n"]),
}


@pytest.mark.parametrize("why", STAYS)
def test_what_cannot_be_folded_stays(why):
    forward, left = STAYS[why]
    check(worn(Net(forward)), noise(2, 3, 5, 5), left)


def test_a_weight_of_two_layers_stays():
    model = worn(Net(lambda s, x: s.n(s.b(s.m(s.a(x))))))
    model.a = nn.Conv2d(3, 3, 1)
    model.b.weight = model.a.weight
    copy = check(model, noise(2, 3, 5, 5), ["m", "n"])
    assert copy.a.weight is copy.b.weight


def test_channels_elsewhere_than_batch_norm_expects_them_stay():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))  # of a sequence of six
    check(worn(model), noise(2, 6, 4), ["1"])
    model = nn.Sequential(nn.Conv1d(3, 6, 3, padding=1), nn.BatchNorm1d(6))  # without a batch
    check(worn(model), noise(3, 6), ["1"])


def test_hooks_and_parametrizations_stay():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    seen: list[Tensor] = []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output))
    parametrizations.weight_norm(model[2])
    copy = folded(worn(model), noise(2, 3, 5, 5))
    assert norms(copy) == ["1", "3"]
    assert copy[0]._forward_hooks


def test_a_module_under_two_names_folds():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model.again = nn.Identity()
    model.again.norm = model[1]
    check(worn(model), noise(2, 3, 5, 5), [])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float16, 2e-2), (torch.bfloat16, 1e-1)]
)
def test_dtypes_and_memory_formats_stay(dtype, tolerance):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(dtype, memory_format=torch.channels_last)
    model[0].weight.requires_grad_(False)
    copy = check(worn(model), noise(2, 3, 5, 5, dtype=dtype), [], tolerance)
    assert copy[0].weight.dtype == copy[0].bias.dtype == dtype
    assert copy[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not copy[0].weight.requires_grad


def test_pruned_weights_stay_zero():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    nn.init.zeros_(model[0].weight)
    nn.init.constant_(model[1].weight, -1)
    assert not folded(model, torch.zeros(1, 3))[0].weight.signbit().any()


def test_examples_are_what_the_model_is_called_with():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)

        def forward(self, x: Tensor, times: Tensor) -> dict[str, Tensor]:
            return {"out": self.norm(input=self.linear(x.relu_())) * times}

    x, times = noise(4, 3), torch.tensor(2.0)
    for example in ((x, times), {"x": x, "times": times}, ((x,), {"times": times})):
        assert not norms(folded(worn(Two()), example))
    assert torch.equal(x, noise(4, 3))  # the model changes its input in place; a copy of it


def test_random_numbers_and_wrappers_do_not_matter():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.ReLU())
    model.register_forward_hook(lambda module, args, output: output + torch.rand_like(output))
    before = torch.get_rng_state()
    assert isinstance(folded(worn(nn.DataParallel(model)), noise(4, 3)), nn.Sequential)
    assert torch.equal(before, torch.get_rng_state())


def test_outputs_that_differ_are_an_error():
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)
            self.steps = [self.linear, self.norm]  # where folding does not look

        def forward(self, x: Tensor) -> Tensor:
            for step in self.steps:
                x = step(x)
            return x

    with pytest.raises(ValueError, match="batch-norm cannot be folded in Hidden: the outputs differ by"):
        folded(worn(Hidden()), noise(4, 3))
