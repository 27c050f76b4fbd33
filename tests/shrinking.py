"""What the tests of shrinking share: masks, widths, training, and the checks that every shrunk network must pass."""

import itertools
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
import zoo
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import barebones as bb
from barebones.paths import effective
from barebones.running.inputs import call, tensors
from barebones.running.outputs import difference
from barebones.scope import parameters

PIXELS = torch.randn(4, 2, 8, 8, generator=torch.Generator().manual_seed(0))
BOTH = (False, True)  # eval and train mode


def widths(model: nn.Module, path: str) -> tuple[int, int]:
    """Return the number of outputs and inputs of a layer; a blank layer counts as one without inputs."""
    layer: Any = model.get_submodule(path)
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    if isinstance(layer, nn.modules.conv._ConvNd):
        return layer.out_channels, layer.in_channels
    return layer.channels, 0


def fit(
    module: nn.Module, masks: dict[str, Tensor], x: Any, steps: int = 4, decay: float = 0.01, lr: float = 0.1
) -> None:
    """Train for some steps with held masks and SGD."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    if not trainable:
        return
    optimizer = torch.optim.SGD(trainable, lr=lr, momentum=0.9, weight_decay=decay)
    hold = bb.hold(module, masks, optimizer) if masks else None
    module.train()
    for _ in range(steps):
        args, kwargs = tree_map(torch.clone, call(x))
        out = next(t for t in tensors(module(*args, **kwargs)) if t.is_floating_point())
        loss = F.mse_loss(out, torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if hold is not None:
        hold.remove()


def assert_alike(
    example: Any, expected: nn.Module, *actual: nn.Module, modes: tuple[bool, ...] = BOTH, close: float = 1e-5
) -> None:
    """Check that networks return the same, in float64, on the example and on another input."""
    copies = [zoo.exact(network) for network in (expected, *actual)]
    for train, inputs in itertools.product(modes, (example, zoo.fresh(example))):
        first, *others = (zoo.run(copy.train(train), inputs) for copy in copies)
        assert max(difference(first, other) for other in others) <= close, "train" if train else "eval"


def assert_sound(small: bb.Shrunk) -> None:
    """Check that the masks fit, that pruned weights are zero, and that no hook or gradient is left behind."""
    named = parameters(small.module)
    assert {name: mask.shape for name, mask in small.masks.items()} == {n: named[n].shape for n in small.masks}
    assert all(mask.dtype == torch.bool and not named[name][~mask].any() for name, mask in small.masks.items())
    assert all(p.grad is None for p in named.values())
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in small.module.modules())


def assert_keeps_paths(small: bb.Shrunk, model: nn.Module, masks: dict[str, Tensor], example: Any) -> None:
    """Check that every kept weight on a path is still there: what is marked in the small network shows in the large.

    Biases do not count: one that only adds a constant may become part of another.
    """
    marked = deepcopy(small)
    for p in marked.module.parameters():
        nn.init.constant_(p, 7)
    large = parameters(marked.expand())
    weights = {name: on_path for name, on_path in effective(model, masks, example).items() if on_path.dim() > 1}
    assert all(bool((large[name][on_path] == 7).all()) for name, on_path in weights.items())


def assert_trains_and_expands(small: bb.Shrunk, example: Any, modes: tuple[bool, ...] = BOTH) -> nn.Module:
    """Train the small network, check that the expanded one computes the same, and return it."""
    fit(small.module, small.masks, example, decay=0.05)
    large = small.expand()
    assert_alike(example, small.module, large, modes=modes)
    return large
