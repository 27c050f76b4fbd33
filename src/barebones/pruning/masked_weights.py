"""Masked weights: the dense weights theta of a model are kept while masks are on it.

To put masks on the model means to multiply its weights by the masks; to take them off restores the dense weights.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from ..gpu.graphs import Captured
from ..masks import Masks
from ..running.chunks import chunks
from ..running.shards import local


class MaskedWeights:
    """The dense weights of a model, some of whose parameters are masked for a while.

    With `captured`, a CUDA graph puts the masks on, in one launch.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], captured: bool = False) -> None:
        self.parameters = parameters
        self._dense: dict[str, Tensor] = {}  # copies, made when masks are first put on
        put = partial(_multiply, parameters, self._dense)
        self._put: Callable[..., None] = Captured(put) if captured else put
        self._versions = self._current_versions()

    @property
    def dense(self) -> dict[str, Tensor]:
        """The dense weights by name; of a sharded model, the rows that this process holds."""
        return {name: self._dense.get(name, local(parameter.data)) for name, parameter in self.parameters.items()}

    def check(self) -> None:
        """Raise a `ValueError` if something else has changed the weights since the beginning."""
        if self._current_versions() != self._versions:
            raise ValueError("the model's weights were changed between two rounds; start again with a new probe")

    @contextmanager
    def under(self, masks: Masks | None) -> Iterator[None]:
        """Put the masks on the model, and take them off at the end. None is the dense network."""
        if masks is None:
            yield
            return
        if not self._dense:
            self._dense |= {name: local(parameter.data).clone() for name, parameter in self.parameters.items()}
        try:
            self._put(*(masks[name] for name in self.parameters))
            yield
        finally:
            weights = [local(parameter.data) for parameter in self.parameters.values()]
            torch._foreach_copy_(weights, [self._dense[name] for name in self.parameters])

    def _current_versions(self) -> list[tuple[int, int]]:
        return [(parameter._version, local(parameter).data_ptr()) for parameter in self.parameters.values()]


def _multiply(parameters: Mapping[str, nn.Parameter], dense: Mapping[str, Tensor], *masks: Tensor) -> None:
    for (name, parameter), whole in zip(parameters.items(), masks, strict=True):
        for weight, mask, masked in chunks(dense[name], whole, local(parameter.data)):
            on_cpu = mask.device.type == "cpu"  # there, a product of two types takes longer than a copy
            torch.mul(weight, mask.to(weight.dtype) if on_cpu else mask, out=masked)
