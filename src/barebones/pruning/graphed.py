"""Whole rounds as CUDA graphs: a round is recorded once and replayed, which leaves very little work for the host."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..gpu import kernels
from ..gpu.graphs import Captured
from ..masks import Masks
from ..running.inputs import mapped, taken_apart
from . import criteria
from .counts import Counted, not_finite
from .methods import Method
from .probe import Probe
from .steps import take_round

CRITERIA = (criteria.saliency, criteria.gradient_norm)  # those that launch the same work in every round


class GraphedRounds:
    """Run rounds of pruning as CUDA graphs: one for the rounds in which weights may return, one for the others.

    The masks, the number of weights to keep and the batch change from round to round, so they are input tensors of
    the graph.
    """

    def __init__(self, probe: Probe, method: Method, weights_digest: Tensor) -> None:
        self.probe, self.method, self.weights_digest = probe, method, weights_digest
        self.shapes = {name: parameter.shape for name, parameter in probe.parameters.items()}
        self.channels = kernels.channels(  # kept here, because the graphs read this memory
            tuple(tuple(shape) for shape in self.shapes.values()), probe.device
        )
        self.fused: kernels.Scoring | None = None  # one kernel for the scores of this criterion
        if method.criterion is criteria.saliency:
            self.fused = kernels.Scoring([parameter.data for parameter in probe.parameters.values()])
        self._graphs = {
            revives: Captured(partial(self._round, revives), eager=1, on_recorded=self._recorded)
            for revives in (True, False)
        }
        self._form: object = None  # of the batches: where in it the tensors are

    @staticmethod
    def fits(probe: Probe, method: Method, transposed: bool) -> bool:
        """Return whether whole rounds of this run can be graphs. If not, its gradient alone may still be one."""
        same_work = method.criterion in CRITERIA and not method.at_least and method.revive_empty and not transposed
        float32 = all(parameter.dtype == torch.float32 for parameter in probe.parameters.values())
        few = sum(parameter.numel() for parameter in probe.parameters.values()) <= kernels.LARGEST
        one_batch = probe.batches.single(method.batches) and probe.alone and probe.micro_batch is None
        if probe.norm_biases.possible:
            return False
        return probe.capture and same_work and float32 and few and one_batch and kernels.available(probe.device)

    def __call__(self, masks: Masks | None, index: int, keep: int) -> tuple[Masks, Counted]:
        """Run round `index`. The masks that it returns are valid until the next call, which overwrites them."""
        probe, device = self.probe, self.probe.device
        sizes = [shape.numel() for shape in self.shapes.values()]
        before = torch.ones(sum(sizes), dtype=torch.bool, device=device) if masks is None else _flat(masks)
        with probe.at(None, index, keep, self.method.batches):
            self._form, leaves = taken_apart(probe.next_batch())
            count = torch.full((), keep, dtype=torch.int64, device=device)
            chosen, *counted = self._graphs[self.method.revives(index)](before, count, *leaves)
            counted = [tensor.clone() for tensor in counted]  # the next replay overwrites them
            parts = chosen.split(sizes)
        views = {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}
        return Masks(views), Counted(*counted)

    def _round(self, revives: bool, before: Tensor, keep: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        """The function that is recorded."""
        remaining = iter(leaves)
        batch = mapped(self._form, lambda _: next(remaining))
        masks, counted = take_round(FlatSteps(self, batch, keep, revives), before)
        return masks, *counted

    def _recorded(self) -> None:
        if self.fused is not None:
            self.fused.finish()


@dataclass
class FlatSteps:
    """The steps of one round on flat tensors, all layers in a row; each step is a few launches, and none waits."""

    rounds: GraphedRounds
    batch: Any
    keep: Tensor
    revives: bool

    def __post_init__(self) -> None:
        self.probe, self.weights_digest = self.rounds.probe, self.rounds.weights_digest

    def masks_on(self, masks: Tensor) -> AbstractContextManager[None]:
        return self.probe.covered(masks, self.batch, noting=self.rounds.fused is None)

    def score(self, masks: Tensor) -> Tensor:
        if self.rounds.fused is not None:  # the product, S(theta, c) and the flags in one pass
            scores, self.probe.saliency, layers = self.rounds.fused([*self.probe.gradient().values()], masks)
            self._flags = torch.cat([self.probe.loss_not_finite.view(1), layers])
            return scores
        by_layer = self.rounds.method.criterion(self.probe)
        self._flags = not_finite(by_layer, self.probe.loss_not_finite)
        return torch.cat([score.reshape(-1) for score in by_layer.values()])

    def not_finite(self, scores: Tensor) -> Tensor:
        return self._flags

    def select(self, scores: Tensor, masks: Tensor) -> Tensor:
        return kernels.top(scores, self.keep, masks if self.revives else None, None if self.revives else masks)

    def changes(self, before: Tensor, after: Tensor) -> Tensor:
        return kernels.tally(before, after, *self.rounds.channels)


def _flat(masks: Masks) -> Tensor:
    """Return all masks in a row, without a copy where they are views of such a row already."""
    row = next(iter(masks.values()))._base
    total = sum(mask.numel() for mask in masks.values())
    if row is not None and row.dim() == 1 and row.numel() == total and _in_order(masks, row):
        return row
    return torch.cat([mask.reshape(-1) for mask in masks.values()])


def _in_order(masks: Masks, row: Tensor) -> bool:
    offset = 0
    for mask in masks.values():
        if mask._base is not row or mask.storage_offset() != offset or not mask.is_contiguous():
            return False
        offset += mask.numel()
    return True
