"""Capture: a function of tensors recorded once as a CUDA graph, and replayed without Python or launches in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

EAGER = 3  # calls made in the ordinary way first: libraries load, algorithms are chosen, memory is found


class Captured:
    """Calls `function(*tensors)`; after `eager` calls with arguments of a shape it replays what these launched.

    The first calls are ordinary ones, so nothing is run twice. What the function returns is one and the same memory
    with every replay: read it, or copy it, before the next call. The function must do the same work whatever the
    values are; its arguments may lie anywhere on the device. All calls belong on one stream that is not the default
    one, or on none in particular: then one of its own is taken.
    """

    def __init__(
        self, function: Callable[..., Any], eager: int = EAGER, on_recorded: Callable[[], None] | None = None
    ) -> None:
        """`on_recorded` is called when something was recorded, before it is replayed."""
        self.function, self.eager, self.on_recorded = function, eager, on_recorded
        self._calls: dict[Any, int] = {}
        self._recorded: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor], Any]] = {}
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, *tensors: Tensor) -> Any:
        with self._aside(tensors):
            key = tuple((t.shape, t.dtype, t.stride()) for t in tensors)
            if key in self._recorded:
                graph, held, result = self._recorded[key]
                if held:
                    torch._foreach_copy_(held, list(tensors))
                graph.replay()
                return result
            made = self._calls[key] = self._calls.get(key, 0) + 1
            if made <= self.eager:
                return self.function(*tensors)
            self._record(key, tensors)
        return self(*tensors)

    def _record(self, key: Any, tensors: tuple[Tensor, ...]) -> None:
        held = [torch.empty_like(t) for t in tensors]
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                result = self.function(*held)
        except RuntimeError as error:
            raise ValueError(
                f"this network cannot be captured in a CUDA graph ({str(error).splitlines()[0]}); "
                "switch capturing off (--no-capture, or capture=False)"
            ) from error
        if self.on_recorded is not None:
            self.on_recorded()
        self._recorded[key] = graph, held, result

    @contextmanager
    def _aside(self, tensors: tuple[Tensor, ...]) -> Iterator[None]:
        """Off the default stream, on which nothing can be captured."""
        with torch.cuda.device(tensors[0].device):
            current = torch.cuda.current_stream()
            if current != torch.cuda.default_stream():
                yield
                return
            if self._stream is None:
                self._stream = torch.cuda.Stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                yield
            current.wait_stream(self._stream)
        for tensor in tensors:  # else its memory could be given to others while it is still read
            tensor.record_stream(self._stream)
