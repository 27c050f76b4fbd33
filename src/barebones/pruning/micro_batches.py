"""Micro-batches: a batch is differentiated whole, or in parts, by several ranks or one after the other."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from ..messages import shortened
from ..running.inputs import cut, samples


def micro_batches(
    batch: Any, norms: Mapping[str, nn.Module], micro: int | None = None, rank: int = 0, ranks: int = 1
) -> Iterator[tuple[Any, float]]:
    """Yield the parts of a batch that this rank differentiates, and what fraction of the batch each of them is.

    No part has more than `micro` samples. `norms` are the batch-norms that need whole batches.

    >>> import torch
    >>> [(part.tolist(), fraction) for part, fraction in micro_batches(torch.arange(8), {}, micro=3, rank=1, ranks=2)]
    [([4, 5, 6], 0.375), ([7], 0.125)]
    """
    count = samples(batch)
    if ranks == 1 and (micro is None or (count is not None and count <= micro)):
        yield batch, 1.0
        return
    count = count or 0  # `cut` says that this batch cannot be split
    if 0 < count < ranks:
        raise ValueError(f"a batch of {count} cannot be split over {ranks} ranks; use larger batches")
    start, stop = count * rank // ranks, count * (rank + 1) // ranks
    size = max(1, min(micro or count, stop - start))
    if alone := [name for name, norm in norms.items() if not isinstance(norm, nn.SyncBatchNorm)] if ranks > 1 else []:
        raise ValueError(
            f"the ranks split one batch, but batch-norms need the statistics of the whole ({shortened(alone)}); "
            'use SyncBatchNorm, bn="eval", or two or more batches in each round'
        )
    if norms and size < stop - start:
        raise ValueError(
            f"micro_batch={micro} splits a batch, but batch-norms need the statistics of the whole "
            f'({shortened(norms)}); use bn="eval", or leave micro_batch out'
        )
    for first in range(start, max(stop, 1), size):
        last = min(first + size, stop)
        yield cut(batch, first, last), (last - first) / max(count, 1)
