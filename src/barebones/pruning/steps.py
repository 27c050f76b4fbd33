"""The five steps of one round: masks on, scores, a check that they are finite, selection, counting."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..masks import Masks, Scores
from ..messages import shortened
from .methods import Method
from .probe import Probe
from .round_stats import by_output, changes, check_finite, not_finite
from .selection import top_masks


@dataclass
class Steps:
    """The steps of round `index`. Masks of None keep every weight."""

    probe: Probe
    method: Method
    weights_digest: Tensor
    transposed: dict[str, int]  # layers whose inputs come first, and their groups
    index: int
    kept_before: int
    keep: int

    def take(self, before: Masks | None) -> tuple[Masks, Tensor, Tensor, Tensor]:
        """Run the round, and return the new masks, and the integers, floats and flags of its `Round`."""
        probe = self.probe
        with probe.at(before, self.index, self.keep, self.method.batches_per_round):
            scores = _checked(self.method.criterion(probe), probe.weights)
            flags = self.not_finite(scores)
            masks = self.select(scores, before)
            del scores  # as large as the model: counting needs the memory
            changed = self.changes(before, masks)
            read = probe.batches_digest if probe.batches_digest is not None else torch.zeros_like(self.weights_digest)
            integers = torch.cat([changed[:3], torch.stack([self.weights_digest, read]), changed[3:]])
            return masks, integers, torch.stack([probe.saliency, probe.loss_value]), flags

    def not_finite(self, scores: Scores) -> Tensor:
        """Return flags: whether the loss, then the scores of each layer, hold anything that is not finite."""
        flags = not_finite(scores, self.probe.loss_not_finite)
        if self.probe.device.type == "cpu":  # elsewhere asking would wait: the flags are read at the end of the run
            check_finite(flags, self.probe.parameters, self.index)
        return flags

    def select(self, scores: Scores, masks: Masks | None) -> Masks:
        """Return the masks of the highest scores."""
        prefer, among = None, masks  # pruned weights cannot return
        if self.method.revives(self.index) and masks is not None:
            prefer, among = masks, None if self.method.revive_empty else _in_used_channels(masks, self.transposed)
        return top_masks(scores, self.keep, prefer, among, self.method.at_least)

    def changes(self, before: Masks | None, after: Masks) -> Tensor:
        """Count what was pruned, recovered and kept; see `round_stats.changes`."""
        return changes(before, after, self.kept_before, self.method.revives(self.index), self.transposed)


def _checked(scores: Scores, weights: dict[str, Tensor]) -> Scores:
    """Return the scores in the weights' order. Raise a ValueError if a weight has none, or the shape is wrong."""
    values = scores.values() if isinstance(scores, Mapping) else [scores]
    if kinds := {type(value).__name__ for value in values if not isinstance(value, Tensor)}:
        raise ValueError(f"the criterion must return a dict from names to tensors, not {' or '.join(sorted(kinds))}")
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
