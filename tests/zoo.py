"""The zoo: small networks with an example input and masks, for table tests over every kind of network.

Each entry is one row of `ZOO`; its flags say what tests may ask of it:

    import zoo

    @pytest.mark.parametrize("name", zoo.names(exportable=True))
    def test_something(name):
        model, example = zoo.build(name)
        masks = zoo.draw_masks(name, model, density=0.3)

All networks are deterministic given the seed, and one forward pass takes milliseconds on one CPU thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from references import Pooled, tiny
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_map

from barebones.models import SmallResNet, SmallVGG
from barebones.running.inputs import call
from barebones.running.inputs import tensors as tensors_in
from barebones.scope import matched, parameters

# ---- networks ----


class Residual(nn.Module):
    """A block and a way around it."""

    def __init__(self, *block: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(*block)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class Beside(nn.Module):
    """Branches of the same input, concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class UNet(nn.Module):
    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1, groups=groups)
        self.last = nn.Conv2d(12, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        left = torch.relu(self.down(x))
        return self.last(torch.cat([left, torch.relu(self.up(torch.relu(self.middle(left))))], 1))


class Gated(nn.Module):
    """Halves of one layer, one the gate of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.out = nn.Linear(5, 12), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(x).chunk(2, -1)
        return self.out(a * torch.sigmoid(b))


class Squeezed(nn.Module):
    """Squeeze and excite, inside a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.squeeze, self.excite = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 4, 1), nn.Conv2d(4, 6, 1)
        self.out = nn.Conv2d(6, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return self.out(x * gate)


class Attention(nn.Module):
    """Three heads, by hand; `fused` projects all three at once."""

    def __init__(self, fused: bool, sdpa: bool = False) -> None:
        super().__init__()
        self.sdpa = sdpa
        self.norm = nn.LayerNorm(6)
        self.project = nn.ModuleList([nn.Linear(6, 36)] if fused else [nn.Linear(6, 12) for _ in range(3)])
        self.out, self.head = nn.Linear(12, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        inside = torch.cat([project(self.norm(x)) for project in self.project], -1)
        q, k, v = (t.unflatten(-1, (-1, 4)).transpose(1, 2) for t in inside.chunk(3, -1))
        by_hand = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        y = F.scaled_dot_product_attention(q, k, v) if self.sdpa else by_hand
        return self.head(x + self.out(y.transpose(1, 2).flatten(2))).mean(1)


class Separate(nn.Module):
    """Attention with heads of two channels, three projections kept apart, and an MLP: a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(6, 6) for _ in range(4))
        self.mlp = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 6))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (f(x).view(batch, length, -1, 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, -1))
        return x + self.mlp(x)


class Scaled(nn.Module):
    """A layer-scale, as ConvNeXt has it, and a position that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.scale, self.position = nn.Parameter(torch.rand(6, 1, 1) + 0.5), nn.Parameter(torch.rand(1, 6, 1, 1))
        self.out = nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) + self.position
        return self.out(torch.relu(x + self.scale * self.inner(x)))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.mlp = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.mlp(self.embedding(tokens).mean(1))


class Twice(nn.Module):
    """One layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.out = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.shared(torch.relu(self.shared(torch.relu(self.first(x)))))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.out = (
            nn.Linear(4, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 3),
        )
        self.third.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.third(torch.relu(self.second(torch.relu(self.first(x)))))))


class Around(nn.Module):
    """The model's input is added to what a layer makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(x + self.second(torch.relu(self.first(x)))))


class Many(nn.Module):
    """Two inputs, one by name; a dict of outputs, one of them from the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(5, 6), nn.Linear(6, 6)
        self.d, self.e = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, *, other: Tensor) -> dict[str, Any]:
        x = torch.relu(self.a(x) + self.b(other))
        middle = torch.relu(self.c(x))
        return {"middle": middle, "out": (self.e(torch.relu(self.d(middle))), middle.argmax(-1))}


class Functional(nn.Module):
    """Dropout as a function, with the mode of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(torch.relu(self.first(x)), 0.5, self.training)
        return self.out(torch.relu(self.second(x)))


class Buffered(nn.Module):
    """A scale per channel that is no parameter, and a count of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 6, 3), nn.Conv2d(6, 3, 1)
        self.register_buffer("scale", torch.rand(6, 1, 1) + 0.5)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.out(torch.relu(self.second(torch.relu(self.first(x)) * self.scale)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm = nn.Linear(5, 6), nn.LSTM(6, 4, batch_first=True)
        self.head = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(torch.relu(self.first(x)))[0][:, -1])


class Shuffled(nn.Module):
    """Channels are mixed up between two convolutions in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 8, 3, groups=2), nn.Conv2d(8, 8, 3, groups=2)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = x.view(len(x), 2, 4, *x.shape[2:]).transpose(1, 2).reshape(x.shape)
        return self.out(torch.relu(self.second(x)))


class Sliced(nn.Module):
    """A part of the channels goes another way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Conv2d(2, 8, 3), nn.Conv2d(3, 5, 1), nn.Conv2d(10, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.out(torch.cat([x[:, 3:], torch.relu(self.second(x[:, :3]))], 1))


class Writing(nn.Module):
    """Its input is not what it was, afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.first(x.mul_(2))))


def conv(i: int, o: int, k: int = 3, **options: Any) -> list[nn.Module]:
    """A convolution, batch-norm and ReLU."""
    return [nn.Conv2d(i, o, k, padding=k // 2, bias=False, **options), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]


def dense_net() -> nn.Module:
    grown = nn.Sequential(*conv(2, 4), *(Beside(nn.Identity(), nn.Sequential(*conv(w, 3))) for w in (4, 7, 10)))
    return Pooled(nn.Sequential(grown, nn.AvgPool2d(2), *conv(13, 6, 1)), 6)


def inverted(i: int, hidden: int) -> nn.Module:
    return Residual(*conv(i, hidden, 1), *conv(hidden, hidden, groups=hidden), *conv(hidden, i, 1)[:2])


def inception() -> nn.Module:
    pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), *conv(4, 3, 1))
    return Pooled(nn.Sequential(*conv(2, 4), Beside(nn.Sequential(*conv(4, 3)), pool, nn.Identity()), *conv(10, 4)), 4)


def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 6, 3, dilation=2), nn.BatchNorm1d(6), nn.SiLU(), nn.Conv1d(6, 6, 3, padding="same"),
        nn.MaxPool1d(2), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip


def conv3d() -> nn.Module:
    return Pooled(
        nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.Conv3d(4, 5, 3, stride=2)), 5
    )


def mobile() -> nn.Module:
    return Pooled(nn.Sequential(*conv(2, 4), inverted(4, 8), *conv(4, 8, stride=2), inverted(8, 8)), 8)


def resnext() -> nn.Module:
    return Pooled(nn.Sequential(*conv(2, 8), Residual(*conv(8, 6, 1), *conv(6, 6, groups=3), *conv(6, 8, 1))), 8)


def between(*middle: nn.Module) -> nn.Module:
    """Convolutions with something behind each."""
    convs = [nn.Conv2d(2, 6, 3), *(nn.Conv2d(6, 6, 3) for _ in middle[1:]), nn.Conv2d(6, 3, 1)]
    return nn.Sequential(*itertools.chain(*zip(convs, middle, strict=False)), convs[-1])


def flat() -> nn.Module:
    return nn.Sequential(
        *conv(2, 5, stride=2), *conv(5, 4), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)
    )  # fmt: skip


def normed() -> nn.Module:
    rest = [nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)]
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), *rest)


def dropping() -> nn.Module:
    first = [nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.5)]
    return nn.Sequential(*first, nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 3))


# ---- networks that few tests but those of paths need ----


class Net(nn.Module):
    """A network given as a function of itself and the inputs; `parts` become its modules, parameters and buffers."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def language_model(net: Any, ids: Tensor) -> Tensor:
    """Causal attention by hand, with positions; the output layer is the embedding (tied)."""
    x = net.embedding(ids) + net.position(torch.arange(ids.shape[1], device=ids.device))
    q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in net.qkv(x).chunk(3, -1))
    scores = (q @ k.transpose(-2, -1) / 2).masked_fill(net.causal[: ids.shape[1], : ids.shape[1]] == 0, -torch.inf)
    mixed = F.dropout(F.softmax(scores, -1), 0.1, net.training) @ v
    x = x + net.out(mixed.transpose(1, 2).flatten(2))
    return F.linear(x, net.embedding.weight)


def squeeze_and_excite(net: Any, x: Tensor) -> Tensor:
    x = F.silu(net.conv(x))
    gate = torch.sigmoid(net.wide(F.relu(net.narrow(x.mean((2, 3))))))
    return net.head(F.adaptive_max_pool2d(x * gate[..., None, None], 1).flatten(1))


def packed(net: Any, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    y, (h, _) = net.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return net.head(pad_packed_sequence(y, batch_first=True)[0]), h


def recurrent(kind: type[nn.RNNBase], **options: Any) -> nn.Module:
    """Two bidirectional layers between linear ones."""
    inner = kind(5, 4, num_layers=2, bidirectional=True, batch_first=True, **options)
    return Net(lambda net, x: net.head(net.rnn(torch.tanh(net.stem(x)))[0][:, -1]),
               stem=nn.Linear(3, 5), rnn=inner, head=nn.Linear(2 * (options.get("proj_size") or 4), 2))  # fmt: skip


def cells(net: Any, x: Tensor) -> Tensor:
    state = net.lstm(x)
    return net.head(net.gru(net.lstm(x, state)[0], net.plain(x)))


def two_inputs() -> nn.Module:
    return Net(lambda net, x, y: net.head(x + net.attention(x, y, y)[0]),
               attention=nn.MultiheadAttention(4, 2, batch_first=True), head=nn.Linear(4, 3))  # fmt: skip


def tied_language_model() -> nn.Module:
    parts = dict(embedding=nn.Embedding(7, 8), position=nn.Embedding(3, 8), qkv=nn.Linear(8, 24), out=nn.Linear(8, 8))
    return Net(language_model, causal=torch.ones(3, 3).tril(), **parts)


def excited() -> nn.Module:
    parts = dict(conv=nn.Conv2d(2, 5, 3), narrow=nn.Linear(5, 3), wide=nn.Linear(3, 5), head=nn.Linear(5, 3))
    return Net(squeeze_and_excite, **parts)


def upsampling() -> nn.Module:
    return Net(lambda net, x: net.b(F.interpolate(net.a(x), scale_factor=1.5, mode="bicubic")).amax((2, 3)),
               a=nn.Conv2d(2, 3, 3), b=nn.Conv2d(3, 2, 3, padding=1))  # fmt: skip


def bilinear() -> nn.Module:
    matrices = dict(weight_a=nn.Parameter(torch.randn(3, 4)), weight_b=nn.Parameter(torch.randn(2, 4)))
    product = lambda net, x: torch.einsum("bi,oi->bo", net.both(x, x @ net.weight_a), net.weight_b)
    return Net(product, both=nn.Bilinear(3, 4, 4), **matrices)


# ---- the table ----


@dataclass(frozen=True)
class Entry:
    """One network of the zoo; `example` is the shape of a float input, or a function that draws the example."""

    make: Callable[[], nn.Module]
    example: tuple[int, ...] | Callable[[torch.Generator], Any]
    exportable: bool = True  # torch.export can trace it
    recurrent: bool = False  # has LSTMs, GRUs or RNNs
    exact_paths: bool = True  # without biases, weights on no path have no effect (norms per channel, f(0) = 0)
    dropout_stays: bool = False  # its dropout cannot be switched off from outside in train mode
    empty: tuple[str, ...] = ()  # layers of which `draw_masks` keeps no weight, so that the network collapses

    @property
    def data_free(self) -> bool:
        """Whether the input is one float tensor, as methods without data (SynFlow) need it."""
        return isinstance(self.example, tuple)


def tokens(*shape: int) -> Callable[[torch.Generator], Any]:
    return lambda generator: torch.randint(7, shape, generator=generator)


IMAGE, SEQUENCE = (4, 2, 8, 8), (2, 5, 6)
ZOO: dict[str, Entry] = {
    # perceptrons
    "mlp": Entry(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), (4, 4)),
    "one": Entry(lambda: nn.Linear(4, 3), (4, 4)),
    "around": Entry(Around, (4, 6)),
    "layer": Entry(normed, (4, 4), exact_paths=False),
    "gate": Entry(Gated, (4, 5)),
    "glu": Entry(lambda: nn.Sequential(nn.Linear(5, 12), nn.GLU(), nn.Linear(6, 3)), (4, 5)),
    "dropout": Entry(dropping, (4, 4)),
    "functional": Entry(Functional, (4, 4), dropout_stays=True),
    "writing": Entry(Writing, (4, 4)),
    "twice": Entry(Twice, (4, 4)),
    "tied": Entry(Tied, (4, 4)),
    "many": Entry(Many, lambda g: ((torch.randn(4, 4, generator=g),), {"other": torch.randn(4, 5, generator=g)})),
    "bilinear": Entry(bilinear, (2, 3)),
    # convolutional networks
    "cnn": Entry(lambda: tiny(dtype=torch.float32), (4, 1, 6, 6), exact_paths=False),
    "vgg": Entry(lambda: SmallVGG(3, width=2), (4, 1, 8, 8)),
    "resnet": Entry(lambda: SmallResNet(3, width=2), (4, 1, 8, 8)),
    "mobile": Entry(mobile, IMAGE),
    "multiplier": Entry(lambda: Pooled(nn.Sequential(*conv(2, 4), *conv(4, 8, groups=4), *conv(8, 4, 1)), 4), IMAGE),
    "dense": Entry(dense_net, IMAGE),
    "next": Entry(resnext, IMAGE),
    "unet": Entry(UNet, IMAGE),
    "unet-groups": Entry(lambda: UNet(2), IMAGE),
    "inception": Entry(inception, IMAGE),
    "conv1d": Entry(conv1d, (4, 2, 12)),
    "conv3d": Entry(conv3d, (4, 1, 5, 6, 7)),
    "flatten": Entry(flat, IMAGE),
    "squeeze": Entry(Squeezed, IMAGE),
    "excite": Entry(excited, (2, 2, 5, 5)),
    "scale": Entry(Scaled, IMAGE),
    "prelu": Entry(lambda: between(nn.PReLU(6), nn.PReLU()), IMAGE),
    "instance": Entry(lambda: between(nn.Sequential(nn.InstanceNorm2d(6, affine=True), nn.ReLU())), IMAGE),
    "group": Entry(lambda: between(nn.Sequential(nn.GroupNorm(2, 6), nn.ReLU()), nn.ReLU()), IMAGE, exact_paths=False),
    "plain": Entry(
        lambda: between(nn.BatchNorm2d(6, affine=False), nn.ReLU(), nn.BatchNorm2d(6, track_running_stats=False)),
        IMAGE,
    ),
    "buffer": Entry(Buffered, IMAGE),
    "shuffle": Entry(Shuffled, IMAGE),
    "slice": Entry(Sliced, IMAGE),
    "upsampling": Entry(upsampling, (2, 2, 6, 6)),
    "collapsed": Entry(flat, IMAGE, empty=("3.weight",)),
    # attention and language
    "encoder": Entry(lambda: nn.TransformerEncoderLayer(6, 2, 10, batch_first=True), SEQUENCE),
    "separate": Entry(Separate, SEQUENCE),
    "attention": Entry(lambda: Attention(False), SEQUENCE),
    "fused": Entry(lambda: Attention(True), SEQUENCE),
    "sdpa": Entry(lambda: Attention(True, sdpa=True), SEQUENCE),
    "two inputs": Entry(two_inputs, lambda g: (torch.randn(2, 3, 4, generator=g), torch.randn(2, 5, 4, generator=g))),
    "words": Entry(Words, tokens(4, 5)),
    "language": Entry(tied_language_model, lambda g: {"ids": tokens(2, 3)(g)}, dropout_stays=True),
    # recurrent networks
    "recurrent": Entry(Recurrent, (4, 5, 5), recurrent=True),
    "lstm": Entry(lambda: nn.LSTM(4, 3), (4, 2, 4), recurrent=True),
    "lstm both ways": Entry(lambda: recurrent(nn.LSTM), (2, 4, 3), recurrent=True),
    "lstm with projections": Entry(lambda: recurrent(nn.LSTM, proj_size=3), (2, 4, 3), recurrent=True),
    "gru": Entry(lambda: recurrent(nn.GRU), (2, 4, 3), recurrent=True),
    "rnn": Entry(lambda: recurrent(nn.RNN, bias=False), (2, 4, 3), recurrent=True),
    "cells": Entry(
        lambda: Net(cells, lstm=nn.LSTMCell(3, 4), gru=nn.GRUCell(4, 4), plain=nn.RNNCell(3, 4), head=nn.Linear(4, 2)),
        (2, 3),
        recurrent=True,
    ),
    "packed lstm": Entry(
        lambda: Net(packed, lstm=nn.LSTM(3, 4, batch_first=True), head=nn.Linear(4, 2)),
        lambda g: (torch.randn(2, 4, 3, generator=g), torch.tensor([2, 4])),
        exportable=False,
        recurrent=True,
    ),
}


def names(**flags: bool) -> list[str]:
    """Return the names of the entries with these flags, e.g. `names(recurrent=False, data_free=True)`."""
    return [name for name, entry in ZOO.items() if all(getattr(entry, flag) == value for flag, value in flags.items())]


def build(name: str, seed: int = 0, trained: bool = True) -> tuple[nn.Module, Any]:
    """Return a network and its example input; `trained` gives batch-norms values as after some training."""
    entry = ZOO[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = entry.make()
        for module in model.modules():
            if isinstance(module, _BatchNorm) and trained:
                if module.affine:
                    nn.init.uniform_(module.weight, 0.5, 1.5)
                    nn.init.uniform_(module.bias, -0.5, 0.5)
                if module.track_running_stats:
                    module.running_mean.normal_()
                    module.running_var.uniform_(0.5, 2)
    generator = torch.Generator().manual_seed(seed)
    return model, torch.randn(entry.example, generator=generator) if entry.data_free else entry.example(generator)


def draw_masks(name: str, model: nn.Module, density: float, seed: int = 0) -> dict[str, Tensor]:
    """Draw masks for a network of the zoo; the layers that its entry names as `empty` keep nothing."""
    masks = random_masks(model, density, seed)
    for layer in ZOO[name].empty:
        masks[layer].fill_(False)
    return masks


def random_masks(model: nn.Module, density: float, seed: int = 0) -> dict[str, Tensor]:
    """Keep each weight with probability `density`, and drop some whole rows and columns as well.

    Masks are drawn for all parameters of two or more dimensions that belong to layers, except embeddings.
    """
    masks = {}
    generator = torch.Generator().manual_seed(seed)
    for name, p in parameters(model).items():
        if p.dim() < 2 or not name.split(".")[-1].startswith(("weight", "in_proj")) or "embedding" in name:
            continue
        mask = torch.rand(p.shape, generator=generator) < density
        for dim in (0, 1):
            lost = (
                torch.rand(p.shape[dim], generator=generator) > (density + 1) / 2
                if density
                else torch.ones(p.shape[dim])
            )
            mask.index_fill_(dim, lost.nonzero().flatten(), False)
        masks[name] = mask
    return masks


def masked(model: nn.Module, masks: dict[str, Tensor]) -> nn.Module:
    """Return a copy of the model with its pruned weights at zero."""
    copy = deepcopy(model)
    with torch.no_grad():
        for _, parameter, mask in matched(copy, masks):
            parameter.masked_fill_(~mask, 0)
    return copy


def outputs(model: nn.Module, example: Any, train: bool = False) -> list[Tensor]:
    """Return the float outputs of a copy of the model, computed in float64 and without dropout."""
    model = deepcopy(model).double().train(train)
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.MultiheadAttention):
            setattr(module, "p" if isinstance(module, nn.Dropout) else "dropout", 0.0)
    args, kwargs = tree_map(lambda t: t.double() if t.is_floating_point() else t.clone(), call(example))
    with torch.no_grad():
        return [t for t in tensors_in(model(*args, **kwargs)) if t.is_floating_point()]


def fresh(example: Any, seed: int = 1) -> Any:
    """Return another random input of the same shapes."""
    generator = torch.Generator().manual_seed(seed)

    def draw(t: Tensor) -> Tensor:
        return torch.randn(t.shape, generator=generator) if t.is_floating_point() else t.flip(0)

    return tree_map(draw, example)
