"""A generator of random small networks and masks, for tests that hold for every network.

A network is a list of blocks. Each block is a function in this file; the options that it draws are recorded, so a
network prints as code that builds it again:

    network = generator.draw(17)  # network.model, network.example, network.masks
    print(network.recipe)         # Recipe(17, "image", (2, 6), [("block", {"width": 6, ...}), ...])
    again = generator.build(network.recipe)

Blocks work on three kinds of tensors: images (batch, channels, and one to three dimensions of pixels), sequences
(batch, tokens, channels) and vectors (batch, channels).
"""

import math
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from zoo import Net

from barebones.scope import parameters

Blocks = list[tuple[str, dict[str, Any]]]
BATCH = 3
TOKENS = 7  # words of the vocabulary


@dataclass(frozen=True)
class Recipe:
    """Everything that makes a network; it prints as code."""

    seed: int
    kind: str
    shape: tuple[int, ...]  # of one sample
    blocks: Blocks

    def __str__(self) -> str:
        lines = "".join(f"    ({name!r}, {options!r}),\n" for name, options in self.blocks)
        return f"Recipe({self.seed}, {self.kind!r}, {self.shape}, [\n{lines}])"


class At:
    """The place of a block in a network: the tensor that arrives there, and the options that the block draws."""

    def __init__(
        self, rng: random.Random, kind: str, shape: tuple[int, ...], options: dict[str, Any], names: Sequence[str]
    ) -> None:
        self.rng, self.kind, self.shape, self.options, self.names = rng, kind, shape, options, names
        self.dim = 1 if kind == "image" else -1  # of the channels, in a tensor with a batch
        self.channels = shape[self.dim - 1] if kind == "image" else shape[-1]
        self.pixels = shape[1:] if kind == "image" else ()

    def __call__(self, option: str, *choices: Any) -> Any:
        """Return the value of an option: the recorded one, or else one of these."""
        if option not in self.options:
            self.options[option] = self.rng.choice(choices)
        return self.options[option]

    def inner(self, option: str, most: int = 2) -> tuple[nn.Module, tuple[int, ...]]:
        """Return blocks within this block, and the shape of what they return."""
        blocks = self.options.setdefault(option, [(ANY, {}) for _ in range(self.rng.randint(1, most))])
        body, _, shape = _grow(self.rng, self.kind, self.shape, blocks, self.names)
        return body, shape

    def maker(self, name: str) -> Callable[..., nn.Module]:
        """Return the class of torch with this name for tensors at this place, such as `nn.Conv2d`."""
        return getattr(nn, f"{name}{max(len(self.pixels), 1)}d")

    def layer(self, inputs: int, outputs: int, kernel: int = 1, **options: Any) -> Any:
        """Return a convolution for images, and a linear layer for everything else."""
        if self.kind != "image":
            return nn.Linear(inputs, outputs, bias=options.get("bias", True))
        return self.maker("Conv")(inputs, outputs, kernel, padding=kernel // 2, **options)

    def one_of(self, functions: dict[str, Callable[[Any, Any], Any]], **parts: Any) -> nn.Module:
        """Return a network of these parts that computes one of these functions of itself and its input."""
        return Net(functions[self("how", *functions)], **parts)

    def per_channel(self, t: Tensor) -> Tensor:
        """Return one value per channel in a shape that broadcasts over the tensors at this place."""
        return t.view(-1, *[1] * len(self.pixels))


WIDTHS = (4, 6, 8)
BOTH = (False, True)
IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu_": lambda x: x.relu_(),
    "F.relu(x, True)": lambda x: F.relu(x, True),
    "mul_": lambda x: x.mul_(0.5),
    "out": lambda x: torch.mul(x, 0.5, out=x) if not x.requires_grad else x * 0.5,
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu, "F.relu": F.relu, "silu": F.silu, "gelu": F.gelu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "leaky": F.leaky_relu, "hardswish": F.hardswish, "softplus": F.softplus, "elu": F.elu, "none": lambda x: x,
    "cos": torch.cos, **IN_PLACE,
}  # fmt: skip

MODULES: dict[str, Callable[[int], nn.Module]] = {
    "ReLU": lambda channels: nn.ReLU(), "ReLU(True)": lambda channels: nn.ReLU(True),
    "ReLU6(True)": lambda channels: nn.ReLU6(True), "Hardswish(True)": lambda channels: nn.Hardswish(True),
    "PReLU": nn.PReLU, "PReLU(1)": lambda channels: nn.PReLU(),
}  # fmt: skip


def activation(at: At, channels: int, in_place: bool = True) -> nn.Module:
    """Return an activation; one that writes to its input only behind a layer or norm that does not need its output."""
    names = [n for n in ACTIVATIONS if in_place or n not in IN_PLACE] + list(MODULES if in_place else ("ReLU", "PReLU"))
    if at.kind == "sequence":  # there, the channels of a PReLU are the tokens
        names.remove("PReLU")
    name = at("activation", *names)
    return MODULES[name](channels) if name in MODULES else Net(lambda net, x: ACTIVATIONS[name](x))


def turned(module: nn.Module) -> nn.Module:
    """Return a module that has the channels where the tensor does not: they trade places before and after it."""
    return Net(lambda net, x: net.module(x.transpose(1, -1)).transpose(1, -1), module=module)


def normalization(at: At, channels: int, among: Sequence[str] = ()) -> nn.Module:
    """Return a norm of any kind that fits."""
    batch, instance = at.maker("BatchNorm"), at.maker("InstanceNorm")
    norms: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: batch(channels),
        "batch, no affine": lambda: batch(channels, affine=False),
        "group": lambda: nn.GroupNorm(2, channels),
        "group of all": lambda: nn.GroupNorm(1, channels),
    }
    images: dict[str, Callable[[], nn.Module]] = {
        "group of one": lambda: nn.GroupNorm(channels, channels),
        "layer": lambda: turned(nn.LayerNorm(channels)),
        "instance": lambda: instance(channels),
        "instance, affine": lambda: instance(channels, affine=True),
        "instance, statistics": lambda: instance(channels, affine=True, track_running_stats=True),
        "local response": lambda: nn.LocalResponseNorm(3, alpha=1.0),
    }
    last = {"layer": lambda: nn.LayerNorm(channels), "rms": lambda: nn.RMSNorm(channels)}
    tokens = {"batch, turned": lambda: turned(nn.BatchNorm1d(channels))}
    fitting = {"image": norms | images, "sequence": last | tokens, "vector": norms | last}[at.kind]
    return fitting[at("norm", *[name for name in fitting if not among or name.startswith(tuple(among))])]()


# ---- layers ----


def block(at: At) -> nn.Module:
    """A layer, alone or with a norm and an activation behind it; a convolution may be grouped or depthwise."""
    c, width, options = at.channels, at("width", *WIDTHS), {"bias": at("bias", *BOTH)}
    if at.kind == "image":
        groups = at("groups", 1, 1, *[g for g in (2, 4, c) if c % g == 0])
        width = width if width % groups == 0 else groups * at("multiplier", 1, 1, 2)
        options |= {"groups": groups, "stride": at("stride", 1, 2) if min(at.pixels) >= 4 else 1}
        options["padding_mode"] = at("padding", "zeros", "zeros", "circular") if min(at.pixels) > 1 else "zeros"
    layer = at.layer(c, width, at("kernel", 1, 3), **options)
    if at("alone", *BOTH):
        return layer
    norm = normalization(at, width, ("batch", "layer", "group", "instance")) if at("normed", *BOTH) else nn.Identity()
    return nn.Sequential(layer, norm, activation(at, width))


def transposed(at: At) -> nn.Module:
    """A transposed convolution."""
    width = at("width", *WIDTHS)
    groups = at("groups", *[g for g in (1, 1, 2) if at.channels % g == width % g == 0])
    stride = at("stride", 1, 2) if math.prod(at.pixels) <= 32 else 1
    layer = at.maker("ConvTranspose")(at.channels, width, 3, stride, padding=1, groups=groups, bias=at("bias", *BOTH))
    return nn.Sequential(layer, activation(at, width))


def product(at: At) -> nn.Module:
    """A matrix product with a parameter, as a function."""
    width = at("width", *WIDTHS)
    functions: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "matmul": lambda net, x: x @ net.weight + net.bias,
        "einsum": lambda net, x: torch.einsum("...i,io->...o", x, net.weight) + net.bias,
        "linear": lambda net, x: F.linear(x, net.weight.t(), net.bias),
        "addmm": lambda net, x: torch.addmm(net.bias, x.reshape(-1, x.shape[-1]), net.weight).view(*x.shape[:-1], -1),
    }
    weight, bias = nn.Parameter(torch.randn(at.channels, width) / 2), nn.Parameter(torch.zeros(width))
    return at.one_of(functions, weight=weight, bias=bias)


def across(at: At) -> nn.Module:
    """Linear layers over tokens, as in an MLP-Mixer, or a convolution over a sequence."""
    if at("how", "mixer", "convolution") == "mixer":
        return turned(nn.Sequential(nn.Linear(at.shape[0], 6), nn.GELU(), nn.Linear(6, at.shape[0])))
    return turned(nn.Conv1d(at.channels, at("width", *WIDTHS), 3, padding=1))


def recurrent(at: At) -> nn.Module:
    """A recurrent layer."""
    width = at("width", *WIDTHS)
    rnn = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[at("type", "lstm", "gru", "rnn")]
    return Net(lambda net, x: net.rnn(x)[0], rnn=rnn(at.channels, width, batch_first=True))


def shared(at: At) -> nn.Module:
    """A layer that is used twice, or two layers with one weight."""
    c = at.channels
    first, second = at.layer(c, c, 3), at.layer(c, c, 3)
    if at("tied", *BOTH):
        second.weight = first.weight
        return nn.Sequential(first, nn.ReLU(), second)
    return nn.Sequential(first, nn.ReLU(), first, nn.Tanh())


# ---- elementwise, norms, pools ----


def acts(at: At) -> nn.Module:
    """An activation that leaves its input alone."""
    return activation(at, at.channels, in_place=False)


def norm(at: At) -> nn.Module:
    """A norm alone."""
    return normalization(at, at.channels)


def dropout(at: At) -> nn.Module:
    """Dropout, as a module or as a function in the forward pass."""
    channels = at.maker("Dropout") if at.kind == "image" else nn.Dropout
    modules = {"module": channels(0.3), "function": Net(lambda net, x: F.dropout(x, 0.3, net.training))}
    return modules[at("how", *modules)]


def pool(at: At) -> nn.Module:
    """A pool, or the nearest neighbors at twice the size and every second pixel of them."""
    how = at("how", "MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "nearest")
    if how == "nearest":
        return Net(lambda net, x: F.interpolate(x, scale_factor=2)[..., 1::2])
    return at.maker(how)(2 if min(at.pixels) >= 3 else 1)


# ---- two ways ----


SUMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "x + y": lambda x, y: x + y,
    "y += x": lambda x, y: operator.iadd(y, x),
    "add_": lambda x, y: y.add_(x),
    "torch.add": lambda x, y: torch.add(x, y, alpha=0.5),
}


def residual(at: At) -> nn.Module:
    """A sum with a bypass; the branch may begin at zero, and the sum may be made in place."""
    c = at.channels
    body, shape = at.inner("body")
    inside = At(at.rng, at.kind, shape, {}, ())
    last: list[Any] = [inside.layer(inside.channels, c, bias=at("bias", *BOTH))]
    zero = at("zero", "nothing", "gamma", "layer", "scale", "tiny scale")
    if zero == "gamma":
        last.append(at.maker("BatchNorm")(c) if at.kind != "sequence" else nn.LayerNorm(c))
    if zero in ("gamma", "layer"):
        nn.init.zeros_(last[-1].weight)
    scales = {"scale": torch.zeros(c), "tiny scale": torch.full((c,), 1e-5)}
    parts = {"scale": nn.Parameter(at.per_channel(scales[zero]))} if zero in scales else {}
    add = SUMS[at("sum", *SUMS)]
    pixels = (lambda x: x.mT) if at.kind == "sequence" else (lambda x: x)  # channels first, as for images

    def forward(net: Any, x: Tensor) -> Tensor:
        y = net.last(net.body(x))
        if zero in scales:
            y = y * net.scale
        x = x if x.shape == y.shape else pixels(F.interpolate(pixels(x), size=pixels(y).shape[2:]))
        return net.activation(add(x, y))

    return Net(forward, body=body, last=nn.Sequential(*last), activation=activation(at, c), **parts)


def concatenation(at: At) -> nn.Module:
    """Several ways with the same input, side by side."""
    first, one = at.inner("first")
    second, two = at.inner("second") if at("both", *BOTH) else (nn.Identity(), at.shape)
    dim, same = at.dim, one[1:] == two[1:] or at.kind != "image"

    def forward(net: Any, x: Tensor) -> Tensor:
        a, b = net.first(x), net.second(x)
        return torch.cat([a, b if same else F.interpolate(b, size=a.shape[2:])], dim)

    return Net(forward, first=first, second=second)


def split(at: At) -> nn.Module:
    """A part of the channels takes another way, as in a ShuffleNet."""
    c, dim, part = at.channels, at.dim, at.channels // 2
    parts: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
        "chunk": lambda x: x.chunk(2, dim),
        "split": lambda x: x.split([part, c - part], dim),
        "slice": lambda x: (x.narrow(dim, 0, part), x.narrow(dim, part, c - part)),
    }
    halves = parts[at("how", *parts)]

    def forward(net: Any, x: Tensor) -> Tensor:
        a, b = halves(x)
        return torch.cat([torch.relu(net.layer(a)), b], dim)

    return Net(forward, layer=at.layer(part, part, 3))


def position(at: At) -> nn.Module:
    """A table of positions that is added: a parameter, or an embedding of 0, 1, 2..."""
    if at.kind == "sequence" and at("embedding", *BOTH):
        table = nn.Embedding(at.shape[0] + 2, at.channels)
        return Net(lambda net, x: x + net.table(torch.arange(x.shape[1], device=x.device)), table=table)
    return Net(lambda net, x: x + net.position, position=nn.Parameter(torch.randn(at.shape)))


def buffer(at: At) -> nn.Module:
    """A constant for each channel, in a buffer that is no parameter."""
    values = at.per_channel(torch.rand(at.channels) + 0.5)
    functions = {"factor": lambda net, x: x * net.factor, "shift": lambda net, x: x + net.shift}
    return at.one_of(functions, factor=values, shift=-values)


def branches(at: At) -> nn.Module:
    """Two layers that meet in a function of two values."""
    width = at("width", *WIDTHS)
    functions: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "maximum": torch.maximum,
        "product": lambda a, b: a * b,
        "difference": lambda a, b: a - b,
        "where": lambda a, b: torch.where(a > b, a, b.tanh()),
        "lerp": lambda a, b: torch.lerp(a, b, 0.3),
        "stack": lambda a, b: torch.stack([a, b], 1).amax(1),
    }
    meet = functions[at("how", *functions)]
    return Net(lambda net, x: meet(net.first(x), net.second(x)), first=at.layer(at.channels, width, 3),
               second=at.layer(at.channels, width, bias=at("bias", *BOTH)))  # fmt: skip


def functional(at: At) -> nn.Module:
    """A layer as a function of parameters, which may be computed from others."""
    width, n = at("width", *WIDTHS), len(at.pixels)
    weight = nn.Parameter(torch.randn(width, at.channels, *[3] * n) / 4)
    apply = {0: F.linear, 1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[n]
    padding = {"padding": 1} if n else {}
    standardized = lambda weight: weight - weight.mean(tuple(range(1, weight.dim())), keepdim=True)
    functions: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "plain": lambda net, x: apply(x, net.weight, net.bias, **padding),
        "standardized": lambda net, x: apply(x, standardized(net.weight), net.bias, **padding),
        "gain": lambda net, x: apply(x, net.weight * net.gain, net.bias, **padding),
    }
    gain = nn.Parameter(torch.ones(width, *[1] * (weight.dim() - 1)))
    return at.one_of(functions, weight=weight, bias=nn.Parameter(torch.zeros(width)), gain=gain)


def channels_last(at: At) -> nn.Module:
    """Layers for the last dimension of an image whose channels were moved there, as in a ConvNeXt."""
    c, n, width = at.channels, len(at.pixels), at("width", *WIDTHS)
    last = [nn.LayerNorm(c)] if at("norm", "none", "layer") == "layer" else []
    functions: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "permute": lambda net, x: net.body(x.permute(0, *range(2, n + 2), 1)).permute(0, n + 1, *range(1, n + 1)),
        "movedim": lambda net, x: x + net.body(x.movedim(1, -1)).movedim(-1, 1),
        "flatten": lambda net, x: net.body(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape),
    }
    return at.one_of(functions, body=nn.Sequential(*last, nn.Linear(c, width), nn.GELU(), nn.Linear(width, c)))


# ---- gates ----


def gate(at: At) -> nn.Module:
    """One half of a layer is the gate of the other, or one layer that of another."""
    width, dim = at("width", *WIDTHS), at.dim
    functions: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "two layers": lambda net, x: net.value(x) * torch.sigmoid(net.gate(x)),
        "glu": lambda net, x: F.glu(net.layer(x), dim),
        "chunk": lambda net, x: operator.mul(*net.layer(x).tanh().chunk(2, dim)),
        "softmax": lambda net, x: operator.mul(*net.layer(x).softmax(dim).chunk(2, dim)),
    }
    if at("how", *functions) == "two layers":
        return at.one_of(functions, value=at.layer(at.channels, width, 3), gate=at.layer(at.channels, width))
    return at.one_of(functions, layer=at.layer(at.channels, 2 * width, 3, bias=at("bias", *BOTH)))


def excitation(at: At) -> nn.Module:
    """Squeeze and excite, with linear layers or convolutions."""
    c, n = at.channels, len(at.pixels)
    linear, dims = at("linear", *BOTH), tuple(range(2, 2 + n))
    down, up = (nn.Linear(c, 4), nn.Linear(4, c)) if linear else (at.layer(c, 4), at.layer(4, c))

    def forward(net: Any, x: Tensor) -> Tensor:
        weights = torch.sigmoid(net.up(F.relu(net.down(x.mean(dims, keepdim=not linear)))))
        return x * (weights[(..., *[None] * n)] if linear else weights)

    return Net(forward, down=down, up=up)


# ---- attention ----


def attention(at: At) -> nn.Module:
    """Attention in the ways in which people write it; two heads of queries may share one of keys and values."""
    c, length, size, sharing = at.channels, at.shape[0], at("size", 2, 4), at("sharing", 1, 1, 2)
    heads, inner, fused = 2 * sharing, 2 * sharing * size, sharing == 1 and at("fused", *BOTH)
    how = at("how", "sdpa", "softmax", "einsum")
    repeated = at("repeated by", "expand", "repeat_interleave", *["enable_gqa"] * (how == "sdpa"))
    views, joins = at("views", "-1 heads", "-1 channels", "fixed"), at("joins", "-1", "flatten", "fixed")
    rotary, bypass, masked = at("rotary", *BOTH), at("bypass", *BOTH), at("masked", "no", "later", "bias")
    angles = torch.outer(torch.arange(length), 1 / 10.0 ** torch.arange(0, 1, 2 / size)).repeat(1, 2)

    def heads_of(x: Tensor) -> Tensor:
        n = x.shape[-1] // size
        last = {"-1 heads": (-1, size), "-1 channels": (n, -1), "fixed": (n, size)}[views]
        return x.view(*x.shape[:2], *last).transpose(1, 2)

    def rotate(net: Any, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * net.cos + torch.cat([-b, a], -1) * net.sin if rotary else x

    def repeat(x: Tensor) -> Tensor:
        if sharing == 1 or repeated == "enable_gqa":
            return x
        if repeated == "repeat_interleave":
            return x.repeat_interleave(sharing, 1)
        return x[:, :, None].expand(-1, -1, sharing, -1, -1).reshape(len(x), heads, length, size)

    def mix(net: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if how == "sdpa":
            bias, grouped = net.position if masked == "bias" else None, repeated == "enable_gqa"
            return F.scaled_dot_product_attention(q, k, v, bias, is_causal=masked == "later", enable_gqa=grouped)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) if how == "einsum" else q @ k.transpose(-1, -2) / size**0.5
        if masked != "no":
            scores = scores + net.position if masked == "bias" else scores.masked_fill(net.later, -torch.inf)
        weights = scores.softmax(-1)
        return torch.einsum("bhqk,bhkd->bhqd", weights, v) if how == "einsum" else weights @ v

    def forward(net: Any, x: Tensor) -> Tensor:
        q, k, v = net.qkv(x).chunk(3, -1) if fused else (net.q(x), net.k(x), net.v(x))
        y = mix(net, rotate(net, heads_of(q)), repeat(rotate(net, heads_of(k))), repeat(heads_of(v))).transpose(1, 2)
        y = y.flatten(2) if joins == "flatten" else y.reshape(*y.shape[:2], -1 if joins == "-1" else inner)
        return x + net.out(y) if bypass else net.out(y)

    widths = {"qkv": 3 * inner} if fused else {"q": inner, "k": inner // sharing, "v": inner // sharing}
    bias, out = at("bias", *BOTH), nn.Linear(inner, c)
    parts: dict[str, Any] = {name: nn.Linear(c, width, bias=bias) for name, width in widths.items()}
    if at("zero", *BOTH):
        nn.init.zeros_(out.weight)
    if masked == "bias":
        parts["position"] = nn.Parameter(torch.randn(heads, length, length))
    later = torch.ones(length, length).triu(1).bool()
    return Net(forward, **parts, out=out, cos=angles.cos(), sin=angles.sin(), later=later)


def multihead(at: At) -> nn.Module:
    """`nn.MultiheadAttention` with a bypass."""
    mha = nn.MultiheadAttention(at.channels, 2, batch_first=True, bias=at("bias", *BOTH))
    return Net(lambda net, x: x + net.attention(x, x, x, need_weights=False)[0], attention=mha)


# ---- channels that depend on each other ----


def mixing(at: At) -> nn.Module:
    """A function along the channels that is no layer."""
    d, c = at.dim, at.channels
    order = torch.arange(c).view(-1, 2).t().flatten() if c % 2 == 0 else torch.arange(c - 1, -1, -1)
    functions: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "roll": lambda net, x: x.roll(1, d),
        "softmax": lambda net, x: x.softmax(d),
        "normalize": lambda net, x: F.normalize(x, dim=d),
        "standardize": lambda net, x: (x - x.mean(d, keepdim=True)) / (x.var(d, keepdim=True) + 1).sqrt(),
        "pad": lambda net, x: F.pad(x, [0, 0] * len(at.pixels) + [1, 1]),
        "repeat": lambda net, x: torch.cat([x, x], d),
        "slice": lambda net, x: x.narrow(d, c // 2, c - c // 2),
        "interleave": lambda net, x: x.repeat_interleave(2, d),
        "halves": lambda net, x: torch.cat(x.chunk(2, d)[::-1], d),
        "one for all": lambda net, x: x * torch.sigmoid(x.mean(d, keepdim=True)),
        "index": lambda net, x: x.index_select(d, order),
    }
    return at.one_of(functions)


def regroup(at: At) -> nn.Module:
    """A reshape that puts channels into groups, or between the channels and the pixels or tokens."""
    c, d, pixels = at.channels, at.dim, at.pixels
    groups, within = (1, 2) if d > 0 else (-2, -1)  # the dimensions of groups, and of the channels in them
    functions: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "maxout": lambda net, x: x.unflatten(d, (c // 2, 2)).amax(within),
        "softmax of groups": lambda net, x: x.unflatten(d, (2, c // 2)).softmax(within).flatten(groups, within),
        "mean of groups": lambda net, x: x.unflatten(d, (2, -1)).mean(groups),
        "shuffle": lambda net, x: x.unflatten(d, (2, -1)).transpose(groups, within).flatten(groups, within),
    }
    if at.kind == "image":
        functions |= {
            "to pixels": lambda net, x: x.reshape(len(x), c // 2, x.shape[2] * 2, *x.shape[3:]),
            "channel_shuffle": lambda net, x: F.channel_shuffle(x, 2),
        }
    if len(pixels) == 2 and c % 4 == 0:
        functions["pixel_shuffle"] = lambda net, x: F.pixel_shuffle(x, 2)
    if len(pixels) == 2 and not any(size % 2 for size in pixels) and c <= 4:
        halved = [size // 2 for size in pixels]
        functions["patches"] = lambda net, x: F.unfold(x, 2, stride=2).view(len(x), 4 * c, *halved)
    if at.kind == "sequence":
        functions["to tokens"] = lambda net, x: x.reshape(len(x), x.shape[1] * 2, -1)
    return at.one_of(functions)


IN_VIEWS: dict[str, Callable[[Tensor, Tensor], object]] = {  # what happens to a part of a tensor, given another part
    "relu_": lambda part, other: part.relu_(),
    "slice": lambda part, other: operator.setitem(part, slice(None), 0.0),  # type: ignore[call-overload]
    "add_": lambda part, other: part.add_(other.tanh()),
}


def views(at: At) -> nn.Module:
    """A layer whose output is changed in place: a part of it, or behind or before something that reads it."""
    c, d, k = at.channels, at.dim, at.channels // 2
    how = at("how", *IN_VIEWS, "alias", "norm")

    def forward(net: Any, x: Tensor) -> Tensor:
        y = net.layer(x)
        if how in IN_VIEWS:
            IN_VIEWS[how](y.narrow(d, 0, k), y.narrow(d, c - k, k))
            return y
        if how == "alias":
            alias = y.view(y.shape)
            y.mul_(0.5)
            return net.behind(alias)
        return net.behind(y) + y

    parts = {"alias": lambda: at.layer(c, c), "norm": lambda: normalization(at, c, ("batch", "layer"))}
    behind = {"behind": parts[how]()} if how in parts else {}
    return Net(forward, layer=at.layer(c, c, 3), **behind)


# ---- from one kind to another ----


def to_vector(at: At) -> nn.Module:
    """The mean of the pixels or tokens, or all of them side by side."""
    dims = tuple(range(2, 2 + len(at.pixels))) if at.kind == "image" else 1
    functions: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "mean": lambda net, x: x.mean(dims),
        "max": lambda net, x: x.amax(dims),
        "last": lambda net, x: x.flatten(2)[..., -1] if at.kind == "image" else x[:, -1],
    }
    if math.prod(at.shape) <= 64:
        functions["flatten"] = lambda net, x: x.flatten(1)
        functions["reshape"] = lambda net, x: x.reshape(x.size(0), math.prod(at.shape))
    return at.one_of(functions)


def to_sequence(at: At) -> nn.Module:
    """Pixels as tokens."""
    return Net(lambda net, x: x.flatten(2).transpose(1, 2))


def to_image(at: At) -> nn.Module:
    """A sequence as an image of one dimension."""
    return Net(lambda net, x: x.transpose(1, 2))


def words(at: At) -> nn.Module:
    """An embedding of the input's tokens."""
    return nn.Embedding(TOKENS, at("width", *WIDTHS))


def head(at: At) -> nn.Module:
    """The last layer, with all its weights at zero or not."""
    layer = at.layer(at.channels, 3)
    if at("zero", False, False, True):
        nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
    if at("outputs", "one", "one", "two") == "two":
        return Net(lambda net, x: {"out": net.layer(x), "features": x}, layer=layer)
    return layer


TABLE: dict[str, list[Callable[[At], nn.Module]]] = {
    "image sequence vector": [block, shared, acts, norm, dropout, residual, concatenation, split, position, buffer,
                              gate, branches, functional, mixing, regroup, views, head],
    "image": [transposed, pool, excitation, channels_last, to_sequence],
    "sequence": [across, recurrent, attention, multihead, to_image],
    "sequence vector": [product],
    "image sequence": [to_vector],
    "tokens": [words],
}  # fmt: skip
MAKERS = {function.__name__: function for functions in TABLE.values() for function in functions}
KINDS = {function.__name__: kinds.split() for kinds, functions in TABLE.items() for function in functions}
BECOMES = {"to_vector": "vector", "to_sequence": "sequence", "to_image": "image", "words": "sequence"}
LAYERS = ("block", "block", "block", "transposed", "attention", "product", "functional")
EVEN = ("split", "regroup", "multihead", "attention", "views", "norm")  # they need an even number of channels
OUTER = ("residual", "concatenation", "split", "recurrent", "multihead")  # never inside
ANY = "any"  # stands for a block that is still to be drawn


@dataclass(frozen=True)
class Network:
    """A random network with an example input and masks."""

    recipe: Recipe
    model: nn.Module
    example: Tensor
    masks: dict[str, Tensor]


def draw(seed: int) -> Network:
    """Return the network of a seed."""
    rng = random.Random(seed)
    kind, shape = rng.choice([("image", (2, 6)), ("image", (3, 4, 4)), ("image", (2, 5, 3)), ("image", (4, 4, 4)),
                              ("image", (2, 3, 3, 2)), ("sequence", (4, 6)), ("sequence", (3, 4)), ("tokens", (4,)),
                              ("vector", (6,)), ("vector", (4,))])  # fmt: skip
    names = [name for name in MAKERS if name not in ("words", "head", *BECOMES)]
    blocks: Blocks = [("words", {})] if kind == "tokens" else []
    here = "sequence" if kind == "tokens" else kind
    turns = {"image": ["to_vector", "to_vector", "to_sequence"], "sequence": ["to_vector", "to_image"], "vector": []}
    for _ in range(rng.randint(1, 2)):
        blocks += [(ANY, {}) for _ in range(rng.randint(1, 4))]
        if turns[here] and rng.random() < 0.6:
            blocks.append((rng.choice(turns[here]), {}))
            here = BECOMES[blocks[-1][0]]
    return build(Recipe(seed, kind, shape, [*blocks, ("head", {})]), names)


def build(recipe: Recipe, names: Sequence[str] = ()) -> Network:
    """Return the network of a recipe. Options that a block misses are drawn, and blocks named `ANY` from `names`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        rng = random.Random(recipe.seed)
        model, _, _ = _grow(rng, recipe.kind, recipe.shape, recipe.blocks, names)
        return Network(recipe, model, _input(recipe.kind, recipe.shape), draw_masks(model, recipe.seed))


def _input(kind: str, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if kind == "tokens":
        return torch.randint(TOKENS - 2, (BATCH, *shape), generator=generator)  # two words do not occur
    return torch.randn(BATCH, *shape, generator=generator)


def _grow(
    rng: random.Random, kind: str, shape: tuple[int, ...], blocks: Blocks, names: Sequence[str]
) -> tuple[nn.Module, str, tuple[int, ...]]:
    """Return blocks one after the other, and the kind and shape of what they return."""
    modules: list[nn.Module] = []
    within = [name for name in names if name not in OUTER]
    for i, (name, options) in enumerate(blocks):
        at = At(rng, kind, shape, options, within)
        if name == ANY:
            fitting = [n for n in names if kind in KINDS[n] and not (at.channels % 2 and n in EVEN)]
            layers = [n for n in LAYERS if n in fitting]
            name = rng.choice(layers if rng.random() < 0.4 else fitting)
            blocks[i] = (name, options)
        module = MAKERS[name](at)
        with torch.no_grad():
            result = module.eval()(_input(kind, shape))
        modules.append(module.train())
        result = result["out"] if isinstance(result, dict) else result
        kind, shape = BECOMES.get(name, kind), tuple(result.shape[1:])
    return nn.Sequential(*modules), kind, shape


def draw_masks(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """Draw masks: of any density, with rows, columns and layers that keep nothing, and sometimes of every parameter."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    density = rng.choice([0.0, 0.1, 0.3, 0.5, 0.8, 1.0])
    everything, empty = rng.random() < 0.25, rng.choice([0.0, 0.0, 0.1, 0.3])
    aligned, lost = rng.random() < 0.5, {}  # whether all rows and columns of one number lose the same
    masks = {}
    for name, p in parameters(model).items():
        small = p.dim() < 2 or any(part in name for part in ("table", "position", "scale"))
        if p.dim() == 0 or (small and not everything) or rng.random() < 0.05:
            continue
        mask = torch.rand(p.shape, generator=generator) < density
        for dim, size in enumerate(p.shape[:2]):
            if not aligned or size not in lost:
                lost[size] = torch.rand(size, generator=generator) < rng.choice([0.0, 0.3, 0.6])
            mask.index_fill_(dim, lost[size].nonzero().flatten(), False)
        masks[name] = torch.zeros_like(mask) if rng.random() < empty else mask
    return masks


def randomize(model: nn.Module, seed: int, masks: dict[str, Tensor] | None = None) -> nn.Module:
    """Give a network other values: every path carries a signal, and pruned weights stay zero. It is changed."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(t: Tensor, low: float, high: float) -> Tensor:
        return torch.rand(t.shape, generator=generator).to(t) * (high - low) + low

    with torch.no_grad():
        for name, p in parameters(model).items():
            if not p.requires_grad:  # a bias that holds a constant, see `shrink`
                continue
            last = name.split(".")[-1]
            if "bias" in last:
                p.copy_(uniform(p, -0.5, 0.5))
            elif p.dim() > 1 and "scale" not in last:
                p.copy_(torch.randn(p.shape, generator=generator).to(p) * max(p[0].numel(), 1) ** -0.5 * 1.5)
            else:
                p.copy_(uniform(p, 0.5, 1.5))
            if masks and name in masks:
                p.masked_fill_(~masks[name], 0)
        for module in model.modules():
            if isinstance(module, _NormBase) and module.running_mean is not None:
                module.running_mean.copy_(uniform(module.running_mean, -0.5, 0.5))
                module.running_var.copy_(uniform(module.running_var, 0.5, 1.5))  # type: ignore[union-attr]
    return model


DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


@contextmanager
def no_dropout() -> Iterator[None]:
    """Switch off dropout in train mode, in modules and in functions."""
    with mock.patch.multiple(F, **{name: lambda x, *_, **__: x for name in DROPOUTS}):
        yield
