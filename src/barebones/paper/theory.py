"""The theory: how far from locally optimal one pruning step ends, on networks so small that every mask can be tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..pruning.selection import keep_top

MOST = 16  # weights of a landscape: it holds the gradient under each of the 2^m masks
ROWS = 1 << 12  # masks whose gradients are computed together


@dataclass(frozen=True, eq=False)
class Landscape:
    """A loss L, m weights theta, and with them the gradient dL(theta * c)/dtheta under every one of the 2^m masks c.

    `loss` takes weights of shape (n, m) and returns n losses, each of its own row. Everything is float64. A mask is
    a flat bool tensor of m elements; row r of a table belongs to the mask whose i-th element is bit i of r.

    >>> bowl = Landscape(torch.tensor([1.0, 2.0]), lambda w: (w - 1).square().sum(-1) / 2)
    >>> bowl.gradients.tolist()  # without weights, with the first, with the second, with both
    [[-1.0, -1.0], [0.0, -1.0], [-1.0, 1.0], [0.0, 1.0]]
    """

    theta: Tensor
    loss: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        if self.theta.dim() != 1 or not 1 <= self.theta.numel() <= MOST:
            raise ValueError(
                f"theta has the shape {tuple(self.theta.shape)}; pass a flat one of 1 to {MOST} weights, "
                "because the gradient is computed under every mask"
            )
        if not self.theta.isfinite().all():
            raise ValueError("theta is not finite; pass weights without NaN and infinity")
        object.__setattr__(self, "theta", self.theta.detach().to(torch.float64))

    @cached_property
    def masks(self) -> Tensor:
        """All 2^m masks, (2^m, m) of bool."""
        number = torch.arange(1 << self.theta.numel())
        return (number[:, None] >> torch.arange(self.theta.numel()) & 1).bool()

    @cached_property
    def gradients(self) -> Tensor:
        """dL(theta * c)/dtheta_i for all masks c and all weights i, those that c zeroes too: (2^m, m)."""
        found = []
        for masks in self.masks.split(ROWS):
            weights = (self.theta * masks).requires_grad_()
            with torch.enable_grad():
                losses = self.loss(weights)
            if losses.shape != masks.shape[:1]:
                raise ValueError(
                    f"loss returned the shape {tuple(losses.shape)} for {len(masks)} rows of weights; "
                    "return one number for each row"
                )
            found.append(torch.autograd.grad(losses.sum(), weights)[0])
        gradients = torch.cat(found)
        if not gradients.isfinite().all():
            raise ValueError("the loss has a gradient that is not finite under some mask; choose a smooth loss")
        return gradients

    @cached_property
    def totals(self) -> Tensor:
        """S(theta, c) of eq. 6 for all masks c: (2^m,)."""
        return ((self.theta * self.gradients).abs() * self.masks).sum(1)

    def row(self, mask: Tensor) -> int:
        """The row of a mask in the tables.

        >>> Landscape(torch.ones(3), lambda w: w.sum(-1)).row(torch.tensor([False, True, True]))
        6
        """
        if mask.dtype != torch.bool or mask.shape != self.theta.shape:
            raise ValueError(
                f"a mask of {self.theta.numel()} weights is a flat bool tensor of that length; "
                f"this one is {mask.dtype} of shape {tuple(mask.shape)}"
            )
        return sum(1 << i for i in _places(mask))


def tanh_network(widths: Sequence[int], *, seed: int = 0, samples: int = 8, scale: float = 1.0) -> Landscape:
    """The landscape of a random tanh network without biases, under cross-entropy on random inputs and labels.

    `widths` are those of the input, the hidden layers and the output; weights are normal with the standard deviation
    scale / sqrt(fan-in), layer after layer in row-major order, inputs are standard normal.

    >>> tanh_network([2, 2, 2], seed=1).theta.shape
    torch.Size([8])
    """
    if len(widths) < 2 or min(widths) < 1 or widths[-1] < 2:
        raise ValueError(f"widths={list(widths)}: pass those of the input, hidden layers and at least two classes")
    if samples < 1:
        raise ValueError(f"samples={samples}: the loss needs at least one")
    generator = torch.Generator().manual_seed(seed)
    shapes = [(outputs, inputs) for inputs, outputs in pairwise(widths)]
    layers = [
        torch.randn(shape, generator=generator, dtype=torch.float64) * scale / math.sqrt(shape[1]) for shape in shapes
    ]
    inputs = torch.randn(samples, widths[0], generator=generator, dtype=torch.float64)
    labels = torch.randint(widths[-1], (samples,), generator=generator)

    def loss(weights: Tensor) -> Tensor:
        signal = inputs.expand(len(weights), -1, -1)
        parts = weights.split([outputs * inputs for outputs, inputs in shapes], dim=1)
        for depth, (part, shape) in enumerate(zip(parts, shapes, strict=True)):
            signal = (signal.tanh() if depth else signal) @ part.view(-1, *shape).mT
        return F.cross_entropy(signal.mT, labels.expand(len(weights), -1), reduction="none").mean(1)

    return Landscape(torch.cat([layer.flatten() for layer in layers]), loss)


def saliencies(landscape: Landscape, mask: Tensor) -> Tensor:
    """|theta_i dL(theta * c)/dtheta_i| of every weight i at the mask c (eq. 5), the zeroed weights included.

    >>> bowl = Landscape(torch.tensor([1.0, 2.0]), lambda w: (w - 3).square().sum(-1) / 2)
    >>> saliencies(bowl, torch.tensor([True, False]))
    tensor([2., 6.], dtype=torch.float64)
    """
    return (landscape.theta * landscape.gradients[landscape.row(mask)]).abs()


def saliency(landscape: Landscape, mask: Tensor) -> float:
    """S(theta, c) = sum over the kept weights of |theta_i dL(theta * c)/dtheta_i| (eq. 6).

    >>> bowl = Landscape(torch.tensor([1.0, 2.0]), lambda w: (w - 3).square().sum(-1) / 2)
    >>> saliency(bowl, torch.tensor([True, False]))
    2.0
    """
    return float(landscape.totals[landscape.row(mask)])


def step(landscape: Landscape, mask: Tensor, keep: int, *, revive: bool = False) -> Tensor:
    """c_{t+1} from c_t: the `keep` weights with the highest |theta_i dL(theta * c_t)/dtheta_i|.

    Only kept weights compete (eq. 7, Iterative SNIP), or with `revive` all of them (FORCE). From the mask of
    everything this is SNIP. Ties go to weights that c_t keeps, then to the lower index.

    >>> bowl = Landscape(torch.tensor([1.0, 2.0, 1.0]), lambda w: (w - 3).square().sum(-1) / 2)
    >>> mask = torch.tensor([True, False, True])
    >>> step(bowl, mask, 1), step(bowl, mask, 1, revive=True)
    (tensor([ True, False, False]), tensor([False,  True, False]))
    """
    most = mask.numel() if revive else int(mask.count_nonzero())
    if not 0 <= keep <= most:
        raise ValueError(f"cannot keep {keep} of {most} weights" + ("" if revive else "; revive=True adds the others"))
    before = {"theta": mask}
    scores = {"theta": saliencies(landscape, mask)}
    return keep_top(scores, keep, prefer=before, among=None if revive else before)["theta"]


def gap(landscape: Landscape, mask: Tensor, swaps: int, *, within: Tensor | None = None, up_to: bool = False) -> float:
    """The least epsilon with which `mask` is (p, epsilon)-local optimal with respect to `within`; p is `swaps`.

    It is max S(theta, (c - S-) + S+) - S(theta, c) over all S- of p kept weights and all S+ of p weights of `within`
    that `mask` prunes. The definition exchanges exactly p, so that the gap is negative where every exchange harms
    (any epsilon > 0 will do); `up_to` is the largest over 0 to p exchanges, never negative. `within` is c_t, or
    everything if not given.

    >>> bowl = Landscape(torch.tensor([1.0, 2.5]), lambda w: (w - 3).square().sum(-1) / 2)
    >>> [gap(bowl, torch.tensor(mask), 1) for mask in ([True, False], [False, True])]  # S is 2 and 1.25
    [-0.75, 0.75]
    """
    within = torch.ones_like(mask) if within is None else within
    row, free = _nested(landscape, within, mask, swaps)
    gaps = []
    for count in range(swaps + 1) if up_to else [swaps]:
        out, come = _sums(_places(mask), count), _sums(free, count)
        gaps.append(float(landscape.totals[row - out[:, None] + come].max() - landscape.totals[row]))
    return max(gaps)


def smoothness(landscape: Landscape, mask: Tensor) -> float:
    """lambda_c of the mask c: the coordinate-restricted smoothness, exactly, at w = theta.

    The least lambda such that, for every mask d inside c, the gradients on the weights of c differ by
    |dL(theta * c)/dtheta_i - dL(theta * d)/dtheta_i| <= lambda ||theta * c - theta * d||_1.

    >>> slope = Landscape(torch.tensor([1.0, 2.0]), lambda w: 3 * w[:, 0] * w[:, 1])
    >>> smoothness(slope, torch.tensor([True, True])), smoothness(slope, torch.tensor([True, False]))
    (3.0, 0.0)
    """
    row = landscape.row(mask)
    below = _rows_below(_places(mask))[:-1]  # all but the mask itself
    change = (landscape.gradients[row] - landscape.gradients[below])[:, mask].abs()
    removed = (landscape.theta.abs() * (mask & ~landscape.masks[below])).sum(1)
    moved = removed > 0  # where nothing but zero weights goes, nothing changes
    return float((change[moved].amax(1) / removed[moved]).max()) if moved.any() else 0.0


@dataclass(frozen=True)
class Bound:
    """What limits the gap after a step without revival, from c_t to c_{t+1}, and its parts; docs/theory.md proves it.

    The three forms grow: gap <= sharp <= split <= total. `printed` is the paper's last line, which can fail.

    >>> b = Bound(swaps=1, before=3, after=2, largest=1.0, margin=0.5, lambda_before=2.0, lambda_swap=1.0)
    >>> b.sharp, b.split, b.total
    (5.5, 7.5, 12.0)
    """

    swaps: int  # p
    before: int  # |c_t|
    after: int  # |c_{t+1}|
    largest: float  # ||theta||_inf
    margin: float  # gamma: the lowest score at c_t of a weight kept, less the highest of one pruned now
    lambda_before: float  # of c_t
    lambda_swap: float  # the largest of c_{t+1} + S+, over all S+ of p weights
    lambda_after: float = math.nan  # of c_{t+1}: the paper's, which the proof cannot use

    @property
    def smooth(self) -> float:
        """lambda: the maximum over c_t and the swapped supports c_{t+1} + S+."""
        return max(self.lambda_before, self.lambda_swap)

    @property
    def sharp(self) -> float:
        """2 p ||theta||^2 (lambda_swap (|c_{t+1}| - p) + lambda_{c_t} (|c_t| - |c_{t+1}|)) - gamma p."""
        return self._sum(self.lambda_swap * (self.after - self.swaps)) - self.margin * self.swaps

    @property
    def split(self) -> float:
        """2 p ||theta||^2 (lambda_swap |c_{t+1}| + lambda_{c_t} (|c_t| - |c_{t+1}|)) - gamma p."""
        return self._sum(self.lambda_swap * self.after) - self.margin * self.swaps

    @property
    def total(self) -> float:
        """2 lambda p ||theta||^2 |c_t|: the theorem."""
        return 2 * self.smooth * self.swaps * self.largest**2 * self.before

    @property
    def printed(self) -> float:
        """2 lambda_{c_{t+1}} p ||theta||^2 |c_t|: the paper's last line. No bound: its constant is too small."""
        return 2 * self.lambda_after * self.swaps * self.largest**2 * self.before

    def _sum(self, kept: float) -> float:
        return 2 * self.swaps * self.largest**2 * (kept + self.lambda_before * (self.before - self.after))


def bound(landscape: Landscape, before: Tensor, after: Tensor, swaps: int) -> Bound:
    """The bound on gap(landscape, after, swaps, within=before), where `after` is a step of Iterative SNIP.

    gap <= 2 lambda p ||theta||_inf^2 |c_t|, lambda = max(lambda_{c_t}, max over S+ of lambda_{c_{t+1} + S+}).

    >>> network = tanh_network([2, 2, 2])
    >>> before = torch.ones(8, dtype=torch.bool)
    >>> after = step(network, before, 5)
    >>> limit = bound(network, before, after, 1)
    >>> gap(network, after, 1, within=before) <= limit.sharp <= limit.total
    True
    """
    _, free = _nested(landscape, before, after, swaps)
    scores = saliencies(landscape, before)
    gone = before & ~after
    margin = float(scores[after].min() - scores[gone].max()) if after.any() and gone.any() else 0.0
    if margin < 0:
        raise ValueError(
            "after is not the step from before: a weight that it prunes has a higher score than one that it keeps; "
            "pass step(landscape, before, keep)"
        )
    return Bound(
        swaps=swaps,
        before=int(before.count_nonzero()),
        after=int(after.count_nonzero()),
        largest=float(landscape.theta.abs().max()),
        margin=margin,
        lambda_before=smoothness(landscape, before),
        lambda_swap=max(smoothness(landscape, _with(after, more)) for more in combinations(free, swaps)),
        lambda_after=smoothness(landscape, after),
    )


@dataclass(frozen=True)
class StepGap:
    """Steps of one size to the same number of kept weights: means over networks, and the standard error of the gap."""

    step: int  # |c_t| - |c_{t+1}|
    networks: int
    gap: float  # within c_t, as the paper defines it
    error: float
    gap_anywhere: float  # within everything: as many exchanges to try, whatever the step
    error_anywhere: float
    bound: float  # the sharp one
    saliency: float  # S(theta, c_{t+1})
    best: float  # the highest S(theta, c) of all masks that keep as many


def gaps_by_step(landscapes: Iterable[Landscape], keep: int, *, swaps: int = 1) -> list[StepGap]:
    """The gap after a step that ends at `keep` weights, by the size of the step: the data of the plot.

    The weights go one by one, by Iterative SNIP, until `keep` + s are left; the last s go in one step. The largest s
    is one-shot SNIP. The larger c_t, the more exchanges there are to try within it; `gap_anywhere` tries the same
    number at every step.

    >>> rows = gaps_by_step([tanh_network([2, 2, 2], seed=seed) for seed in range(20)], keep=3)
    >>> [row.step for row in rows], rows[0].gap < rows[-1].gap
    ([1, 2, 3, 4, 5], True)
    """
    found: dict[int, list[tuple[float, ...]]] = {}
    weights = None
    for landscape in landscapes:
        total = landscape.theta.numel()
        if weights not in (None, total):
            raise ValueError(f"one landscape has {weights} weights, another {total}; pass networks of one size")
        weights = total
        if not 1 <= swaps <= min(keep, total - keep):
            raise ValueError(f"cannot exchange swaps={swaps} of keep={keep} kept weights with {total - keep} others")
        best = float(landscape.totals[landscape.masks.sum(1) == keep].max())
        mask = torch.ones(total, dtype=torch.bool)
        for size in range(total - keep, swaps - 1, -1):
            after = step(landscape, mask, keep)
            limit = bound(landscape, mask, after, swaps).sharp
            inside, anywhere = gap(landscape, after, swaps, within=mask), gap(landscape, after, swaps)
            found.setdefault(size, []).append((inside, anywhere, limit, saliency(landscape, after), best))
            mask = step(landscape, mask, keep + size - 1)
    if not found:
        raise ValueError("landscapes is empty; pass some, such as tanh_network([2, 2, 2], seed=seed) of many seeds")
    return [_row(size, torch.tensor(found[size], dtype=torch.float64)) for size in sorted(found)]


def draw_gaps(rows: Sequence[StepGap], axes: Any = None) -> Any:
    """The plot of gaps_by_step: mean gap and standard error against the step |c_t| - |c_{t+1}|. Needs matplotlib.

    Draws on `axes`, on new ones if not given, and returns them.

    >>> draw_gaps([])
    Traceback (most recent call last):
    ValueError: there are no rows to draw; pass those of gaps_by_step
    """
    if not rows:
        raise ValueError("there are no rows to draw; pass those of gaps_by_step")
    if axes is None:
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ImportError("figures are drawn with matplotlib: pip install 'barebones[figures]'") from None
        axes = pyplot.subplots(figsize=(4.5, 3.2), layout="constrained")[1]
    steps = [row.step for row in rows]
    inside, anywhere = [row.gap for row in rows], [row.gap_anywhere for row in rows]
    errors, errors_anywhere = [row.error for row in rows], [row.error_anywhere for row in rows]
    axes.errorbar(steps, inside, errors, color="0.13", marker="o", label="exchanges within $c_t$")  # no method's colour
    axes.errorbar(steps, anywhere, errors_anywhere, color="0.45", marker="s", linestyle="--", label="with any weight")
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.set_xlabel("step size $|c_t| - |c_{t+1}|$ (weights)")
    axes.set_ylabel("local-optimality gap of $c_{t+1}$")
    axes.legend(frameon=False)
    return axes


def _row(size: int, numbers: Tensor) -> StepGap:
    inside, anywhere, limit, reached, best = numbers.mean(0).tolist()
    errors = (numbers.std(0) / math.sqrt(len(numbers))).tolist() if len(numbers) > 1 else [math.nan] * 2
    return StepGap(size, len(numbers), inside, errors[0], anywhere, errors[1], limit, reached, best)


def _nested(landscape: Landscape, before: Tensor, after: Tensor, swaps: int) -> tuple[int, list[int]]:
    """The row of `after`, and the weights that may come into it from `before`."""
    outer, row = landscape.row(before), landscape.row(after)
    if row & ~outer:
        raise ValueError(
            "the mask keeps weights outside of c_t; local optimality is defined within c_t, for steps without revival"
        )
    free = _places(before & ~after)
    if not 0 <= swaps <= min(row.bit_count(), len(free)):
        raise ValueError(f"cannot exchange {swaps} of {row.bit_count()} kept weights with {len(free)} pruned ones")
    return row, free


def _places(mask: Tensor) -> list[int]:
    found: list[int] = mask.nonzero().flatten().tolist()
    return found


def _sums(places: Sequence[int], count: int) -> Tensor:
    """The rows of all masks of `count` of these places."""
    return torch.tensor([sum(1 << i for i in some) for some in combinations(places, count)])


def _rows_below(places: Sequence[int]) -> Tensor:
    """The rows of all masks inside these places, from none to all of them."""
    rows = torch.zeros(1, dtype=torch.int64)
    for i in places:
        rows = torch.cat([rows, rows | 1 << i])
    return rows


def _with(mask: Tensor, more: Sequence[int]) -> Tensor:
    wider = mask.clone()
    wider[list(more)] = True
    return wider
