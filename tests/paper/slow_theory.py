"""Plain, slow references for the theory: one network, one mask and one gradient at a time."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def module(widths, seed, samples, scale) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Return the network of `tanh_network`, made of torch's layers."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layer = nn.Linear(inputs, outputs, bias=False, dtype=torch.float64)
        weight = torch.randn(outputs, inputs, generator=generator, dtype=torch.float64)
        layer.weight.data = weight * scale / math.sqrt(inputs)
        layers += [layer, nn.Tanh()]
    inputs = torch.randn(samples, widths[0], generator=generator, dtype=torch.float64)
    return nn.Sequential(*layers[:-1]), inputs, torch.randint(widths[-1], (samples,), generator=generator)


class Slow:
    """The definitions as plain loops over sets of weights."""

    def __init__(self, *arguments) -> None:
        self.model, self.inputs, self.labels = module(*arguments)
        self.theta = torch.cat([p.detach().flatten() for p in self.model.parameters()]).clone()
        self.known: dict[frozenset[int], list[float]] = {}

    def gradient(self, mask) -> list[float]:
        mask = frozenset(mask)
        if mask not in self.known:
            start = 0
            for p in self.model.parameters():
                for place in range(p.numel()):
                    p.data.view(-1)[place] = self.theta[start + place] if start + place in mask else 0.0
                start += p.numel()
            self.model.zero_grad()
            F.cross_entropy(self.model(self.inputs), self.labels).backward()
            self.known[mask] = torch.cat([p.grad.flatten() for p in self.model.parameters()]).tolist()
        return self.known[mask]

    def scores(self, mask) -> list[float]:
        return [abs(float(t) * g) for t, g in zip(self.theta, self.gradient(mask), strict=True)]

    def total(self, mask) -> float:
        return sum(self.scores(mask)[i] for i in mask)

    def gap(self, after, before, swaps) -> float:
        return max(
            self.total((after - set(out)) | set(come)) - self.total(after)
            for out in itertools.combinations(after, swaps)
            for come in itertools.combinations(before - after, swaps)
        )

    def ratio(self, mask, inner, places) -> float:
        moved = sum(abs(float(self.theta[i])) for i in mask - inner)
        outer, lower = self.gradient(mask), self.gradient(inner)
        return max((abs(outer[i] - lower[i]) for i in places), default=0.0) / moved

    def smoothness(self, mask) -> float:
        return max(
            (
                self.ratio(mask, set(inner), mask)
                for count in range(len(mask))
                for inner in itertools.combinations(mask, count)
            ),
            default=0.0,
        )


def places(mask: Tensor) -> set[int]:
    return {i for i, bit in enumerate(mask.tolist()) if bit}
