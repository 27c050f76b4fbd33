"""How far from a local optimum a pruning step ends: both sides of the bound in the paper's appendix D.

    python benchmarks/theory.py            # prints the numbers of docs/theory.md, in half a minute

All masks of m weights are tried, so networks are tiny. A mask is a number: bit i says whether weight i stays.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import combinations, pairwise
from statistics import fmean, median, stdev

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor], Tensor]  # of weights (n, m); returns n losses


class Landscape:
    """A loss L and m weights theta; row c of a table belongs to the mask c. Everything is float64."""

    def __init__(self, theta: Tensor, loss: Loss) -> None:
        self.theta, self.loss, self.full = theta.double(), loss, (1 << len(theta)) - 1

    @cached_property
    def masks(self) -> Tensor:
        """All 2^m masks as bits: (2^m, m)."""
        return (torch.arange(self.full + 1)[:, None] >> torch.arange(len(self.theta)) & 1).bool()

    @cached_property
    def gradients(self) -> Tensor:
        """dL(theta * c)/dtheta_i for all masks c and all weights i, also those that c removes: (2^m, m)."""
        weights = (self.theta * self.masks).requires_grad_()
        return torch.autograd.grad(self.loss(weights).sum(), weights)[0]

    @cached_property
    def scores(self) -> Tensor:
        """|theta_i dL(theta * c)/dtheta_i| of eq. 5, also of weights that c removes: (2^m, m)."""
        return (self.theta * self.gradients).abs()

    @cached_property
    def totals(self) -> Tensor:
        """S(theta, c) of eq. 6: (2^m,)."""
        return (self.scores * self.masks).sum(1)

    def step(self, before: int, keep: int, revive: bool = False) -> int:
        """Return the `keep` weights of c_t (for FORCE, of all weights) with the highest scores at c_t."""
        scores, pool = self.scores[before].tolist(), members(self.full if revive else before)
        return sum(1 << i for i in sorted(pool, key=lambda i: -scores[i])[:keep])

    def gap(self, before: int, after: int, swaps: int) -> float:
        """Return how much S rises at most if `swaps` weights of c_{t+1} are exchanged with as many others of c_t."""
        out, come = (torch.tensor(choices(mask, swaps)) for mask in (after, before & ~after))
        return float(self.totals[after - out[:, None] + come].max() - self.totals[after])

    def smoothness(self, mask: int) -> float:
        """Return lambda_c: the least lambda such that for every mask d inside c and every weight i of c

        |dL(theta * c)/dtheta_i - dL(theta * d)/dtheta_i| <= lambda ||theta * c - theta * d||_1.
        """
        rows = torch.arange(mask)
        inside, bits = rows[rows & mask == rows], self.masks[mask]
        change = (self.gradients[mask] - self.gradients[inside])[:, bits].abs()
        return float((change.amax(1) / (self.theta.abs() * (bits & ~self.masks[inside])).sum(1)).max())

    def lambdas(self, before: int, after: int, swaps: int) -> tuple[float, float]:
        """Return lambda_c of c_t, and the largest one of c_{t+1} with `swaps` more weights of c_t."""
        return self.smoothness(before), max(self.smoothness(after + s) for s in choices(before & ~after, swaps))

    def bound(self, before: int, after: int, swaps: int, lambdas: Sequence[float] = ()) -> tuple[float, float]:
        """Return the sharp bound on the gap, and that of the theorem, where lambda is the larger one:

        2 p ||theta||^2 (lambda_swap (|c_{t+1}| - p) + lambda_before (|c_t| - |c_{t+1}|)) - gamma p,
        2 p ||theta||^2 lambda |c_t|.
        """
        first, swap = lambdas or self.lambdas(before, after, swaps)
        scores, stay, go = self.scores[before], members(after), members(before & ~after)
        margin = float(scores[stay].min() - scores[go].max())
        assert margin >= 0, "c_{t+1} is not the step from c_t"
        factor = 2 * swaps * float(self.theta.abs().max()) ** 2
        sharp = factor * (swap * (len(stay) - swaps) + first * len(go)) - margin * swaps
        return sharp, factor * max(first, swap) * before.bit_count()


def members(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def choices(mask: int, count: int) -> list[int]:
    """Return all masks of `count` weights of this one."""
    return [sum(1 << i for i in chosen) for chosen in combinations(members(mask), count)]


def tanh_network(widths: Sequence[int], seed: int = 0, samples: int = 8, scale: float = 1.0) -> Landscape:
    """Return the landscape of a random tanh network without biases: cross-entropy on random inputs and labels.

    Weights are normal with standard deviation scale / sqrt(fan-in), in row-major order, layer after layer.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes = [(outputs, inputs) for inputs, outputs in pairwise(widths)]
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    layers = [normal(shape) * scale / math.sqrt(shape[1]) for shape in shapes]
    inputs = normal((samples, widths[0]))
    labels = torch.randint(widths[-1], (samples,), generator=generator)

    def loss(weights: Tensor) -> Tensor:
        signal = inputs.expand(len(weights), -1, -1)
        parts = weights.split([outputs * inputs for outputs, inputs in shapes], dim=1)
        for depth, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
            signal = (signal.tanh() if depth else signal) @ part.view(-1, *shape).mT
        return F.cross_entropy(signal.mT, labels.expand(len(weights), -1), reduction="none").mean(1)

    return Landscape(torch.cat([layer.flatten() for layer in layers]), loss)


def quadratic(curves: list[list[float]], slopes: list[float]) -> Landscape:
    """Return the landscape of w H w / 2 - b w, whose gradient is H w - b, at weights of 1."""
    matrix, vector = torch.tensor(curves, dtype=torch.float64), torch.tensor(slopes, dtype=torch.float64)
    return Landscape(torch.ones(len(slopes)), lambda w: ((w @ matrix) * w).sum(-1) / 2 - w @ vector)


def attained() -> Landscape:
    """Of A, B, C and D, A stays, B should not have stayed, C should have, and D goes."""
    return quadratic([[0, -1, 1, 0], [-1, 0, -1, -1], [1, -1, 0, -1], [0, -1, -1, 0]], [-100, -1, -3, -2])


def revived() -> Landscape:
    """From c_t = {C, D}, FORCE chooses A and B; lambda is 1 everywhere, and the gradient at c_t is 50, 4, 3, 0."""
    return quadratic([[0, -1, 1, 0], [-1, -1, 1, 1], [1, 1, 0, -1], [0, 1, -1, 0]], [-49, -2, -4, -1])


def steps(network: Landscape, keep: int) -> Iterator[tuple[float, float, float]]:
    """Yield the gap, the bound and S after steps to `keep` weights, the largest step first, which is SNIP.

    Weights go one by one before the step.
    """
    before = network.full
    for size in range(before.bit_count() - keep, 0, -1):
        after = network.step(before, keep)
        yield network.gap(before, after, 1), network.bound(before, after, 1)[0], float(network.totals[after])
        before = network.step(before, keep + size - 1)


def main(networks: int = 200) -> None:
    """Print the numbers of docs/theory.md, in its order; one weight is exchanged."""
    best, force = attained(), revived()
    print(f"a quadratic loss: gap {best.gap(15, 3, 1):g}, sharp bound {best.bound(15, 3, 1)[0]:g}")
    shares = []
    for network in (tanh_network([2, 2, 2], seed) for seed in range(networks)):
        after = network.step(255, 4)
        shares.append(network.gap(255, after, 1) / network.bound(255, after, 1)[0])
    print(f"from 8 to 4 weights: the median gap is {100 * median(shares):.1f} % of the sharp bound")

    chain = tanh_network([1, 1, 2], seed=917299, samples=4, scale=2)
    after = chain.step(7, 2)
    wrong = chain.bound(7, after, 1, [chain.smoothness(after)] * 2)[1]
    print(f"the last line: gap {chain.gap(7, after, 1):.3f}, bound {wrong:g}")
    chain = tanh_network([1, 1, 2], seed=846386, samples=2, scale=0.5)
    after = chain.step(7, 2)
    wrong = chain.bound(7, after, 1, [chain.smoothness(7), chain.smoothness(after)])[0]
    print(f"the first term: gap {chain.gap(7, after, 1):.3f}, bound {wrong:.3f}")
    after = force.step(12, 2, revive=True)
    print(f"FORCE: gap {force.gap(12 | after, after, 1):g}, bound {2 * force.smoothness(15) * 2:g}")

    print("\n|step s|gap|sharp bound|S(c')|\n|---|---|---|---|")
    measured = zip(*(steps(tanh_network([4, 2, 3], seed), 5) for seed in range(networks)), strict=True)
    for size, rows in [*enumerate(reversed([*measured]), start=1)][::2]:
        gaps, bounds, totals = zip(*rows, strict=True)
        error = stdev(gaps) / math.sqrt(networks)
        print(f"|{size}|{fmean(gaps):.3f} ± {error:.3f}|{fmean(bounds):.1f}|{fmean(totals):.3f}|")


if __name__ == "__main__":
    main()
