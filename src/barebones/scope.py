"""Scope: the names of a model's parameters, and which of them may be pruned."""

import fnmatch
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter, is_lazy
from torch.utils._pytree import tree_leaves

from .messages import first_line, shape_of, shortened
from .running.shards import is_sharded, local, own_rows, refuse_shards, sharded_like, why_not

Pattern = str | Sequence[str] | Callable[[str, Tensor], bool]

# Wrappers that do not show in names, and the attribute in which each keeps the wrapped module. Importing the classes
# would load torch's compiler and its distributed package.
WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}
ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def bare(module: nn.Module) -> nn.Module:
    """Return the module without its compile, data-parallel or checkpoint wrappers."""
    if not isinstance(module, nn.Module):
        is_class = isinstance(module, type)
        what = f"the class {module.__name__}; make an object of it" if is_class else f"a {type(module).__name__}"
        raise ValueError(f"the model must be an nn.Module, not {what}")
    while inner := WRAPPERS.get(type(module).__name__):
        if inner not in module._modules:
            break
        module = getattr(module, inner)
    if type(module).__name__ == "FullyShardedDataParallel":
        raise ValueError("FSDP shards the weights; prune the model before you wrap it, or on one device")
    return module


def layers(model: nn.Module, repeated: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module, once or `repeated`, with its canonical path, like `named_modules` but without wrappers."""
    visited: set[int] = set()

    def walk(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
        module = bare(module)
        if id(module) in visited and not repeated:
            return
        visited.add(id(module))
        yield path, module
        for name, child in module._modules.items():
            if child is not None:
                yield from walk(child, joined(path, name))

    return walk(model, "")


def transposed(model: nn.Module) -> dict[str, int]:
    """Return the weights whose first dimension is the input, as in transposed convolutions, and their groups."""
    groups = {}
    for path, module in layers(model):
        if isinstance(module, nn.modules.conv._ConvTransposeNd):
            groups[joined(path, "weight")] = module.groups
        elif "weight" in _weights_of(module) and type(module).__name__ == "Conv1D":
            groups[joined(path, "weight")] = 1
    return groups


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return every parameter once by its canonical name; tied parameters have their first name."""
    named: dict[str, nn.Parameter] = {}
    visited: set[int] = set()
    for path, module in layers(model):
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in visited:
                visited.add(id(parameter))
                named[joined(path, name)] = parameter
    return named


def joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def prunable(model: nn.Module, scope: Pattern | None = None, exclude: Pattern = ()) -> dict[str, nn.Parameter]:
    """Return the parameters that may be pruned, by canonical name.

    By default these are the weights of convolutions (also transposed ones), linear layers, attention projections and
    transformers' `Conv1D`, except those shared with an embedding. `scope` replaces this rule, and `exclude` removes
    parameters from it. Each is a glob pattern, a list of patterns, or a function of (name, parameter). The scope "all"
    is every parameter, also those of norms, and biases: what starts at zero has a saliency of zero, so it goes first.

    >>> list(prunable(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)), exclude="2.*"))
    ['0.weight']
    """
    named = parameters(model)
    scope = "*" if scope == "all" else scope
    chosen = _default(model, named) if scope is None else {n: named[n] for n in _matching(named, scope, "scope")}
    dropped = _matching(named | chosen, exclude, "exclude")
    for name in chosen:
        if name not in dropped and (reason := _why_not(named.get(name))):
            raise ValueError(f"{name} cannot be pruned: {reason}; or leave it out with exclude={name!r}")
    weights = {name: named[name] for name in chosen if name not in dropped}
    if not weights:
        kinds = "convolution, linear layer or attention projection"
        raise ValueError(f"the model has no prunable weight: no {kinds} is in scope; pass scope= with other names")
    _refuse_shared_memory(model, weights)
    return weights


def _default(model: nn.Module, named: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Return the default scope by name; a computed weight stands there with the first parameter of its layer."""
    names = {id(parameter): name for name, parameter in named.items()}
    embedded = {id(m.weight) for _, m in layers(model) if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    chosen: dict[str, nn.Parameter] = {}
    for path, module in layers(model):
        for attribute in _weights_of(module):
            parameter = module._parameters.get(attribute)
            if parameter is None:  # it is computed by weight norm, spectral norm or torch.nn.utils.prune
                chosen[joined(path, attribute)] = next(module.parameters())
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


def _matching(named: dict[str, nn.Parameter], pattern: Pattern, argument: str) -> list[str]:
    """Return the names that a pattern matches; `argument` is what the user calls it."""
    if callable(pattern):
        return [name for name, parameter in named.items() if pattern(name, parameter)]
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    matched = {p: fnmatch.filter(named, p) for p in patterns}
    for p, names in matched.items():
        if not names:
            raise ValueError(f"{argument}={p!r} matches no parameter; names look like {next(iter(named), None)!r}")
    return [name for name in named if any(name in names for names in matched.values())]


def _why_not(parameter: nn.Parameter | None) -> str:
    """Say why a weight cannot be pruned; return an empty string if it can."""
    if parameter is None:
        return "it is computed from others (a parametrization, weight norm or torch.nn.utils.prune); remove that first"
    if isinstance(parameter, UninitializedParameter):
        return "it is lazy and has no shape yet; run the model once first"
    if parameter.is_meta:
        return "it is on the meta device and has no values; materialize the model first"
    if is_sharded(parameter):
        return why_not(parameter)
    dense = type(parameter.data) is Tensor and parameter.layout == torch.strided
    if not dense or not parameter.is_floating_point():
        kind = f"{type(parameter.data).__name__}, {parameter.dtype}, {parameter.layout}"
        return f"it is complex, quantized, sharded or otherwise not a plain float tensor ({kind})"
    if parameter.is_inference():
        return "it was created under torch.inference_mode(); build the model outside of it"
    return ""


def _refuse_shared_memory(model: nn.Module, weights: Collection[str]) -> None:
    """Refuse a weight if another tensor of the model shares its memory, because a mask or copy of it would not."""
    tensors = {**parameters(model), **dict(model.named_buffers())}
    reach: tuple[str, int, str] = ("", 0, "")  # device, end and name of the tensor that ends last
    for device, begin, end, name in sorted((str(t.device), *_extent(t), name) for name, t in tensors.items()):
        if device == reach[0] and begin < reach[1] and (name in weights or reach[2] in weights):
            cure = "assign one Parameter to both modules, or clone() one of them"
            raise ValueError(f"{reach[2]} and {name} share memory, so pruning changes both; {cure}")
        reach = max(reach, (device, end, name)) if device == reach[0] else (device, end, name)


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return where the memory of a tensor begins and ends."""
    tensor = local(tensor)
    if is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def matched(model: nn.Module, masks: Mapping[str, Tensor]) -> list[tuple[str, nn.Parameter, Tensor]]:
    """Return the name, parameter and mask of every mask, on the parameter's device; check that the masks fit."""
    if not isinstance(masks, Mapping):
        kind = type(masks).__name__
        raise ValueError(f"masks must be a dict from names to bool tensors, not a {kind}; pass result.masks")
    named = parameters(model)
    if not any(map(is_sharded, named.values())):
        refuse_shards("masks", masks)
    problems = []
    for name, mask in masks.items():
        parameter = named.get(name)
        if parameter is None:
            problems.append(f"the model has no parameter {name}")
        elif isinstance(parameter, UninitializedParameter):
            problems.append(f"{name} is lazy and has no shape yet")
        elif not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            kind = getattr(mask, "dtype", type(mask).__name__)
            problems.append(f"the mask of {name} is not a bool tensor but {kind}")
        elif mask.shape != parameter.shape:
            problems.append(f"the mask of {name} has the shape {shape_of(mask)}, the weight {shape_of(parameter)}")
    if problems:
        like = f"A mask is a bool tensor with its parameter's first name, such as {next(iter(named), None)!r}"
        raise ValueError(f"the masks do not fit the model: {shortened(problems)}. {like}")
    return [(name, named[name], placed(mask, named[name])) for name, mask in masks.items()]


def placed(mask: Tensor, parameter: nn.Parameter) -> Tensor:
    if is_sharded(parameter) and not is_sharded(mask):
        return sharded_like(own_rows(mask, parameter).to(local(parameter).device), parameter)
    return mask.to(parameter.device)


def masked_copy(model: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of the bare model with its pruned weights at zero.

    >>> masked_copy(nn.Linear(2, 1), {"weight": torch.zeros(1, 2) > 0}).weight.tolist()
    [[0.0, 0.0]]
    """
    model = bare(model)
    refuse_sharded(model, "copy it")
    _refuse_shared_memory(model, masks)
    # torch does not copy tensors that were computed with gradients, and some networks keep such tensors in attributes.
    attributes = tree_leaves([vars(module) for module in model.modules()])
    computed = {id(t): t.detach().clone() for t in attributes if isinstance(t, Tensor) and not t.is_leaf}
    try:
        copy = deepcopy(model, computed)
    except (RuntimeError, TypeError) as error:  # a tensor with a history, or an object such as a lock
        reason = f"{type(model).__name__} cannot be copied ({first_line(error)})"
        raise ValueError(f"{reason}; remove the attribute that holds such an object") from error
    with torch.no_grad():
        for _, parameter, mask in matched(copy, masks):
            parameter.masked_fill_(~mask, 0)
    return copy


def refuse_sharded(model: nn.Module, purpose: str, remedy: str = "do that before you shard it") -> None:
    if any(map(is_sharded, bare(model).parameters())):
        raise ValueError(f"the model is sharded, and no process can {purpose}; {remedy}")


def refuse_scripted(model: nn.Module) -> None:
    """Refuse a network with scripted modules: torch cannot follow them, nor copy their parameters as parameters."""
    if scripted := [name for name, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)]:
        raise ValueError(f"{scripted[0] or 'the model'} is scripted; pass the model before torch.jit.script")
