"""Graphs: a function of tensors, recorded once as a CUDA graph and replayed without Python in between."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

EAGER = 3  # ordinary calls before recording: libraries load, algorithms are chosen, memory is allocated


class Captured:
    """Call `function(*tensors)`; after `eager` calls with arguments of the same shapes, replay it as a CUDA graph.

    Every replay returns the same memory: read it, or copy it, before the next call. The function must do the same work
    whatever the values are; its arguments may lie anywhere on the device. Make all calls on one stream.
    """

    def __init__(self, function: Callable[..., Any], eager: int = EAGER) -> None:
        self.function, self.eager = function, eager
        self._calls: dict[Any, int] = {}
        self._recorded: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor], Any]] = {}
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, *tensors: Tensor) -> Any:
        with self._aside(tensors):
            key = tuple((t.shape, t.dtype, t.stride()) for t in tensors)
            if key in self._recorded:
                graph, inputs, result = self._recorded[key]
                if inputs:
                    torch._foreach_copy_(inputs, list(tensors))
                graph.replay()
                return result
            number = self._calls[key] = self._calls.get(key, 0) + 1
            if number <= self.eager:
                return self.function(*tensors)
            self._record(key, tensors)
        return self(*tensors)

    def _record(self, key: Any, tensors: tuple[Tensor, ...]) -> None:
        inputs = [torch.empty_like(t) for t in tensors]
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        collects = gc.isenabled()
        gc.disable()  # to free memory while a graph is recorded is an error
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                result = self.function(*inputs)
        except RuntimeError as error:
            reason = f"this network cannot be captured in a CUDA graph ({str(error).splitlines()[0]})"
            raise ValueError(f"{reason}; switch capturing off (--no-capture, or capture=False)") from error
        finally:
            if collects:
                gc.enable()
        self._recorded[key] = graph, inputs, result

    @contextmanager
    def _aside(self, tensors: tuple[Tensor, ...]) -> Iterator[None]:
        """Leave the default stream, on which nothing can be recorded."""
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
        for tensor in tensors:  # without this, its memory could be reused while the stream still reads it
            tensor.record_stream(self._stream)
