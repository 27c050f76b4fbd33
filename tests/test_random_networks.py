"""Random networks: whatever is made of a masked network computes the same, and paths are those that perturbation finds.

`BAREBONES_FUZZ=2000` tries as many networks. A network that fails is printed as code, see `generator.py`.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from unittest import mock

import generator
import pytest
import references
import torch
import torch.nn.functional as F
import zoo
from generator import Network, no_dropout, randomize
from shrinking import assert_keeps_paths, assert_sound, fit
from suites import cases
from torch import Tensor, nn

import barebones as bb
from barebones.paths import effective
from barebones.running.inputs import tensors
from barebones.running.outputs import difference
from barebones.scope import parameters

NETWORKS = sorted({*range(cases(24)), 164})  # 164 once left its random numbers behind


@contextmanager
def drawn(seed: int) -> Iterator[Network]:
    """Yield the network of a seed, and add its recipe to an error."""
    network = generator.draw(seed)
    try:
        yield network
    except Exception as error:
        error.add_note(f"{network.recipe}\nmasks keep { ({n: int(m.sum()) for n, m in network.masks.items()}) }")
        raise


def inputs_like(example: Tensor, seed: int = 0, batch: int = 4) -> list[Tensor]:
    """Return other inputs of several scales; tokens may be any word."""
    rng = torch.Generator().manual_seed(seed)
    shape = (batch, *example.shape[1:])
    if not example.is_floating_point():
        return [torch.randint(generator.TOKENS, shape, generator=rng)]
    noise = torch.randn(shape, generator=rng).to(example.dtype)
    return [noise, 100 * noise, torch.rand(shape, generator=rng).to(example.dtype)]


def returned(model: Callable[[Tensor], object], x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [t.clone() for t in tensors(model(x.clone()))]


def assert_same(expected: nn.Module, actual: nn.Module, example: Tensor, limit: float = 1e-6) -> None:
    """Check that two networks return the same in both modes, and collect the same statistics."""
    first, second = deepcopy(expected), deepcopy(actual)
    with no_dropout():
        for x in (example, *inputs_like(example)):
            for train in (False, True):
                gap = difference(returned(first.train(train), x), returned(second.train(train), x))
                assert gap <= limit, f"they differ by {gap:.1e} in {'train' if train else 'eval'} mode"


def exact(network: Network) -> tuple[nn.Module, Tensor]:
    """Return the model and the example in float64."""
    example = network.example.double() if network.example.is_floating_point() else network.example
    return deepcopy(network.model).double(), example


def check_shrink(network: Network) -> None:
    model, example = exact(network)
    with references.Trace(model):
        small = bb.shrink(model, network.masks, example)
    assert_sound(small)
    assert_same(zoo.masked(model, network.masks), small.module, example)
    assert_keeps_paths(small, model, network.masks, example)
    randomize(small.module, 1, small.masks)
    assert_same(small.module, small.expand(), example)
    fit(small.module, small.masks, example, steps=1, lr=0.01)
    assert_same(small.module, small.expand(), example)


def stand_in(x: Tensor, *_: object, **__: object) -> Tensor:
    """A function of each value by itself, and 0 at 0."""
    return x + 0.3 * torch.sin(x)


def mixed_by_scores(q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> Tensor:
    """A stand-in for attention; several heads of queries may share keys and values."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    return stand_in(q @ k.transpose(-1, -2)) @ v


def scaled(name: str) -> Callable[..., Tensor]:
    """Return a stand-in for the norm of this name, with its scale and shift."""
    arguments = inspect.signature(getattr(F, name))

    def norm(*args: object, **kwargs: object) -> Tensor:
        given = arguments.bind(*args, **kwargs).arguments
        x = given["input"]
        y = stand_in(x)
        if name == "instance_norm":  # it takes the positions of a channel together
            y = y + x.flatten(2).mean(2).view(*x.shape[:2], *[1] * (x.dim() - 2))
        last = [] if name in ("layer_norm", "rms_norm") else [1] * (y.dim() - 2)  # dimensions behind the channels
        scale, shift = (None if (t := given.get(part)) is None else t.view(-1, *last) for part in ("weight", "bias"))
        y = y if scale is None else y * scale
        return y if shift is None else y + shift

    return norm


@contextmanager
def constants_at_zero() -> Iterator[None]:
    """Replace functions by others of which perturbation can see what a path is.

    On a path, a norm or softmax is a function of each channel by itself, although it reads the others too. And all
    functions must be 0 at 0: otherwise there are constants, and a weight that reads a constant changes the outputs.
    """
    functions = {
        **{f"{name}_norm": scaled(f"{name}_norm") for name in ("batch", "layer", "rms", "group", "instance")},
        **dict.fromkeys(("local_response_norm", "normalize", "log_softmax", "softmax"), stand_in),
        "scaled_dot_product_attention": mixed_by_scores,
    }
    with (
        mock.patch.multiple(F, **functions),
        mock.patch.object(torch.Tensor, "softmax", stand_in),
        mock.patch.dict(generator.ACTIVATIONS, dict.fromkeys(("sigmoid", "softplus", "cos"), stand_in)),
    ):
        yield


ADDED = ("bias", "position", "shift", "running_mean", "table")  # in the names of what is added


def without_constants(model: nn.Module) -> nn.Module:
    """Set everything that is added to zero."""
    with torch.no_grad():
        for name, t in (*model.named_parameters(), *model.named_buffers()):
            if any(word in name for word in ADDED):
                t.zero_()
    return model


def mattering(model: nn.Module, names: list[str], x: Tensor) -> list[Tensor]:
    """Return which weights change how the outputs depend on the input: a difference of samples has a gradient there."""
    with constants_at_zero():
        outputs = [t for t in tensors(model(x.clone())) if t.is_floating_point()]
    differences = [t[: len(t) // 2] - t[len(t) // 2 :] for t in outputs]
    total = torch.stack([(t * torch.linspace(1, 2, t.numel()).view(t.shape)).sum() for t in differences]).sum()
    weights = [parameters(model)[name] for name in names]
    gradients = torch.autograd.grad(total, weights, allow_unused=True, materialize_grads=True)
    largest = max(float(g.abs().max()) for g in gradients if g.numel())
    return [g.abs() > 1e-9 * (1 + largest) for g in gradients]


# Paths through these count more than perturbation finds, see `rules.py`: of a product, either factor; of a function
# without a rule, everything. A norm over channels mixes all of them, but if one alone is reached, only its sign gets
# through. And what is added counts where it leads to an output.
BLOCKS = ("branches", "gate", "excitation", "attention", "multihead", "recurrent", "mixing", "regroup")
GENEROUS = [*(f"('{block}', " for block in BLOCKS), "'norm': 'layer", "'norm': 'group", "'norm': 'rms"]


def check_account(network: Network) -> None:
    model, example = exact(network)
    with references.Trace(model):
        counts = {layer.name: layer for layer in bb.account(model, network.masks, example).layers}
        on_paths = effective(model, network.masks, example)
    assert {name: layer.effective for name, layer in counts.items()} == {n: int(m.sum()) for n, m in on_paths.items()}
    found = {name: torch.zeros_like(mask) for name, mask in network.masks.items()}
    for seed in range(12 if found else 0):
        other = without_constants(randomize(deepcopy(model), seed, network.masks)).eval()
        for name, matters in zip(found, mattering(other, [*found], inputs_like(example, seed, 8)[0]), strict=True):
            found[name] |= matters & network.masks[name]
    recipe = str(network.recipe)
    for name, on_path in on_paths.items():
        weighs = "softmax" in recipe  # a share of a softmax counts only if a signal reaches what it weighs
        assert weighs or not (found[name] & ~on_path).any(), f"a weight of {name} matters, but it is on no path"
        if not any(word in name for word in ADDED) and not any(text in recipe for text in GENEROUS):
            assert not (on_path & ~found[name]).any(), f"a weight of {name} is on a path, but does not matter"


@pytest.mark.parametrize("seed", NETWORKS)
def test_shrunk_networks_compute_what_the_masked_ones_do(seed: int) -> None:
    with drawn(seed) as network:
        check_shrink(network)


@pytest.mark.parametrize("seed", NETWORKS)
def test_effective_weights_are_those_that_matter(seed: int) -> None:
    with drawn(seed) as network:
        check_account(network)
