"""The table of rules: which rule is for which torch function, by the function's name.

A function that is not in the table mixes everything. There are two tables: this one says to which channel each value
of a function's result belongs, and that of `paths/rules.py` says whether a signal reaches the value.
"""

from ..calls import ELEMENTWISE, MAX_POOLS
from . import functions as f
from .labels import Rule, as_it_is
from .layers import attention, channel_norm, convolution, einsum, embedding, linear, prelu, product

TABLE: dict[Rule, str] = {
    as_it_is: """
        permute transpose t swapaxes swapdims movedim moveaxis adjoint squeeze unsqueeze flip repeat repeat_interleave
        tile pixel_unshuffle size dim ndimension numel nelement stride storage_offset is_contiguous
        is_floating_point is_complex len get_device element_size data_ptr is_pinned is_tensor is_same_size
        requires_grad hash repr format""",
    f.passing: f"{ELEMENTWISE} clone bernoulli ones_like zeros_like full_like empty_like rand_like randn_like",
    f.alias: "contiguous detach data.__get__ requires_grad_",
    f.meeting: """
        add radd sub rsub subtract mul rmul multiply div rdiv rtruediv truediv divide true_divide floor_divide
        floordiv rfloordiv remainder fmod mod rmod where maximum minimum fmax fmin lerp pow rpow float_power logaddexp
        addcmul addcdiv masked_fill atan2 hypot copy""",
    f.comparison: """
        gt lt ge le eq ne greater less isnan isinf isfinite signbit logical_and logical_or logical_not logical_xor
        bitwise_and bitwise_or bitwise_not and or invert xor""",
    f.cast: "to type type_as float double half bfloat16 cpu cuda long int bool",
    f.fresh: "new_empty new_zeros new_ones new_full new_tensor",
    f.fill: "fill zero",
    f.along: """
        softmax log_softmax softmin cumsum cumprod logcumsumexp cummax cummin sort argsort topk roll normalize
        layer_norm group_norm rms_norm local_response_norm sum mean nansum nanmean prod amax amin std var norm
        linalg_norm linalg_vector_norm logsumexp any all argmax argmin count_nonzero""",
    f.extreme: "max min",
    f.glu: "glu",
    f.pool: f"""{MAX_POOLS}
        avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
        interpolate upsample""",
    f.pad: "pad constant_pad_nd",
    f.view: "view reshape view_as reshape_as flatten ravel unflatten",
    f.expand: "expand expand_as broadcast_to",
    f.concatenation: "cat concat concatenate",
    f.stack: "stack",
    f.parts: "chunk split split_with_sizes tensor_split",
    f.taking: "index_select select narrow unbind iter",
    f.item: "getitem",
    f.set_item: "setitem",
    f.shuffle: "channel_shuffle pixel_shuffle",
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
