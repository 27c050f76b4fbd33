"""Pruning a model: from its weights and some batches to the masks of the weights that stay."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch.nn.functional as F
from torch import nn

from ..files import masks as maskfile
from ..imports import optional
from ..masks import Masks, empty, everything, kept, size
from ..messages import disconnected_outputs, empty_layers, html_bars, shortened
from ..paths import losses, trace
from ..running.shards import count
from ..scope import Pattern
from . import patterns
from .batches import Source
from .densities import Densities
from .gradients import Loss, Objective
from .methods import Method, resolved
from .probe import Probe
from .resuming import check_same_ranks, function_name, plan_of
from .round import Record, Round
from .rounds import planned, run
from .schedules import Schedule

ON_COLLAPSE = ("warn", "raise", "ignore")
ADVICE = "lower the sparsity, prune in more rounds or set at_least="  # against empty layers
ON_NO_PATH = 0.2  # the share of kept weights on no path from input to output from which on it is told


@dataclass(frozen=True, eq=False, repr=False)
class Pruned:
    """The result of `prune`."""

    masks: Masks
    rounds: list[Record]
    collapsed: list[str]  # layers that disconnect the network
    empty: list[str]  # layers that keep no weight, also where a signal passes around them
    effective: int | None  # kept weights on a path from input to output; None if that was not checked
    last: Round | None  # to continue from; None if nothing was removed
    about: dict[str, Any]  # for the header of a mask file

    def save(self, path: str | PathLike[str]) -> None:
        """Write the masks and how they were made; `load_masks` reads them."""
        maskfile.save_masks(self.masks, path, **self.about)

    def __repr__(self) -> str:
        total, keep, none = size(self.masks), kept(self.masks), f", empty: {len(self.empty)}" if self.empty else ""
        on_path = "" if self.effective is None else f"  on a path from input to output: {self.effective:,}\n"
        return (
            f"Pruned by {self.about['method']}: {keep:,} of {total:,} weights kept ({1 - keep / total:.4g} removed)\n"
            f"{on_path}"
            f"  rounds: {len(self.rounds)}, layers: {len(self.masks)}{none}\n"
            f"  collapsed layers: {shortened(self.collapsed) or 'none'}"
        )

    def _repr_html_(self) -> str:
        counts = {name: count(mask) for name, mask in self.masks.items()}
        return html_bars(repr(self), ((n, m.numel(), counts[n], counts[n]) for n, m in self.masks.items()))

    def plot(self) -> Any:
        """Draw what each layer keeps and each round changed; `plot()[0].figure.savefig("layers.png")` writes it."""
        plt = optional("matplotlib.pyplot", "plot draws with matplotlib", "figures")
        several = len(self.rounds) > 1
        figure = plt.figure(figsize=(4 * (1 + several), 2.6), layout="constrained")
        layers, *others = grid = figure.subplots(1, 1 + several, squeeze=False)[0]
        shares = dict(enumerate((count(mask) / mask.numel() for mask in self.masks.values()), 1))
        filled = {place: share for place, share in shares.items() if share}
        layers.plot(list(filled), list(filled.values()), "o-", color="#D55E00", markersize=3)
        layers.set(xlabel="layer, from input to output", ylabel="share of weights left")
        if max(filled.values()) > 10 * min(filled.values()):  # else a logarithmic axis may have no number
            layers.set_yscale("log")
            layers.minorticks_off()
        layers.xaxis.get_major_locator().set_params(integer=True)
        if places := [place for place, share in shares.items() if not share]:
            layers.plot(places, [min(filled.values()) / 2] * len(places), "x", color="#B22222", label="empty")
            layers.legend(frameon=False)
        for axes in others:
            numbers = [record.index + 1 for record in self.rounds]
            for name, label, line in ("keep", "kept", "-"), ("pruned", "pruned", "--"), ("recovered", "recovered", ":"):
                axes.plot(numbers, [getattr(record, name) for record in self.rounds], line, label=label)
            axes.set(yscale="symlog", xlabel="round", ylabel="weights")
            axes.legend(frameon=False)
        return grid


def prune(
    model: nn.Module,
    batches: Source | None = None,
    sparsity: float = 0.9,
    method: str | Method = "hybrid",
    loss: Loss | str = F.cross_entropy,
    *,
    objective: Objective | None = None,
    rounds: int | None = None,
    batches_per_round: int | None = None,
    schedule: str | Schedule | None = None,
    revive_until: float | None = None,
    revive_empty: bool | None = None,
    at_least: int | None = None,
    densities: Densities | None = None,
    min_per_channel: int | None = None,
    pattern: str | None = None,
    unit: str | None = None,
    target: str | None = None,
    scope: Pattern | None = None,
    exclude: Pattern = (),
    bn: str = "batch",
    precision: str = "fp32",
    capture: bool = False,
    example: Any = None,
    micro_batch: int | None = None,
    shared: bool = False,
    on_collapse: str = "warn",
    on_round: Callable[[Round], None] | None = None,
    after: Round | None = None,
    seed: int = 0,
) -> Pruned:
    """Find the masks that remove the fraction `sparsity` of the prunable weights. The model is left as it was.

    `batches` is any re-iterable of (input, target) pairs, or a function from a round's index to its batches.
    `objective(model, batch)` replaces `loss(model(input), target)` where batches or outputs have another form.
    Options that are None keep the method's defaults; `bb.Method` says what they do. `on_round` is called with every
    `Round` as it ends; to continue a run, pass its last round as `after`. `on_collapse` says what to do if no signal
    passes from input to output: "warn", "raise" or "ignore". Unless it is "ignore", a warning also names layers that
    keep no weight, counts outputs, such as classes, that no signal reaches, and says if a fifth or more of the kept
    weights are on no path. `capture=True` records the gradient as a CUDA graph, for models that do the same work with
    every batch. `micro_batch` bounds the memory: no more samples than this go through the model at once. The gradients
    are the same if the loss is a mean over the samples; batch-norms with the statistics of the batch are an error. The
    ranks of a DistributedDataParallel model read their own batches; with `shared=True` they all get the same batches,
    and share out the work.

    >>> import torch
    >>> _ = torch.manual_seed(1)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> batches = [(torch.randn(16, 4), torch.randint(2, (16,)))]
    >>> prune(model, batches, sparsity=0.5, method="iter-snip", rounds=5)
    Pruned by iter-snip: 24 of 48 weights kept (0.5 removed)
      on a path from input to output: 24
      rounds: 5, layers: 2
      collapsed layers: none
    """
    if isinstance(sparsity, bool) or not isinstance(sparsity, int | float):
        raise ValueError(f"sparsity={sparsity!r}: it must be a number, the fraction of weights to remove")
    if not 0 <= sparsity < 1:
        hint = f"; did you mean {sparsity / 100:g}?" if 1 < sparsity < 100 else ""
        raise ValueError(f"sparsity={sparsity}: it is the fraction of weights to remove, at least 0 and below 1{hint}")
    if not isinstance(seed, int):
        raise ValueError(f"seed={seed!r}: it must be a whole number")
    if on_collapse not in ON_COLLAPSE:
        raise ValueError(f"on_collapse={on_collapse!r}: choose 'warn', 'raise' or 'ignore'")
    row = resolved(
        method, rounds=rounds, batches_per_round=batches_per_round, schedule=schedule, revive_until=revive_until,
        revive_empty=revive_empty, at_least=at_least, densities=densities, min_per_channel=min_per_channel,
        pattern=pattern, unit=unit, target=target,
    )  # fmt: skip
    if isinstance(method, str) and row.needs_data and batches is None:
        raise ValueError(f"{method} needs data: pass batches, a list or a loader of (input, target) pairs")
    probe = Probe(
        model, batches, loss=loss, objective=objective, scope=scope, exclude=exclude, bn=bn, precision=precision,
        capture=capture, example=example, micro_batch=micro_batch, shared=shared, seed=seed,
    )  # fmt: skip
    total, keep = size(probe.parameters), count_kept(probe, row, sparsity)
    if keep == total and after is not None:
        raise ValueError("sparsity=0 removes nothing, so there is no run that after= could continue; leave one out")
    if keep == total:
        planned(probe, row, keep)
        check_same_ranks(probe, row, plan_of(probe, row, [total]))
    taken: list[Round] = []
    last = after
    for step in run(probe, row, keep, after) if keep < total else ():
        if on_round is not None:
            on_round(step.with_own_masks())
        taken.append(step.without_masks())
        last = step
    if last is not None:
        masks, keep = last.with_own_masks().masks, last.keep
    else:
        masks = everything(probe.weights) if probe.shards is None else probe.shards.whole(everything(probe.weights))
    collapsed, problem, disconnected, effective = _collapsed(probe, masks)
    records = [step.record for step in taken]
    emptied = empty(masks)
    advice = ADVICE if collapsed or emptied else ""
    lost = "" if effective is None or collapsed else on_no_path(keep, effective, row.revive_until)
    warning = "; ".join(filter(None, [problem, disconnected, lost, empty_layers(emptied, len(masks)), advice]))
    if problem and on_collapse == "raise":
        raise ValueError(warning)
    if warning and on_collapse != "ignore":
        warnings.warn(warning, stacklevel=2)
    about = {
        "method": method if isinstance(method, str) else function_name(method.criterion),
        "sparsity": sparsity,
        "rounds": row.rounds if keep < total else 0,
        "batches_per_round": row.batches_per_round,
        "schedule": function_name(row.schedule),
        "revive_until": row.revive_until,
        "at_least": row.at_least,
        "densities": row.densities if isinstance(row.densities, str | None) else "given",
        "min_per_channel": row.min_per_channel,
        "pattern": row.pattern,
        "unit": row.unit,
        "target": row.target,
        "seed": seed,
        "weights": f"{int(probe.weights_digest() if last is None else last.weights_digest) % 2**64:016x}",
    }
    return Pruned(masks, records, collapsed, emptied, effective, last, about)


def count_kept(probe: Probe, method: Method, sparsity: float) -> int:
    """Return how many weights stay; with a pattern of blocks, those of the nearest number of whole blocks."""
    total = size(probe.parameters)
    keep = round((1 - sparsity) * total)
    if method.pattern is not None and keep:
        (keep,) = patterns.counts(method.pattern, total, [keep])
    if keep == 0:
        raise ValueError(f"sparsity={sparsity} leaves none of the {total} prunable weights; lower it")
    return keep


def on_no_path(kept: int, effective: int, revive_until: float) -> str:
    """Say how many kept weights are on no path, and what to do; an empty string if they are few.

    >>> on_no_path(100, 90, 1.0)
    ''
    >>> on_no_path(100, 70, 1.0)
    "30% of the kept weights are on no path from input to output; use method='hybrid', and bb.shrink removes ..."
    """
    if kept - effective < ON_NO_PATH * kept:
        return ""
    cure = "use method='hybrid'" if revive_until == 1 else "lower the sparsity or prune in more rounds"
    share = f"{1 - effective / kept:.0%} of the kept weights are on no path from input to output"
    return f"{share}; {cure}, and bb.shrink removes such weights"


def _collapsed(probe: Probe, masks: Masks) -> tuple[list[str], str, str, int | None]:
    """Return the collapsed layers, what to say of them and of disconnected outputs, and the effective weights."""
    if probe.shards is not None:  # no process has the whole network; that of empty layers is told
        return [], "", "", None
    example = probe.call()
    try:
        if example is None:
            raise ValueError("there is no example= input")
        model = probe.user_model
        traced = trace(model, masks, example)
        collapsed, disconnected = losses(model, masks, example, traced)
    except ValueError as error:  # the masks are there, and one unusual module must not cost them
        return empty(masks), f"whether a signal passes from input to output was not checked: {error}", "", None
    problem = f"no signal passes from input to output: collapsed at {shortened(collapsed)}" if collapsed else ""
    lost = "" if collapsed else disconnected_outputs(disconnected, traced.columns)
    return collapsed, problem, lost, kept(traced.effective)
