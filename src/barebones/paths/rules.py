"""The rules: what each torch function does to a bit, as a table from its name.

- A sum, a convolution, a matrix product is reached where any of its terms is.
- An elementwise function, a norm or dropout passes the bit on; a max-pool passes on any bit of its window.
- A product of two activations is reached where either is: the other may be a constant other than 0.
- Attention mixes the values of all tokens; queries and keys count where a value is reached, as softmax weights do.
- A recurrent layer is unrolled.
- What does not come from the input (biases, positions, class tokens, buffers) reaches nothing, but a constant that
  multiplies still cuts where it is 0.
"""

from __future__ import annotations

import inspect
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from .bits import Bits, Call, Rule, alive, blank, nothing, pass_on, signal, silent


def add(bits: Bits, call: Call) -> Tensor:
    shape = torch.broadcast_shapes(*(t.shape for t in call.tensors))
    parts = [bits.quiet(call, t) for t in call.live]
    return reduce(torch.add, parts, torch.zeros(shape, device=parts[0].device))


def multiply(bits: Bits, call: Call) -> Tensor:
    product = bits.product(lambda *factors: reduce(torch.mul, factors), call.tensors, lambda result: 0)
    off = "div" not in call.name and any(isinstance(a, int | float) and a == 0 for a in call.args)
    return product * 0 if off else product


def contract(bits: Bits, call: Call) -> Tensor:
    leaves, spec = tree_flatten((call.args, call.kwargs))

    def f(*operands: Tensor) -> Tensor:
        rest = iter(operands)
        args, kwargs = tree_unflatten([next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)
        return call.func(*args, **kwargs)

    return bits.product(f, call.tensors)


def add_product(bits: Bits, call: Call) -> Tensor:
    return bits.product(torch.matmul, call.args[1:3]) + bits.quiet(call, call.args[0])


def distance(bits: Bits, call: Call) -> Tensor:
    return bits.product(lambda a, b: a @ b.mT, call.args[:2])


def layer(bits: Bits, call: Call) -> Tensor:
    slots = ("input1", "input2", "weight", "bias") if call.name == "bilinear" else ("input", "weight", "bias")
    given = call.named(*slots)
    rest, options = call.args[len(slots) :], {k: v for k, v in call.kwargs.items() if k not in slots}
    inputs = [signal(given[slot]) for slot in slots[:-2]]
    weight, bias = given["weight"], None if given.get("bias") is None else silent(given["bias"]).float()
    if any(t not in bits.weights for t in inputs):
        call.weight = None

    def uses(result: Tensor) -> int:
        return (inputs[0] if "transpose" in call.name else result).numel() // weight.shape[0]

    return bits.product(lambda *operands: call.func(*operands, bias, *rest, **options), [*inputs, weight], uses)


def norm(bits: Bits, call: Call) -> Tensor:
    given = call.named(*NORMS[call.name])
    x, weight, bias = bits.quiet(call, given["input"]), given.get("weight"), given.get("bias")

    def fit(t: Tensor) -> Tensor:
        return t if call.name in ("layer_norm", "rms_norm") else t.view(-1, *[1] * (x.dim() - 2))

    scaled = x if weight is None else x * fit(weight)
    return scaled if bias is None else scaled + fit(silent(bias))


def slope(bits: Bits, call: Call) -> Tensor:
    """PReLU: as its input is, whatever its slopes are."""
    return bits.quiet(call, call.named("input", "weight")["input"])


def embed(bits: Bits, call: Call) -> Any:
    call.weight = None if any(t in bits.given for t in call.tensors) else call.weight
    return call.func(*call.args, **call.kwargs)


def softmax(bits: Bits, call: Call) -> Tensor:
    call.share = True
    return call.live[0]


def reduction(bits: Bits, call: Call) -> Any:
    """Any bit along a dimension, in the shape of the maximum, the top k, the norm or the variance there."""
    if sum(t.is_floating_point() for t in call.tensors) == 2:  # torch.max(a, b)
        return add(bits, call)
    x, place = call.live[0], 2 if call.name in BEHIND_A_NUMBER else 1
    dim = call.kwargs.get("dim", call.args[place] if len(call.args) > place else None)
    dim = -1 if dim is None and call.name in ("topk", "kthvalue") else dim

    def spread(like: Tensor) -> Tensor:
        if not like.is_floating_point():
            return like
        whole = dim is None or isinstance(dim, bool)
        return (x.mean() if whole else x.mean(dim, keepdim=like.dim() == x.dim())).expand(like.shape)

    return tree_map(spread, call.plain())


def stir(bits: Bits, call: Call) -> Any:
    """Everything depends on everything."""
    whole = reduce(torch.add, [bits.quiet(call, t).mean() for t in call.live])
    return tree_map(lambda like: whole.expand(like.shape), call.plain())


def window(bits: Bits, call: Call) -> Any:
    """Max-pooling as a convolution with ones, padded at the end as far as its last window goes (`ceil_mode`)."""
    lp = ("norm_type",) if call.name.startswith("lp") else ()
    given = call.named("input", *lp, "kernel_size", "stride", "padding", "dilation")
    like = call.plain()
    values = like if isinstance(like, Tensor) else like[0]
    n = int(call.name.removesuffix("_with_indices")[-2])

    def each(name: str, default: Any) -> list[int]:
        value = given.get(name) or default
        return list(value) * (n // len(value)) if isinstance(value, tuple | list) else [value] * n

    kernel, padding, dilation = each("kernel_size", 1), each("padding", 0), each("dilation", 1)
    stride, x = each("stride", kernel), call.live[0]
    pads: list[int] = []
    for d in reversed(range(n)):
        last = (values.shape[d - n] - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1
        pads += [padding[d], last - x.shape[d - n] - padding[d]]
    x = F.pad(x.reshape(-1, 1, *x.shape[-n:]), pads)
    ones = torch.ones(1, 1, *kernel, dtype=x.dtype, device=x.device)
    pooled = (F.conv1d, F.conv2d, F.conv3d)[n - 1](x, ones, stride=stride, dilation=dilation).reshape(values.shape)
    return pooled if values is like else (pooled, *like[1:])


def adaptive(bits: Bits, call: Call) -> Any:
    name, like = call.name.removesuffix("_with_indices"), call.plain()
    values = like if isinstance(like, Tensor) else like[0]
    pooled = getattr(F, name.replace("max", "avg"))(call.live[0], values.shape[-int(name[-2]) :])
    return pooled if values is like else (pooled, *like[1:])


def pad(bits: Bits, call: Call) -> Tensor:
    given = call.named("input", "pad", "mode" if call.name == "pad" else "value")
    return F.pad(call.live[0], given["pad"], given.get("mode", "constant"))


def sample(bits: Bits, call: Call) -> Tensor:
    given = call.named("input", "grid", "mode", "padding_mode", "align_corners")
    x, grid = bits.quiet(call, given.pop("input")), given.pop("grid")
    if not grid.requires_grad:
        return call.func(x, grid, **given)
    return x.mean(tuple(range(2, x.dim())), keepdim=True) + grid.sum(-1).unsqueeze(1)


def halves(bits: Bits, call: Call) -> Tensor:
    first, second = call.live[0].chunk(2, call.named("input", "dim").get("dim", -1))
    return first + second


def running(bits: Bits, call: Call) -> Tensor:
    return torch.cumsum(call.live[0], call.named("input", "dim")["dim"])


def compare(bits: Bits, call: Call) -> Tensor:
    dim = call.named("x1", "x2", "dim").get("dim", 1) if call.name == "cosine_similarity" else -1
    return add(bits, call).mean(dim)


def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention: any value along the tokens; a query or a key tells where there is one."""
    if q.dim() > 2 and q.shape[-3] != k.shape[-3]:  # grouped queries
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    return v.sum(-2, keepdim=True) * (1 + q.sum(-1, keepdim=True) + k.sum((-2, -1), keepdim=True))


def attention(bits: Bits, call: Call) -> Tensor:
    given = call.named("query", "key", "value")
    return mix(*(bits.quiet(call, given[name]) for name in ("query", "key", "value")))


def multihead(bits: Bits, call: Call) -> tuple[Tensor, Tensor | None]:
    given = inspect.signature(F.multi_head_attention_forward).bind(*call.args, **call.kwargs).arguments
    if given.get("use_separate_proj_weight"):
        weights = [given[f"{name}_proj_weight"] for name in "qkv"]
    else:
        weights = list(given["in_proj_weight"].chunk(3))
        bits.weights.update(dict.fromkeys(weights, bits.weights[given["in_proj_weight"]]))
    biases = given["in_proj_bias"].chunk(3) if given.get("in_proj_bias") is not None else (None,) * 3
    inputs = (given[name] for name in ("query", "key", "value"))
    q, k, v = (
        bits.linear(x, w, b).unflatten(-1, (given["num_heads"], -1)).movedim(0, -2)  # heads, then tokens
        for x, w, b in zip(inputs, weights, biases, strict=True)
    )
    call.weight = None
    mixed = alive(mix(q, k, v)).movedim(-2, 0).flatten(-2)
    out = bits.linear(mixed, given["out_proj_weight"], given["out_proj_bias"])
    scores = q.sum(-1, keepdim=True) + k.sum(-1).unsqueeze(-2)
    scores = scores.mean(-3) if given.get("average_attn_weights", True) else scores
    return out, scores if given.get("need_weights", True) else None


def recurrent(bits: Bits, call: Call) -> Any:
    """state = any gate of (W x + U h), or the state before where the layer carries it on; h = state, or P state."""
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


BEHIND_A_NUMBER = ("topk", "kthvalue", "norm", "linalg_norm", "linalg_vector_norm")  # where the dimension comes third
NORMS = {
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias"),
    "instance_norm": ("input", "running_mean", "running_var", "weight", "bias"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias"),
    "group_norm": ("input", "num_groups", "weight", "bias"),
    "rms_norm": ("input", "normalized_shape", "weight"),
}
TABLE: dict[Rule, str] = {
    nothing: "set_grad_enabled data.__set__ register_hook retain_grad",
    blank: "empty empty_like empty_strided new_empty new_empty_strided",
    pass_on: """
        relu relu6 leaky_relu rrelu elu selu celu gelu silu mish softplus softsign sigmoid log_sigmoid logsigmoid
        hardsigmoid hardswish hardtanh hardshrink softshrink tanhshrink threshold tanh log_softmax softmin
        dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout normalize
        local_response_norm weight_norm abs absolute neg negative positive exp exp2 expm1 log log2 log10 log1p sqrt
        rsqrt square reciprocal sin cos tan asin acos atan sinh cosh asinh acosh atanh sinc erf erfc erfinv logit
        clamp clip clamp_min clamp_max round floor ceil trunc fix frac sign sgn nan_to_num masked_fill detach
        data.__get__ special_expit special_erf fake_quantize_per_tensor_affine fake_quantize_per_channel_affine""",
    add: """add radd sub rsub subtract where maximum minimum fmax fmin lerp pow rpow float_power hypot atan2
        logaddexp logaddexp2 copysign xlogy addcmul addcdiv""",
    multiply: """mul rmul multiply div rdiv rtruediv truediv divide true_divide floor_divide floordiv rfloordiv
        remainder fmod mod rmod""",
    contract: "matmul rmatmul mm bmm mv dot vdot inner outer ger einsum tensordot kron linalg_matmul linalg_vecdot",
    add_product: "addmm addmv baddbmm",
    distance: "cdist",
    layer: "linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc",
    norm: " ".join(NORMS),
    slope: "prelu",
    embed: "embedding embedding_bag",
    softmax: "softmax gumbel_softmax special_softmax",
    reduction: """max min amax amin median nanmedian mode kthvalue topk logsumexp std var std_mean var_mean norm
        linalg_norm linalg_vector_norm prod""",
    stir: """cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div
        binary_cross_entropy_with_logits ctc_loss poisson_nll_loss gaussian_nll_loss hinge_embedding_loss
        cosine_embedding_loss margin_ranking_loss multi_margin_loss multilabel_margin_loss soft_margin_loss
        multilabel_soft_margin_loss triplet_margin_loss fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2
        fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn stft istft diff gradient cov corrcoef cross det
        dist pdist inverse matrix_exp matrix_power linalg_cholesky linalg_cross linalg_det linalg_eigh linalg_inv
        linalg_matrix_exp linalg_matrix_norm linalg_matrix_power linalg_qr linalg_solve linalg_svd svd""",
    window: """max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices
        max_pool3d_with_indices lp_pool1d lp_pool2d lp_pool3d""",
    adaptive: """adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool1d_with_indices
        adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices""",
    pad: "pad constant_pad_nd",
    sample: "grid_sample",
    halves: "glu",
    running: "cumprod logcumsumexp",
    compare: "cosine_similarity pairwise_distance",
    attention: "scaled_dot_product_attention",
    multihead: "multi_head_attention_forward",
    recurrent: "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
}
RULES: dict[str, Rule] = {name: rule for rule, names in TABLE.items() for name in names.split()}
