"""The loop: score all weights, keep the best, repeat. Every method of this library is this loop with other settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise

from torch import Tensor

from ..masks import Masks, size
from ..scope import transposed
from .counts import Counted, check_finite, read
from .graphed import GraphedRounds
from .methods import Method, as_method
from .probe import Probe
from .resuming import check_same_ranks, check_same_run, check_unchanged, function_name, plan_of
from .round import Round
from .sharded import ShardedSteps, refuse_groups
from .steps import PlainSteps, take_round


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


def run(probe: Probe, method: Method, keep: int, after: Round | None, check_last: bool = True) -> Iterator[Round]:
    """Run the rounds and yield each. The masks of a round are valid until the next round, which may overwrite them.

    The loop never waits for an accelerator. Whether all scores were finite is checked when a round's numbers are read,
    and for all rounds before the last one is yielded; with `check_last=False` the caller does that.
    """
    counts = [size(probe.parameters), *_counts(probe, method, keep)]
    plan = plan_of(probe, method, counts)
    check_same_ranks(probe, method, plan)
    weights_digest = probe.weights_digest()
    masks, first = None, 0
    if after is not None:
        check_same_run(after, plan, int(weights_digest), probe, method)
        masks = Masks({name: after.masks[name].to(probe.device) for name in probe.weights})
        masks = masks if probe.shards is None else Masks(probe.shards.local(masks))
        first = after.index + 1
    take = _plain_or_graphed(probe, method, counts, weights_digest)
    taken: list[Counted] = []
    for index in range(first, method.rounds):
        began = time.perf_counter()
        masks, counted = take(masks, index)
        shown = masks if probe.shards is None else probe.shards.whole(masks)
        step = Round(index, counts[index + 1], shown, time.perf_counter() - began, plan, counted)
        taken.append(counted)
        if check_last and index + 1 == method.rounds:
            for number, earlier in enumerate(read(taken), start=first):
                check_finite(earlier.not_finite, masks, number)
            check_unchanged(int(weights_digest), int(probe.weights_digest()))
        yield step


Take = Callable[[Masks | None, int], tuple[Masks, Counted]]  # from the masks before a round, and its index


def _plain_or_graphed(probe: Probe, method: Method, counts: list[int], weights_digest: Tensor) -> Take:
    """Return the function that runs one round: as a CUDA graph where that is possible, else step by step."""
    inputs_first = transposed(probe.user_model)
    kind = PlainSteps if probe.shards is None else ShardedSteps
    if probe.shards is not None:
        refuse_groups(probe, inputs_first)
    graphed = None
    if GraphedRounds.fits(probe, method, bool(inputs_first)):
        graphed = GraphedRounds(probe, method, weights_digest)

    def take(masks: Masks | None, index: int) -> tuple[Masks, Counted]:
        kept_before, keep = counts[index], counts[index + 1]
        before = None if kept_before == counts[0] else masks  # None: every weight is kept
        if graphed is not None:
            return graphed(before, index, keep)
        steps = kind(probe, method, weights_digest, inputs_first, index, kept_before, keep)
        after, counted = take_round(steps, before)
        assert after is not None
        return after, counted

    return take


def _counts(probe: Probe, method: Method, keep: int) -> list[int]:
    """Return how many weights each round keeps, if the schedule and the floor fit this model."""
    total = size(probe.parameters)
    if not 0 < keep <= total:
        raise ValueError(f"keep={keep}: choose from 1 to the {total} prunable weights")
    counts = list(method.schedule(total, keep, method.rounds))
    shrinking = all(later <= earlier for earlier, later in pairwise([total, *counts]))
    if len(counts) != method.rounds or counts[-1] != keep or not shrinking:
        raise ValueError(
            f"the schedule {function_name(method.schedule)} must give {method.rounds} counts that never grow from "
            f"{total} and end at {keep}, not {counts[:5]}..."
        )
    floor = sum(min(method.at_least, weight.numel()) for weight in probe.parameters.values())
    if floor > keep:
        raise ValueError(
            f"at_least={method.at_least} asks for {floor} weights in all, but {keep} are kept; lower one of the two"
        )
    return counts
