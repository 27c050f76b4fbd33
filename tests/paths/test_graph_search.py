"""Effective weights against a plain graph search: the network written out, one node per channel and position."""

from __future__ import annotations

import itertools
from collections import defaultdict
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from zoo import Net

from barebones.paths import effective
from barebones.scope import parameters

Weight = tuple[str, tuple[int, ...]]


class Graph:
    """A network as nodes, which are numbers, and edges, which know the weight they stand for."""

    def __init__(self, masks: dict[str, Tensor]) -> None:
        self.masks, self.count = masks, 0
        self.edges: list[tuple[int, int, Weight | None]] = []

    def nodes(self, *shape: int) -> Tensor:
        size = int(torch.tensor(shape).prod())
        self.count += size
        return torch.arange(self.count - size, self.count).view(shape)

    def edge(self, a: Tensor, b: Tensor, weight: Weight | None = None) -> None:
        self.edges.append((int(a), int(b), weight))

    def conv(
        self, layer: str, x: Tensor, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1
    ) -> Tensor:
        name = f"{layer}.weight"
        mask = self.masks[name]
        kernel, dims = mask.shape[2:], range(mask.dim() - 2)
        size = [(x.shape[d + 1] + 2 * padding - dilation * (kernel[d] - 1) - 1) // stride + 1 for d in dims]
        y = self.nodes(mask.shape[0], *size)
        for at in itertools.product(*map(range, size)):
            for o, i, *offset in mask.nonzero().tolist():
                source = [at[d] * stride + offset[d] * dilation - padding for d in dims]
                if all(0 <= source[d] < x.shape[d + 1] for d in dims):
                    channel = i + o // (mask.shape[0] // groups) * mask.shape[1]
                    self.edge(x[(channel, *source)], y[(o, *at)], (name, (o, i, *offset)))
        return y

    linear = conv  # a convolution without dimensions

    def transposed(self, layer: str, x: Tensor, stride: int) -> Tensor:
        name = f"{layer}.weight"
        mask = self.masks[name]
        kernel, dims = mask.shape[2:], range(mask.dim() - 2)
        y = self.nodes(mask.shape[1], *[(x.shape[d + 1] - 1) * stride + kernel[d] for d in dims])
        for at in itertools.product(*map(range, x.shape[1:])):
            for i, o, *offset in mask.nonzero().tolist():
                target = [at[d] * stride + offset[d] for d in dims]
                self.edge(x[(i, *at)], y[(o, *target)], (name, (i, o, *offset)))
        return y

    def pool(self, x: Tensor, kernel: int, stride: int) -> Tensor:
        size = [(n - kernel) // stride + 1 for n in x.shape[1:]]
        y = self.nodes(x.shape[0], *size)
        for c, *at in itertools.product(range(x.shape[0]), *map(range, size)):
            for offset in itertools.product(range(kernel), repeat=len(size)):
                self.edge(x[(c, *(a * stride + b for a, b in zip(at, offset, strict=True)))], y[(c, *at)])
        return y

    def add(self, *terms: Tensor) -> Tensor:
        y = self.nodes(*terms[0].shape)
        for term in terms:
            for a, b in zip(term.flatten(), y.flatten(), strict=True):
                self.edge(a, b)
        return y

    def mean(self, x: Tensor) -> Tensor:
        y = self.nodes(len(x))
        for channel, target in zip(x, y, strict=True):
            for a in channel.flatten():
                self.edge(a, target)
        return y

    def effective(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        ahead, behind = defaultdict(list), defaultdict(list)
        for a, b, _ in self.edges:
            ahead[a].append(b)
            behind[b].append(a)

        def reached(start: Tensor, edges: dict[int, list[int]]) -> set[int]:
            todo = start.flatten().tolist()
            seen = set(todo)
            while todo:
                fresh = set(edges[todo.pop()]) - seen
                seen |= fresh
                todo += fresh
            return seen

        before, after = reached(source, ahead), reached(target, behind)
        on_paths = {name: torch.zeros_like(mask) for name, mask in self.masks.items()}
        for a, b, weight in self.edges:
            if weight and a in before and b in after:
                on_paths[weight[0]][weight[1]] = True
        return on_paths


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Dropout(), nn.GELU(), nn.Linear(5, 3))


def write_perceptron(g: Graph, x: Tensor) -> Tensor:
    return g.linear("5", g.linear("2", g.linear("0", x)))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(4, 4, 2, groups=2, padding=2, dilation=2, bias=False),
        nn.Hardswish(),
        nn.Conv2d(4, 4, 1, groups=4),  # depthwise
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 2),
    )


def write_convolutional(g: Graph, x: Tensor) -> Tensor:
    x = g.pool(g.conv("0", x, stride=2, padding=1), 2, 1)
    x = g.conv("6", g.conv("4", x, padding=2, dilation=2, groups=2), groups=4)
    return g.linear("9", g.pool(x, 2, 2).flatten())


def residual() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = F.relu(net.stem(x))
        x = x + net.b(F.relu(net.norm(net.a(x))))
        y = net.d(F.relu(net.c(x)))
        y += net.down(x)
        return net.head(F.relu_(y).mean([2, 3]))

    conv = partial(nn.Conv2d, 3, 3, 3, padding=1)
    return Net(forward, stem=nn.Conv2d(2, 3, 3, padding=1), norm=nn.BatchNorm2d(3), a=conv(), b=conv(), d=conv(),
               c=conv(stride=2), down=nn.Conv2d(3, 3, 1, 2), head=nn.Linear(3, 2))  # fmt: skip


def write_residual(g: Graph, x: Tensor) -> Tensor:
    x = g.conv("stem", x, padding=1)
    x = g.add(x, g.conv("b", g.conv("a", x, padding=1), padding=1))
    x = g.add(g.conv("d", g.conv("c", x, 2, 1), padding=1), g.conv("down", x, 2))
    return g.linear("head", g.mean(x))


def branching() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.up(torch.cat([torch.tanh(net.a(x)), net.b(x), x], 1))

    up = nn.ConvTranspose1d(7, 2, 3, stride=2)
    return Net(forward, a=nn.Conv1d(2, 2, 3, padding=1), b=nn.Conv1d(2, 3, 1), up=up)


def write_branching(g: Graph, x: Tensor) -> Tensor:
    return g.transposed("up", torch.cat([g.conv("a", x, padding=1), g.conv("b", x), x]), 2)


def three_dimensions() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 2, 2), nn.MaxPool3d(2), nn.GroupNorm(1, 2), nn.Conv3d(2, 2, 1))


def write_three_dimensions(g: Graph, x: Tensor) -> Tensor:
    return g.conv("3", g.pool(g.conv("0", x), 2, 2))


@settings(max_examples=8)
@given(st.integers(0, 2**31), st.sampled_from([0.05, 0.15, 0.3, 0.5, 0.8]))
@pytest.mark.parametrize(
    ("make", "write", "shape"),
    [
        (perceptron, write_perceptron, (4,)),
        (convolutional, write_convolutional, (2, 5, 5)),
        (residual, write_residual, (2, 4, 4)),
        (branching, write_branching, (2, 5)),
        (three_dimensions, write_three_dimensions, (1, 3, 3, 3)),
    ],
)
def test_a_graph_search_finds_the_same(make, write, shape, seed, density):
    model, generator = make(), torch.Generator().manual_seed(seed)
    weights = {name: p for name, p in parameters(model).items() if p.dim() > 1}
    masks = {name: torch.rand(p.shape, generator=generator) < density for name, p in weights.items()}
    graph = Graph(masks)
    source = graph.nodes(*shape)
    expected = graph.effective(source, write(graph, source))
    on_paths = effective(model, masks, torch.randn(2, *shape))
    assert {name: mask.tolist() for name, mask in on_paths.items()} == {n: m.tolist() for n, m in expected.items()}
