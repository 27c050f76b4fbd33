"""Replay: a whole round of pruning as one CUDA graph, so that the host has next to nothing to do for it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..gpu import kernels
from ..gpu.graphs import Captured
from ..masks import Masks
from ..running.inputs import mapped
from . import criteria
from .methods import Method
from .probe import Probe, not_finite, taken_apart

CRITERIA = (criteria.saliency, criteria.gradient_norm)  # that do the same work in every round


class Replay:
    """Masks on, gradient, scores, selection, numbers: recorded once, replayed for every other round.

    What changes from round to round goes in as tensors: the masks, how many weights to keep, and the batch.
    """

    def __init__(self, probe: Probe, method: Method, source: Tensor) -> None:
        self.probe, self.method, self.source = probe, method, source
        self.shapes = {name: p.shape for name, p in probe.parameters.items()}
        self._scoring: kernels.Scoring | None = None
        self._channels = kernels.channels(
            tuple(tuple(s) for s in self.shapes.values()), probe.device
        )  # graphs read them
        self._rounds = {
            revives: Captured(partial(self._round, revives), eager=1, on_recorded=self._finish)
            for revives in (True, False)
        }
        self._form: object = None

    @staticmethod
    def fits(probe: Probe, method: Method, transposed: bool) -> bool:
        """Whether this run can be replayed whole; if not, its gradient alone may be."""
        plain = method.criterion in CRITERIA and not method.at_least and method.revive_empty and not transposed
        floats = all(p.dtype == torch.float32 for p in probe.parameters.values())
        floats = floats and sum(p.numel() for p in probe.parameters.values()) <= kernels.LARGEST
        alone = probe.batches.single(method.batches) and probe.alone
        return probe.capture and plain and floats and alone and kernels.available(probe.device)

    def __call__(self, masks: Masks | None, index: int, keep: int) -> tuple[Masks, Tensor, Tensor, Tensor]:
        """The new masks, the counts and measures of the round, and the flags of what was not finite.

        The masks are good until the next call, which writes where they are.
        """
        probe, device = self.probe, self.probe.device
        total = sum(shape.numel() for shape in self.shapes.values())
        before = torch.ones(total, dtype=torch.bool, device=device) if masks is None else _flat(masks)
        with probe.at(None, index, keep, self.method.batches):
            self._form, leaves = taken_apart(probe.next_batch())
            wanted = torch.full((), keep, dtype=torch.int64, device=device)
            chosen, *numbers = self._rounds[self.method.revives(index)](before, wanted, *leaves)
            counts, measures, bad = (t.clone() for t in numbers)  # the next replay writes where they were
            parts = chosen.split([shape.numel() for shape in self.shapes.values()])
        found = {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}
        return Masks(found), counts, measures, bad

    def _round(self, revives: bool, before: Tensor, keep: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        probe, places = self.probe, iter(leaves)
        fused = self.method.criterion is criteria.saliency  # its product, S and the flags in one pass
        with probe.covered(before, mapped(self._form, lambda _: next(places)), noting=not fused):
            if fused:
                self._scoring = self._scoring or kernels.Scoring([*probe.weights.values()])
                flat, probe.saliency, layers = self._scoring([*probe.gradient().values()], before)
                bad = torch.cat([~probe.loss_value.isfinite().view(1), layers])
            else:
                scores = self.method.criterion(probe)
                bad = not_finite(scores, probe)
                flat = torch.cat([score.reshape(-1) for score in scores.values()])
            chosen = kernels.top(flat, keep, before if revives else None, None if revives else before)
            numbers = kernels.tally(before, chosen, *self._channels)
            assert probe.batches_digest is not None
            counts = torch.cat([numbers[:3], torch.stack([self.source, probe.batches_digest]), numbers[3:]])
            measures = torch.stack([probe.saliency, probe.loss_value])
        return chosen, counts, measures, bad

    def _finish(self) -> None:
        if self._scoring is not None:
            self._scoring.finish()


def _flat(masks: Masks) -> Tensor:
    """All masks in a row, without a copy where they are views of such a row already."""
    first = next(iter(masks.values()))
    total = sum(m.numel() for m in masks.values())
    whole = first._base
    if whole is not None and whole.dim() == 1 and whole.numel() == total and _in_a_row(masks, whole):
        return whole
    return torch.cat([m.reshape(-1) for m in masks.values()])


def _in_a_row(masks: Masks, whole: Tensor) -> bool:
    place = 0
    for mask in masks.values():
        if mask._base is not whole or mask.storage_offset() != place or not mask.is_contiguous():
            return False
        place += mask.numel()
    return True
