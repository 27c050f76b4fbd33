"""The zoo: small networks with an example input and masks, for table tests over every kind of network (one long table).

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
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from references import tiny
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_map

from barebones.models import SmallResNet, SmallVGG
from barebones.running.inputs import call
from barebones.running.inputs import tensors as tensors_in
from barebones.scope import matched, parameters

# ---- building blocks ----


class Net(nn.Module):
    """A network whose forward pass is a function of itself and the inputs; `parts` become its modules and tensors."""

    def __new__(cls, forward: Callable[..., Any] | None = None, **parts: Any) -> Net:
        kind = cls if forward is None else type("Net", (Net,), {"forward": forward})  # a copy has its class already
        return super().__new__(kind)

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)


class Residual(nn.Module):
    """A block and a bypass."""

    def __init__(self, *block: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(*block)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


def conv(i: int, o: int, k: int = 3, **options: Any) -> list[nn.Module]:
    """Return a convolution, a batch-norm and a ReLU."""
    return [nn.Conv2d(i, o, k, padding=k // 2, bias=False, **options), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]


def inverted(i: int, hidden: int) -> nn.Module:
    """Return an inverted residual block."""
    return Residual(*conv(i, hidden, 1), *conv(hidden, hidden, groups=hidden), *conv(hidden, i, 1)[:2])


def pooled(body: nn.Module, width: int) -> nn.Module:
    """Return a body, then a mean over everything but batch and channels, then three classes."""
    return Net(lambda net, x: net.head(net.body(x).flatten(2).mean(2)), body=body, head=nn.Linear(width, 3))


def between(*middle: nn.Module) -> nn.Module:
    """Return convolutions with something behind each but the last."""
    convs = [nn.Conv2d(2, 6, 3), *(nn.Conv2d(6, 6, 3) for _ in middle[1:]), nn.Conv2d(6, 3, 1)]
    return nn.Sequential(*itertools.chain(*zip(convs, middle, strict=False)), convs[-1])


# ---- perceptrons ----


def around() -> nn.Module:
    """The input of the model is added to what its layers make of it."""
    return Net(lambda net, x: net.out(torch.relu(x + net.second(torch.relu(net.first(x))))),
               first=nn.Linear(6, 8), second=nn.Linear(8, 6), out=nn.Linear(6, 3))  # fmt: skip


def dropping() -> nn.Module:
    first = [nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.5)]
    return nn.Sequential(*first, nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 3))


def writing() -> nn.Module:
    """It changes its input in place."""
    return Net(lambda net, x: net.out(torch.relu(net.first(x.mul_(2)))), first=nn.Linear(4, 8), out=nn.Linear(8, 3))


def tied() -> nn.Module:
    """Two layers have one weight."""
    net = Net(lambda net, x: net.out(torch.relu(net.third(torch.relu(net.second(torch.relu(net.first(x))))))),
              first=nn.Linear(4, 6), second=nn.Linear(6, 6), third=nn.Linear(6, 6), out=nn.Linear(6, 3))  # fmt: skip
    net.third.weight = net.second.weight
    return net


def many() -> nn.Module:
    """Two inputs, one of them by name, and a dict of outputs, one of them from the middle."""

    def forward(net: Any, x: Tensor, *, other: Tensor) -> dict[str, Any]:
        middle = torch.relu(net.c(torch.relu(net.a(x) + net.b(other))))
        return {"middle": middle, "out": (net.e(torch.relu(net.d(middle))), middle.argmax(-1))}

    return Net(forward, a=nn.Linear(4, 6), b=nn.Linear(5, 6), c=nn.Linear(6, 6), d=nn.Linear(6, 6), e=nn.Linear(6, 3))


def bilinear() -> nn.Module:
    matrices = dict(weight_a=nn.Parameter(torch.randn(3, 4)), weight_b=nn.Parameter(torch.randn(2, 4)))
    return Net(lambda net, x: torch.einsum("bi,oi->bo", net.both(x, x @ net.weight_a), net.weight_b),
               both=nn.Bilinear(3, 4, 4), **matrices)  # fmt: skip


# Two linear layers of four units, masks for them, and an input.
eye, off = torch.eye(4, dtype=torch.bool), torch.zeros(4, 4, dtype=torch.bool)
half = eye & torch.tensor([True, True, False, False])
x4 = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def linears(**more: Any) -> dict[str, Any]:
    return {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), **more}


# ---- convolutional networks ----


def unet(groups: int = 1) -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        left = torch.relu(net.down(x))
        return net.last(torch.cat([left, torch.relu(net.up(torch.relu(net.middle(left))))], 1))

    return Net(forward, down=nn.Conv2d(2, 6, 3, padding=1), middle=nn.Conv2d(6, 8, 3, stride=2, padding=1),
               up=nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1, groups=groups),
               last=nn.Conv2d(12, 2, 3, padding=1))  # fmt: skip


def conv1d() -> nn.Module:
    second = [nn.Conv1d(6, 6, 3, padding="same"), nn.MaxPool1d(2), nn.Flatten()]
    return nn.Sequential(nn.Conv1d(2, 6, 3, dilation=2), nn.BatchNorm1d(6), nn.SiLU(), *second, nn.Linear(24, 3))


def conv3d() -> nn.Module:
    body = [nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.Conv3d(4, 5, 3, stride=2)]
    return pooled(nn.Sequential(*body), 5)


def flat() -> nn.Module:
    body = [*conv(2, 5, stride=2), *conv(5, 4), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))


# ---- attention and language ----


def attention(sdpa: bool) -> nn.Module:
    """Three heads by hand, with one projection for queries, keys and values."""

    def forward(net: Any, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (-1, 4)).transpose(1, 2) for t in net.project(net.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v) if sdpa else (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        return net.head(x + net.out(y.transpose(1, 2).flatten(2))).mean(1)

    return Net(forward, norm=nn.LayerNorm(6), project=nn.Linear(6, 36), out=nn.Linear(12, 6), head=nn.Linear(6, 3))


def separate() -> nn.Module:
    """Attention with three projections and heads of two channels, and an MLP: a layer of a transformer."""

    def forward(net: Any, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (f(x).view(batch, length, -1, 2).transpose(1, 2) for f in (net.q, net.k, net.v))
        y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        x = x + net.out(y.transpose(1, 2).reshape(batch, length, -1))
        return x + net.mlp(x)

    mlp = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 6))
    return Net(forward, q=nn.Linear(6, 6), k=nn.Linear(6, 6), v=nn.Linear(6, 6), out=nn.Linear(6, 6), mlp=mlp)


def two_inputs() -> nn.Module:
    return Net(lambda net, x, y: net.head(x + net.attention(x, y, y)[0]),
               attention=nn.MultiheadAttention(4, 2, batch_first=True), head=nn.Linear(4, 3))  # fmt: skip


def attention_of_two_sizes() -> nn.Module:
    """`nn.MultiheadAttention` with keys and values of another size, so that it has three projections."""
    attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
    return Net(lambda net, x: net.head(net.attention(x, x[..., :6], x[..., :6])[0]),
               attention=attention, head=nn.Linear(8, 3))  # fmt: skip


def words() -> nn.Module:
    mlp = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return Net(lambda net, tokens: net.mlp(net.embedding(tokens).mean(1)), embedding=nn.Embedding(7, 6), mlp=mlp)


def language() -> nn.Module:
    """Causal attention by hand, with positions; the output layer is the embedding (tied)."""

    def forward(net: Any, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = net.embedding(ids) + net.position(torch.arange(length, device=ids.device))
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in net.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1) / 2).masked_fill(net.causal[:length, :length] == 0, -torch.inf)
        mixed = F.dropout(F.softmax(scores, -1), 0.1, net.training) @ v
        return F.linear(x + net.out(mixed.transpose(1, 2).flatten(2)), net.embedding.weight)

    return Net(forward, embedding=nn.Embedding(7, 8), position=nn.Embedding(3, 8), qkv=nn.Linear(8, 24),
               out=nn.Linear(8, 8), causal=torch.ones(3, 3).tril())  # fmt: skip


# ---- recurrent networks ----


def lstm_with_head() -> nn.Module:
    return Net(lambda net, x: net.head(net.lstm(torch.relu(net.first(x)))[0][:, -1]), first=nn.Linear(5, 6),
               lstm=nn.LSTM(6, 4, batch_first=True),
               head=nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))  # fmt: skip


def bidirectional(kind: type[nn.RNNBase], **options: Any) -> nn.Module:
    """Two recurrent layers between linear ones."""
    rnn = kind(5, 4, num_layers=2, bidirectional=True, batch_first=True, **options)
    return Net(lambda net, x: net.head(net.rnn(torch.tanh(net.stem(x)))[0][:, -1]),
               stem=nn.Linear(3, 5), rnn=rnn, head=nn.Linear(2 * (options.get("proj_size") or 4), 2))  # fmt: skip


def cells() -> nn.Module:
    return Net(lambda net, x: net.head(net.gru(net.lstm(x, net.lstm(x))[0], net.plain(x))),
               lstm=nn.LSTMCell(3, 4), gru=nn.GRUCell(4, 4), plain=nn.RNNCell(3, 4), head=nn.Linear(4, 2))  # fmt: skip


def packed() -> nn.Module:
    def forward(net: Any, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        y, (h, _) = net.lstm(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return net.head(pad_packed_sequence(y, batch_first=True)[0]), h

    return Net(forward, lstm=nn.LSTM(3, 4, batch_first=True), head=nn.Linear(4, 2))


# ---- tables of parameters ----


LOOKUPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # rows of a table, by their numbers
    "indices": lambda table, ids: table[ids],
    "embedding": lambda table, ids: F.embedding(ids, table),
    "bag": lambda table, ids: F.embedding_bag(ids[:, None], table),
    "index_select": lambda table, ids: table.index_select(0, ids),
    "gather": lambda table, ids: table.gather(0, ids[:, None].expand(-1, table.shape[1])),
    "take_along_dim": lambda table, ids: torch.take_along_dim(table, ids[:, None].expand(-1, table.shape[1]), 0),
}


# ---- the networks ----


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
    "around": Entry(around, (4, 6)),
    "layer": Entry(lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(),
                                         nn.Linear(6, 3)), (4, 4), exact_paths=False),
    "glu": Entry(lambda: nn.Sequential(nn.Linear(5, 12), nn.GLU(), nn.Linear(6, 3)), (4, 5)),
    "dropout": Entry(dropping, (4, 4)),
    "writing": Entry(writing, (4, 4)),
    "tied": Entry(tied, (4, 4)),
    "many": Entry(many, lambda g: ((torch.randn(4, 4, generator=g),), {"other": torch.randn(4, 5, generator=g)})),
    "bilinear": Entry(bilinear, (2, 3)),
    # convolutional networks
    "cnn": Entry(lambda: tiny(dtype=torch.float32), (4, 1, 6, 6), exact_paths=False),
    "vgg": Entry(lambda: SmallVGG(3, width=2), (4, 1, 8, 8)),
    "resnet": Entry(lambda: SmallResNet(3, width=2), (4, 1, 8, 8)),
    "mobile": Entry(lambda: pooled(nn.Sequential(*conv(2, 4), inverted(4, 8), *conv(4, 8, stride=2),
                                                 inverted(8, 8)), 8), IMAGE),
    "unet": Entry(unet, IMAGE),
    "unet-groups": Entry(lambda: unet(2), IMAGE),
    "conv1d": Entry(conv1d, (4, 2, 12)),
    "conv3d": Entry(conv3d, (4, 1, 5, 6, 7)),
    "flatten": Entry(flat, IMAGE),
    "instance": Entry(lambda: between(nn.Sequential(nn.InstanceNorm2d(6, affine=True), nn.ReLU())), IMAGE),
    "group": Entry(lambda: between(nn.Sequential(nn.GroupNorm(2, 6), nn.ReLU()), nn.ReLU()), IMAGE, exact_paths=False),
    "plain": Entry(lambda: between(nn.BatchNorm2d(6, affine=False), nn.ReLU(),
                                   nn.BatchNorm2d(6, track_running_stats=False)), IMAGE),
    "collapsed": Entry(flat, IMAGE, empty=("3.weight",)),
    # attention and language
    "encoder": Entry(lambda: nn.TransformerEncoderLayer(6, 2, 10, batch_first=True), SEQUENCE),
    "separate": Entry(separate, SEQUENCE),
    "fused": Entry(lambda: attention(sdpa=False), SEQUENCE),
    "sdpa": Entry(lambda: attention(sdpa=True), SEQUENCE),
    "two inputs": Entry(two_inputs, lambda g: (torch.randn(2, 3, 4, generator=g), torch.randn(2, 5, 4, generator=g))),
    "two sizes": Entry(attention_of_two_sizes, (2, 3, 8)),
    "words": Entry(words, tokens(4, 5)),
    "language": Entry(language, lambda g: {"ids": tokens(2, 3)(g)}, exportable=False, dropout_stays=True),
    # recurrent networks
    "recurrent": Entry(lstm_with_head, (4, 5, 5), recurrent=True),
    "lstm": Entry(lambda: nn.LSTM(4, 3), (4, 2, 4), recurrent=True),
    "lstm both ways": Entry(lambda: bidirectional(nn.LSTM), (2, 4, 3), recurrent=True),
    "lstm with projections": Entry(lambda: bidirectional(nn.LSTM, proj_size=3), (2, 4, 3), recurrent=True),
    "gru": Entry(lambda: bidirectional(nn.GRU), (2, 4, 3), recurrent=True),
    "rnn": Entry(lambda: bidirectional(nn.RNN, bias=False), (2, 4, 3), recurrent=True),
    "cells": Entry(cells, (2, 3), recurrent=True),
    "packed lstm": Entry(packed, lambda g: (torch.randn(2, 4, 3, generator=g), torch.tensor([2, 4])),
                         exportable=False, recurrent=True),
}  # fmt: skip


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


def random_masks(
    model: nn.Module, density: float, seed: int = 0, names: Collection[str] | None = None
) -> dict[str, Tensor]:
    """Keep each weight with probability `density`, and drop some whole rows and columns as well.

    Masks are drawn for these names, or for all parameters of two or more dimensions of layers, except embeddings.
    """
    generator, weights = torch.Generator().manual_seed(seed), parameters(model)
    if names is None:
        layers = [n for n, p in weights.items() if p.dim() > 1 and "weight" in n.split(".")[-1]]
        names = [name for name in layers if "embedding" not in name and "position" not in name]
    masks = {}
    for name in names:
        mask = torch.rand(weights[name].shape, generator=generator) < density
        for dim in (0, 1):
            lost = torch.rand(mask.shape[dim], generator=generator) > (density + 1) / 2
            mask.index_fill_(dim, lost.nonzero().flatten(), False)
        masks[name] = mask
    return masks


def keep_all(model: nn.Module) -> dict[str, Tensor]:
    """Return masks that keep every weight of two or more dimensions."""
    return {name: torch.ones(p.shape, dtype=torch.bool) for name, p in parameters(model).items() if p.dim() > 1}


def masked(model: nn.Module, masks: dict[str, Tensor]) -> nn.Module:
    """Return a copy of the model with its pruned weights at zero."""
    copy = deepcopy(model)
    with torch.no_grad():
        for _, parameter, mask in matched(copy, masks):
            parameter.masked_fill_(~mask, 0)
    return copy


def exact(model: nn.Module) -> nn.Module:
    """Return a copy of the model in float64 and without dropout."""
    model = deepcopy(model).double()
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.MultiheadAttention):
            setattr(module, "p" if isinstance(module, nn.Dropout) else "dropout", 0.0)
    return model


def outputs(model: nn.Module, example: Any, train: bool = False) -> list[Tensor]:
    """Return the float outputs of a copy of the model, computed in float64 and without dropout."""
    return run(exact(model).train(train), example)


def run(model: nn.Module, example: Any) -> list[Tensor]:
    """Return the float outputs of a model for the example, in float64."""
    args, kwargs = tree_map(lambda t: t.double() if t.is_floating_point() else t.clone(), call(example))
    with torch.no_grad():
        return [t for t in tensors_in(model(*args, **kwargs)) if t.is_floating_point()]


def fresh(example: Any, seed: int = 1) -> Any:
    """Return another random input of the same shapes."""
    generator = torch.Generator().manual_seed(seed)

    def draw(t: Tensor) -> Tensor:
        return torch.randn(t.shape, generator=generator) if t.is_floating_point() else t.flip(0)

    return tree_map(draw, example)
