"""The loop: score all weights, keep the best, repeat. Every method of this library is this loop with other settings."""

import time
from collections.abc import Iterator, Mapping
from itertools import pairwise

import torch
from torch import Tensor

from ..masks import Masks, Scores, kept, size
from ..messages import shortened
from . import patterns
from .channels import find_channels
from .densities import layer_counts
from .methods import Method, as_method
from .patterns import patterned
from .probe import Probe
from .resuming import check_same_ranks, check_same_run, function_name, plan_of
from .round import Round, by_channel, changes, not_finite, used_channels
from .selection import top_masks
from .thickness import by_channels, inner, thickened


def rounds(probe: Probe, method: str | Method, keep: int, after: Round | None = None) -> Iterator[Round]:
    """Prune round by round, down to `keep` weights. Between rounds the model is untouched; stop when you like.

    Pass the last `Round` as `after` to continue bit for bit where it stopped.

    >>> from dataclasses import replace
    >>> import torch
    >>> from barebones.pruning.methods import METHODS
    >>> probe = Probe(torch.nn.Linear(4, 2), [(torch.ones(3, 4), torch.tensor([0, 1, 0]))])
    >>> [step.keep for step in rounds(probe, replace(METHODS["force"], rounds=3), keep=1)]
    [4, 2, 1]
    """
    if not isinstance(probe, Probe):
        raise ValueError(f"rounds() takes a bb.Probe(model, batches, ...), not a {type(probe).__name__}")
    for step in run(probe, as_method(method), keep, after):
        yield step.with_own_masks()


def run(probe: Probe, method: Method, keep: int, after: Round | None) -> Iterator[Round]:
    """Run the rounds and yield each. The next round reads the masks of the last one: do not change them.

    The loop never waits for an accelerator: that all scores were finite is checked when somebody reads a round's
    numbers, or before the last round is yielded.
    """
    counts, in_layers = planned(probe, method, keep)
    begins = method.pattern and patterns.beginning(method.pattern, probe.shapes, probe.transposed, counts)
    counts = [size(probe.parameters), *counts]
    plan = plan_of(probe, method, counts, in_layers[-1] if in_layers else None)
    check_same_ranks(probe, method, plan)
    channels = find_channels(probe, method.target, keep / counts[0]) if method.unit == "channel" else None
    weights_digest = probe.weights_digest()
    masks, first, kept_before = None, 0, counts[0]
    if after is not None:
        check_same_run(after, plan, int(weights_digest), probe, method)
        masks, first, kept_before = Masks(probe.placed(after.masks)), after.index + 1, after.keep
    taken: list[Round] = []
    for index in range(first, method.rounds):
        began = time.perf_counter()
        keep = counts[index + 1]
        before = None if kept_before == counts[0] else masks  # None: every weight is kept
        revives = method.revives(index) or index == begins  # a pattern needs weights that fill its groups
        returning = before if revives else None  # the masks of a round whose pruned weights may return
        shown = channels.masks(channels.staying(returning), reads_only=True) if channels and returning else before
        with probe.at(shown, index, keep, method.batches_per_round):
            scores = _checked(method.criterion(probe), probe.weights)
            loss, unread = probe.loss_value, probe.batches_digest is None  # then the loss is nan
            flags = not_finite(scores, loss.isinf() if unread else ~loss.isfinite(), probe.shards)
            if channels is None:
                masks = _selected(probe, method, scores, in_layers[index] if in_layers else keep, before, returning)
            else:  # as near to the count as whole groups of channels allow
                masks = channels.selected(scores, keep / counts[0], before, revives)
                keep = kept(masks)
            del scores  # as large as the model: counting needs the memory
            changed = changes(returning, masks, kept_before, probe.transposed, probe.shards)
            read = torch.zeros_like(weights_digest) if probe.batches_digest is None else probe.batches_digest
            integers = torch.cat([changed[:3], torch.stack([weights_digest, read]), changed[3:]])
            floats = torch.stack([probe.saliency, probe.loss_value])
        whole = masks if probe.shards is None else probe.shards.whole(masks)
        step = Round(index, keep, whole, time.perf_counter() - began, plan, integers, floats, flags)
        if probe.device.type == "cpu" or probe.shards is not None:  # elsewhere asking would wait
            step.check()
        kept_before = keep
        taken.append(step.without_masks())
        if index + 1 == method.rounds:
            for earlier in taken:
                earlier.check()
            if int(weights_digest) != int(probe.weights_digest()):
                raise ValueError("the model's weights were changed while it was pruned; change a copy of it instead")
        yield step


def planned(probe: Probe, method: Method, keep: int) -> tuple[list[int], list[dict[str, int]] | None]:
    """Return how many weights each round keeps, in all and by densities in each layer, if the method fits the model."""
    total = size(probe.parameters)
    if not 0 < keep <= total:
        raise ValueError(f"keep={keep}: choose from 1 to the {total} prunable weights")
    whole = {"densities= (erk has them)": method.densities, "min_per_channel=": method.min_per_channel}
    whole |= {"pattern=": method.pattern, "unit='channel'": method.unit == "channel"}
    if probe.shards is not None and (used := [name for name, value in whole.items() if value]):
        raise ValueError(f"{used[0]} cannot be used with sharded weights; leave it out, or prune before you shard")
    counts = list(method.schedule(total, keep, method.rounds))
    if method.pattern is not None:
        counts = patterns.counts(method.pattern, total, counts)
        patterns.check(method.pattern, probe.shapes, probe.transposed, counts)
    shrinking = all(later <= earlier for earlier, later in pairwise([total, *counts]))
    if len(counts) != method.rounds or counts[-1] != keep or not shrinking:
        wanted = f"{method.rounds} counts that never grow from {total} and end at {keep}"
        raise ValueError(f"the schedule {function_name(method.schedule)} must give {wanted}, not {counts[:5]}...")
    floor = sum(min(method.at_least, weight.numel()) for weight in probe.parameters.values())
    if floor > keep:
        raise ValueError(f"at_least={method.at_least} asks for {floor} weights in all, but {keep} are kept; lower it")
    law, least = method.densities, method.min_per_channel
    fans = (by_channels(probe.parameters[n], probe.transposed.get(n)).shape[1] for n in inner(probe.parameters))
    if least and least > (most := min(max(fans, default=keep), keep)):
        raise ValueError(f"min_per_channel={least} is more than the {most} weights that a channel can keep; lower it")
    return counts, None if law is None else layer_counts(law, probe.shapes, counts, method.at_least)


def _checked(scores: Scores, weights: dict[str, Tensor]) -> Scores:
    """Return the scores in the weights' order, if they fit."""
    values = scores.values() if isinstance(scores, Mapping) else [scores]
    if kinds := {type(value).__name__ for value in values if not isinstance(value, Tensor)}:
        raise ValueError(f"the criterion must return a dict from names to tensors, not {' or '.join(sorted(kinds))}")
    if wrong := sorted(scores.keys() ^ weights.keys()) or [n for n, w in weights.items() if scores[n].shape != w.shape]:
        raise ValueError(f"the criterion must score every prunable weight, in its shape; check {shortened(wrong)}")
    return {name: scores[name] for name in weights}


def _selected(
    probe: Probe, method: Method, scores: Scores, keep: int | dict[str, int], before: Masks | None,
    returning: Masks | None,
) -> Masks:  # fmt: skip
    """Return the masks of the weights that stay; `keep` says how many, in all or in each layer."""
    among = before  # pruned weights cannot return
    if returning is not None:
        among = None if method.revive_empty else _in_used_channels(probe, returning)
    if method.pattern is not None and isinstance(keep, int):
        return patterned(method.pattern, scores, keep, returning, among, method.at_least, probe.transposed)
    if isinstance(keep, dict):
        masks = Masks()
        for name, score in scores.items():
            masks |= top_masks({name: score}, keep[name], returning, among)
    else:
        top = top_masks if probe.shards is None else probe.shards.keep_top
        masks = top(scores, keep, returning, among, method.at_least)
    if method.min_per_channel:
        for name in inner(scores):
            allowed = None if among is None else among[name]
            masks[name] = thickened(
                scores[name], masks[name], method.min_per_channel, probe.transposed.get(name), allowed
            )
    return masks


def _in_used_channels(probe: Probe, masks: Masks) -> Masks:
    """Return the masks of all weights in output channels that keep at least one weight."""
    found = Masks()
    for name, mask in masks.items():
        groups = probe.transposed.get(name)
        found[name] = mask | by_channel(used_channels(mask, groups, probe.shards), mask, groups)
    return found
