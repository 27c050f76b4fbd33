"""Rules: what each torch function does to bits, in a table by the function's name.

- A sum, a convolution or a matrix product is reached if any of its terms is.
- An elementwise function, a batch-norm or dropout passes each bit on; a norm over several channels mixes them.
- A max-pool is reached if any value of its window is.
- A product of two activations is reached if either is, because the other may be a constant other than 0.
- Attention mixes the values of all tokens. Queries and keys are used, like softmax weights, if a value is reached.
- A recurrent layer is unrolled.
- Values that do not come from the input (biases, positions, class tokens, buffers) carry no signal, but a constant
  factor of 0 cuts a signal.
- What integers of the input look up in a table or embedding is a signal: any row may be meant, not only those that
  the example's integers name. If a part of a table is chosen by a length or by fixed indices, as positions are, the
  rest counts as used like that part: longer inputs will use it.
- A function that is not in the table mixes everything: each output depends on each input.
- There are two tables: this one says which values a signal reaches, and `channels/rules.py` says whose channel each is.
"""

import inspect
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.utils import _ntuple
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .bits import Bits, Rule, alive, as_it_is, blank, mixed, pass_on, signal, silent, skip, with_table
from .calls import ELEMENTWISE, MAX_POOLS, Call, dims_of, selection


def add(bits: Bits, call: Call) -> Tensor:
    """A function of two values, such as their sum or maximum: reached if either is."""
    shape = torch.broadcast_tensors(*(torch.empty(t.shape, device="meta") for t in call.tensors))[0].shape
    parts = [bits.quiet(call, t) for t in call.live]
    return reduce(torch.add, parts, torch.zeros(shape, device=parts[0].device))


def multiply(bits: Bits, call: Call) -> Tensor:
    """Elementwise products and quotients; a factor of 0 cuts the signal."""
    product = bits.product(lambda *factors: reduce(torch.mul, factors), call.tensors, lambda result: 0)
    by_zero = "div" not in call.name and any(isinstance(a, int | float) and a == 0 for a in call.args)
    return product * 0 if by_zero else product


def contract(bits: Bits, call: Call) -> Tensor:
    leaves, spec = tree_flatten((call.args, call.kwargs))

    def f(*operands: Tensor) -> Tensor:
        rest = iter(operands)
        args, kwargs = tree_unflatten([next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)
        return call.func(*args, **kwargs)

    return bits.product(f, call.tensors)


def add_product(bits: Bits, call: Call) -> Tensor:
    """A matrix product plus a first argument, as in transformers' `Conv1D`."""
    start, *factors = call.tensors  # some of them may be given by name
    return bits.product(torch.matmul, factors) + bits.quiet(call, start)


def layer(bits: Bits, call: Call) -> Tensor:
    slots = ("input1", "input2", "weight", "bias") if call.name == "bilinear" else ("input", "weight", "bias")
    arguments = call.named(*slots)
    rest, options = call.args[len(slots) :], {k: v for k, v in call.kwargs.items() if k not in slots}
    inputs = [signal(arguments[slot]) for slot in slots[:-2]]
    weight, bias = arguments["weight"], arguments.get("bias")
    bias = None if bias is None else silent(bias).float()
    if any(t not in bits.weights for t in inputs):
        call.weight = None

    def uses(result: Tensor) -> int:
        return (inputs[0] if "transpose" in call.name else result).numel() // weight.shape[0]

    return bits.product(lambda *operands: call.func(*operands, bias, *rest, **options), [*inputs, weight], uses)


def norm(bits: Bits, call: Call) -> Tensor:
    """Norms pass each bit on where their scale is not 0, and mix what they normalize together by its statistics."""
    arguments = call.named(*NORMS[call.name])
    x, weight, bias = bits.quiet(call, arguments["input"]), arguments.get("weight"), arguments.get("bias")
    if call.name == "group_norm":
        groups = x.unflatten(1, (arguments["num_groups"], -1)).flatten(2)
        x = groups.sum(2, keepdim=True).expand_as(groups).reshape(x.shape)
    elif call.name != "batch_norm":
        shape = arguments.get("normalized_shape", x.shape[2:])
        x = x.sum(tuple(range(-len(shape), 0)), keepdim=True).expand_as(x)

    def fit(t: Tensor) -> Tensor:
        return t if call.name in ("layer_norm", "rms_norm") else t.view(-1, *[1] * (x.dim() - 2))

    scaled = x if weight is None else x * fit(weight)
    return scaled if bias is None else scaled + fit(silent(bias))


def slope(bits: Bits, call: Call) -> Tensor:
    """PReLU passes its input on, whatever its slopes are; each slope is used where its channel is reached."""
    arguments = call.named("input", "weight")
    x, weight = bits.quiet(call, arguments["input"]), arguments["weight"]
    slopes = silent(weight).view(-1, *[1] * (x.dim() - 2)) if weight.numel() > 1 else silent(weight)
    return x + x.detach() * slopes


def lookup(bits: Bits, call: Call) -> Any:
    """What integers of the input look up is a signal, from any row of the table; other indices only move values.

    An index that signals decide may move any of the values.
    """
    if not any(t in bits.from_input or (t in bits.decided and call.weight is None) for t in call.tensors):
        return as_it_is(bits, call)
    call.weight = None
    found = selection(call)
    if found is None:  # one number of the input chooses
        return mixed(bits, call)
    table, dims = found
    return with_table(call, table, table.sum(dims, keepdim=True).expand(table.shape))


def softmax(bits: Bits, call: Call) -> Tensor:
    """A softmax returns shares, each of which depends on all values along its dimension."""
    call.share = not call.name.startswith("log")
    x = call.live[0]
    return x.mean(dims_of(call, x), keepdim=True).expand_as(x)


def quotient(bits: Bits, call: Call) -> Tensor:
    """`F.normalize` and local response norm divide by a norm along a dimension, or over neighbors; a 0 stays 0."""
    x = call.live[0]
    if call.weight is not None:
        return x
    if call.name == "normalize":
        return x.mean(dims_of(call, x), keepdim=True).expand_as(x)
    size = call.named("input", "size")["size"]
    rows = F.pad(x.movedim(1, -1).flatten(0, -2).unsqueeze(1), (size // 2, (size - 1) // 2))
    return F.avg_pool1d(rows, size, 1).view(x.movedim(1, -1).shape).movedim(-1, 1)


def reduction(bits: Bits, call: Call) -> Any:
    """A maximum, top k, norm or variance depends on all values along its dimension."""
    if sum(t.is_floating_point() for t in call.tensors) == 2:  # torch.max(a, b)
        return add(bits, call)
    x = call.live[0]

    def spread(like: Tensor) -> Tensor:
        floats = like.is_floating_point()
        return x.mean(dims_of(call, x), keepdim=like.dim() == x.dim()).expand(like.shape) if floats else like

    return tree_map(spread, call.plain())


def window(bits: Bits, call: Call) -> Any:
    """A max-pool is a convolution with ones; an adaptive one has the windows of adaptive average pooling."""
    name, like, x = call.name.removesuffix("_with_indices"), call.plain(), call.live[0]
    values = like if isinstance(like, Tensor) else like[0]
    n = int(name[-2])
    sizes = values.shape[-n:]
    if name.startswith("adaptive"):
        pooled = getattr(F, name.replace("max", "avg"))(x, sizes)
    else:
        given = call.named("input", "kernel_size", "stride", "padding", "dilation")
        kernel = _ntuple(n)(given["kernel_size"])
        stride = given.get("stride") or kernel
        ends = [0, max(_ntuple(n)(stride))] * n  # in `ceil_mode`, the last windows reach beyond the input
        x = F.pad(x.reshape(-1, 1, *x.shape[-n:]), ends)
        ones = torch.ones(1, 1, *kernel, dtype=x.dtype, device=x.device)
        convolution = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
        pooled = convolution(x, ones, None, stride, given.get("padding", 0), given.get("dilation", 1))
        for dim, size in zip(range(-n, 0), sizes, strict=True):
            pooled = pooled.narrow(dim, 0, size)
        pooled = pooled.reshape(values.shape).contiguous()  # the model may take a view of it
    return pooled if values is like else (pooled, *like[1:])


def unpool(bits: Bits, call: Call) -> Tensor:
    """The place of a value depends on the values: it may be any in its channel."""
    x = call.live[0]
    return x.mean(tuple(range(-int(call.name[-2]), 0)), keepdim=True).expand(call.plain().shape)


def pad(bits: Bits, call: Call) -> Tensor:
    arguments = call.named("input", "pad", "mode" if call.name == "pad" else "value")
    return F.pad(call.live[0], arguments["pad"], arguments.get("mode", "constant"))


def halves(bits: Bits, call: Call) -> Tensor:
    first, second = call.live[0].chunk(2, call.named("input", "dim").get("dim", -1))
    return first + second


def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the bits of attention: reached if the value of any token is. Queries and keys are then used too."""
    if q.dim() > 2 and q.shape[-3] != k.shape[-3]:  # grouped queries
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    return v.sum(-2, keepdim=True) * (1 + q.sum(-1, keepdim=True) + k.sum((-2, -1), keepdim=True))


def attention(bits: Bits, call: Call) -> Tensor:
    arguments = call.named("query", "key", "value")
    return mix(*(bits.quiet(call, arguments[name]) for name in ("query", "key", "value")))


def multihead(bits: Bits, call: Call) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention`, projections included."""
    arguments = inspect.signature(F.multi_head_attention_forward).bind(*call.args, **call.kwargs).arguments
    if arguments.get("use_separate_proj_weight"):
        weights = [arguments[f"{name}_proj_weight"] for name in "qkv"]
    else:
        weights = list(arguments["in_proj_weight"].chunk(3))
        bits.weights.update(dict.fromkeys(weights, bits.weights[arguments["in_proj_weight"]]))
    biases = arguments["in_proj_bias"].chunk(3) if arguments.get("in_proj_bias") is not None else (None,) * 3
    inputs = (arguments[name] for name in ("query", "key", "value"))
    q, k, v = (
        bits.linear(x, w, b).unflatten(-1, (arguments["num_heads"], -1)).movedim(0, -2)  # heads, then tokens
        for x, w, b in zip(inputs, weights, biases, strict=True)
    )
    call.weight = None
    mixed = alive(mix(q, k, v)).movedim(-2, 0).flatten(-2)
    out = bits.linear(mixed, arguments["out_proj_weight"], arguments["out_proj_bias"])
    scores = q.sum(-1, keepdim=True) + k.sum(-1).unsqueeze(-2)
    scores = scores.mean(-3) if arguments.get("average_attn_weights", True) else scores
    return out, scores if arguments.get("need_weights", True) else None


def recurrent(bits: Bits, call: Call) -> Any:
    """Unroll an LSTM, GRU or RNN over time, one layer and direction after the other.

    Each step computes the gates W x + U h from the input x and the hidden vector h. A unit of the new state is reached
    if one of its gates is, or (except in an RNN) if the unit was reached before. The new h is the state, or P state in
    an LSTM with a projection P.
    """
    kind, cell, packed = call.name.removesuffix("_cell"), call.name.endswith("_cell"), False
    call.weight = None
    if cell:
        x, hx, *weights = call.args
        x, hx, directions = x[None], [h[None] for h in (hx if kind == "lstm" else (hx,))], 1
    else:
        packed = isinstance(call.args[3], list | tuple)
        x, hx, weights, _, _, _, _, both = (call.args[0], *call.args[2:]) if packed else call.args[:8]
        hx, directions = hx if kind == "lstm" else (hx,), 2 if both else 1
        if packed:
            x, lengths = torch._VF._pad_packed_sequence(x, call.args[1], False, 0.0, -1)
        elif call.args[8]:
            x = x.transpose(0, 1)
    first_h, first_state = (bits.quiet(call, hx[0]), bits.quiet(call, hx[-1]))
    per, ends, states, outs = len(weights) // len(first_h), [], [], [x]
    for i, (h, state) in enumerate(zip(first_h, first_state, strict=True)):
        w, u, *rest = weights[i * per : (i + 1) * per]
        w_bias, u_bias = rest[:2] if len(rest) > 1 else (None, None)
        if i % directions == 0:
            x, outs = torch.cat(outs, -1), []
        gates, out = bits.linear(x, w, w_bias), {}
        for t in range(len(x)) if i % directions == 0 else reversed(range(len(x))):
            now = (gates[t] + bits.linear(h, u, u_bias)).unflatten(-1, (-1, state.shape[-1])).sum(-2)
            state = alive(now if kind.startswith("rnn") else now + state)
            h = out[t] = bits.linear(state, rest[-1]) if len(rest) % 2 else state
        outs.append(torch.stack([out[t] for t in range(len(x))]))
        ends.append(h)
        states.append(state)
    if cell:
        return (ends[0], states[0]) if kind == "lstm" else ends[0]
    y = torch.cat(outs, -1)
    if packed:
        y = torch._VF._pack_padded_sequence(y, lengths, False)[0]
    elif call.args[8]:
        y = y.transpose(0, 1)
    return (y, torch.stack(ends), torch.stack(states))[: 3 if kind == "lstm" else 2]


NORMS = {
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias"),
    "instance_norm": ("input", "running_mean", "running_var", "weight", "bias"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias"),
    "group_norm": ("input", "num_groups", "weight", "bias"),
    "rms_norm": ("input", "normalized_shape", "weight"),
}
TABLE: dict[Rule, str] = {
    skip: "set_grad_enabled data.__set__ register_hook retain_grad",
    blank: "empty empty_like empty_strided new_empty new_empty_strided",
    as_it_is: """
        view view_as reshape reshape_as flatten unflatten ravel squeeze unsqueeze expand expand_as broadcast_to
        broadcast_tensors meshgrid permute transpose t swapaxes swapdims movedim moveaxis adjoint flip roll rot90 repeat
        repeat_interleave tile contiguous clone to type type_as float double half bfloat16 cpu cuda requires_grad
        cat concat concatenate stack hstack vstack chunk split split_with_sizes tensor_split unbind iter setitem select
        narrow index_put index_add index_copy index_fill scatter scatter_add masked_select masked_scatter select_scatter
        slice_scatter diagonal diag diag_embed tril triu as_strided unfold fold copy fill zero sum mean nansum nanmean
        cumsum trace avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
        interpolate upsample pixel_shuffle pixel_unshuffle channel_shuffle
        ones_like zeros_like full_like rand_like randn_like new_zeros new_ones new_full new_tensor normal uniform
        pack_padded_sequence pad_packed_sequence""",
    pass_on: f"{ELEMENTWISE} weight_norm masked_fill detach data.__get__ fake_quantize_per_channel_affine",
    add: """add radd sub rsub subtract where maximum minimum fmax fmin lerp pow rpow float_power logaddexp addcmul
        addcdiv clamp clip clamp_min clamp_max""",
    multiply: """mul rmul multiply div rdiv rtruediv truediv divide true_divide floor_divide floordiv rfloordiv
        remainder fmod mod rmod""",
    contract: "matmul rmatmul mm bmm mv dot inner outer einsum tensordot",
    add_product: "addmm addmv baddbmm",
    layer: "linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    norm: " ".join(NORMS),
    slope: "prelu",
    lookup: "embedding embedding_bag getitem index_select gather take take_along_dim",
    softmax: "softmax log_softmax softmin gumbel_softmax",
    quotient: "normalize local_response_norm",
    reduction: "max min amax amin topk logsumexp std var norm linalg_norm linalg_vector_norm",
    window: MAX_POOLS,
    unpool: "max_unpool1d max_unpool2d max_unpool3d",
    pad: "pad constant_pad_nd",
    halves: "glu",
    attention: "scaled_dot_product_attention",
    multihead: "multi_head_attention_forward",
    recurrent: "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
}
RULES: dict[str, Rule] = {name: rule for rule, names in TABLE.items() for name in names.split()}
