"""Evolution: masks that move in training. Each layer drops its smallest weights, and as many others grow."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor

from .holding import ELEMENTWISE, Hold, Masked
from .masks import Masks
from .messages import unknown
from .names import EVOLUTIONS
from .pruning.selection import top_masks
from .pruning.thickness import by_channels, from_channels, inner
from .running import digest
from .running.precision import widest
from .running.shards import count, is_sharded
from .scope import matched, parameters, transposed
from .training import AfterStep

TOGETHER = 2**24  # weights that are sorted at once, about; it takes some 80 bytes for each


class Evolution(AfterStep):
    """Moves the masks of a hold; made by `evolve`. `step` is the number of finished steps."""

    def __init__(
        self, held: Hold, steps: int, every: int, method: str, fraction: float, until: float, ablate: float,
        among: Mapping[str, Tensor], seed: int,
    ) -> None:  # fmt: skip
        super().__init__(held.optimizers[-1], lambda optimizer: self.advance(), first=False)
        self.held, self.every, self.method = held, every, method
        self.fraction, self.ablate, self.seed = fraction, ablate, seed
        self.among = {name: mask for name, _, mask in matched(held.model, among)}
        self.step, self.end = 0, until * steps

    def moves(self, step: int) -> bool:
        """Return whether the masks move after this step, counted from 1."""
        return step % self.every == 0 and step < self.end

    def reads_gradients(self, step: int) -> bool:
        """Return whether the masks move by the gradients of this step, which then cannot be the replay of a graph."""
        return self.method == "rigl" and self.moves(step)

    def advance(self) -> bool:
        """Count a step, and return whether the masks have moved; a hook calls this after each step while they are held.

        If your step is a CUDA graph, `remove()` the hook and call this yourself. Do not replay the graph for a step
        that `reads_gradients`.
        """
        if not self.held.active:
            return False
        self.step += 1
        if self.moves(self.step):
            self.held.exchange(self._moved())
        return self.moves(self.step)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside the states of model and optimizer: the masks and the step."""
        return {"masks": self.held.state_dict(), "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from this state; call it before the optimizer loads its own."""
        if {"masks", "step"} - state.keys():
            raise ValueError("an evolution's state has masks and step; pass what its state_dict() returned")
        self.held.load_state_dict(state["masks"])
        self.step = state["step"]

    def _moved(self) -> Masks:
        masks, model = self.held.state_dict(), self.held.model
        inputs_first = transposed(model) if self.ablate else {}
        thinned = inner({name: p for name, p in parameters(model).items() if name in masks}) if self.ablate else ()
        share = self.fraction / 2 * (1 + math.cos(math.pi * self.step / self.end))
        for layers in _together([layer for layer in matched(model, masks) if self._trains(layer[1])]):
            names, weights, kept = zip(*layers, strict=True)  # nothing below makes the host wait, but ablation
            may = [~mask & self.among[name] if name in self.among else ~mask for name, _, mask in layers]
            counts, room = (torch.stack([m.count_nonzero() for m in each]) for each in (kept, may))
            moving = (share * counts.to(widest(counts.device))).long().minimum(room)
            dropped, wanted = chosen(weights, kept, moving), list(map(self._wanted, names, weights))
            grown = chosen(wanted, may, moving, largest=True)
            for i, (name, _, mask) in enumerate(layers):
                stays = mask & ~dropped[i]
                masks[name] = stays | grown[i]
                if name in thinned:
                    left = unablated(mask, stays | may[i], masks[name], self.ablate, inputs_first.get(name))
                    stays &= left
                    more = counts[i : i + 1] - stays.count_nonzero()
                    masks[name] = stays | chosen(wanted[i : i + 1], [may[i] & left], more, largest=True)[0]
        return masks

    def _trains(self, weight: Tensor) -> bool:
        return weight.requires_grad if self.method == "set" else weight.grad is not None

    def _wanted(self, name: str, weight: Tensor) -> Tensor:
        """Return what makes a pruned weight grow: the size of its gradient, or a random number."""
        if self.method == "rigl":
            assert weight.grad is not None
            return weight.grad.to_dense()
        generator = torch.Generator(weight.device).manual_seed(digest.text(self.seed, "evolve", self.step, name))
        return torch.rand(weight.shape, generator=generator, dtype=torch.float32, device=weight.device)


def unablated(mask: Tensor, places: Tensor, salient: Tensor, share: float, groups: int | None) -> Tensor:
    """Return a mask of the output channels that stay: those with enough salient weights, and more if room is short.

    `groups` is None unless the layer's inputs come first.
    """
    live = int(by_channels(mask, groups).any(1).sum())
    counts, room = (by_channels(each, groups).sum(1) for each in (salient, places))
    weakest = counts.argsort(stable=True)
    thin = counts[weakest] < math.ceil(share * count(mask) / max(live, 1))
    fits = room.sum() - room[weakest].cumsum(0) >= count(mask)  # in the channels after this one
    left = torch.ones_like(by_channels(mask, groups))
    left[weakest[thin & fits]] = False
    return from_channels(left, mask, groups)


def _together(layers: list[Masked]) -> Iterator[list[Masked]]:
    """Yield the layers in groups that are sorted at once: on one device, and not too large."""
    ends = accumulate(mask.numel() for *_, mask in layers)
    for _, group in groupby(zip(ends, layers, strict=True), lambda pair: (pair[1][2].device, pair[0] // TOGETHER)):
        yield [layer for _, layer in group]


def chosen(values: Sequence[Tensor], among: Sequence[Tensor], many: Tensor, largest: bool = False) -> list[Tensor]:
    """Return the masks of this many of each tensor's smallest (or largest) absolute values, the first of equal ones."""
    if many.device.type != "cpu":
        return by_sorting(values, among, many, largest)
    sign = 1 if largest else -1
    keys = (sign * v.detach().abs().nan_to_num(0.0) for v in values)
    tops = (top_masks({"": k}, int(n), among={"": m}) for k, n, m in zip(keys, many, among, strict=True))
    return [top[""] for top in tops]  # on a CPU several times faster than sorting


def by_sorting(values: Sequence[Tensor], among: Sequence[Tensor], many: Tensor, largest: bool) -> list[Tensor]:
    """Return the same on a GPU, with few calls: all are sorted at once, by value and then by tensor."""
    sizes, device = [v.numel() for v in values], values[0].device
    bounds = list(accumulate(sizes))
    keys = torch.cat([v.detach().flatten() for v in values]).abs().nan_to_num_(0.0)
    keys = (keys.neg_() if largest else keys).masked_fill_(~torch.cat([m.flatten() for m in among]), torch.inf)
    starts, ends = torch.tensor([[0, *bounds[:-1]], bounds], device="cpu").to(device, non_blocking=True)
    places = torch.arange(len(keys), device=device)
    owner = torch.bucketize(places, ends, out_int32=True, right=True)
    order = keys.argsort(stable=True)
    few = owner.byte() if len(sizes) <= 256 else owner  # one byte is sorted several times faster
    order = order[few[order].argsort(stable=True)]  # now each tensor's places are together, the smallest first
    found = places < (starts + many)[owner]
    masks = torch.empty_like(found).scatter_(0, order, found).split(sizes)
    return [mask.view(v.shape) for mask, v in zip(masks, values, strict=True)]


def evolve(
    held: Hold,
    steps: int,
    *,
    every: int = 100,
    method: str = "rigl",
    fraction: float = 0.5,
    until: float = 0.75,
    ablate: float = 0.0,
    among: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> Evolution:
    """Move the masks that `hold` holds, every `every` steps until this part of all `steps` of training.

    In each layer of k kept weights, the f k smallest are dropped, and as many pruned ones grow: those with the largest
    gradients ("rigl"), or random ones ("set", also where a layer has no gradient). f falls from `fraction` to 0 by a
    cosine. What grows is zero at first and has an empty optimizer state; each layer keeps exactly k. Processes that
    train together move alike, because averaged gradients are equal. `held.state_dict()` returns the masks of the
    moment. With `among`, weights grow only where these masks are true.

    With `ablate` (0.3 in SRigL), an output channel loses all its weights to the layer's other channels if fewer of them
    are salient than this share of k / (channels that keep any): salient are those not dropped, and those that would
    grow. Where the others have no room for k weights, the channels with the fewest salient weights go first. The last
    layer in the order of the model's parameters keeps its channels, which usually are the outputs.

    >>> import barebones as bb
    >>> layer = torch.nn.Linear(4, 2)
    >>> held = bb.hold(layer, {"weight": torch.eye(2, 4) > 0}, torch.optim.SGD(layer.parameters(), lr=0.1))
    >>> evolution = evolve(held, steps=20, every=5)
    """
    if not isinstance(held, Hold) or not held.active:
        what = f"a {type(held).__name__}" + " that was removed" * isinstance(held, Hold)
        raise ValueError(f"evolve moves the masks that hold holds, not {what}; pass what hold returns")
    if method not in EVOLUTIONS:
        raise ValueError(unknown("evolution", method, EVOLUTIONS))
    if any(n < 1 or n % 1 for n in (steps, every)) or not all(0 <= share <= 1 for share in (fraction, until, ablate)):
        whole = "steps and every must be whole numbers of at least 1"
        raise ValueError(f"{whole}, and fraction, until and ablate from 0 to 1; change them")
    clears = held.gradients or any(type(optimizer) not in ELEMENTWISE for optimizer in held.optimizers)
    if method == "rigl" and clears:
        why = "gradients=True" if held.gradients else "this optimizer"
        raise ValueError(f"with {why}, hold clears the gradients of pruned weights, which rigl needs; use method='set'")
    if every >= until * steps > 0:
        warnings.warn(f"the masks never move: every={every} is not below {until:g} of {steps} steps", stacklevel=2)
    if any(map(is_sharded, held.state_dict().values())):
        raise ValueError("the masks are sharded, and evolve compares whole layers; train replicas (DDP) instead")
    return Evolution(held, steps, every, method, fraction, until, ablate, among or {}, seed)
