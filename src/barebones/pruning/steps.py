"""The five steps of one round: masks on, scores, a check that they are finite, selection, counting.

`take_round` is the round. It is written once and runs in two ways: `PlainSteps` work on dicts of tensors, layer by
layer; the steps in `graphed.py` work on flat tensors, so that a CUDA graph can record the whole round.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from ..masks import Masks, Scores
from ..words import shortened
from .counts import Counted, by_output, changes, check_finite, not_finite
from .methods import Method
from .probe import Probe
from .selection import keep_top

M = TypeVar("M")  # the form of the masks: a dict by layer, or all layers in one flat tensor
S = TypeVar("S")  # the form of the scores


class Steps(Protocol[M, S]):
    """What a round does, step by step."""

    probe: Probe
    weights_digest: Tensor

    def masks_on(self, masks: M) -> AbstractContextManager[Any]:
        """Put the masks on the model; take them off at the end of the round."""

    def score(self, masks: M) -> S:
        """Ask the criterion for the scores."""

    def not_finite(self, scores: S) -> Tensor:
        """Return flags: whether the loss, then the scores of each layer, hold anything that is not finite."""

    def select(self, scores: S, masks: M) -> M:
        """Return the masks of the highest scores."""

    def changes(self, before: M, after: M) -> Tensor:
        """Count what was pruned, recovered and kept; see `counts.changes`."""


def take_round(steps: Steps[M, S], before: M) -> tuple[M, Counted]:
    """Run one round that begins with the masks `before`, and return the new masks and its counts."""
    probe = steps.probe
    with steps.masks_on(before):
        scores = steps.score(before)
        flags = steps.not_finite(scores)
        masks = steps.select(scores, before)
        del scores  # as large as the model: counting needs the memory
        changed = steps.changes(before, masks)
        read = probe.batches_digest if probe.batches_digest is not None else torch.zeros_like(steps.weights_digest)
        counted = Counted.pack(changed, steps.weights_digest, read, probe.saliency, probe.loss_value, flags)
    return masks, counted


@dataclass
class PlainSteps:
    """The steps of round `index`, on dicts of tensors. Masks of None keep every weight."""

    probe: Probe
    method: Method
    weights_digest: Tensor
    transposed: dict[str, int]  # layers whose inputs come first, and their groups
    index: int
    kept_before: int
    keep: int

    def masks_on(self, masks: Masks | None) -> AbstractContextManager[Probe]:
        return self.probe.at(masks, self.index, self.keep, self.method.batches)

    def score(self, masks: Masks | None) -> Scores:
        return _checked(self.method.criterion(self.probe), self.probe.weights)

    def not_finite(self, scores: Scores) -> Tensor:
        flags = not_finite(scores, self.probe.loss_not_finite)
        if self.probe.device.type == "cpu":  # elsewhere asking would wait: the flags are read at the end of the run
            check_finite(flags, self.probe.parameters, self.index)
        return flags

    def select(self, scores: Scores, masks: Masks | None) -> Masks:
        prefer, among = None, masks  # pruned weights cannot return
        if self.method.revives(self.index) and masks is not None:
            prefer, among = masks, None if self.method.revive_empty else _in_used_channels(masks, self.transposed)
        return keep_top(scores, self.keep, prefer=prefer, among=among, at_least=self.method.at_least)

    def changes(self, before: Masks | None, after: Masks | None) -> Tensor:
        assert after is not None
        return changes(before, after, self.kept_before, self.method.revives(self.index), self.transposed)


def _checked(scores: Scores, weights: dict[str, Tensor]) -> Scores:
    """Return the scores in the weights' order. Raise a ValueError if a weight has none, or the shape is wrong."""
    if not isinstance(scores, Mapping) or not all(isinstance(score, Tensor) for score in scores.values()):
        raise ValueError(f"the criterion must return a dict from names to tensors, not {type(scores).__name__}")
    if scores.keys() != weights.keys() or any(scores[name].shape != w.shape for name, w in weights.items()):
        wrong = sorted(scores.keys() ^ weights.keys()) or [n for n, w in weights.items() if scores[n].shape != w.shape]
        raise ValueError(
            f"the criterion must score every prunable weight, in the weight's shape; check {shortened(wrong)}"
        )
    return {name: scores[name] for name in weights}


def _in_used_channels(masks: Masks, transposed: dict[str, int]) -> Masks:
    """Return the masks of all weights in output channels that keep at least one weight."""
    channels = {name: by_output(mask, transposed.get(name)) for name, mask in masks.items()}
    return Masks(
        {
            name: (mask | mask.any(1, keepdim=True).any(3, keepdim=True)).view(masks[name].shape)
            for name, mask in channels.items()
        }
    )
