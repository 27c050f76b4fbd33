"""The implementations of a sparse layer: the output of the dense layer for all shapes, and the fastest is used."""

import copy
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from fuzzing import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from barebones.deploy.sparse import LayerChoice, SparseLayer, load_kernel, plan

needs_kernel = pytest.mark.skipif(isinstance(load_kernel(), str), reason=f"{load_kernel()}")


def pruned(layer: nn.Module, density: float) -> nn.Module:
    layer.weight.data.mul_(torch.rand(layer.weight.shape) < density)
    return layer


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with this many threads, however small the work is."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "TINY", 0)
        torch.set_num_threads(count)
        yield
    torch.set_num_threads(before)


def all_outputs(layer: nn.Module, x: Tensor, add: Tensor | None = None, relu: bool = False) -> dict[str, Tensor]:
    """Return the output of each implementation."""
    sparse = SparseLayer(layer)
    sparse.relu = relu
    with torch.no_grad():
        available, _ = sparse.implementations(x)
        return {name: compute(x, add) for name, compute in available.items()}


def agree(layer: nn.Module, x: Tensor, add: Tensor | None = None, relu: bool = False):
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


SIDES = st.one_of(st.integers(1, 9), st.sampled_from([16, 17, 23, 32, 40]))
# Ways in which the values of a tensor may lie in memory; some of them change the values.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last) if x.dim() == 4 else x.mT.contiguous().mT,
    "batch last": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "every second": lambda x: torch.stack([x, x], -1)[..., 0],
    "offset": lambda x: torch.cat([x, x])[len(x) :],
    "flipped": lambda x: x.flip(0),
    "expanded batch": lambda x: x[:1].expand(x.shape),
    "expanded channels": lambda x: x[:, :1].expand(x.shape),
    "one value": lambda x: x.flatten()[:1].view([1] * x.dim()).expand(x.shape),
}


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """Draw a convolution of some density, and an input for it."""
    dims = draw(st.sampled_from([1, 2, 2, 2]))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels, rows = groups * draw(st.integers(1, 5)), groups * draw(st.integers(1, 6))
    small = st.integers(1, 3)
    kernel, dilation = ([draw(small) for _ in range(dims)] for _ in range(2))
    padding: Any = draw(st.sampled_from(["same", "valid", *range(12)]))
    padding = padding if isinstance(padding, str) else [draw(st.integers(0, 4)) for _ in range(dims)]
    stride = [1 if padding == "same" else draw(st.integers(1, 5)) for _ in range(dims)]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    zeros = [0] * dims if isinstance(padding, str) else padding
    sides = [max(draw(SIDES), r - 2 * p) for r, p in zip(reach, zeros, strict=True)]
    kind = nn.Conv1d if dims == 1 else nn.Conv2d
    torch.manual_seed(draw(st.integers(0, 99)))
    layer = kind(channels, rows, kernel, stride, padding, dilation, groups, bias=draw(st.booleans()))
    layer = pruned(layer, draw(st.sampled_from([0.0, 0.02, 0.1, 0.3, 0.7, 1.0])))
    x = torch.randn(draw(st.sampled_from([1, 2, 3, 8])), channels, *sides)
    return layer, LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](x)


@pytest.mark.slow
@needs_kernel
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(max_examples=cases(150))
@given(convolutions(), st.sampled_from([1, 1, 2, 3]), st.booleans(), st.sampled_from(["none", *LAYOUTS]))
def test_a_convolution_computes_what_the_dense_one_does(drawn, count: int, relu: bool, summand: str):
    layer, x = drawn
    with threads(count), torch.no_grad():
        add = None if summand == "none" else LAYOUTS[summand](torch.randn_like(layer(x)))
        agree(layer, x, add, relu)


@needs_kernel
@pytest.mark.parametrize("density", [0.0, 0.5])
@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_images_smaller_than_kernel_stride_or_padding(kernel: int, density: float):
    """Few pixels have ways of their own in the kernel, and padding may be all that a small image shows it."""
    for side, stride, padding, images in itertools.product((1, 2, 3), (1, 2, 3, 4), (0, 1, 2), (1, 2, 8)):
        if side + 2 * padding >= kernel:
            layer = pruned(nn.Conv2d(2, 3, kernel, stride, padding), density)
            agree(layer, torch.randn(images, 2, side, side), relu=images == 2)
            layer = pruned(nn.Conv1d(2, 3, kernel, stride, padding), density)
            agree(layer, torch.randn(images, 2, side), relu=images == 2)


@needs_kernel
@pytest.mark.parametrize(("images", "count"), [(1, 1), (1, 2), (1, 5), (3, 2), (16, 2)])
@pytest.mark.parametrize(("kernel", "stride", "side"), [(1, 1, 32), (3, 1, 32), (3, 2, 32), (3, 1, 8), (1, 2, 16)])
def test_threads_share_a_layer(kernel: int, stride: int, side: int, images: int, count: int):
    layer = pruned(nn.Conv2d(20, 30, kernel, stride, kernel // 2), 0.1)
    with threads(count):
        agree(layer, torch.randn(images, 20, side, side), relu=True)


@needs_kernel
@pytest.mark.parametrize("density", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("shape", [(20,), (1, 20), (3, 20), (40, 20), (2, 5, 20)])
def test_a_linear_layer_computes_what_the_dense_one_does(shape: tuple[int, ...], density: float):
    agree(pruned(nn.Linear(20, 7), density), torch.randn(shape), add=torch.randn(*shape[:-1], 7), relu=True)


@needs_kernel
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(4, 4, 3, padding=1), (3, 4, 10, 7)),
        (nn.Conv2d(4, 4, 1), (3, 4, 10, 7)),
        (nn.Conv2d(4, 4, 1, bias=False), (1, 4, 10, 7)),
        (nn.Conv1d(4, 4, 1, bias=False), (3, 4, 7)),
        (nn.Linear(4, 4), (5, 3, 4)),
    ],
    ids=["3x3", "1x1", "1x1, no bias", "1d", "linear"],
)
def test_inputs_and_summands_need_not_be_contiguous(layer: nn.Module, shape: tuple[int, ...], layout: str):
    x = LAYOUTS[layout](torch.randn(shape))
    agree(pruned(layer, 0.3), x, add=x, relu=True)


@needs_kernel
def test_nan_passes_relu_and_does_not_spread():
    x = torch.zeros(1, 1, 8, 8)
    x[0, 0, 2, 3] = float("nan")
    y = all_outputs(nn.Conv2d(1, 1, 1), x, relu=True)["sparse"]
    assert y.isnan().nonzero().tolist() == [[0, 0, 2, 3]]


def test_the_fastest_implementation_is_used(monkeypatch):
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
