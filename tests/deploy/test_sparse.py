"""Models for sparse inference on the CPU: their outputs are those of the masked model, and nothing else changes."""

import copy
import operator
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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


def same(sparse: nn.Module, model: nn.Module, masks: Mapping[str, Tensor], *inputs: Any) -> bool:
    """Tell whether the sparse model computes what the masked model computes for these inputs."""
    masked = zoo.masked(model, masks).eval()
    return all(difference(outputs(masked, x), outputs(sparse, x)) < 1e-5 for x in inputs)


def sparse_layers(model: nn.Module) -> list[SparseLayer]:
    return [module for module in model.modules() if isinstance(module, SparseLayer)]


def residual() -> nn.Module:
    """Sums and ReLUs, written in several ways."""

    def forward(net: Any, x: Tensor) -> Tensor:
        y = net.act(net.norm(net.a(x)))
        z = F.relu(x + net.b(y))
        u = net.c(z)
        u += y
        u = u.relu()
        return net.d(u) + u.mean((2, 3), keepdim=True)

    convolutions = {name: nn.Conv2d(4, 4, 3, padding=1) for name in "abcd"}
    return zoo.Net(forward, **convolutions, norm=nn.BatchNorm2d(4), act=nn.ReLU(inplace=True))


FUSED_RELUS = {"mlp": 1, "vgg": 8, "resnet": 16, "mobile": 6, "functional": 2, "layer": 1, "residual": 3}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", [*zoo.names(), "residual"])
def test_a_network_computes_what_the_masked_one_does(name, monkeypatch):
    monkeypatch.setattr(layers, "REPEATS", 1)
    model, example = (residual(), torch.randn(2, 4, 9, 9)) if name == "residual" else zoo.build(name)
    masks = zoo.draw_masks(name, model, density=0.3) if name in zoo.ZOO else zoo.random_masks(model, 0.3)
    state, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    for options in ({"example": example}, {"example": example, "fuse": False}, {}):
        sparse = sparsify_for_cpu(model, masks, **options)
        assert not sparse.training
        assert not any(p.requires_grad for p in sparse.parameters())
        assert same(sparse, model, masks, example, zoo.fresh(example))
        if "fuse" not in options and options and name in FUSED_RELUS:
            assert sum(layer.relu for layer in sparse_layers(sparse)) == FUSED_RELUS[name]
            if name == "residual":  # only the last sum is left, because its terms have two shapes
                assert sum(node.op == "call_function" for node in sparse.graph.nodes) == 1
    assert model.training
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


class UserActivation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu_()


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
def test_a_sum_is_not_fused_if_its_layer_would_read_a_changed_input(operation, is_fused):
    model = zoo.Net(lambda net, x: net.layer(y := x * 2) + net.operation(y), layer=nn.Linear(4, 4), operation=operation)
    masks = zoo.random_masks(model, 0.5)
    sparse = sparsify_for_cpu(model, masks, torch.zeros(2, 4))  # zeros hide what changes
    sums = [node for node in sparse.graph.nodes if node.op == "call_function" and node.target is operator.add]
    assert len(sums) == (0 if is_fused else 1)
    assert same(sparse, model, masks, torch.randn(2, 4))


@torch.fx.wrap
def doubled_if_positive(x: Tensor) -> Tensor:
    return x.mul_(2) if (x > 0).any() else x


# Ways to change the tensor that a layer has read, before the sum that the layer could be moved to.
CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "relu by position": lambda y: F.relu(y, True),
    "leaky relu by position": lambda y: F.leaky_relu(y, 0.1, True),
    "hardtanh by position": lambda y: F.hardtanh(y, -0.5, 0.5, True),
    "threshold by position": lambda y: F.threshold(y, 0.1, 0.2, True),
    "silu by position": lambda y: F.silu(y, True),
    "dropout": lambda y: F.dropout(y, 0.5, True, True),
    "add_": lambda y: y.add_(1),
    "power": lambda y: operator.ipow(y, 2),
    "out": lambda y: torch.add(y, 1, out=y),
    "a flat view": lambda y: y.view(-1).mul_(2).view(2, 4),
    "some columns": lambda y: y[:, :2].mul_(2).sum(),
    "transposed": lambda y: y.t().relu_().t(),
    "detached": lambda y: y.detach().neg_(),
    "data": lambda y: y.data.neg_(),
    "a list of tensors": lambda y: torch._foreach_neg_([y])[0],
    "copied": lambda y: y.copy_(y + 1),
    "item assignment": lambda y: operator.setitem(y, slice(None), y + 1) or y,
    "a function of the user": doubled_if_positive,
}


def zero_at_first(forward: Callable[[Any, Tensor], Any], **parts: Any) -> nn.Module:
    """Return a network whose output is multiplied by a parameter that is zero, and hides everything at first."""
    layers = dict(a=nn.Linear(4, 4), b=nn.Linear(4, 4), act=nn.ReLU(inplace=True)) | parts
    return zoo.Net(lambda net, x: forward(net, x) * net.scale, **layers, scale=nn.Parameter(torch.zeros(())))


def check_when_it_moves(model: nn.Module) -> nn.Module:
    """Make it sparse while its output is zero; then compare several calls with another scale, and return it."""
    masks = zoo.random_masks(model, 0.5)
    sparse = sparsify_for_cpu(model, masks, torch.zeros(2, 4))
    for network in (model, sparse):
        network.scale.data.fill_(1)
    inputs = [torch.randn(2, 4) for _ in range(3)]
    assert same(sparse, model, masks, *inputs, *inputs)
    return sparse


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_does_not_move_behind_a_change_of_its_input(change):
    check_when_it_moves(zero_at_first(lambda net, x: net.a(y := x * 2) + CHANGES[change](y)))


READ_LATER: dict[str, Callable[[Any, Tensor], Any]] = {
    "after a relu by position": lambda net, x: F.relu(y := net.a(x), True) + y.exp(),
    "after a relu": lambda net, x: F.relu(y := net.a(x)) + y,
    "after relu_": lambda net, x: (y := net.a(x)).relu_() * 0 + y,
    "after a module in place": lambda net, x: net.act(y := net.a(x)) * 2 + y,
    "a view": lambda net, x: ((y := net.a(x)).view(-1), F.relu(y, True))[0].view(2, 4),
    "a view of a sum": lambda net, x: (v := (y := net.a(x) + x).view(-1)) * net.act(y).view(-1) + v,
    "the input, changed": lambda net, x: net.a(x) + x.relu_() + x,
    "the term that the sum is added to": lambda net, x: operator.iadd(y := x * 2, net.a(x)) + y,
    "the layer that is added to": lambda net, x: operator.iadd(y := net.a(x), x) + y,
    "a sum into another tensor": lambda net, x: torch.add(y := x * 2, net.a(x), out=y) + y,
    "the type stays in place": lambda net, x: operator.iadd(net.a(x), x.double()),
    "the same layer": lambda net, x: F.relu(net.a(x)) + net.a(x),
    "zeros of each call": lambda net, x: operator.iadd(torch.zeros(2, 4), net.a(x)),
    "random numbers of each call": lambda net, x: net.a(x) * (1 + torch.rand(2, 4)),
    "a tensor that the network keeps": lambda net, x: net.a(x) + net.kept.add_(1),
    "a value from a buffer": lambda net, x: net.a(x) * (net.kept + 1),
    "names of arguments": lambda net, x: net.act(input=net.none(input=net.a(input=x))) + F.relu(input=net.b(x)),
}


@pytest.mark.parametrize("read", READ_LATER)
def test_what_is_read_later_is_what_the_network_computes(read):
    model = zero_at_first(READ_LATER[read], kept=torch.zeros(2, 4), none=nn.Identity())
    if read == "a tensor that the network keeps":
        sparse = check_when_it_moves(copy.deepcopy(model))
        assert type(sparse).__name__ == "Net"  # and not a graph
    else:
        check_when_it_moves(model)


@pytest.mark.parametrize("hooked", ["", "act", "none", "block"])
def test_hooks_still_run(hooked):
    block = zoo.Net(lambda net, x: net.act(net.none(net.a(x))), a=nn.Linear(4, 4), none=nn.Identity(), act=nn.ReLU())
    model, seen = zoo.Net(lambda net, x: net.block(x), block=block), []
    module = {"": model, "block": block}.get(hooked) or block.get_submodule(hooked)
    module.register_forward_hook(lambda module, args, output: seen.append(type(output)))
    sparse = sparsify_for_cpu(model, zoo.random_masks(model, 0.5), torch.randn(2, 4))
    seen.clear()
    sparse(torch.randn(2, 4))
    assert seen == [Tensor]


def test_the_example_does_not_change():
    model, x = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    before = x.clone()
    sparsify_for_cpu(model, zoo.random_masks(model, 0.5), x)
    assert torch.equal(x, before)


def test_what_cannot_be_folded_is_still_sparse():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    model.register_forward_hook(lambda module, args, output: output + module[1].eps)  # an identity has no eps
    masks, x = zoo.random_masks(model, 0.5), torch.randn(2, 4)
    sparse = sparsify_for_cpu(model, masks, x)
    assert type(sparse[1]) is nn.BatchNorm1d
    assert same(sparse, model, masks, x)


def test_buffers_may_be_expanded_and_weights_may_not_share_memory():
    shared = nn.Parameter(torch.randn(1, 4))
    model = zoo.Net(lambda net, x: net.a(x) + net.rows + net.zeros, a=nn.Linear(4, 4), shared=shared,
                    rows=shared.expand(2, 4), zeros=torch.zeros(1).expand(2, 4))  # fmt: skip
    model.results = {"last": [shared * 2]}
    masks, x = zoo.random_masks(model.a, 0.5), torch.randn(2, 4)
    masks = {f"a.{name}": mask for name, mask in masks.items()}
    sparse = sparsify_for_cpu(model, masks, x)
    torch.testing.assert_close(sparse(x), F.linear(x, model.a.weight * masks["a.weight"], model.a.bias) + shared)
    model.rows = model.a.weight.detach()[:2]
    with pytest.raises(ValueError, match=r"a\.weight and rows share memory, so pruning changes both; clone\(\) one"):
        sparsify_for_cpu(model, masks, x)


def test_a_model_that_computes_something_else_is_an_error():
    model = zoo.Net(lambda net, x: net.layer(x) * (1 if isinstance(net.layer, nn.Linear) else 2), layer=nn.Linear(4, 2))
    with pytest.raises(ValueError, match="Net cannot be made sparse: the outputs differ by 1 of"):
        sparsify_for_cpu(model, {"layer.weight": torch.eye(2, 4) > 0}, torch.randn(3, 4), fuse=False)


def test_a_model_that_cannot_be_traced_stays_unfused():
    model = zoo.Net(lambda net, x: net.mlp(x if x.sum() > 0 else -x), mlp=zoo.build("mlp")[0])
    masks, x = zoo.random_masks(model, 0.5), torch.randn(2, 4)
    sparse = sparsify_for_cpu(model, masks, x)
    assert type(sparse) is type(model)
    assert same(sparse, model, masks, x, -x)


@pytest.mark.parametrize("kind", ["shrunk", "channels last"])
def test_shrunk_and_channels_last_models_have_sparse_layers(kind, monkeypatch):
    monkeypatch.setattr(layers, "REPEATS", 1)
    model, x = zoo.build("resnet")
    masks = zoo.draw_masks("resnet", model, density=0.3)
    if kind == "shrunk":
        small = shrink(model, masks, x)
        sparse = sparsify_for_cpu(small.module, small.masks, x)
    else:
        sparse = sparsify_for_cpu(model.to(memory_format=torch.channels_last), masks, x)
    assert len(choices(sparse)) == len(sparse_layers(sparse)) > 0
    assert same(sparse, model, masks, x)


def test_layers_that_stay_dense_are_masked_too():
    class Mine(nn.Linear):
        pass

    hooked, reflected = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")
    hooked.register_forward_hook(lambda module, args, output: output + 1)
    model = nn.Sequential(hooked, reflected, nn.ConvTranspose2d(2, 2, 2), nn.Flatten(), Mine(32, 3), nn.Linear(3, 3))
    masks, x = zoo.random_masks(model, 0.5), torch.randn(2, 2, 5, 5)
    sparse = sparsify_for_cpu(model, masks, x, fuse=False)
    assert [type(m) for m in sparse] == [nn.Conv2d, nn.Conv2d, nn.ConvTranspose2d, nn.Flatten, Mine, SparseLayer]
    assert same(sparse, model, masks, x)
    double = nn.Linear(4, 2).double()
    assert type(sparsify_for_cpu(double, zoo.random_masks(double, 0.5))) is nn.Linear


def test_a_layer_under_two_names_stays_one_layer():
    shared, x = nn.Linear(4, 4), torch.randn(3, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    masks = zoo.random_masks(model, 0.5)
    for example in (None, x):
        sparse = sparsify_for_cpu(model, masks, example)
        assert same(sparse, model, masks, x)
        assert len(sparse_layers(sparse)) == 1


def test_choices_list_what_was_measured():
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(48, 2))
    masks = zoo.random_masks(model, 0.5)
    sparse = sparsify_for_cpu(model, masks, torch.randn(1, 2, 4, 4))
    sparse(torch.randn(2, 2, 4, 4))
    kept = {name: int(masks[f"{name}.weight"].sum()) for name in "02"}
    assert [(c.layer, c.shape, c.kept, c.total) for c in choices(sparse)] == [
        *(("0", (batch, 2, 4, 4), kept["0"], 6) for batch in (1, 2)),
        *(("2", (batch, 48), kept["2"], 96) for batch in (1, 2)),
    ]
    for choice in choices(sparse):
        times = choice.microseconds
        assert not times or (choice.chosen == min(times, key=times.__getitem__) and not choice.reason)


def test_a_copy_computes_the_same_and_measures_itself():
    model, x = zoo.build("resnet")
    for example in (None, x):
        sparse = sparsify_for_cpu(model, zoo.random_masks(model, 0.3), example)
        y = sparse(x)
        twin = copy.deepcopy(sparse)
        assert not choices(twin)
        torch.testing.assert_close(twin(x), y)
        assert [choice.layer for choice in choices(twin)] == [choice.layer for choice in choices(sparse)]


def test_weights_may_be_changed():
    model, x = zoo.build("mlp")
    masks = zoo.random_masks(model, 0.5)
    sparse = sparsify_for_cpu(model, masks, x, fuse=False)
    assert sparse.state_dict().keys() == model.state_dict().keys()
    with torch.no_grad():
        for parameter in (*model.parameters(), *sparse.parameters()):
            parameter.mul_(2)
    assert same(sparse, model, masks, x)
    sparse[2].weight = nn.Parameter(sparse[2].weight * 3, requires_grad=False)
    model[2].weight.data.mul_(3)
    assert same(sparse, model, masks, x)
    other, _ = zoo.build("mlp", seed=1)
    sparse.load_state_dict(zoo.masked(other, masks).state_dict())
    assert same(sparse, other, masks, x)


@pytest.fixture
def sparse() -> nn.Module:
    """A sparse convolution, and none of its weights is pruned."""
    return sparsify_for_cpu(nn.Conv2d(2, 3, 3), {"weight": torch.ones(3, 2, 3, 3) > 0}, torch.randn(1, 2, 6, 6))


def test_other_types_autocast_and_dispatch_modes_get_dense_operations(sparse):
    x = torch.randn(1, 2, 6, 6)
    with FlopCounterMode(display=False) as counter:
        y = sparse(x)
    assert counter.get_total_flops() == 2 * 16 * 54
    with torch.autocast("cpu", torch.bfloat16):
        assert sparse(x).dtype == torch.bfloat16
    torch.testing.assert_close(sparse.double()(x.double()), y.double())


def test_gradients_are_refused(sparse):
    x = torch.randn(1, 2, 6, 6)
    assert not sparse(x).requires_grad
    with pytest.raises(RuntimeError, match="inference only"):
        sparse(x.requires_grad_())
    with torch.no_grad():
        sparse(x)


def test_wrong_inputs_get_the_error_of_torch(sparse):
    with pytest.raises(RuntimeError, match="channels"):
        sparse(torch.randn(1, 5, 6, 6))
    with pytest.raises(RuntimeError, match=r"Kernel size|kernel size"):
        sparse(torch.randn(1, 2, 2, 2))
    assert sparse(torch.randn(0, 2, 6, 6)).shape == (0, 3, 4, 4)
    assert sparse(torch.randn(2, 6, 6)).shape == (3, 4, 4)  # one image without a batch


def test_several_threads_call_one_model(sparse):
    inputs = [torch.randn(1 + k % 3, 2, 12, 12) for k in range(12)]
    with ThreadPoolExecutor(12) as pool:
        for x, y in zip(inputs, pool.map(sparse, inputs), strict=True):
            torch.testing.assert_close(y, F.conv2d(x, sparse.weight, sparse.bias))


def test_a_layer_whose_weight_is_only_read_stays_as_it_is():
    merged = lambda net, x: net.out(F.linear(x, net.layer.weight + net.b @ net.a, net.layer.bias))
    a, b = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(4, 2))
    model, x = zoo.Net(merged, layer=nn.Linear(6, 4), out=nn.Linear(4, 3), a=a, b=b), torch.randn(3, 6)
    masks = zoo.random_masks(model, 0.5)
    assert same(sparsify_for_cpu(model, masks, x), model, masks, x)


def test_a_scripted_part_is_refused_in_a_sentence():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        scripted = torch.jit.script(nn.Linear(6, 2))
    model = nn.Sequential(nn.Linear(4, 6), scripted)
    with pytest.raises(ValueError, match=r"^1 is scripted; pass the model before torch\.jit\.script$"):
        sparsify_for_cpu(model, {"0.weight": torch.eye(6, 4) > 0})
