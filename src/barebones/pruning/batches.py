"""Batches: the data of each round. A round that is read again gets the same batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..running import digest
from ..running.inputs import on_device
from ..running.rng import forked

Source = Iterable[Any] | Callable[[int], Iterable[Any]]
END = object()


class Batches:
    """A running stream over a re-iterable, or a function from a round's index to its batches.

    Each batch is fetched with its own seed, so that a shuffling loader gives the same batches for the same seed, and
    the caller's generators do not change. Any round can be read again: a list is indexed, a loader is replayed.
    Nothing is cached.
    """

    def __init__(self, source: Source | None, seed: int, device: torch.device) -> None:
        if source is not None and not isinstance(source, Iterable) and not callable(source):
            raise ValueError(
                f"batches must be something to iterate over, or a function of the round, not a {type(source).__name__}"
                + ("; wrap the data set in a DataLoader" if hasattr(source, "__getitem__") else "")
            )
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
        return self._replayed(index * count, count)

    def single(self, count: int) -> bool:
        """Return whether a round is certain to read one batch."""
        return count == 1 and isinstance(self.source, Iterable)

    @property
    def repeatable(self) -> bool:
        """Whether reading a round takes nothing away from later rounds."""
        return self.source is not None and not isinstance(self.source, Iterator)

    def _called(self, source: Callable[[int], Iterable[Any]], index: int) -> Iterator[Any]:
        with self._fetching("round", index):
            returned = source(index)
            if not isinstance(returned, Iterable):
                raise ValueError(f"batches({index}) must return that round's batches, not {type(returned).__name__}")
            iterator = iter(returned)
        number = 0
        while True:
            with self._fetching("round", index, number):
                batch = next(iterator, END)
            if batch is END:
                break
            number += 1
            yield on_device(batch, self.device)
        if number == 0:
            raise ValueError(f"batches({index}) returned no batch; return at least one for every round")

    def _indexed(self, source: Sequence[Any], start: int, count: int) -> Iterator[Any]:
        if not source:
            raise ValueError("batches is empty; pass at least one (input, target) pair")
        for position in range(start, start + count):
            with self._fetching("item", position):
                batch = source[position % len(source)]
            yield on_device(batch, self.device)

    def _replayed(self, start: int, count: int) -> Iterator[Any]:
        if start < self._position:
            self._rewind(start)
        while self._position < start:
            self._next()
        for _ in range(count):
            yield on_device(self._next(), self.device)

    def _rewind(self, start: int) -> None:
        if isinstance(self.source, Iterator):
            raise ValueError(
                "these batches must be read again, which a one-shot iterator cannot do; pass a list or a loader"
            )
        while self._passes[-1][0] > start:
            self._passes.pop()
        self._position, self._states = self._passes[-1]
        self._iterator = None

    def _next(self) -> Any:
        began = self._passes[-1][0]
        with self._fetching("pass", len(self._passes), self._position - began):
            if self._iterator is None:
                assert isinstance(self.source, Iterable)
                self._iterator = iter(self.source)
            batch = next(self._iterator, END)
        if batch is not END:
            self._position += 1
            return batch
        if self._position == began:
            raise ValueError("batches is empty; pass at least one (input, target) pair")
        if isinstance(self.source, Iterator):
            raise ValueError(
                f"batches ran out after {self._position}: a one-shot iterator cannot start a new pass; "
                "pass a list or a loader, or ask for fewer rounds"
            )
        self._iterator = None
        self._passes.append((self._position, self._states))
        return self._next()

    @contextmanager
    def _fetching(self, *where: object) -> Iterator[None]:
        """Set all random generators for fetching one batch, and restore them at the end.

        The global generators are seeded for this position of the stream (`where`). The source's own generators get
        the states that they had after the previous batch, and their new states are saved for the next one.
        """
        outside = [g.get_state() for g in self._generators]
        _set_states(self._generators, self._states)
        try:
            with forked(self.device, seed=digest.text(self.seed, *where)):
                yield
        finally:
            self._states = [g.get_state() for g in self._generators]
            _set_states(self._generators, outside)


def _generators_of(source: object) -> list[torch.Generator]:
    """Return the generators of a DataLoader: its own and those of its samplers."""
    batch_sampler = getattr(source, "batch_sampler", None)
    holders = (source, getattr(source, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    generators = [getattr(holder, "generator", None) for holder in holders]
    return list({id(g): g for g in generators if isinstance(g, torch.Generator)}.values())


def _set_states(generators: list[torch.Generator], states: list[Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
