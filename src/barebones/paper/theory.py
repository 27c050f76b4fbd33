"""The theory: how far from a local optimum a pruning step ends, on networks small enough to try every mask."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ..pruning.selection import keep_top

MAX_WEIGHTS = 16  # a landscape holds the gradient under each of its 2^m masks


@dataclass(frozen=True, eq=False)
class Landscape:
    """A loss L and m weights theta, with the gradient dL(theta * c)/dtheta under each of the 2^m masks c.

    `loss` takes weights of shape (n, m) and returns n losses, one for each row. Everything is float64. A mask is a
    flat bool tensor of m elements. Row r of each table belongs to the mask whose i-th element is bit i of r.

    >>> bowl = Landscape(torch.tensor([1.0, 2.0]), lambda w: (w - 1).square().sum(-1) / 2)
    >>> bowl.gradients.tolist()  # without weights, with the first, with the second, with both
    [[-1.0, -1.0], [0.0, -1.0], [-1.0, 1.0], [0.0, 1.0]]
    """

    theta: Tensor
    loss: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        if self.theta.numel() > MAX_WEIGHTS:
            raise ValueError(f"theta has {self.theta.numel()} weights; pass at most {MAX_WEIGHTS}")
        object.__setattr__(self, "theta", self.theta.detach().to(torch.float64))

    @cached_property
    def masks(self) -> Tensor:
        """All 2^m masks: bool, of shape (2^m, m)."""
        number = torch.arange(1 << self.theta.numel())
        return (number[:, None] >> torch.arange(self.theta.numel()) & 1).bool()

    @cached_property
    def gradients(self) -> Tensor:
        """dL(theta * c)/dtheta_i for all masks c and all weights i, also those that c removes: (2^m, m)."""
        weights = (self.theta * self.masks).requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(self.loss(weights).sum(), weights)[0]

    @cached_property
    def totals(self) -> Tensor:
        """S(theta, c) of eq. 6 for all masks c: (2^m,)."""
        return ((self.theta * self.gradients).abs() * self.masks).sum(1)

    def row(self, mask: Tensor) -> int:
        """Return the row of a mask in the tables.

        >>> Landscape(torch.ones(3), lambda w: w.sum(-1)).row(torch.tensor([False, True, True]))
        6
        """
        return int((mask.long() << torch.arange(len(mask))).sum())


def tanh_network(widths: Sequence[int], *, seed: int = 0, samples: int = 8, scale: float = 1.0) -> Landscape:
    """Return the landscape of a random tanh network without biases: cross-entropy on random inputs and labels.

    `widths` are those of the input, the hidden layers and the output. Weights are normal with standard deviation
    scale / sqrt(fan-in), and stand in row-major order, layer after layer. Inputs are standard normal.

    >>> tanh_network([2, 2, 2], seed=1).theta.shape
    torch.Size([8])
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


def saliencies(landscape: Landscape, mask: Tensor) -> Tensor:
    """Return |theta_i dL(theta * c)/dtheta_i| of every weight i at the mask c (eq. 5), also of removed weights.

    >>> bowl = Landscape(torch.tensor([1.0, 2.0]), lambda w: (w - 3).square().sum(-1) / 2)
    >>> saliencies(bowl, torch.tensor([True, False]))
    tensor([2., 6.], dtype=torch.float64)
    """
    return (landscape.theta * landscape.gradients[landscape.row(mask)]).abs()


def step(landscape: Landscape, mask: Tensor, keep: int, *, revive: bool = False) -> Tensor:
    """Return c_{t+1}: of the mask c_t, the `keep` weights with the highest |theta_i dL(theta * c_t)/dtheta_i|.

    Only kept weights compete (eq. 7, Iterative SNIP); with `revive` all weights do (FORCE). From the full mask this
    is SNIP. Ties go to weights that c_t keeps, then to the lower index.

    >>> bowl = Landscape(torch.tensor([1.0, 2.0, 1.0]), lambda w: (w - 3).square().sum(-1) / 2)
    >>> mask = torch.tensor([True, False, True])
    >>> step(bowl, mask, 1), step(bowl, mask, 1, revive=True)
    (tensor([ True, False, False]), tensor([False,  True, False]))
    """
    before, scores = {"theta": mask}, {"theta": saliencies(landscape, mask)}
    return keep_top(scores, keep, prefer=before, among=None if revive else before)["theta"]


def gap(landscape: Landscape, mask: Tensor, swaps: int, *, within: Tensor | None = None) -> float:
    """Return the least epsilon for which `mask` is (p, epsilon)-local optimal with respect to `within`; p is `swaps`.

    This is max S(theta, (c - S-) + S+) - S(theta, c) over all sets S- of p kept weights and all sets S+ of p weights
    of `within` that `mask` removes. It is negative where every exchange lowers S. `within` is c_t, by default the full
    mask.

    >>> bowl = Landscape(torch.tensor([1.0, 2.5]), lambda w: (w - 3).square().sum(-1) / 2)
    >>> [gap(bowl, torch.tensor(mask), 1) for mask in ([True, False], [False, True])]  # S is 2 and 1.25
    [-0.75, 0.75]
    """
    removed = _removed(torch.ones_like(mask) if within is None else within, mask, swaps)
    row, leaving, entering = landscape.row(mask), _choices(mask, swaps), _choices(removed, swaps)
    return float(landscape.totals[row - leaving[:, None] + entering].max() - landscape.totals[row])


def smoothness(landscape: Landscape, mask: Tensor) -> float:
    """Return lambda_c of the mask c: the exact coordinate-restricted smoothness at w = theta.

    This is the least lambda such that for every mask d inside c and every weight i of c
    |dL(theta * c)/dtheta_i - dL(theta * d)/dtheta_i| <= lambda ||theta * c - theta * d||_1.

    >>> slope = Landscape(torch.tensor([1.0, 2.0]), lambda w: 3 * w[:, 0] * w[:, 1])
    >>> smoothness(slope, torch.tensor([True, True])), smoothness(slope, torch.tensor([True, False]))
    (3.0, 0.0)
    """
    row = landscape.row(mask)
    rows = torch.arange(row)
    below = rows[rows & row == rows]  # the masks inside this one, but not itself
    change = (landscape.gradients[row] - landscape.gradients[below])[:, mask].abs()
    removed = (landscape.theta.abs() * (mask & ~landscape.masks[below])).sum(1)
    moved = removed > 0  # removing weights that are zero changes nothing
    return float((change[moved].amax(1) / removed[moved]).max()) if moved.any() else 0.0


@dataclass(frozen=True)
class Bound:
    """The bound on the gap after a step without revival from c_t to c_{t+1}, with its parts; proved in docs/theory.md.

    It has two forms: gap <= sharp <= total.
    """

    swaps: int  # p
    before: int  # |c_t|
    after: int  # |c_{t+1}|
    largest: float  # ||theta||_inf
    margin: float  # gamma: the lowest score at c_t of a kept weight minus the highest of a weight removed now
    lambda_before: float  # of c_t
    lambda_swap: float  # the largest of c_{t+1} + S+, over all S+ of p weights

    @property
    def sharp(self) -> float:
        """Return 2 p ||theta||^2 (lambda_swap (|c_{t+1}| - p) + lambda_{c_t} (|c_t| - |c_{t+1}|)) - gamma p."""
        stay, step = self.after - self.swaps, self.before - self.after
        sum_of_both = self.lambda_swap * stay + self.lambda_before * step
        return 2 * self.swaps * self.largest**2 * sum_of_both - self.margin * self.swaps

    @property
    def total(self) -> float:
        """Return 2 lambda p ||theta||^2 |c_t|, the theorem; lambda is the larger one."""
        return 2 * max(self.lambda_before, self.lambda_swap) * self.swaps * self.largest**2 * self.before


def bound(landscape: Landscape, before: Tensor, after: Tensor, swaps: int) -> Bound:
    """Return the bound on gap(landscape, after, swaps, within=before), where `after` is a step of Iterative SNIP.

    gap <= 2 lambda p ||theta||_inf^2 |c_t|, lambda = max(lambda_{c_t}, max over S+ of lambda_{c_{t+1} + S+}).

    >>> network = tanh_network([2, 2, 2])
    >>> before = torch.ones(8, dtype=torch.bool)
    >>> after = step(network, before, 5)
    >>> limit = bound(network, before, after, 1)
    >>> gap(network, after, 1, within=before) <= limit.sharp <= limit.total
    True
    """
    removed = _removed(before, after, swaps)
    scores = saliencies(landscape, before)
    margin = float(scores[after].min() - scores[removed].max()) if after.any() and removed.any() else 0.0
    if margin < 0:
        raise ValueError("after is not the step from before; pass step(landscape, before, keep)")
    swapped = landscape.masks[landscape.row(after) + _choices(removed, swaps)]
    return Bound(
        swaps=swaps,
        before=int(before.count_nonzero()),
        after=int(after.count_nonzero()),
        largest=float(landscape.theta.abs().max()),
        margin=margin,
        lambda_before=smoothness(landscape, before),
        lambda_swap=max(smoothness(landscape, mask) for mask in swapped),
    )


@dataclass(frozen=True)
class StepGap:
    """Steps of one size that end at the same number of weights: means over networks, with the gap's standard error."""

    step: int  # |c_t| - |c_{t+1}|
    networks: int
    gap: float  # within c_t, which is the paper's definition
    error: float
    gap_anywhere: float  # within the full mask, which has as many exchanges for every step
    error_anywhere: float
    bound: float  # the sharp one
    saliency: float  # S(theta, c_{t+1})


def gaps_by_step(landscapes: Iterable[Landscape], keep: int, *, swaps: int = 1) -> list[StepGap]:
    """Return the gap after a step that ends at `keep` weights, for each size of the step.

    Iterative SNIP removes the weights one by one until `keep` + s are left, and the last s in one step. The largest s
    is one-shot SNIP. A larger c_t offers more exchanges, so `gap_anywhere` tries the same number at every step.

    >>> rows = gaps_by_step([tanh_network([2, 2, 2], seed=seed) for seed in range(20)], keep=3)
    >>> [row.step for row in rows], rows[0].gap < rows[-1].gap
    ([1, 2, 3, 4, 5], True)
    """
    measured: dict[int, list[tuple[float, ...]]] = {}
    for landscape in landscapes:
        mask = torch.ones_like(landscape.theta, dtype=torch.bool)
        for size in range(mask.numel() - keep, swaps - 1, -1):
            after = step(landscape, mask, keep)
            inside, anywhere = gap(landscape, after, swaps, within=mask), gap(landscape, after, swaps)
            limit, reached = bound(landscape, mask, after, swaps).sharp, landscape.totals[landscape.row(after)]
            measured.setdefault(size, []).append((inside, anywhere, limit, float(reached)))
            mask = step(landscape, mask, keep + size - 1)
    return [_step_gap(size, torch.tensor(measured[size], dtype=torch.float64)) for size in sorted(measured)]


def _step_gap(size: int, numbers: Tensor) -> StepGap:
    inside, anywhere, limit, reached = numbers.mean(0).tolist()
    errors = (numbers.std(0) / math.sqrt(len(numbers))).tolist() if len(numbers) > 1 else [math.nan] * 2
    return StepGap(size, len(numbers), inside, errors[0], anywhere, errors[1], limit, reached)


def _removed(before: Tensor, after: Tensor, swaps: int) -> Tensor:
    """Return the weights of `before` that `after` removes; `swaps` of them can come back for as many kept ones."""
    if (after & ~before).any():
        raise ValueError("the mask keeps weights outside of c_t; local optimality is defined for steps without revival")
    removed = before & ~after
    kept, candidates = int(after.count_nonzero()), int(removed.count_nonzero())
    if not 0 <= swaps <= min(kept, candidates):
        raise ValueError(f"cannot exchange {swaps} of {kept} kept weights with {candidates} removed ones")
    return removed


def _choices(mask: Tensor, count: int) -> Tensor:
    """Return the rows of all masks that keep `count` of the weights of this one."""
    places = mask.nonzero().flatten().tolist()
    return torch.tensor([sum(1 << i for i in chosen) for chosen in combinations(places, count)])
