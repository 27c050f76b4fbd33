"""Batches: the data of each round, and the parts of a batch. A round that is read again gets the same batches."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..messages import shortened
from ..running import digest
from ..running.inputs import cut, on_device, samples
from ..running.rng import forked, put_back

Source = Iterable[Any] | Callable[[int], Iterable[Any]]
END = object()


class Batches:
    """A running stream over a re-iterable, or a function from a round's index to its batches.

    Each batch is fetched with its own seed, so a shuffling loader gives the same batches for the same seed, and the
    caller's generators do not change. Any round can be read again: a list is indexed, a loader is replayed.
    """

    def __init__(self, source: Source | None, seed: int, device: torch.device) -> None:
        if source is not None and not isinstance(source, Iterable) and not callable(source):
            hint = "; wrap the data set in a DataLoader" if hasattr(source, "__getitem__") else ""
            raise ValueError(f"batches must be iterable or a function of the round, not {type(source).__name__}{hint}")
        if isinstance(source, Iterator):
            raise ValueError("batches must be read again, which a one-shot iterator cannot; pass a list or a loader")
        self.source, self.seed, self.device = source, seed, device
        self._iterator: Iterator[Any] | None = None
        self._position = 0  # of the next batch, counted over all passes
        self._generators = _generators_of(source)
        self._states = [g.get_state() for g in self._generators]  # of the source's generators after the last batch
        self._passes = [(0, self._states)]  # for each pass so far: the position and the states it began with

    def in_round(self, index: int, count: int) -> Iterator[Any]:
        """Return the batches of round `index`, on the device; each round takes the next `count` of the stream."""
        if self.source is None:
            raise ValueError("this method needs data: pass batches, a list or a loader of (input, target) pairs")
        if not isinstance(self.source, Iterable):
            return self._called(self.source, index)
        if isinstance(self.source, Sequence):
            return self._indexed(self.source, index * count, count)
        return self._replayed(self.source, index * count, count)

    def single(self, count: int) -> bool:
        """Return whether a round is certain to read one batch."""
        return count == 1 and isinstance(self.source, Iterable)

    def _called(self, source: Callable[[int], Iterable[Any]], index: int) -> Iterator[Any]:
        with self._fetching("round", index):
            returned = source(index)
            if not isinstance(returned, Iterable):
                raise ValueError(f"batches({index}) must return that round's batches, not {type(returned).__name__}")
            iterator = iter(returned)
        for number in itertools.count():
            with self._fetching("round", index, number):
                batch = next(iterator, END)
            if batch is END and number == 0:
                raise ValueError(f"batches({index}) returned no batch; return at least one for every round")
            if batch is END:
                return
            yield on_device(batch, self.device)

    def _indexed(self, source: Sequence[Any], start: int, count: int) -> Iterator[Any]:
        if not source:
            raise ValueError("batches is empty; pass at least one (input, target) pair")
        for position in range(start, start + count):
            with self._fetching("item", position):
                batch = source[position % len(source)]
            yield on_device(batch, self.device)

    def _replayed(self, source: Iterable[Any], start: int, count: int) -> Iterator[Any]:
        if start < self._position:  # go back to the pass that contains it
            while self._passes[-1][0] > start:
                self._passes.pop()
            self._position, self._states = self._passes[-1]
            self._iterator = None
        while self._position < start:
            self._next(source)
        for _ in range(count):
            yield on_device(self._next(source), self.device)

    def _next(self, source: Iterable[Any]) -> Any:
        began = self._passes[-1][0]
        with self._fetching("pass", len(self._passes), self._position - began):
            if self._iterator is None:
                self._iterator = iter(source)
            batch = next(self._iterator, END)
        if batch is not END:
            self._position += 1
            return batch
        if self._position == began:
            raise ValueError("batches is empty; pass at least one (input, target) pair")
        self._iterator = None
        self._passes.append((self._position, self._states))
        return self._next(source)

    @contextmanager
    def _fetching(self, *where: object) -> Iterator[None]:
        """Seed the global generators for this place of the stream, and continue the source's own; restore them all."""
        with put_back(self._generators):
            for generator, state in zip(self._generators, self._states, strict=True):
                generator.set_state(state)
            try:
                with forked(self.device, seed=digest.text(self.seed, *where)):
                    yield
            finally:
                self._states = [g.get_state() for g in self._generators]


def _generators_of(source: object) -> list[torch.Generator]:
    batch_sampler = getattr(source, "batch_sampler", None)
    holders = (source, getattr(source, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    generators = [getattr(holder, "generator", None) for holder in holders]
    return list({id(g): g for g in generators if isinstance(g, torch.Generator)}.values())


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
    whole = "but batch-norms need the statistics of the whole"
    if alone := [name for name, norm in norms.items() if not isinstance(norm, nn.SyncBatchNorm)] if ranks > 1 else []:
        cure = 'use SyncBatchNorm, bn="eval", or two or more batches in each round'
        raise ValueError(f"the ranks split one batch, {whole} ({shortened(alone)}); {cure}")
    if norms and size < stop - start:
        cure = 'use bn="eval", or leave micro_batch out'
        raise ValueError(f"micro_batch={micro} splits a batch, {whole} ({shortened(norms)}); {cure}")
    for first in range(start, max(stop, 1), size):
        last = min(first + size, stop)
        yield cut(batch, first, last), (last - first) / max(count, 1)
