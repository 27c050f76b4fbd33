"""Rules: what each torch function does to the channels that pass through it, in a table by the function's name.

- A layer reads the channels of its input and writes channels of its own.
- An elementwise function couples the channels that it combines.
- A function along a dimension (a softmax, a sort, a sum) fixes the channels that vary along it.
- A matrix product of activations keeps the channels of its rows and columns, and fixes those that it sums over.
- A view with sizes couples the channels that a size binds together: in `view(batch, length, -1, 64)` the 64 channels of
  a head can only be removed together. Where all sizes are numbers, it is uncertain whether the network computed them
  from the shape of the tensor or always uses the same: only a trial can tell.
- A function that is not in the table mixes everything.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...paths.bits import Call
from .labels import INPUT, NOTHING, Labels, Rule, as_it_is, mixed, plain, varies

CONVOLUTIONS, NORMS = nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase


# ---- layers ----


def linear(labels: Labels, call: Call) -> Tensor:
    """Linear layers; where other dimensions than the last hold channels, these pass through."""
    arguments = call.named("input", "weight")
    layer = labels.layer(nn.Linear, arguments["weight"])
    if layer is None:
        return mixed(labels, call)
    x = arguments["input"]
    groups, (name, module) = labels.of(x), layer
    outputs = labels.slot(name, module, "out", module.out_features)
    if groups is not None and not varies(groups, -1) and any(varies(groups, d) for d in range(groups.dim() - 1)):
        labels.fix(outputs.numbers)
        return labels.numbered(groups.amax(-1, keepdim=True).expand(*x.shape[:-1], outputs.size))
    labels.read(groups, labels.slot(name, module, "in", module.in_features), -1)
    labels.write(outputs)
    return labels.numbered(outputs.numbers.expand(*x.shape[:-1], -1))


def convolution(labels: Labels, call: Call) -> Tensor:
    """Convolutions, also depthwise, grouped and transposed ones."""
    arguments = call.named("input", "weight")
    layer = labels.layer(CONVOLUTIONS, arguments["weight"])
    if layer is None or (layer[1].transposed and layer[1].groups > 1):
        return mixed(labels, call)
    x, (name, module) = arguments["input"], layer
    dim, shape = x.dim() - len(module.kernel_size) - 1, plain(call).shape
    depthwise = module.groups == module.in_channels == module.out_channels > 1
    inputs = labels.slot(name, module, "both" if depthwise else "in", module.in_channels)
    outputs = inputs if depthwise else labels.slot(name, module, "out", module.out_channels)
    labels.read(labels.of(x), inputs, dim)
    labels.write(outputs)
    return labels.numbered(outputs.numbers.view(-1, *[1] * (len(shape) - dim - 1)).expand(shape))


def embedding(labels: Labels, call: Call) -> Tensor:
    """Embeddings write the columns of their table."""
    arguments = call.named("input", "weight")
    layer = labels.layer(nn.Embedding, arguments["weight"])
    if layer is None:
        return mixed(labels, call)
    outputs = labels.slot(*layer, "out", layer[1].embedding_dim)
    labels.write(outputs)
    return labels.numbered(outputs.numbers.expand(*arguments["input"].shape, -1))


def channel_norm(labels: Labels, call: Call) -> Tensor:
    """Batch-norm and instance-norm treat each channel by itself, and have values for each."""
    arguments = call.named("input", "running_mean", "running_var", "weight", "bias")
    layer = labels.layer(NORMS, arguments.get("weight"))
    if layer is None:
        return mixed(labels, call)
    return _per_channel(labels, call.args[0] if call.args else arguments["input"], layer)


def prelu(labels: Labels, call: Call) -> Tensor:
    """PReLU has one slope, or one for each channel."""
    arguments = call.named("input", "weight")
    layer = labels.layer(nn.PReLU, arguments["weight"])
    if arguments["weight"].numel() == 1:
        return labels.numbered(_groups(labels, arguments["input"]))
    return mixed(labels, call) if layer is None else _per_channel(labels, arguments["input"], layer)


def _per_channel(labels: Labels, x: Tensor, layer: tuple[str, Any]) -> Tensor:
    dim = min(1, x.dim() - 1)
    slot = labels.slot(*layer, "both", x.shape[dim])
    labels.read(labels.of(x), slot, dim)
    return labels.numbered(slot.numbers.view(-1, *[1] * (x.dim() - dim - 1)).expand(x.shape))


# ---- elementwise functions ----


def passing(labels: Labels, call: Call) -> Tensor:
    """Functions of one value."""
    groups = _groups(labels, call.tensors[0])
    return call.out if call.inplace else labels.numbered(groups)


def alias(labels: Labels, call: Call) -> Tensor:
    """Functions that return the same memory, or a copy of it."""
    x = call.args[0]
    labels.of(x)
    return x.view_as(x) if call.name != "contiguous" or x.is_contiguous() else x.contiguous()


def meeting(labels: Labels, call: Call) -> Tensor:
    """Functions of two or more values at the same place."""
    return labels.numbered(labels.join(*map(labels.shape_or_groups, call.tensors)))


def comparison(labels: Labels, call: Call) -> Any:
    """The result of a comparison belongs to the channels that are compared."""
    groups = labels.join(*map(labels.shape_or_groups, call.tensors))
    result = plain(call)
    return labels.remember(result, groups) if isinstance(result, Tensor) else result


def cast(labels: Labels, call: Call) -> Any:
    """Another type or device: the numbers stay what they are."""
    x = call.args[0]
    groups, result = _groups(labels, x), plain(call)
    if not isinstance(result, Tensor):  # a number in Python
        labels.fix(groups)
        return result
    if not result.is_floating_point():
        return labels.remember(result.clone(), groups)
    return x.view_as(x) if x.requires_grad else labels.numbered(groups)


def fresh(labels: Labels, call: Call) -> Any:
    """A new tensor, of which its maker gives only the type: what is computed with its channels must keep them."""
    labels.of(call.args[0])
    return labels.like_input(plain(call))


def fill(labels: Labels, call: Call) -> Tensor:
    """A constant written over channels leaves them where they are."""
    return meeting(labels, Call(torch.add, call.args[:2], {})) if len(call.tensors) > 1 else call.args[0]


# ---- functions along dimensions ----


def along(labels: Labels, call: Call) -> Any:
    """Functions whose results along a dimension depend on all values along it."""
    x = call.args[0] if call.args else call.kwargs["input"]
    groups, dims = _groups(labels, x), _dims(call, x)
    mixes = any(varies(groups, d) for d in dims)
    if mixes:
        labels.fix(groups)

    def result(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if value.shape == x.shape:
            return labels.numbered(groups)
        if mixes:
            return labels.like_input(value)
        one = groups.amax(dims, keepdim=True) if dims else groups
        return labels.numbered(one.expand(value.shape) if value.dim() == x.dim() else one.reshape(value.shape))

    return tree_map(result, plain(call))


def extreme(labels: Labels, call: Call) -> Any:
    """`max` and `min`: of two tensors, or along a dimension."""
    return meeting(labels, call) if sum(t.is_floating_point() for t in call.tensors) == 2 else along(labels, call)


def glu(labels: Labels, call: Call) -> Tensor:
    """One half is the gate of the other."""
    x, dim = call.args[0], call.named("input", "dim").get("dim", -1)
    groups = _groups(labels, x)
    _couple_parts(labels, groups, dim, groups.shape[dim] // 2)
    return labels.numbered(groups.chunk(2, dim)[0])


def pool(labels: Labels, call: Call) -> Any:
    """Pools and interpolations combine values of the last dimensions; torch refuses some inputs without channels."""
    x = call.args[0] if call.args else call.kwargs["input"]
    groups = _groups(labels, x)
    digits = [int(c) for c in call.name if c in "123"]
    spatial = range(-digits[0], 0) if digits else range(2 - x.dim(), 0)
    if any(varies(groups, d) for d in spatial):
        return mixed(labels, call)
    if not digits or "avg" in call.name or "max" in call.name:
        labels.pooled.append(groups.unique())
    one = groups.amax(tuple(spatial), keepdim=True)
    return tree_map(lambda v: labels.numbered(one.expand(v.shape)) if v.is_floating_point() else v, plain(call))


def pad(labels: Labels, call: Call) -> Tensor:
    """Padding; padded channels stay, and padded borders belong to no channel."""
    arguments = call.named("input", "pad", "mode" if call.name == "pad" else "value")
    x, sizes = arguments["input"], list(arguments["pad"])
    groups = _groups(labels, x)
    single = len(groups.unique()) == 1
    for i, size in enumerate(sizes[::2]):
        dim = -1 - i
        channels = varies(groups, dim) or (single and groups.shape[dim] == 1)
        after = sizes[2 * i + 1]
        if channels and (arguments.get("mode", "constant") != "constant" or min(size, after) < 0) and (size or after):
            labels.fix(groups)
        value = INPUT if channels else NOTHING
        groups = torch.nn.functional.pad(groups, [0, 0] * i + [size, after], value=value)
    return labels.numbered(groups)


# ---- functions that move values ----


def view(labels: Labels, call: Call) -> Tensor:
    """Views and reshapes: a size that is given binds channels, unless it was computed from the tensor's shape."""
    x = call.args[0]
    if call.name == "view" and len(call.args) > 1 and isinstance(call.args[1], torch.dtype):
        return mixed(labels, call)
    groups = _groups(labels, x)
    result = groups.reshape(plain(call).shape)
    given = _given(call, x, result)
    varying = [d for d in range(result.dim()) if varies(result, d)]
    bound = [d for d in varying if given[d]]
    if bound and len(bound) < len(varying):
        for d in bound:
            labels.couple(result, result.amax(d, keepdim=True))
    elif bound:
        labels.uncertain.append(result.unique())
        if len(varying) > sum(varies(groups, d) for d in range(groups.dim())):  # one dimension became several
            for d in varying[:-1]:
                labels.couple(result, result.amax(d, keepdim=True))
    return call.func(*call.args, **call.kwargs)


def _given(call: Call, x: Tensor, result: Tensor) -> list[bool]:
    """Return, for each dimension of a view, whether its size was given as a number."""
    if call.name in ("view_as", "reshape_as"):
        return [True] * result.dim()
    if call.name in ("flatten", "ravel"):
        return [False] * result.dim()
    sizes: Any = call.kwargs.get("sizes", call.kwargs.get("size", call.kwargs.get("shape", call.args[1:])))
    if call.name == "unflatten":
        dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else 0) % x.dim()
        sizes = call.kwargs.get("sizes", call.args[2] if len(call.args) > 2 else ())
        rest = result.dim() - dim - len(sizes)
        return [False] * dim + [size != -1 for size in sizes] + [False] * rest
    if len(sizes) == 1 and not isinstance(sizes[0], int):
        sizes = sizes[0]
    return [int(size) != -1 for size in sizes]


def expand(labels: Labels, call: Call) -> Any:
    """Expansions; a channel that is repeated over a dimension stays if it may be alone there."""
    x = call.args[0]
    groups, result = _groups(labels, x), call.func(*call.args, **call.kwargs)
    sizes = (1,) * (result.dim() - x.dim()) + tuple(x.shape)
    if len(groups.unique()) == 1 and any(a == 1 < b for a, b in zip(sizes, result.shape, strict=True)):
        labels.fix(groups)
    elif any(varies(groups, d) for d in range(groups.dim())):
        labels.uncertain.append(groups.unique())
    return result


def concatenation(labels: Labels, call: Call) -> Tensor:
    """Concatenations couple what must have the same width in all parts."""
    parts = list(call.args[0] if call.args else call.kwargs["tensors"])
    dim = call.named("tensors", "dim").get("dim", call.kwargs.get("axis", 0))
    parts = [t for t in parts if t.dim() > 1 or t.numel()]  # torch allows empty tensors of one dimension
    dim = dim % parts[0].dim()
    known = [(t.shape, labels.of(t)) for t in parts]
    others = [d for d in range(parts[0].dim()) if d != dim]
    across = {d for _, groups in known if groups is not None for d in others if varies(groups, d)}
    if across:
        first = None
        for _, groups in known:
            if groups is None or not all(varies(groups, d) for d in across):
                for _, fixed in known:
                    labels.fix(fixed)
                break
            one = groups.select(dim, 0)
            if varies(groups, dim):
                one = groups.amax(dim)
                labels.couple(groups, one.unsqueeze(dim))
            if first is not None:
                labels.couple(first, one)
            first = one
    device = labels.device
    numbers = [
        t if groups is not None else torch.zeros(t.shape, dtype=torch.double, device=device)
        for t, (_, groups) in zip(parts, known, strict=True)
    ]
    return torch.cat(numbers, dim)


def stack(labels: Labels, call: Call) -> Tensor:
    """Stacked tensors must have the same channels."""
    parts = list(call.args[0] if call.args else call.kwargs["tensors"])
    groups = labels.join(*map(labels.shape_or_groups, parts))
    dim = call.named("tensors", "dim").get("dim", 0)
    return labels.numbered(torch.stack([groups] * len(parts), dim))


def parts(labels: Labels, call: Call) -> Any:
    """Chunks and splits: equal parts lose the same channels; others cannot lose any."""
    x = call.args[0]
    groups = _groups(labels, x)
    dim = call.kwargs.get("dim", call.args[2] if len(call.args) > 2 else 0) % x.dim()
    if varies(groups, dim):
        sizes = {part.shape[dim] for part in plain(call)}
        if len(sizes) > 1:
            labels.fix(groups)
        else:
            _couple_parts(labels, groups, dim, sizes.pop())
            if call.name != "chunk":
                labels.uncertain.append(groups.unique())
    return call.func(*call.args, **call.kwargs)


def _couple_parts(labels: Labels, groups: Tensor, dim: int, size: int) -> None:
    first, *others = groups.split(size, dim)
    for other in others:
        labels.couple(first, other)


def taking(labels: Labels, call: Call) -> Any:
    """Functions that take values at given places of one dimension: its channels stay."""
    x, dims = call.args[0], _dims(call, call.args[0])
    groups = _groups(labels, x)
    if any(varies(groups, d) for d in dims) or labels.of(x) is None:
        labels.fix(groups)
    return call.func(*call.args, **call.kwargs)


def item(labels: Labels, call: Call) -> Any:
    """Indexing: equal parts lose the same channels; channels that are taken by number stay."""
    x, index = call.args[:2]
    if labels.of(x) is None:
        return mixed(labels, call)
    _judge_index(labels, _groups(labels, x), index)
    return x[index]


def set_item(labels: Labels, call: Call) -> Any:
    """Assignments to an index."""
    x, index, value = call.args[:3]
    if not x.is_floating_point():
        return mixed(labels, call)
    if not x.requires_grad:  # a constant; what is written to it are numbers
        with torch.no_grad():
            (x if x._base is None else x._base).zero_()
    groups = labels.of(x)
    if groups is not None:
        _judge_index(labels, groups, index)
    old = x[index]
    if isinstance(value, Tensor) and value.dim():
        known = [labels.shape_or_groups(value)]
        if groups is not None:
            known.append(labels.shape_or_groups(old) if old.requires_grad else tuple(old.shape))
        joined = labels.join(*known)
        if isinstance(joined, Tensor) and joined.any():
            if groups is None and joined.shape != x.shape:  # a part of a constant: its other parts cannot be cut
                labels.fix(joined)
            x[index] = labels.numbered(joined)
    return x


def _judge_index(labels: Labels, groups: Tensor, index: Any) -> None:
    """Fix or couple the channels that an index chooses by their numbers."""
    index = list(index) if isinstance(index, tuple) else [index]
    used = sum(1 if not isinstance(i, Tensor) or i.dtype not in (torch.bool, torch.uint8) else max(i.dim(), 1)
               for i in index if i is not None and i is not Ellipsis)  # fmt: skip
    if not any(i is Ellipsis for i in index):
        index.append(Ellipsis)
    dim = 0
    for i in index:
        if i is None:
            continue
        if i is Ellipsis:
            dim += groups.dim() - used
            continue
        width = max(i.dim(), 1) if isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) else 1
        for d in range(dim, min(dim + width, groups.dim())):
            size = groups.shape[d]
            if not varies(groups, d) or (isinstance(i, slice) and i == slice(None)):
                continue
            if isinstance(i, slice) and i.step in (None, 1):
                start, stop, _ = i.indices(size)
                if (start, stop) == (0, size):
                    labels.uncertain.append(groups.unique())
                    continue
                length = stop - start
                if length > 0 and size % length == 0 and start % length == 0:
                    _couple_parts(labels, groups, d, length)
                    labels.uncertain.append(groups.unique())
                    continue
            labels.fix(groups)
        dim += width


def shuffle(labels: Labels, call: Call) -> Tensor:
    """Shuffles: the groups of `channel_shuffle` stay equally wide, and the channels of a pixel go together."""
    groups = _groups(labels, call.args[0])
    if call.name == "channel_shuffle":
        _couple_parts(labels, groups, 1, groups.shape[1] // call.named("input", "groups")["groups"])
    else:
        pixels = groups.unflatten(-3, (-1, call.named("input", "upscale_factor")["upscale_factor"] ** 2))
        labels.couple(pixels, pixels.amax(-3, keepdim=True))
    return call.func(*call.args, **call.kwargs)


# ---- matrix products ----


def product(labels: Labels, call: Call) -> Tensor:
    """Matrix products of activations."""
    a, b = call.args[:2] if len(call.args) > 1 else (call.args[0], call.kwargs["other"])
    if call.name == "rmatmul":
        a, b = b, a
    if a.dim() < 2 or b.dim() < 2:
        return mixed(labels, call)
    return labels.numbered(labels.join(_summed(labels, a, -1), _summed(labels, b, -2)))


def added_product(labels: Labels, call: Call) -> Tensor:
    """A matrix product plus a first argument."""
    start, a, b = call.tensors  # some of them may be given by name
    if a.dim() < 2 or b.dim() < 2:
        return mixed(labels, call)
    joined = labels.join(_summed(labels, a, -1), _summed(labels, b, -2))
    return labels.numbered(labels.join(joined, labels.shape_or_groups(start)))


def einsum(labels: Labels, call: Call) -> Tensor:
    """Einstein sums with letters only."""
    equation, *operands = call.args
    operands = list(operands[0]) if isinstance(operands[0], list | tuple) else operands
    if not isinstance(equation, str) or "..." in equation or "->" not in equation:
        return mixed(labels, call)
    inputs, output = equation.replace(" ", "").split("->")
    known: list[Any] = []
    for letters, operand in zip(inputs.split(","), operands, strict=True):
        if len(set(letters)) < len(letters):
            return mixed(labels, call)
        summed = [d for d, letter in enumerate(letters) if letter not in output]
        one = _summed(labels, operand, *summed)
        order = [letters.index(letter) for letter in output if letter in letters]
        if isinstance(one, tuple):
            sizes = iter([one[d] for d in order])
            known.append(tuple(next(sizes) if letter in letters else 1 for letter in output))
        else:
            moved = one.permute(*order, *summed).flatten(len(order)) if summed else one.permute(order)
            moved = moved[..., 0] if summed else moved
            known.append(moved[tuple(slice(None) if letter in letters else None for letter in output)])
    return labels.numbered(labels.join(*known))


def attention(labels: Labels, call: Call) -> Tensor:
    """Scaled dot-product attention: heads are channels, if their channels can only be removed together."""
    arguments = call.named("query", "key", "value", "attn_mask")
    q, k = (_summed(labels, arguments[name], -1) for name in ("query", "key"))
    k, v = (_summed(labels, t, -2) for t in (k, arguments["value"]))
    if arguments.get("enable_gqa"):
        heads = q[-3] if isinstance(q, tuple) else q.shape[-3]
        k, v = (_repeated(t, heads) for t in (k, v))
    mask = arguments.get("attn_mask")
    known = [q, k, v] if mask is None else [q, k, v, _summed(labels, mask, -1)]
    return labels.numbered(labels.join(*known))


def _repeated(known: Any, heads: int) -> Any:
    if isinstance(known, tuple):
        return (*known[:-3], heads, *known[-2:])
    return known.repeat_interleave(heads // known.shape[-3], -3)


def _summed(labels: Labels, value: Any, *dims: int) -> Any:
    """Return the groups of an operand that a product sums over some dimensions, or its shape if it has none left."""
    groups = value if isinstance(value, tuple) or value.dtype == torch.long else labels.shape_or_groups(value)
    if isinstance(groups, tuple):
        sizes = list(groups)
        for d in dims:
            sizes[d] = 1
        return tuple(sizes)
    if not dims:
        return groups
    one = groups.amax(dims, keepdim=True)
    if not any(varies(groups, d) for d in dims):
        return one
    labels.fix(groups)
    return tuple(one.shape)


# ---- help ----


def _groups(labels: Labels, x: Tensor) -> Tensor:
    groups = labels.of(x)
    return torch.full(x.shape, NOTHING) if groups is None else groups


def _dims(call: Call, x: Tensor) -> tuple[int, ...]:
    """Return the dimensions along which a function works."""
    name = call.name
    if name in ("layer_norm", "rms_norm"):
        shape = call.named("input", "normalized_shape")["normalized_shape"]
        return tuple(range(x.dim() - len(shape), x.dim()))
    if name in ("group_norm", "local_response_norm"):
        return (1,)
    place = 2 if name in DIM_IS_THIRD else 1
    dim: Any = next(
        (call.kwargs[key] for key in ("dim", "dims", "axis") if key in call.kwargs),
        call.args[place] if len(call.args) > place else DEFAULT_DIM.get(name),
    )
    if dim is None or isinstance(dim, bool) or dim == () or dim == []:
        return tuple(range(x.dim()))
    dims = dim if isinstance(dim, tuple | list) else (dim,)
    return tuple(int(d) % x.dim() for d in dims) if x.dim() else ()


DIM_IS_THIRD = ("topk", "norm", "linalg_norm", "linalg_vector_norm", "roll", "normalize")
DEFAULT_DIM = {"sort": -1, "argsort": -1, "topk": -1, "normalize": 1, "unbind": 0, "iter": 0}
TABLE: dict[Rule, str] = {
    as_it_is: """
        permute transpose t swapaxes swapdims movedim moveaxis adjoint squeeze unsqueeze flip repeat repeat_interleave
        tile pixel_unshuffle size dim ndimension numel nelement stride storage_offset is_contiguous
        is_floating_point is_complex len get_device element_size data_ptr is_pinned is_tensor is_same_size
        requires_grad hash repr format""",
    passing: """
        clone relu relu6 leaky_relu rrelu elu selu celu gelu silu mish softplus softsign sigmoid
        log_sigmoid logsigmoid hardsigmoid hardswish hardtanh hardshrink softshrink tanhshrink threshold tanh dropout
        dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout abs neg negative positive exp
        exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos tan sinh cosh asinh atan erf clamp clip
        clamp_min clamp_max round floor ceil trunc frac sign nan_to_num ones_like zeros_like full_like
        empty_like rand_like randn_like bernoulli fake_quantize_per_tensor_affine""",
    alias: "contiguous detach data.__get__ requires_grad_",
    meeting: """
        add radd sub rsub subtract mul rmul multiply div rdiv rtruediv truediv divide true_divide floor_divide
        floordiv rfloordiv remainder fmod mod rmod where maximum minimum fmax fmin lerp pow rpow float_power logaddexp
        addcmul addcdiv masked_fill atan2 hypot copy""",
    comparison: """
        gt lt ge le eq ne greater less isnan isinf isfinite signbit logical_and logical_or logical_not logical_xor
        bitwise_and bitwise_or bitwise_not and or invert xor""",
    cast: "to type type_as float double half bfloat16 cpu cuda long int bool",
    fresh: "new_empty new_zeros new_ones new_full new_tensor",
    fill: "fill zero",
    along: """
        softmax log_softmax softmin cumsum cumprod logcumsumexp cummax cummin sort argsort topk roll normalize
        layer_norm group_norm rms_norm local_response_norm sum mean nansum nanmean prod amax amin std var norm
        linalg_norm linalg_vector_norm logsumexp any all argmax argmin count_nonzero""",
    extreme: "max min",
    glu: "glu",
    pool: """
        avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool1d_with_indices
        max_pool2d_with_indices max_pool3d_with_indices adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
        adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool1d_with_indices
        adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices interpolate upsample""",
    pad: "pad constant_pad_nd",
    view: "view reshape view_as reshape_as flatten ravel unflatten",
    expand: "expand expand_as broadcast_to",
    concatenation: "cat concat concatenate",
    stack: "stack",
    parts: "chunk split split_with_sizes tensor_split",
    taking: "index_select select narrow unbind iter",
    item: "getitem",
    set_item: "setitem",
    shuffle: "channel_shuffle pixel_shuffle",
    product: "matmul rmatmul mm bmm",
    added_product: "addmm baddbmm",
    einsum: "einsum",
    attention: "scaled_dot_product_attention",
    linear: "linear",
    convolution: "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    channel_norm: "batch_norm instance_norm",
    prelu: "prelu",
    embedding: "embedding",
}
RULES: dict[str, Rule] = {name: rule for rule, names in TABLE.items() for name in names.split()}
OF_LAYERS: frozenset[Rule] = frozenset({linear, convolution, embedding, channel_norm, prelu})
