"""Sparse execution on the CPU: the outputs are those of the masked model, and nothing else changes."""

import copy
import operator
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from barebones.deploy.shrink import shrink
from barebones.deploy.sparse import LayerChoice, SparseLayer, choices, load_kernel, plan, sparsify_for_cpu
from barebones.deploy.sparse import layer as layers
from barebones.deploy.sparse.engine import cache_folder
from barebones.running.outputs import difference, outputs
from barebones.scope import prunable

needs_kernel = pytest.mark.skipif(isinstance(load_kernel(), str), reason=f"{load_kernel()}")


def pruned(weight: Tensor, density: float, seed: int = 0) -> Tensor:
    return torch.rand(weight.shape, generator=torch.Generator().manual_seed(seed)) < density


def masks_of(model: nn.Module, density: float, seed: int = 0) -> dict[str, Tensor]:
    return {name: pruned(weight, density, seed) for name, weight in prunable(model).items()}


def masked(model: nn.Module, masks: dict[str, Tensor]) -> nn.Module:
    return zoo.masked(model, masks).eval()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with this many threads, however small the work is."""
    before, tiny = torch.get_num_threads(), plan.TINY
    torch.set_num_threads(count)
    plan.TINY = 0
    try:
        yield
    finally:
        torch.set_num_threads(before)
        plan.TINY = tiny


def all_outputs(layer: nn.Module, x: Tensor, add: Tensor | None = None, relu: bool = False) -> dict[str, Tensor]:
    """Return the output of each implementation."""
    sparse = SparseLayer(layer)
    sparse.relu = relu
    with torch.no_grad():
        available, _ = sparse.implementations(x)
        return {name: compute(x, add) for name, compute in available.items()}


def agree(layer: nn.Module, x: Tensor, add: Tensor | None = None, relu: bool = False) -> None:
    """Check that every implementation computes what the layer computes in float64."""
    with torch.no_grad():
        exact = copy.deepcopy(layer).double()(x.double())
        exact = exact if add is None else exact + add.double()
        exact = exact.relu() if relu else exact
    results = all_outputs(layer, x, add, relu)
    assert "sparse" in results
    for name, y in results.items():
        assert y.shape == exact.shape, name
        assert y.dtype == x.dtype
        torch.testing.assert_close(y.double(), exact, rtol=1e-4, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}")


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """Draw a convolution of some density, and an input for it."""
    dims = draw(st.sampled_from([1, 2, 2, 2]))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels, rows = groups * draw(st.integers(1, 5)), groups * draw(st.integers(1, 6))
    small = st.integers(1, 3)
    kernel, stride, dilation = ([draw(small) for _ in range(dims)] for _ in range(3))
    padding = draw(st.sampled_from(["same", "valid", *range(12)]))
    stride = [1] * dims if padding == "same" else stride
    padding = padding if isinstance(padding, str) else [draw(st.integers(0, 3)) for _ in range(dims)]
    sides = [draw(st.one_of(st.integers(1, 9), st.sampled_from([16, 17, 23, 32, 40]))) for _ in range(dims)]
    sides = [max(n, d * (k - 1) + 1) for n, d, k in zip(sides, dilation, kernel, strict=True)]
    kind = nn.Conv1d if dims == 1 else nn.Conv2d
    torch.manual_seed(draw(st.integers(0, 99)))
    layer = kind(channels, rows, kernel, stride, padding, dilation, groups, bias=draw(st.booleans()))
    density = draw(st.sampled_from([0.0, 0.02, 0.1, 0.3, 0.7, 1.0]))
    layer.weight.data.mul_(pruned(layer.weight, density))
    return layer, torch.randn(draw(st.sampled_from([1, 2, 3, 8])), channels, *sides)


@needs_kernel
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(max_examples=100)
@given(convolutions(), st.sampled_from([1, 1, 2, 3]), st.booleans(), st.booleans())
def test_a_convolution_computes_what_the_dense_one_does(
    drawn: tuple[nn.Module, Tensor], count: int, relu: bool, summed: bool
) -> None:
    layer, x = drawn
    with threads(count):
        with torch.no_grad():
            add = torch.randn_like(layer(x)) if summed else None
        agree(layer, x, add, relu)


@needs_kernel
@pytest.mark.parametrize(("images", "count"), [(1, 1), (1, 2), (1, 5), (3, 2), (16, 2)])
@pytest.mark.parametrize(("kernel", "stride", "side"), [(1, 1, 32), (3, 1, 32), (3, 2, 32), (3, 1, 8), (1, 2, 16)])
def test_threads_share_a_layer(kernel: int, stride: int, side: int, images: int, count: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(20, 30, kernel, stride, kernel // 2)
    layer.weight.data.mul_(pruned(layer.weight, 0.1))
    with threads(count):
        agree(layer, torch.randn(images, 20, side, side), relu=True)


@needs_kernel
@pytest.mark.parametrize("density", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("shape", [(20,), (1, 20), (3, 20), (40, 20), (2, 5, 20)])
def test_a_linear_layer_computes_what_the_dense_one_does(shape: tuple[int, ...], density: float) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(20, 7)
    layer.weight.data.mul_(pruned(layer.weight, density))
    agree(layer, torch.randn(shape), add=torch.randn(*shape[:-1], 7), relu=True)


@needs_kernel
@pytest.mark.parametrize("count", [1, 2])
def test_empty_rows_return_their_bias(count: int) -> None:
    layer = nn.Conv2d(4, 6, 3, padding=1)
    layer.weight.data[1:5] = 0
    x = torch.randn(2, 4, 6, 6)
    with threads(count):
        agree(layer, x)
        y = all_outputs(layer, x)["sparse"]
    assert torch.equal(y[:, 1:5], layer.bias.data[1:5].view(1, 4, 1, 1).expand(2, 4, 6, 6))


@needs_kernel
@pytest.mark.parametrize("kind", ["channels_last", "strided", "expanded", "offset"])
def test_inputs_that_are_not_contiguous(kind: str) -> None:
    layer = nn.Conv2d(4, 6, 3, padding=1)
    layer.weight.data.mul_(pruned(layer.weight, 0.3))
    x = torch.randn(3, 4, 20, 20)
    x = {
        "channels_last": x.to(memory_format=torch.channels_last),
        "strided": x[:, :, ::2, ::3],
        "expanded": x[:1].expand(3, 4, 20, 20),
        "offset": x[1:],
    }[kind]
    agree(layer, x)


@needs_kernel
def test_the_summand_may_be_channels_last() -> None:
    x = torch.randn(2, 8, 5, 5)
    agree(nn.Conv2d(8, 8, 3, padding=1), x, torch.randn(2, 8, 5, 5).to(memory_format=torch.channels_last), relu=True)


class Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        return torch.relu(x + self.inner(x))


def test_layers_that_read_channels_last_images_are_measured_too() -> None:
    model, x = Summed().eval().to(memory_format=torch.channels_last), torch.randn(2, 3, 8, 8)
    masks = {"inner.weight": pruned(model.inner.weight, 0.1) != 0}
    sparse = sparsify_for_cpu(model, masks, x)
    assert [choice.layer for choice in choices(sparse)] == ["inner"]
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), masked(model, masks)(x))


@needs_kernel
def test_an_image_without_a_batch() -> None:
    layer = nn.Conv2d(4, 6, 3, padding=1)
    agree(layer, torch.randn(4, 8, 8))
    agree(nn.Conv1d(4, 6, 3), torch.randn(4, 8))


@needs_kernel
def test_nan_passes_relu_and_does_not_spread() -> None:
    layer = nn.Conv2d(1, 1, 1)
    x = torch.zeros(1, 1, 8, 8)
    x[0, 0, 2, 3] = float("nan")
    y = all_outputs(layer, x, relu=True)["sparse"]
    assert y.isnan().nonzero().tolist() == [[0, 0, 2, 3]]


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
def test_a_network_computes_what_the_masked_one_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "REPEATS", 1)
    if name in OWN:
        torch.manual_seed(0)
        model, example = OWN[name](), torch.randn(2, 4, 9, 9)
        trained(model, example)
        masks = masks_of(model, 0.3)
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
def test_relus_behind_layers_are_fused(name: str, count: int) -> None:
    model, example = zoo.build(name)
    sparse = sparsify_for_cpu(model, zoo.draw_masks(name, model, density=0.3), example)
    assert sum(module.relu for module in sparse.modules() if isinstance(module, SparseLayer)) == count


def test_fused_operations_are_gone_from_the_graph() -> None:
    x = torch.randn(2, 4, 9, 9)
    model = trained(Residual(), x)
    sparse = sparsify_for_cpu(model, masks_of(model, 0.3), x)
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
def test_a_sum_is_not_fused_if_its_layer_would_read_a_changed_input(operation, is_fused: bool) -> None:
    model = Between(operation)
    sparse = sparsify_for_cpu(model, masks_of(model, 0.5), torch.zeros(2, 4))  # zeros hide what changes
    sums = [node for node in sparse.graph.nodes if node.op == "call_function" and node.target is operator.add]
    assert len(sums) == (0 if is_fused else 1)
    x = torch.randn(2, 4)
    assert difference(outputs(masked(model, masks_of(model, 0.5)), x), outputs(sparse, x)) < 1e-5


def test_a_model_that_computes_something_else_is_an_error() -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * (1 if isinstance(self.layer, nn.Linear) else 2)

    with pytest.raises(ValueError, match="Asking cannot be made sparse: the outputs differ by 1 of"):
        sparsify_for_cpu(Asking(), {"layer.weight": torch.eye(2, 4) > 0}, torch.randn(3, 4), fuse=False)


def test_a_model_that_cannot_be_traced_stays_unfused() -> None:
    class Branching(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    x = torch.randn(2, 4)
    model = Branching(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    masks = masks_of(model, 0.5)
    sparse = sparsify_for_cpu(model, masks, x)
    assert type(sparse) is Branching
    for sign in (1, -1):
        torch.testing.assert_close(sparse(sign * x), masked(model, masks)(sign * x).detach())


def test_a_shrunk_model(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_pruning", reason="shrinking needs Torch-Pruning")
    monkeypatch.setattr(layers, "REPEATS", 1)
    model, x = zoo.build("resnet")
    masks = zoo.draw_masks("resnet", model, density=0.3)
    small = shrink(model, masks, x)
    sparse = sparsify_for_cpu(small.module, small.masks, x)
    assert difference(outputs(masked(model, masks), x), outputs(sparse, x)) < 1e-5


def test_layers_that_stay_dense_are_masked_too() -> None:
    class Mine(nn.Linear):
        pass

    hooked, reflected = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")
    hooked.register_forward_hook(lambda module, args, output: output + 1)
    model = nn.Sequential(hooked, reflected, nn.ConvTranspose2d(2, 2, 2), nn.Flatten(), Mine(32, 3), nn.Linear(3, 3))
    masks = masks_of(model, 0.5)
    x = torch.randn(2, 2, 5, 5)
    sparse = sparsify_for_cpu(model, masks, x, fuse=False)
    assert [type(m) for m in sparse] == [nn.Conv2d, nn.Conv2d, nn.ConvTranspose2d, nn.Flatten, Mine, SparseLayer]
    torch.testing.assert_close(sparse(x), masked(model, masks)(x).detach())


def test_other_types_than_float32_stay_dense() -> None:
    model = nn.Linear(4, 2).double()
    sparse = sparsify_for_cpu(model, masks_of(model, 0.5), torch.randn(1, 4, dtype=torch.double))
    assert type(sparse) is nn.Linear


def test_a_layer_used_twice_stays_one_layer() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    masks = {"0.weight": pruned(shared.weight, 0.5)}
    x = torch.randn(3, 4)
    for example in (None, x):
        sparse = sparsify_for_cpu(model, masks, example)
        torch.testing.assert_close(sparse(x), masked(model, masks)(x).detach())
        assert len([m for m in sparse.modules() if isinstance(m, SparseLayer)]) == 1


def test_masks_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="no parameter nothing"):
        sparsify_for_cpu(nn.Linear(2, 2), {"nothing": torch.ones(2, 2) > 0})


def test_choices_list_what_was_measured() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(48, 2))
    masks = masks_of(model, 0.5)
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


def test_the_fastest_implementation_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = SparseLayer(nn.Linear(4, 2), "name"), torch.randn(3, 4)

    def slow(x: Tensor, add: Tensor | None) -> Tensor:
        time.sleep(0.01)
        return torch.zeros(3, 2)

    fast = lambda x, add: torch.ones(3, 2)
    monkeypatch.setattr(layer, "implementations", lambda x: ({"dense": slow, "sparse": fast, "matmul": slow}, ""))
    assert torch.equal(layer(x), torch.ones(3, 2))
    [choice] = layer.choices.values()
    threads = torch.get_num_threads()
    assert choice == LayerChoice("name", (3, 4), threads, 8, 8, "sparse", choice.microseconds)
    assert choice.microseconds["sparse"] < 1e4 <= min(choice.microseconds["dense"], choice.microseconds["matmul"])


def test_a_copy_computes_the_same_and_measures_itself() -> None:
    x = torch.randn(2, 4, 9, 9)
    model = trained(Residual(), x)
    for example in (None, x):
        sparse = sparsify_for_cpu(model, masks_of(model, 0.3), example)
        y = sparse(x)
        twin = copy.deepcopy(sparse)
        assert not choices(twin)
        torch.testing.assert_close(twin(x), y)
        assert [choice.layer for choice in choices(twin)] == [choice.layer for choice in choices(sparse)]


def test_a_state_dict_has_the_names_of_the_model_and_loads() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(3, 4)
    masks = masks_of(model, 0.5)
    sparse, other = (sparsify_for_cpu(m, masks, x, fuse=False) for m in (model, copy.deepcopy(model)))
    assert sparse.state_dict().keys() == model.state_dict().keys()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    other(x)
    other.load_state_dict(sparse.state_dict())
    assert torch.equal(other(x), sparse(x))


def test_moving_to_another_type_computes_densely() -> None:
    sparse = sparsify_for_cpu(nn.Linear(4, 2), {"weight": torch.eye(2, 4) > 0}, torch.randn(1, 4))
    x = torch.randn(1, 4)
    y = sparse(x)
    torch.testing.assert_close(sparse.double()(x.double()), y.double())


def test_gradients_are_refused() -> None:
    sparse = sparsify_for_cpu(nn.Linear(4, 2), {"weight": torch.eye(2, 4) > 0})
    assert not sparse(torch.randn(1, 4)).requires_grad
    x = torch.randn(1, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="inference only"):
        sparse(x)
    with torch.no_grad():
        sparse(x)


def test_dispatch_modes_and_autocast_see_dense_operations() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    sparse = sparsify_for_cpu(nn.Conv2d(2, 3, 3), {"weight": torch.zeros(3, 2, 3, 3) > 0}, torch.randn(1, 2, 6, 6))
    x = torch.randn(1, 2, 6, 6)
    with FlopCounterMode(display=False) as counter:
        sparse(x)
    assert counter.get_total_flops() == 2 * 16 * 54
    with torch.autocast("cpu", torch.bfloat16):
        assert sparse(x).dtype == torch.bfloat16


def test_wrong_inputs_get_the_error_of_torch() -> None:
    sparse = sparsify_for_cpu(nn.Conv2d(2, 3, 3), {"weight": torch.ones(3, 2, 3, 3) > 0})
    with pytest.raises(RuntimeError, match="channels"):
        sparse(torch.randn(1, 5, 6, 6))
    with pytest.raises(RuntimeError, match=r"Kernel size|kernel size"):
        sparse(torch.randn(1, 2, 2, 2))
    assert sparse(torch.randn(0, 2, 6, 6)).shape == (0, 3, 4, 4)


def test_several_threads_call_one_model() -> None:
    model = nn.Conv2d(4, 4, 3, padding=1)
    masks = masks_of(model, 0.3)
    sparse, reference = sparsify_for_cpu(model, masks), masked(model, masks)
    inputs = [torch.randn(1 + k % 3, 4, 12, 12) for k in range(12)]
    with ThreadPoolExecutor(12) as pool:
        for x, y in zip(inputs, pool.map(sparse, inputs), strict=True):
            torch.testing.assert_close(y, reference(x).detach())


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache folder and an engine that is not loaded yet."""
    monkeypatch.setenv("BAREBONES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(layers, "load_kernel", load_kernel.__wrapped__)
    return tmp_path


def test_without_a_compiler_layers_stay_dense_and_say_why(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    monkeypatch.delenv("CXX", raising=False)
    x = torch.randn(1, 4)
    sparse = sparsify_for_cpu(nn.Linear(4, 2), {"weight": torch.eye(2, 4) > 0}, x)
    [choice] = choices(sparse)
    assert choice.chosen == "dense"
    assert "no C++ compiler" in choice.reason


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'kernel.cpp:1: error: no such thing' >&2; exit 1", "error: no such thing"),
        ('for last; do true; done; [ "$last" = --version ] || echo nonsense > "$last"', "cannot be loaded"),
    ],
)
def test_a_failed_build_is_a_sentence(fresh: Path, script: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = fresh / "compiler"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    sentence = load_kernel.__wrapped__()
    assert isinstance(sentence, str)
    assert reason in sentence


def test_a_cache_that_cannot_be_written_is_a_sentence(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "file").touch()
    monkeypatch.setenv("BAREBONES_CACHE", str(fresh / "file" / "cache"))
    reason = load_kernel.__wrapped__()
    assert isinstance(reason, str)
    assert "BAREBONES_CACHE" in reason or "no C++ compiler" in reason


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other cache folders")
def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BAREBONES_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "barebones"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder() == tmp_path / "caches" / "barebones"
    monkeypatch.setenv("BAREBONES_CACHE", str(tmp_path / "builds"))
    assert cache_folder() == tmp_path / "builds"


@needs_kernel
def test_two_builds_at_once_leave_one_library(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = fresh / "compiler"  # slow enough that both builds overlap
    compiler.write_text(f'#!/bin/sh\nfor last; do true; done; sleep 0.3; cp "{load_kernel()._name}" "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with ThreadPoolExecutor(2) as pool:
        kernels = [build.result() for build in [pool.submit(load_kernel.__wrapped__) for _ in range(2)]]
    assert not any(isinstance(kernel, str) for kernel in kernels)
    [library] = (fresh / "cache").iterdir()
    built = library.stat().st_mtime_ns
    assert not isinstance(load_kernel.__wrapped__(), str)
    assert library.stat().st_mtime_ns == built


def test_weights_may_be_changed_in_place() -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 25, 3))
    masks = {name: torch.rand(p.shape) < 0.1 for name, p in prunable(model).items()}
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
