"""Pruning: rounds of scoring and selecting, from a dense network to its masks."""

from __future__ import annotations

import functools
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..files import masks as maskfile
from ..gpu import kernels
from ..masks import Masks, Scores, copied, everything, size
from ..paths import collapsed
from ..running import digest
from ..scope import Pattern, transposed
from .batches import Source
from .graphed import Replay
from .methods import Method, named
from .probe import Loss, Objective, Probe, not_finite
from .round import Record, Round
from .schedules import SCHEDULES, Schedule
from .selection import keep_top


@dataclass(frozen=True, eq=False)
class Pruned:
    """The result of `prune`."""

    masks: Masks
    rounds: list[Record]
    collapsed: list[str]  # layers that cut the network: empty ones with no way around, or where the signal ends
    last: Round | None = field(repr=False)  # to continue from; None where nothing was removed
    about: dict[str, Any] = field(repr=False)  # for the header of a mask file

    def save(self, path: str | PathLike[str]) -> None:
        """Write the masks with how they were made; `load_masks` reads them."""
        maskfile.save_masks(self.masks, path, **self.about)


def rounds(probe: Probe, method: str | Method, keep: int, after: Round | None = None) -> Iterator[Round]:
    """Prune round by round, down to `keep` weights. Between rounds the model is untouched; stop when you like.

    Pass the last `Round` as `after` to continue bit for bit where it stopped.

    >>> probe = Probe(nn.Linear(4, 2), [(torch.ones(3, 4), torch.tensor([0, 1, 0]))])
    >>> [r.keep for r in rounds(probe, replace(named("force"), rounds=3), keep=1)]
    [4, 2, 1]
    """
    if not isinstance(probe, Probe):
        raise ValueError(f"rounds() takes a bb.Probe(model, batches, ...), not a {type(probe).__name__}")
    for step in _steps(probe, _row(method), keep, after):
        yield _owned(step)


def prune(
    model: nn.Module,
    batches: Source | None = None,
    sparsity: float = 0.9,
    method: str | Method = "force",
    loss: Loss | str = F.cross_entropy,
    *,
    objective: Objective | None = None,
    rounds: int | None = None,
    batches_per_round: int | None = None,
    schedule: str | Schedule | None = None,
    revive_until: float | None = None,
    revive_empty: bool | None = None,
    at_least: int | None = None,
    scope: Pattern | None = None,
    exclude: Pattern = (),
    bn: str = "batch",
    precision: str = "fp32",
    capture: bool = False,
    example: Any = None,
    on_collapse: str = "warn",
    on_round: Callable[[Round], None] | None = None,
    after: Round | None = None,
    seed: int = 0,
) -> Pruned:
    """Find the masks that remove the fraction `sparsity` of the prunable weights. The model is left as it was.

    `batches` is any re-iterable of (input, target) pairs, or a function from a round's index to its batches;
    `objective(model, batch)` replaces `loss(model(input), target)` where batches or outputs have another form.
    The options left at None are the method's own. `on_round` sees every `Round` as it ends, and with
    `after=` the last of them pruning continues; `on_collapse` is "warn", "raise" or "ignore". `capture=True` replays
    the gradient as a CUDA graph, for models that do the same work with every batch.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> batches = [(torch.randn(16, 4), torch.randint(2, (16,)))]
    >>> result = prune(model, batches, sparsity=0.75, method="force", rounds=5)
    >>> sum(int(mask.sum()) for mask in result.masks.values())
    12
    """
    if not 0 <= sparsity < 1:
        raise ValueError(
            f"sparsity={sparsity}: it is the fraction of weights to remove, from 0 up to but not including 1"
            + (f"; did you mean {sparsity / 100:g}?" if 1 < sparsity < 100 else "")
        )
    if on_collapse not in ("warn", "raise", "ignore"):
        raise ValueError(f"on_collapse={on_collapse!r}: choose 'warn', 'raise' or 'ignore'")
    plan = resolved(method, rounds, batches_per_round, schedule, revive_until, revive_empty, at_least)
    probe = Probe(
        model, batches, loss=loss, objective=objective, scope=scope, exclude=exclude, bn=bn, precision=precision,
        capture=capture, example=example, seed=seed,
    )  # fmt: skip
    total = size(probe.weights)
    keep = round((1 - sparsity) * total)
    if keep == 0:
        raise ValueError(f"sparsity={sparsity} leaves none of the {total} prunable weights; lower it")
    records: list[Round] = []
    if keep == total and after is not None:
        raise ValueError("sparsity=0 removes nothing, so there is no run that after= could continue; leave one out")
    last = after
    for step in _steps(probe, plan, keep, after, checking=on_round is not None) if keep < total else ():
        if on_round is not None:
            on_round(_owned(step))
        records.append(replace(step, masks=dict.fromkeys(step.masks)))  # type: ignore[arg-type]  # numbers, not masks
        last = step
    masks = _owned(last).masks if last is not None else everything(probe.weights)
    digest_after = probe.weights_digest()
    dead, warning = _collapsed(probe, masks)  # while an accelerator is still at the last rounds
    records = _read(records)
    for step in records:
        step.check()
    weights = int(digest_after)
    if last is not None:
        _check_unchanged(last.weights_digest, weights)
        last = _owned(last)  # a replay's masks lie in memory of its graph
    if warning and on_collapse == "raise":
        raise ValueError(warning)
    if warning and on_collapse == "warn":
        warnings.warn(warning, stacklevel=2)
    about = {
        "method": method if isinstance(method, str) else _name(method.criterion),
        "sparsity": sparsity,
        "rounds": plan.rounds if keep < total else 0,
        "batches_per_round": plan.batches,
        "schedule": _name(plan.schedule),
        "revive_until": plan.revive_until,
        "at_least": plan.at_least,
        "seed": seed,
        "weights": f"{weights % 2**64:016x}",
    }
    return Pruned(masks, [step.record for step in records], dead, last, about)


def _owned(step: Round) -> Round:
    """With masks of its own, so that whoever gets it cannot change the run."""
    return replace(step, masks=copied(step.masks))


def _steps(probe: Probe, method: Method, keep: int, after: Round | None, checking: bool = True) -> Iterator[Round]:
    """The rounds. An accelerator is not waited for: whether all was finite is asked with the numbers and at the end.

    Without `checking` the end is the caller's.
    """
    weights = probe.weights
    total = size(weights)
    if not 0 < keep <= total:
        raise ValueError(f"keep={keep}: choose from 1 to the {total} prunable weights")
    counts = [total, *method.schedule(total, keep, method.rounds)]
    _check_counts(counts, keep, method)
    if (floor := sum(min(method.at_least, w.numel()) for w in weights.values())) > keep:
        raise ValueError(
            f"at_least={method.at_least} asks for {floor} weights in all, but {keep} are kept; lower one of the two"
        )
    plan = _plan(probe, method, counts)
    source = probe.weights_digest()
    groups = transposed(probe.given)
    steps: list[Round] = []
    masks = None
    first = 0
    if after is not None:
        _check_continues(after, plan, int(source), probe, method)
        masks = Masks({name: after.masks[name].to(probe.device) for name in weights})
        first = after.index + 1
    replay = Replay(probe, method, source) if Replay.fits(probe, method, bool(groups)) else None
    for index in range(first, method.rounds):
        began = time.perf_counter()
        before = None if counts[index] == total else masks
        if replay is not None:
            masks, tally, measures, bad = replay(before, index, counts[index + 1])
        else:
            with probe.at(before, index, counts[index + 1], method.batches):
                scores = _checked_scores(method.criterion(probe), weights)
                bad = not_finite(scores, probe)
                if probe.device.type == "cpu":
                    Round(index, 0, Masks(weights), 0.0, plan, bad, bad, bad).check()
                revives = method.revives(index)
                among = before
                if revives and before is not None:
                    among = None if method.revive_empty else _nonempty(before, groups)
                prefer = before if revives else None
                masks = keep_top(scores, counts[index + 1], prefer=prefer, among=among, at_least=method.at_least)
                del scores, among
                numbers = _numbers(before, masks, counts[index], revives, groups)
                read = probe.batches_digest if probe.batches_digest is not None else torch.zeros_like(source)
                tally = torch.cat([numbers[:3], torch.stack([source, read]), numbers[3:]])
                measures = torch.stack([probe.saliency, probe.loss_value])
        step = Round(index, counts[index + 1], masks, time.perf_counter() - began, plan, tally, measures, bad)
        if checking:
            steps.append(replace(step, masks=dict.fromkeys(masks)))  # type: ignore[arg-type]  # numbers, not masks
        if checking and index + 1 == method.rounds:
            for each in _read(steps):
                each.check()
            _check_unchanged(int(source), int(probe.weights_digest()))
        yield step


def _read(steps: list[Round]) -> list[Round]:
    """The rounds with their numbers read from the device, all at once."""
    if not steps:
        return []
    numbers = [[getattr(step, what) for step in steps] for what in ("counts", "measures", "bad")]
    rows = zip(*(torch.stack(column).cpu() for column in numbers), strict=True)
    return [replace(s, counts=c, measures=m, bad=b) for s, (c, m, b) in zip(steps, rows, strict=True)]


def _check_unchanged(before: int, after: int) -> None:
    if before != after:
        raise ValueError(
            "the model's weights were changed while it was pruned, by the criterion, the loss or between two rounds; "
            "change a copy of it instead"
        )


def resolved(
    method: str | Method,
    rounds: int | None,
    batches: int | None,
    schedule: str | Schedule | None,
    revive_until: float | None,
    revive_empty: bool | None,
    at_least: int | None,
) -> Method:
    """The method with the caller's changes."""
    row = _row(method)
    if isinstance(method, str) and row.rounds == 1 and rounds not in (None, 1):
        raise ValueError(
            f"{method} is one round by definition, not {rounds}; choose an iterative method, or pass a Method"
        )
    if isinstance(schedule, str):
        if schedule not in SCHEDULES:
            raise ValueError(f"there is no schedule {schedule!r}; the names are {', '.join(SCHEDULES)}")
        schedule = SCHEDULES[schedule]
    changes = {
        "rounds": rounds,
        "batches": batches,
        "schedule": schedule,
        "revive_until": revive_until,
        "revive_empty": revive_empty,
        "at_least": at_least,
    }
    return replace(row, **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]


def _row(method: str | Method) -> Method:
    if isinstance(method, Method):
        return method
    if not isinstance(method, str):
        hint = "; wrap your criterion in bb.Method(...)" if callable(method) else ""
        raise ValueError(f"method={method!r} is neither a name nor a bb.Method{hint}")
    return named(method)


def _check_counts(counts: list[int], keep: int, method: Method) -> None:
    shrinking = all(b <= a for a, b in itertools.pairwise(counts))
    if len(counts) != method.rounds + 1 or counts[-1] != keep or not shrinking:
        raise ValueError(
            f"the schedule {_name(method.schedule)} must give {method.rounds} counts that never grow from "
            f"{counts[0]} and end at {keep}, not {counts[1:6]}..."
        )


def _plan(probe: Probe, method: Method, counts: list[int]) -> dict[str, Any]:
    """What a run was asked to do, in plain values that a file can hold."""
    return {
        "criterion": _name(method.criterion),
        "objective": _name(probe.objective or probe.loss),
        "counts": counts,
        "batches": method.batches,
        "revive": round(method.revive_until * method.rounds),
        "revive_empty": method.revive_empty,
        "at_least": method.at_least,
        "bn": probe.bn,
        "precision": probe.precision,
        "training": digest.text([m.training for m in probe.given.modules() if not isinstance(m, _NormBase)]),
        "seed": probe.seed,
    }


def _name(function: object) -> str:
    if isinstance(function, functools.partial):
        values = [*enumerate(function.args), *function.keywords.items()]
        given = [f"{key}={_name(value) if callable(value) else repr(value)}" for key, value in values]
        return f"{_name(function.func)}({', '.join(given)})"
    if isinstance(function, nn.Module):
        plain = {key: value for key, value in vars(function).items() if isinstance(value, int | float | str)}
        return f"{function!r} {plain}"
    return getattr(function, "__qualname__", type(function).__qualname__)


def _check_continues(after: Round, plan: dict[str, Any], source: int, probe: Probe, method: Method) -> None:
    """Refuse to continue another run than the one that `after` belongs to."""
    if not isinstance(after, Round):
        raise ValueError(f"after= is the last Round of a run (result.last, or Round.load(path)), not {after!r:.60}")
    if differing := [key for key in plan if plan[key] != after.plan.get(key)]:
        was, now = ({key: str(p.get(key))[:40] for key in differing} for p in (after.plan, plan))
        raise ValueError(f"this round was made with other settings: {', '.join(differing)} (then {was}, now {now})")
    weights = probe.weights
    shapes = {name: w.shape for name, w in weights.items()}
    if shapes != {name: mask.shape for name, mask in after.masks.items()} or after.weights_digest != source:
        raise ValueError("this round was made with other weights; start from the same initialization to continue it")
    if after.batches_digest and after.batches_digest != int(probe.digest_of(after.index, method.batches)):
        raise ValueError("this round was made with other batches; pass the same data and seed to continue it")


def _checked_scores(scores: Scores, weights: dict[str, Tensor]) -> Scores:
    """A dict of our own, in the weights' order, if the criterion gave every weight a score."""
    if not isinstance(scores, Mapping) or not all(isinstance(score, Tensor) for score in scores.values()):
        raise ValueError(f"the criterion must return a dict from names to tensors, not {type(scores).__name__}")
    if scores.keys() != weights.keys() or any(scores[name].shape != w.shape for name, w in weights.items()):
        wrong = sorted(scores.keys() ^ weights.keys()) or [n for n, w in weights.items() if scores[n].shape != w.shape]
        raise ValueError(f"the criterion must score every prunable weight in its shape; look at {', '.join(wrong[:5])}")
    return {name: scores[name] for name in weights}


def _nonempty(masks: Masks, groups: dict[str, int]) -> Masks:
    """Every weight of an output channel that keeps any."""
    views = {name: _by_output(mask, groups.get(name)) for name, mask in masks.items()}
    return Masks(
        {name: (v | v.any(1, keepdim=True).any(3, keepdim=True)).view(masks[name].shape) for name, v in views.items()}
    )


def _by_output(mask: Tensor, groups: int | None) -> Tensor:
    """The mask as (groups, inputs, outputs, rest), where a transposed layer has its inputs first."""
    first, *rest = mask.shape or (1,)
    if groups is None:
        return mask.reshape(1, 1, first, math.prod(rest))
    return mask.reshape(groups, first // groups, rest[0], math.prod(rest[1:]))


def _in_empty_channels(before: Tensor, after: Tensor) -> Tensor:
    """How many are kept now in output channels that kept none before."""
    if before.numel() == 0:
        return before.count_nonzero()
    used = before.view(torch.uint8).amax((1, 3), keepdim=True).bool()
    if after.shape[:2] == (1, 1) and after.device.type == "cpu":
        return after[0, 0, ~used.view(-1)].count_nonzero()
    return (after & ~used).count_nonzero()  # an index would wait for an accelerator


def _numbers(before: Masks | None, after: Masks, kept: int, revives: bool, groups: dict[str, int]) -> Tensor:
    """Pruned, recovered, recovered into empty channels, then the kept weights of each layer; int64."""
    values = list(after.values())
    if not groups and kernels.available(values[0].device):
        flat = [None if ms is None else torch.cat([m.reshape(-1) for m in ms.values()]) for ms in (before, after)]
        assert flat[1] is not None
        channels = kernels.channels(tuple(tuple(m.shape) for m in values), values[0].device)
        return kernels.tally(flat[0], flat[1], *channels)
    layers = torch.stack([m.count_nonzero() for m in after.values()])
    now = layers.sum()
    if before is None or not revives:  # nothing returns, so what went is the difference
        return torch.cat([torch.stack([kept - now, torch.zeros_like(now), torch.zeros_like(now)]), layers])
    stayed = torch.stack([(before[name] & mask).count_nonzero() for name, mask in after.items()]).sum()
    views = [(_by_output(before[name], groups.get(name)), _by_output(m, groups.get(name))) for name, m in after.items()]
    empty = torch.stack([_in_empty_channels(old, new) for old, new in views]).sum()
    return torch.cat([torch.stack([kept - stayed, now - stayed, empty]), layers])


def _collapsed(probe: Probe, masks: Masks) -> tuple[list[str], str]:
    """The layers that cut the network, and what to say about it; nothing where none does and that was checked."""
    example, why = probe.call(), "there is no example= input"
    dead = None
    if example is not None:
        try:
            dead = collapsed(probe.given, masks, example)
        except ValueError as error:  # the masks are found, and one unusual module must not cost them
            why = str(error)
    unchecked = dead is None
    if dead is None:
        dead = [name for name, mask in masks.items() if not mask.any()]
    if not dead and not unchecked:
        return dead, ""
    named_layers = ", ".join(dead[:5]) + (f" and {len(dead) - 5} more" if len(dead) > 5 else "")
    advice = "; lower the sparsity, prune in more rounds or set at_least=" if dead else ""
    if not unchecked:
        return dead, f"no signal passes from input to output: {named_layers} cut the network{advice}"
    unsure = f"whether a signal passes from input to output was not checked: {why}"
    return dead, f"{unsure}; layers without a weight: {named_layers or 'none'}{advice}"
