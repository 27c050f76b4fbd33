"""What networks that others wrote must pass; each check takes a model and an example.

The example is a dict of arguments, or a tensor. Models must not draw random numbers: their dropout is zero.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import zoo
from references import assert_top
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

import barebones as bb
from barebones.paths import effective
from barebones.running.inputs import call, tensors
from barebones.running.outputs import difference, outputs
from barebones.scope import masked_copy, parameters, prunable


def loss(model: nn.Module, example: Any) -> Tensor:
    """Return a number that depends on all outputs."""
    args, kwargs = call(example)
    returned = [t for t in tensors(model(*args, **kwargs)) if t.is_floating_point() and t.requires_grad]
    return torch.stack([(t - 0.1).square().mean() for t in returned]).sum()


def draw_masks(model: nn.Module) -> dict[str, Tensor]:
    return zoo.random_masks(model, 0.5, names=prunable(model))


def check_scores(model: nn.Module, example: Any) -> None:
    """Compare the masks of every round with the scores of the equations."""
    weights = {name: parameter.detach().clone() for name, parameter in prunable(model).items()}
    total = sum(weight.numel() for weight in weights.values())
    for name in ("magnitude", "snip", "force"):
        method = replace(bb.METHODS[name], rounds=min(bb.METHODS[name].rounds, 2))
        before = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in weights.items()}
        probe = bb.Probe(model.eval(), [example], objective=loss, bn="eval")
        for step in bb.rounds(probe, method, total // 4):
            masked = masked_copy(model, before).eval()
            named = parameters(masked)
            gradients = torch.autograd.grad(
                loss(masked, example), [named[n] for n in weights], allow_unused=True, materialize_grads=True
            )
            scores = {n: (w * g).abs() for (n, w), g in zip(weights.items(), gradients, strict=True)}
            if name == "magnitude":
                scores = {n: w.abs() for n, w in weights.items()}
            assert_top(step.masks, scores, step.keep, close=1e-6)
            before = step.masks


def check_second_derivatives(model: nn.Module, example: Any) -> None:
    """Compare a mask of GraSP with theta * Hg, which it must be highest in."""
    if isinstance(example, Tensor):
        return  # GraSP divides an output that is a tensor by its temperature
    weights = prunable(model.eval())
    with sdpa_kernel(SDPBackend.MATH):
        first = torch.autograd.grad(
            loss(model, example), list(weights.values()), create_graph=True, allow_unused=True, materialize_grads=True
        )
        product = torch.stack([(g * g.detach()).sum() for g in first]).sum()
        second = torch.autograd.grad(product, list(weights.values()), allow_unused=True, materialize_grads=True)
    scores = {n: w.detach() * h for (n, w), h in zip(weights.items(), second, strict=True)}
    result = bb.prune(model, [example], sparsity=0.75, method="grasp", objective=loss, bn="eval", on_collapse="ignore")
    keep = sum(int(mask.sum()) for mask in result.masks.values())
    assert_top(result.masks, scores, keep, close=1e-6)


def check_account(model: nn.Module, example: Any) -> None:
    """Count the kept weights, and those that are on a path; all of them are if nothing is pruned."""
    masks = draw_masks(model)
    account = bb.account(model, masks, example)
    assert account.kept == sum(int(mask.sum()) for mask in masks.values())
    on_path = effective(model, masks, example)
    assert account.effective == sum(int(mask.sum()) for mask in on_path.values())
    assert 0 < account.effective < account.kept
    assert not any((on_path[name] & ~mask).any() for name, mask in masks.items())
    assert not account.collapsed


def check_training(model: nn.Module, example: Any) -> None:
    """Train for a step with held masks."""
    masks = draw_masks(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = {name: weight.detach().clone() for name, weight in prunable(model).items()}
    with bb.hold(model, masks, optimizer):
        loss(model.train(), example).backward()
        optimizer.step()
    bb.audit(model, masks)
    assert any(bool((weight != before[name])[masks[name]].any()) for name, weight in prunable(model).items())


def check_shrink(model: nn.Module, example: Any) -> None:
    """Compare the shrunk network with the masked one and, after a step of training, with the expanded one."""
    masks = draw_masks(model)
    small = bb.shrink(model.eval(), masks, example)
    assert difference(outputs(masked_copy(model, masks).eval(), example), outputs(small.module, example)) < 1e-4
    optimizer = torch.optim.SGD(small.module.parameters(), lr=0.01)
    with bb.hold(small.module, small.masks, optimizer):
        loss(small.module.train(), example).backward()
        optimizer.step()
    small.module.eval()
    large = small.expand().eval()
    if "Mixtral" not in type(model).__name__:  # torch has no product of many matrices in float64
        small.module.double(), large.double()
        example = tree_map(lambda t: t.double() if t.is_floating_point() else t, example)
    assert difference(outputs(large, example), outputs(small.module, example)) < 1e-5


CHECKS: dict[str, Callable[[nn.Module, Any], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}
