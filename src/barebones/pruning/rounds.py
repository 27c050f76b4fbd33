"""The loop: score all weights, keep the best, repeat. Every method of this library is this loop with other settings."""

import time
from collections.abc import Iterator
from itertools import pairwise

from ..masks import Masks, size
from ..scope import transposed
from .methods import Method, as_method
from .probe import Probe
from .resuming import check_same_ranks, check_same_run, check_unchanged, function_name, plan_of
from .round import Round, on_host
from .sharded import ShardedSteps, refuse_groups
from .steps import Steps


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
    """Run the rounds and yield each. The next round reads the masks of the last one: do not change them.

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
    inputs_first, kind = transposed(probe.user_model), Steps
    if probe.shards is not None:
        refuse_groups(probe, inputs_first)
        kind = ShardedSteps
    taken: list[Round] = []
    for index in range(first, method.rounds):
        began = time.perf_counter()
        kept_before, keep = counts[index : index + 2]
        steps = kind(probe, method, weights_digest, inputs_first, index, kept_before, keep)
        masks, *numbers = steps.take(None if kept_before == counts[0] else masks)  # None: every weight is kept
        shown = masks if probe.shards is None else probe.shards.whole(masks)
        step = Round(index, keep, shown, time.perf_counter() - began, plan, *numbers)
        taken.append(step.without_masks())
        if check_last and index + 1 == method.rounds:
            for earlier in on_host(taken):
                earlier.check()
            check_unchanged(int(weights_digest), int(probe.weights_digest()))
        yield step


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
