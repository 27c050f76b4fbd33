"""Saliency: the FORCE objective S(theta, c), which says how sensitive the loss is to the kept connections."""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..masks import Masks
from ..running.precision import widest
from ..scope import matched
from .batches import Source
from .gradients import Loss
from .probe import Probe
from .round import summed


def saliency(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    batches: Source,
    loss: Loss | str = F.cross_entropy,
    *,
    over: str = "kept",
    count: int | None = None,
    **options: Any,
) -> float:
    """Return S(theta, c), the sum over the kept weights of |theta_i dL(theta * c)/dtheta_i| (eq. 6).

    The gradient is the mean over `count` batches; by default over all of `batches`. `over="all"` adds the zeroed
    weights with their dense theta: the sparsified network's saliency in the paper's comparison of the two. Other
    options are those of `Probe`.

    >>> import torch
    >>> model, batches = nn.Linear(3, 2), [(torch.ones(4, 3), torch.tensor([0, 1, 1, 0]))]
    >>> masks = {"weight": torch.ones(2, 3, dtype=torch.bool)}
    >>> kept, all_weights = (saliency(model, masks, batches, over=over) for over in ("kept", "all"))
    >>> abs(kept - all_weights) < 1e-6  # nothing is pruned
    True
    """
    if over not in ("kept", "all"):
        raise ValueError(f"over={over!r}: choose 'kept' (eq. 6) or 'all' (the zeroed weights too)")
    matched(model, masks)
    if count is None:
        try:
            count = len(batches)  # type: ignore[arg-type]
        except TypeError:
            raise ValueError("these batches have no length; say with count= how many to read") from None
    if count < 1:
        raise ValueError("batches is empty; pass at least one (input, target) pair, and count=1 or more")
    probe = Probe(model, batches, loss=loss, scope=lambda name, _: name in masks, **options)
    with probe.at(Masks(probe.placed(masks)), 0, 0, count):
        gradient = probe.gradient()
        if over == "kept":
            return float(probe.saliency)
        totals = [(g * probe.weights[name]).abs().sum(dtype=widest(g.device)) for name, g in gradient.items()]
        return sum(summed(totals, probe.shards).tolist())
