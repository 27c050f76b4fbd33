"""Plain, slow references written straight from the equations, in float64, and a record of a model's whole state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy
import numpy.random
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import Dataset

from barebones import METHODS, Method

Loss = Callable[[Any, Any], Tensor]
Pairs = list[tuple[Tensor, Tensor]]


def tiny(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A convolutional network of 114 prunable weights with batch-norm: inputs are 1 x 6 x 6, classes are 3."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        convs = [nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)]
        last = [nn.Softplus(), nn.Flatten(), nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 3, bias=False)]
        model = nn.Sequential(*convs, *last)
        for module in model:
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)
                module.running_mean.uniform_(-1, 1)
                module.running_var.uniform_(0.5, 2)
    return model.to(dtype)


def pairs(count: int, seed: int = 1, size: int = 8, dtype: torch.dtype = torch.float64) -> Pairs:
    """Batches for `tiny`."""
    generator = torch.Generator().manual_seed(seed)

    def batch() -> tuple[Tensor, Tensor]:
        images = torch.randn(size, 1, 6, 6, generator=generator, dtype=torch.float64)
        return images.to(dtype), torch.randint(3, (size,), generator=generator)

    return [batch() for _ in range(count)]


class Items(Dataset):
    """A data set of so many items, which a function returns by their indices."""

    def __init__(self, count: int, item: Callable[[int], Any]) -> None:
        self.count, self.item = count, item

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


def few(name: str, rounds: int = 4, batches: int = 3) -> Method:
    """Return a method of the library with few rounds and few batches."""
    method = METHODS[name]
    return replace(method, rounds=min(method.rounds, rounds), batches_per_round=min(method.batches_per_round, batches))


def of_round(batches: Pairs, index: int, count: int) -> Pairs:
    """Return what round `index` reads of a list: the next `count` batches, over and over."""
    return [batches[(index * count + j) % len(batches)] for j in range(count)]


def ones(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.ones_like(w, dtype=torch.bool) for name, w in weights.items()}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the weights of convolutions and linear layers."""
    weights = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            weights[f"{name}.weight"] = module.weight.detach().clone()
    return weights


def _copied(model: nn.Module, bn: str) -> nn.Module:
    """Return a float64 copy of a model, whose batch-norms use the statistics of the batch or their own."""
    model = deepcopy(model).double()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.train(bn == "batch")
    return model


def loss_at(
    model: nn.Module, values: dict[str, Tensor], batches: Pairs, loss: Loss, bn: str = "batch", temperature: float = 1.0
) -> Tensor:
    """Return the mean loss over the batches, with `values` as the weights."""
    model = _copied(model, bn)
    total = torch.zeros((), dtype=torch.float64)
    for x, y in batches:
        total = total + loss(functional_call(model, values, (x.double(),)) / temperature, y)
    return total / len(batches)


def sensitivity(
    model: nn.Module, masks: dict[str, Tensor], batches: Pairs, loss: Loss = F.cross_entropy, bn: str = "batch"
) -> dict[str, Tensor]:
    """Return dL(theta * c)/dc (eq. 5), with c a variable: the mean over the batches of the signed gradients."""
    theta = {name: w.double() for name, w in weights_of(model).items()}
    total = {name: torch.zeros_like(w) for name, w in theta.items()}
    for batch in batches:
        c = {name: mask.double().requires_grad_() for name, mask in masks.items()}
        value = loss_at(model, {name: theta[name] * c[name] for name in theta}, [batch], loss, bn)
        gradients = torch.autograd.grad(value, list(c.values()), allow_unused=True, materialize_grads=True)
        for name, part in zip(theta, gradients, strict=True):
            total[name] += part
    return {name: t / len(batches) for name, t in total.items()}


def snip(model: nn.Module, masks: dict[str, Tensor], batches: Pairs, **options: Any) -> dict[str, Tensor]:
    """Return |dL/dc| at c = masks: SNIP (eq. 2) if they keep all weights, else FORCE and Iterative SNIP."""
    return {name: g.abs() for name, g in sensitivity(model, masks, batches, **options).items()}


def objective_value(model: nn.Module, masks: dict[str, Tensor], batches: Pairs, over: str = "kept") -> float:
    """Return S(theta, c) (eq. 6), summed one by one; over="all" adds the zeroed weights."""
    total = 0.0
    for name, g in sensitivity(model, masks, batches).items():
        for value, keep in zip(g.flatten().tolist(), masks[name].flatten().tolist(), strict=True):
            total += abs(value) if keep or over == "all" else 0.0
    return total


def _flat_loss(
    model: nn.Module, masks: dict[str, Tensor], batches: Pairs, temperature: float
) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    """Return the loss as a function of one vector of all prunable weights; that vector at theta * c; and theta."""
    theta = {name: w.double() for name, w in weights_of(model).items()}
    at = torch.cat([(theta[name] * masks[name]).flatten() for name in theta])

    def value(vector: Tensor) -> Tensor:
        parts = vector.split([w.numel() for w in theta.values()])
        values = {name: part.view(theta[name].shape) for name, part in zip(theta, parts, strict=True)}
        return loss_at(model, values, batches, F.cross_entropy, temperature=temperature)

    return value, at, torch.cat([w.flatten() for w in theta.values()])


def _unflat(vector: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = vector.split([t.numel() for t in like.values()])
    return {name: part.view(t.shape) for (name, t), part in zip(like.items(), parts, strict=True)}


def grasp(model: nn.Module, masks: dict[str, Tensor], batches: Pairs, temperature: float = 200.0) -> dict[str, Tensor]:
    """Return theta * (H g) (eq. 4) with the full Hessian of the mean loss, over the weights that are kept."""
    value, at, theta = _flat_loss(model, masks, batches, temperature)
    hessian = torch.autograd.functional.hessian(value, at, vectorize=True)
    gradient = torch.autograd.functional.jacobian(value, at)
    kept = torch.cat([mask.flatten() for mask in masks.values()])
    product = hessian @ (gradient * kept)
    return _unflat(theta * product * kept, masks)


def gradient_norm(model: nn.Module, masks: dict[str, Tensor], batches: Pairs) -> dict[str, Tensor]:
    """Return (dL/dtheta)^2 at theta * c (eq. 16)."""
    value, at, _ = _flat_loss(model, masks, batches, 1.0)
    return _unflat(torch.autograd.functional.jacobian(value, at).square(), masks)


def synflow(model: nn.Module, masks: dict[str, Tensor], example: Tensor) -> dict[str, Tensor]:
    """Return |theta * dR/dtheta|; R is the sum of outputs for ones, under absolute weights and running statistics."""
    model = deepcopy(model).double().eval()
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.abs_()
    theta = {name: w.double() for name, w in weights_of(model).items()}
    c = {name: mask.double().requires_grad_() for name, mask in masks.items()}
    output = functional_call(model, {name: theta[name] * c[name] for name in theta}, (torch.ones_like(example),))
    gradients = torch.autograd.grad(output.sum(), list(c.values()))
    return dict(zip(theta, (g.abs() for g in gradients), strict=True))


def magnitude(model: nn.Module) -> dict[str, Tensor]:
    return {name: w.abs() for name, w in weights_of(model).items()}


def erk_shares(shapes: dict[str, tuple[int, ...]], keep: int) -> dict[str, Fraction]:
    """Return how many weights each layer should keep at its Erdős-Rényi-kernel density, exactly, before rounding.

    The density is eps * (sum of dimensions) / (product), eps such that they add up to `keep`; a layer for which
    that is more than 1 is dense, and eps is found again for the others.
    """
    sizes = {name: int(torch.Size(shape).numel()) for name, shape in shapes.items()}
    dense: set[str] = set()
    while True:
        rest = [name for name in shapes if name not in dense]
        if not rest:
            return {name: Fraction(size) for name, size in sizes.items()}
        room = keep - sum(sizes[name] for name in dense)
        epsilon = Fraction(room, sum(sum(shapes[name]) for name in rest))
        over = [name for name in rest if epsilon * sum(shapes[name]) > sizes[name]]
        if not over:
            break
        dense |= set(over)
    return {name: Fraction(sizes[name]) if name in dense else epsilon * sum(shapes[name]) for name in shapes}


def exponential(total: int, keep: int, rounds: int) -> list[Decimal]:
    """Return k_t = k^a m^(1-a), a = t/T (eq. 8), t = 1..T, to 60 digits."""
    with localcontext() as context:
        context.prec = 60
        logs = Decimal(keep).ln(), Decimal(total).ln()
        shares = [Decimal(t) / rounds for t in range(1, rounds + 1)]
        return [(a * logs[0] + (1 - a) * logs[1]).exp() for a in shares]


def linear(total: int, keep: int, rounds: int) -> list[Fraction]:
    return [total - Fraction((total - keep) * t, rounds) for t in range(1, rounds + 1)]


def top(
    scores: dict[str, Tensor], keep: int, prefer: dict[str, Tensor] | None = None, at_least: int = 0
) -> dict[str, Tensor]:
    """Keep the `keep` highest by a full sort in Python: by score, then the preferred, then the lower index."""
    values = [value for score in scores.values() for value in score.flatten().tolist()]
    prefer = prefer or ones(scores)
    preferred = [value for name in scores for value in prefer[name].flatten().tolist()]
    layers = [name for name, score in scores.items() for _ in range(score.numel())]
    ranked = sorted(range(len(values)), key=lambda at: (-values[at], not preferred[at], at))
    chosen: set[int] = set()
    for name in scores:
        chosen.update([at for at in ranked if layers[at] == name][:at_least])
    chosen.update([at for at in ranked if at not in chosen][: keep - len(chosen)])
    bits = torch.tensor([at in chosen for at in range(len(values))], dtype=torch.bool)
    parts = bits.split([score.numel() for score in scores.values()])
    return {name: part.view(scores[name].shape) for name, part in zip(scores, parts, strict=True)}


def assert_top(masks: dict[str, Tensor], scores: dict[str, Tensor], keep: int, close: float = 1e-12) -> None:
    """Check that the masks keep exactly the `keep` highest scores; scores equal up to rounding may change places."""
    kept = torch.cat([mask.flatten() for mask in masks.values()])
    values = torch.cat([scores[name].flatten() for name in masks])
    assert int(kept.sum()) == keep
    if 0 < keep < kept.numel():
        worst, best = values[kept].min(), values[~kept].max()
        scale = values[values.isfinite()].abs().max()
        assert worst >= best - close * scale, f"kept {float(worst)}, dropped {float(best)}"


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Return whether two dicts of tensors have the same names in the same order and the same values."""
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def changes(before: dict[str, Tensor], after: dict[str, Tensor]) -> tuple[int, int, int, dict[str, int]]:
    """Count weights pruned, recovered, recovered into output channels that kept none, and kept in each layer."""
    pruned = sum(int((before[name] & ~mask).sum()) for name, mask in after.items())
    recovered = {name: mask & ~before[name] for name, mask in after.items()}
    empty = {name: ~mask.flatten(1).any(1) for name, mask in before.items()}
    into_empty = sum(int(recovered[name][empty[name]].sum()) for name in after)
    layers = {name: int(mask.sum()) for name, mask in after.items()}
    return pruned, sum(int(mask.sum()) for mask in recovered.values()), into_empty, layers


HOOKS = tuple(name for name in vars(nn.Module()) if "hooks" in name)


class Trace:
    """A record of everything that pruning must leave alone: the model, the generators and torch's switches.

    `with Trace(model): ...` checks at the end, also if another context within it caught an exception.
    """

    def __init__(self, model: nn.Module, generators: Iterable[torch.Generator] = ()) -> None:
        self.model, self.generators = model, list(generators)
        self.alive = [[m, *_tensors(m)] for m in model.modules()]  # so that nothing new gets the id of something old
        self.before = self._state()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.check()

    def check(self) -> None:
        now = self._state()
        assert [key for key in now if now[key] != self.before[key]] == []

    def _state(self) -> dict[str, Any]:
        modules = list(self.model.modules())
        parameters = [p for m in modules for p in m._parameters.values() if p is not None]
        name, keys, *rest = numpy.random.get_state()
        cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
        return {
            "modules": [id(m) for m in modules],
            "modes": [m.training for m in modules],
            "hooks": [[(name, list(getattr(m, name) or {})) for name in HOOKS] for m in modules],
            "attributes": [sorted(vars(m)) for m in modules],
            "parameters": [(_bits(p), p._version, p.data_ptr(), p.stride(), p.requires_grad) for p in parameters],
            "gradients": [_bits(p.grad) for p in parameters],
            "buffers": [[(name, _bits(buffer)) for name, buffer in m._buffers.items()] for m in modules],
            "torch": torch.get_rng_state().tolist(),
            "python": random.getstate(),
            "numpy": (name, keys.tolist(), *rest),
            "generators": [g.get_state().tolist() for g in self.generators],
            "own generators": [repr(_generator_state(v)) for m in modules for v in vars(m).values()],
            "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, cuda.matmul.allow_tf32),
            "attention": (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "default type": torch.get_default_dtype(),
            "autograd": torch.is_grad_enabled(),
            "threads": torch.get_num_threads(),
            "autocast": torch.is_autocast_enabled("cpu"),
        }


def _generator_state(value: object) -> object:
    """Return the state of a random generator; None for anything else."""
    if isinstance(value, numpy.random.Generator):
        return value.bit_generator.state
    if isinstance(value, numpy.random.RandomState):
        return [part.tolist() if isinstance(part, numpy.ndarray) else part for part in value.get_state()]
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    return value.getstate() if isinstance(value, random.Random) else None


def _tensors(module: nn.Module) -> list[Tensor | None]:
    parameters = list(module._parameters.values())
    return [*parameters, *(p.grad for p in parameters if p is not None), *module._buffers.values()]


def _bits(tensor: Tensor | None) -> tuple[int, bytes] | None:
    """Return which tensor it is, and its bits, so that nan equals nan and 0.0 is not -0.0."""
    if tensor is None:
        return None
    return id(tensor), tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
