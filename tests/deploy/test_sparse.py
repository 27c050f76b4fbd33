"""Models for sparse inference on the CPU: their outputs are those of the masked model, and nothing else changes."""

import copy
import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
import zoo
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from barebones.deploy.shrink import shrink
from barebones.deploy.sparse import SparseLayer, choices, sparsify_for_cpu
from barebones.deploy.sparse import layer as layers
from barebones.running.outputs import difference, outputs


def masked(model: nn.Module, masks: dict[str, Tensor]) -> nn.Module:
    return zoo.masked(model, masks).eval()


class Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        return torch.relu(x + self.inner(x))


def test_layers_that_read_channels_last_images_are_measured_too():
    model, x = Summed().eval().to(memory_format=torch.channels_last), torch.randn(2, 3, 8, 8)
    masks = {"inner.weight": torch.rand(8, 8, 3, 3) < 0.1}
    sparse = sparsify_for_cpu(model, masks, x)
    assert [choice.layer for choice in choices(sparse)] == ["inner"]
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), masked(model, masks)(x))


class Residual(nn.Module):
    """Sums and ReLUs, written in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        self.norm, self.act = nn.BatchNorm2d(4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm(self.a(x)))
        z = F.relu(x + self.b(y))
        u = self.c(z)
        u += y
        u = u.relu()
        return self.d(u) + u.mean((2, 3), keepdim=True)


class Changing(nn.Module):
    """Changes inputs and summands of layers in place before the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y, z = x * 2, x * 3
        u = self.a(y)
        y.add_(1)
        u = u + z
        v = self.b(u)
        z.mul_(5)
        v = F.relu(v + z)
        w = self.c(v)
        torch.relu_(u)
        return (w + v) * u


def trained(model: nn.Module, x: Tensor) -> nn.Module:
    """Run it a few times, so that batch-norm statistics are not the initial ones."""
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(x)
    return model


OWN = {"residual in many ways": Residual, "changing": Changing}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", [*zoo.names(), *OWN])
def test_a_network_computes_what_the_masked_one_does(name: str, monkeypatch):
    monkeypatch.setattr(layers, "REPEATS", 1)
    if name in OWN:
        torch.manual_seed(0)
        model, example = OWN[name](), torch.randn(2, 4, 9, 9)
        trained(model, example)
        masks = zoo.random_masks(model, 0.3)
    else:
        model, example = zoo.build(name)
        masks = zoo.draw_masks(name, model, density=0.3)
    reference, state, rng = masked(model, masks), copy.deepcopy(model.state_dict()), torch.get_rng_state()
    for options in ({"example": example}, {"example": example, "fuse": False}, {}):
        sparse = sparsify_for_cpu(model, masks, **options)
        assert not sparse.training
        assert not any(p.requires_grad for p in sparse.parameters())
        for inputs in (example, zoo.fresh(example)):
            assert difference(outputs(reference, inputs), outputs(sparse, inputs)) < 1e-5
    assert model.training
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "count"), [("mlp", 1), ("vgg", 8), ("resnet", 16), ("mobile", 6), ("functional", 2), ("layer", 1)]
)
def test_relus_behind_layers_are_fused(name: str, count: int):
    model, example = zoo.build(name)
    sparse = sparsify_for_cpu(model, zoo.draw_masks(name, model, density=0.3), example)
    assert sum(module.relu for module in sparse.modules() if isinstance(module, SparseLayer)) == count


def test_fused_operations_are_gone_from_the_graph():
    x = torch.randn(2, 4, 9, 9)
    model = trained(Residual(), x)
    sparse = sparsify_for_cpu(model, zoo.random_masks(model, 0.3), x)
    assert {name: layer.relu for name, layer in sparse.named_children() if isinstance(layer, SparseLayer)} == {
        "a": True,
        "b": True,
        "c": True,
        "d": False,  # its summand is of another shape
    }
    assert sum(node.op == "call_function" for node in sparse.graph.nodes) == 1


class UserActivation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu_()


class Between(nn.Module):
    """A layer, then an operation on the layer's input, then their sum."""

    def __init__(self, operation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.operation = nn.Linear(4, 4), operation

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        return self.layer(x) + self.operation(x)


@pytest.mark.parametrize(
    ("operation", "is_fused"),
    [
        (nn.Tanh(), True),
        (torch.tanh, True),
        (lambda x: x.tanh(), True),
        (nn.ReLU(inplace=True), False),
        (UserActivation(), False),
        (torch.relu_, False),
        (lambda x: F.relu(x, inplace=True), False),
        (lambda x: x.relu_(), False),
        (lambda x: operator.iadd(x, 1), False),
    ],
)
def test_a_sum_is_not_fused_if_its_layer_would_read_a_changed_input(operation, is_fused: bool):
    model = Between(operation)
    sparse = sparsify_for_cpu(model, zoo.random_masks(model, 0.5), torch.zeros(2, 4))  # zeros hide what changes
    sums = [node for node in sparse.graph.nodes if node.op == "call_function" and node.target is operator.add]
    assert len(sums) == (0 if is_fused else 1)
    x = torch.randn(2, 4)
    assert difference(outputs(masked(model, zoo.random_masks(model, 0.5)), x), outputs(sparse, x)) < 1e-5


def test_a_model_that_computes_something_else_is_an_error():
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * (1 if isinstance(self.layer, nn.Linear) else 2)

    with pytest.raises(ValueError, match="Asking cannot be made sparse: the outputs differ by 1 of"):
        sparsify_for_cpu(Asking(), {"layer.weight": torch.eye(2, 4) > 0}, torch.randn(3, 4), fuse=False)


def test_a_model_that_cannot_be_traced_stays_unfused():
    class Branching(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    x = torch.randn(2, 4)
    model = Branching(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    masks = zoo.random_masks(model, 0.5)
    sparse = sparsify_for_cpu(model, masks, x)
    assert type(sparse) is Branching
    for sign in (1, -1):
        torch.testing.assert_close(sparse(sign * x), masked(model, masks)(sign * x).detach())


def test_a_shrunk_model(monkeypatch):
    pytest.importorskip("torch_pruning", reason="shrinking needs Torch-Pruning")
    monkeypatch.setattr(layers, "REPEATS", 1)
    model, x = zoo.build("resnet")
    masks = zoo.draw_masks("resnet", model, density=0.3)
    small = shrink(model, masks, x)
    sparse = sparsify_for_cpu(small.module, small.masks, x)
    assert difference(outputs(masked(model, masks), x), outputs(sparse, x)) < 1e-5


def test_layers_that_stay_dense_are_masked_too():
    class Mine(nn.Linear):
        pass

    hooked, reflected = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")
    hooked.register_forward_hook(lambda module, args, output: output + 1)
    model = nn.Sequential(hooked, reflected, nn.ConvTranspose2d(2, 2, 2), nn.Flatten(), Mine(32, 3), nn.Linear(3, 3))
    masks = zoo.random_masks(model, 0.5)
    x = torch.randn(2, 2, 5, 5)
    sparse = sparsify_for_cpu(model, masks, x, fuse=False)
    assert [type(m) for m in sparse] == [nn.Conv2d, nn.Conv2d, nn.ConvTranspose2d, nn.Flatten, Mine, SparseLayer]
    torch.testing.assert_close(sparse(x), masked(model, masks)(x).detach())


def test_other_types_than_float32_stay_dense():
    model = nn.Linear(4, 2).double()
    sparse = sparsify_for_cpu(model, zoo.random_masks(model, 0.5), torch.randn(1, 4, dtype=torch.double))
    assert type(sparse) is nn.Linear


def test_a_layer_used_twice_stays_one_layer():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    masks = zoo.random_masks(model, 0.5)
    x = torch.randn(3, 4)
    for example in (None, x):
        sparse = sparsify_for_cpu(model, masks, example)
        torch.testing.assert_close(sparse(x), masked(model, masks)(x).detach())
        assert len([m for m in sparse.modules() if isinstance(m, SparseLayer)]) == 1


def test_masks_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="no parameter nothing"):
        sparsify_for_cpu(nn.Linear(2, 2), {"nothing": torch.ones(2, 2) > 0})


def test_choices_list_what_was_measured():
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(48, 2))
    masks = zoo.random_masks(model, 0.5)
    sparse = sparsify_for_cpu(model, masks, torch.randn(1, 2, 4, 4))
    sparse(torch.randn(2, 2, 4, 4))
    listed = choices(sparse)
    assert [(c.layer, c.shape) for c in listed] == [
        ("0", (1, 2, 4, 4)),
        ("0", (2, 2, 4, 4)),
        ("2", (1, 48)),
        ("2", (2, 48)),
    ]
    for choice in listed:
        assert (choice.kept, choice.total) == (
            int(masks[f"{choice.layer}.weight"].sum()),
            6 if choice.layer == "0" else 96,
        )
        if choice.microseconds:
            assert choice.chosen == min(choice.microseconds, key=choice.microseconds.__getitem__)
            assert not choice.reason
    assert len(choices(sparse)) == len(listed)


def test_a_copy_computes_the_same_and_measures_itself():
    x = torch.randn(2, 4, 9, 9)
    model = trained(Residual(), x)
    for example in (None, x):
        sparse = sparsify_for_cpu(model, zoo.random_masks(model, 0.3), example)
        y = sparse(x)
        twin = copy.deepcopy(sparse)
        assert not choices(twin)
        torch.testing.assert_close(twin(x), y)
        assert [choice.layer for choice in choices(twin)] == [choice.layer for choice in choices(sparse)]


def test_a_state_dict_has_the_names_of_the_model_and_loads():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(3, 4)
    masks = zoo.random_masks(model, 0.5)
    sparse, other = (sparsify_for_cpu(m, masks, x, fuse=False) for m in (model, copy.deepcopy(model)))
    assert sparse.state_dict().keys() == model.state_dict().keys()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    other(x)
    other.load_state_dict(sparse.state_dict())
    torch.testing.assert_close(other(x), sparse(x))


def test_moving_to_another_type_computes_densely():
    sparse = sparsify_for_cpu(nn.Linear(4, 2), {"weight": torch.eye(2, 4) > 0}, torch.randn(1, 4))
    x = torch.randn(1, 4)
    y = sparse(x)
    torch.testing.assert_close(sparse.double()(x.double()), y.double())


def test_gradients_are_refused():
    sparse = sparsify_for_cpu(nn.Linear(4, 2), {"weight": torch.eye(2, 4) > 0})
    assert not sparse(torch.randn(1, 4)).requires_grad
    x = torch.randn(1, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="inference only"):
        sparse(x)
    with torch.no_grad():
        sparse(x)


def test_dispatch_modes_and_autocast_see_dense_operations():
    sparse = sparsify_for_cpu(nn.Conv2d(2, 3, 3), {"weight": torch.zeros(3, 2, 3, 3) > 0}, torch.randn(1, 2, 6, 6))
    x = torch.randn(1, 2, 6, 6)
    with FlopCounterMode(display=False) as counter:
        sparse(x)
    assert counter.get_total_flops() == 2 * 16 * 54
    with torch.autocast("cpu", torch.bfloat16):
        assert sparse(x).dtype == torch.bfloat16


def test_wrong_inputs_get_the_error_of_torch():
    sparse = sparsify_for_cpu(nn.Conv2d(2, 3, 3), {"weight": torch.ones(3, 2, 3, 3) > 0})
    with pytest.raises(RuntimeError, match="channels"):
        sparse(torch.randn(1, 5, 6, 6))
    with pytest.raises(RuntimeError, match=r"Kernel size|kernel size"):
        sparse(torch.randn(1, 2, 2, 2))
    assert sparse(torch.randn(0, 2, 6, 6)).shape == (0, 3, 4, 4)


def test_several_threads_call_one_model():
    model = nn.Conv2d(4, 4, 3, padding=1)
    masks = zoo.random_masks(model, 0.3)
    sparse, reference = sparsify_for_cpu(model, masks), masked(model, masks)
    inputs = [torch.randn(1 + k % 3, 4, 12, 12) for k in range(12)]
    with ThreadPoolExecutor(12) as pool:
        for x, y in zip(inputs, pool.map(sparse, inputs), strict=True):
            torch.testing.assert_close(y, reference(x).detach())


def test_weights_may_be_changed_in_place():
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 25, 3))
    masks = zoo.random_masks(model, 0.1)
    images = torch.randn(2, 4, 5, 5)
    fast = sparsify_for_cpu(model, masks)
    with torch.no_grad():
        fast(images)
        for network in (fast, model):
            for parameter in network.parameters():
                parameter.mul_(2)
        for name, mask in masks.items():
            model.get_parameter(name).masked_fill_(~mask, 0)
        torch.testing.assert_close(fast(images), model(images))
        fast[3].weight = nn.Parameter(fast[3].weight + 0, requires_grad=False)
        fast[3].weight.data[fast[3].weight != 0] = 1.0
        model[3].weight[model[3].weight != 0] = 1.0
        torch.testing.assert_close(fast(images), model(images))
