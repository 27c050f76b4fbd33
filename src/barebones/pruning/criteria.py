"""Criteria: functions from a probe of the network to a score for every weight. Weights with high scores stay."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..masks import Scores
from ..running.backward import guarded
from ..running.inputs import call, mapped, tensors
from ..running.precision import widest
from ..scope import bare
from .probe import Probe


def saliency(probe: Probe) -> Scores:
    """Return |theta * dL/dtheta| at theta * c (eqs. 2 and 5): SNIP at c = 1, FORCE and Iterative SNIP at any mask."""
    weights, scores = probe.weights, probe.gradient()
    torch._foreach_mul_(list(scores.values()), [weights[name] for name in scores])  # on a GPU, a few launches for all
    torch._foreach_abs_(list(scores.values()))
    return scores


def signal_saliency(probe: Probe) -> Scores:
    """Return the saliency, with no gradient through a batch-norm for channels that are constant over the batch.

    Such a channel carries no signal, and the norm multiplies its gradients by 1/sqrt(eps), about 316.
    """
    with ExitStack() as stack:
        for norm in (module for module in probe.user_model.modules() if isinstance(module, _BatchNorm)):
            stack.enter_context(norm.register_forward_pre_hook(_without_constants))
        return saliency(probe)


def _without_constants(norm: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor, ...] | None:
    """Replace constant channels by zeros, which take no gradient; running statistics do not amplify."""
    if not norm.training and norm.running_mean is not None:
        return None
    over = [0, *range(2, args[0].dim())]
    highest, lowest = (extreme(args[0].detach(), over, keepdim=True) for extreme in (torch.amax, torch.amin))
    return (args[0].masked_fill(highest == lowest, 0), *args[1:])


def gradient_norm(probe: Probe) -> Scores:
    """Return (dL/dtheta)^2 at theta * c (eq. 16): what the squared gradient norm loses with each weight."""
    return {name: g.square_() for name, g in probe.gradient().items()}


def grasp(probe: Probe, temperature: float = 200.0) -> Scores:
    """Return theta * (H g) at theta * c (eq. 4): GraSP removes the weights whose -theta * (H g) is highest.

    The temperature divides the network's outputs before the loss, as in the code of GraSP's authors.
    """
    weights = probe.weights
    return {name: h.mul_(weights[name]) for name, h in probe.hessian_product(temperature).items()}


def magnitude(probe: Probe) -> Scores:
    """Return |theta|."""
    return {name: w.abs() for name, w in probe.weights.items()}


def random(probe: Probe) -> Scores:
    """Return uniform random numbers: every weight is as likely to stay as any other."""
    drawn = {  # as doubles: too many single-precision numbers would be equal
        name: torch.rand(shape, dtype=torch.float64, generator=probe.generator, device="cpu").to(widest(probe.device))
        for name, shape in probe.shapes.items()
    }
    return probe.placed(drawn)


def synflow(probe: Probe) -> Scores:
    """Return |theta * dR/dtheta|, where R is the sum of the outputs for an input of ones, under absolute weights.

    Norms use their running statistics. It computes in float64, because float32 overflows.
    """
    if probe.shards is not None:
        raise ValueError("synflow does not run on sharded weights; prune before you shard the model, or use force")

    def ones(leaf: Any) -> Any:
        is_float = isinstance(leaf, Tensor) and leaf.is_floating_point()
        return torch.ones_like(leaf, dtype=widest(leaf.device)) if is_float else leaf

    model = bare(probe.user_model)
    example = probe.call()
    if example is None:
        raise ValueError("synflow reads no data but must know the input's shape; pass example=, an input of the model")
    args, kwargs = mapped(call(example), ones)
    if not any(t.is_floating_point() for t in tensors([list(args), kwargs])):
        raise ValueError("synflow needs a floating-point input of ones; this model takes only integers")
    values = {
        f"model.{name}": value.detach().abs().to(widest(value.device)) if value.is_floating_point() else value
        for name, value in [*model.named_parameters(), *model.named_buffers()]
    }
    names = {id(parameter): f"model.{name}" for name, parameter in model.named_parameters()}
    prunable_values = [values[names[id(parameter)]].requires_grad_() for parameter in probe.parameters.values()]
    flow = _Flow(model.eval())  # the probe puts the flags back
    gradients = torch.func.functional_call(flow, values, (prunable_values, args, kwargs))
    return {name: g.mul(w).abs_() for (name, w), g in zip(probe.weights.items(), gradients, strict=True)}


class _Flow(nn.Module):
    """Return the gradients of the sum of a model's outputs, inside the call: a checkpoint needs its weights again."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, weights: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
        output = self.model(*args, **kwargs)
        total = torch.stack([t.to(widest(t.device)).sum() for t in tensors(output) if t.is_floating_point()]).sum()
        with guarded([total]):
            return torch.autograd.grad(total, weights, allow_unused=True, materialize_grads=True)
