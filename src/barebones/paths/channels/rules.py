"""The table of rules: which rule is for which torch function, by the function's name.

A function that is not in the table mixes everything. There are two tables: this one says to which channel each value
of a function's result belongs, and that of `paths/rules.py` says whether a signal reaches the value.
"""

from .functions import (
    alias,
    along,
    cast,
    comparison,
    concatenation,
    expand,
    extreme,
    fill,
    fresh,
    glu,
    item,
    meeting,
    pad,
    parts,
    passing,
    pool,
    set_item,
    shuffle,
    stack,
    taking,
    view,
)  # fmt: skip
from .labels import Rule, as_it_is
from .layers import attention, channel_norm, convolution, einsum, embedding, linear, prelu, product

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
    product: "matmul rmatmul mm bmm addmm baddbmm",
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
