"""Which weights of a model may be pruned, and what they are called."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

Pattern = str | Sequence[str] | Callable[[str, Tensor], bool]

# The wrappers that a name must not show, and the attribute each keeps the wrapped module under.
# By class name: importing the classes would load torch's compiler and its distributed stack.
WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}
ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def bare(module: nn.Module) -> nn.Module:
    """The module without its compile, data-parallel or checkpoint wrappers."""
    while inner := WRAPPERS.get(type(module).__name__):
        if inner not in module._modules:
            break
        module = getattr(module, inner)
    if type(module).__name__ == "FullyShardedDataParallel":
        raise ValueError("FSDP shards the weights; prune the model before wrapping it, or on one device")
    return module


def layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, under its canonical path, in `named_modules` order; wrappers are transparent."""
    seen: set[int] = set()

    def walk(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
        module = bare(module)
        if id(module) in seen:
            return
        seen.add(id(module))
        yield path, module
        for name, child in module._modules.items():
            if child is not None:
                yield from walk(child, f"{path}.{name}" if path else name)

    return walk(model, "")


def transposed(model: nn.Module) -> dict[str, int]:
    """The weights whose first dimension is the input, as in transposed convolutions, and their groups."""
    found = {}
    for path, module in layers(model):
        if isinstance(module, nn.modules.conv._ConvTransposeNd):
            found[f"{path}.weight" if path else "weight"] = module.groups
        elif "weight" in _weights_of(module) and type(module).__name__ == "Conv1D":
            found[f"{path}.weight" if path else "weight"] = 1
    return found


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter once (tied ones under their first name), by canonical name."""
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for path, module in layers(model):
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                found[f"{path}.{name}" if path else name] = parameter
    return found


def prunable(model: nn.Module, scope: Pattern | None = None, exclude: Pattern = ()) -> dict[str, nn.Parameter]:
    """The parameters that pruning may touch, by canonical name.

    Without `scope`: the weights of convolutions (transposed too), linear layers, attention projections and
    transformers' `Conv1D`, except those shared with an embedding. `scope` replaces that rule and `exclude`
    takes away from it; each is a glob pattern, several of them, or a predicate of (name, parameter).

    >>> list(prunable(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)), exclude="2.*"))
    ['0.weight']
    """
    named = parameters(model)
    chosen = _default(model, named) if scope is None else {n: named[n] for n in _matching(named, scope, "scope")}
    dropped = _matching(named | chosen, exclude, "exclude")
    found = {name: named[name] for name in chosen if name in named and name not in dropped}
    for name in chosen:
        if name in dropped:
            continue
        if trouble := _unfit(named.get(name)):
            raise ValueError(f"{name} cannot be pruned: {trouble}; or leave it out with exclude={name!r}")
    if not found:
        raise ValueError(
            "the model has no prunable weight: none of its layers is a convolution, a linear layer or an "
            "attention projection within scope; pass scope= with the names to prune"
        )
    _refuse_shared_memory(found)
    return found


def _default(model: nn.Module, named: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """By name; a weight that is computed from others is there too, under its name, as the first of these."""
    names = {id(parameter): name for name, parameter in named.items()}
    embedded = {id(m.weight) for _, m in layers(model) if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    chosen: dict[str, nn.Parameter] = {}
    for path, module in layers(model):
        for attribute in _weights_of(module):
            parameter = module._parameters.get(attribute)
            if parameter is None:  # weight norm, spectral norm or torch.nn.utils.prune computes it
                chosen[f"{path}.{attribute}" if path else attribute] = next(module.parameters())
            elif id(parameter) not in embedded:
                chosen[names[id(parameter)]] = parameter
    return chosen


def _weights_of(module: nn.Module) -> tuple[str, ...]:
    if isinstance(module, nn.modules.conv._ConvNd | nn.Linear | nn.Bilinear):
        return ("weight",)
    if isinstance(module, nn.MultiheadAttention):
        return tuple(name for name in ATTENTION if getattr(module, name, None) is not None)
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # transformers' linear layer
        return ("weight",)
    return ()


def _matching(named: dict[str, nn.Parameter], pattern: Pattern, what: str) -> list[str]:
    if callable(pattern):
        return [name for name, parameter in named.items() if pattern(name, parameter)]
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    matched = {p: fnmatch.filter(named, p) for p in patterns}
    for p, names in matched.items():
        if not names:
            raise ValueError(f"{what}={p!r} matches no parameter; names look like {next(iter(named), None)!r}")
    return [name for name in named if any(name in names for names in matched.values())]


def _unfit(parameter: nn.Parameter | None) -> str:
    """Why a weight cannot be pruned; empty where it can."""
    if parameter is None:
        return "it is computed from others (a parametrization, weight norm or torch.nn.utils.prune); remove that first"
    if isinstance(parameter, UninitializedParameter):
        return "it is lazy and has no shape yet; run the model once first"
    if parameter.is_meta:
        return "it is on the meta device and has no values; materialize the model first"
    if parameter.is_complex():
        return "it is complex"
    if type(parameter.data) is not Tensor or parameter.is_quantized or not parameter.is_floating_point():
        what = f"{type(parameter.data).__name__}, {parameter.dtype}"
        return f"it is quantized, sharded or otherwise not a plain float tensor ({what})"
    if parameter.layout != torch.strided:
        return f"its layout is {parameter.layout}"
    if parameter.is_inference():
        return "it was made under torch.inference_mode(); build the model outside of it"
    return ""


def _refuse_shared_memory(found: dict[str, nn.Parameter]) -> None:
    owner: dict[int, str] = {}
    for name, parameter in found.items():
        if parameter.numel() and (first := owner.setdefault(parameter.data_ptr(), name)) != name:
            raise ValueError(
                f"{first} and {name} share memory but are two Parameter objects, so their masks would collide; "
                "tie them by assigning one Parameter to both modules"
            )


def matched(model: nn.Module, masks: Mapping[str, Tensor]) -> list[tuple[str, nn.Parameter, Tensor]]:
    """Name, parameter and mask, on the parameter's device, of every mask; masks that do not fit are a `ValueError`.

    >>> [(name, mask.shape) for name, _, mask in matched(nn.Linear(2, 1), {"weight": torch.ones(1, 2) > 0})]
    [('weight', torch.Size([1, 2]))]
    """
    if not isinstance(masks, Mapping):
        raise ValueError(f"masks is a dict from names to bool tensors, not a {type(masks).__name__}; pass result.masks")
    named = parameters(model)
    troubles = []
    for name, mask in masks.items():
        parameter = named.get(name)
        if parameter is None:
            troubles.append(f"the model has no parameter {name}")
        elif isinstance(parameter, UninitializedParameter):
            troubles.append(f"{name} is lazy and has no shape yet")
        elif not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            what = getattr(mask, "dtype", type(mask).__name__)
            troubles.append(f"the mask of {name} is not a bool tensor but {what}")
        elif mask.shape != parameter.shape:
            troubles.append(f"the mask of {name} is of shape {list(mask.shape)}, the weight of {list(parameter.shape)}")
    if troubles:
        more = f"; and {len(troubles) - 5} more" if len(troubles) > 5 else ""
        raise ValueError(
            f"the masks do not fit the model: {'; '.join(troubles[:5])}{more}. A mask is a bool tensor under its "
            f"parameter's name, as {next(iter(named), None)!r}; tied weights go by their first name"
        )
    return [(name, named[name], mask.to(named[name].device)) for name, mask in masks.items()]
