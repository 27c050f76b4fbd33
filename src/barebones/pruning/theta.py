"""Theta: the dense weights of a model, which are kept while masks are on it.

To put masks on the model means to multiply its weights by the masks; to take them off restores the dense weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..gpu import kernels
from ..gpu.graphs import Captured
from ..masks import Masks
from ..running.pieces import pieces
from ..running.shards import local


class Theta:
    """The dense weights of a model, some of whose parameters are masked for a while."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], device: torch.device, capture: bool) -> None:
        self.parameters, self.device, self.capture = parameters, device, capture
        self._dense: dict[str, Tensor] = {}  # copies, made when masks are first put on
        self._write: Callable[[Tensor], None] | None = None  # writes theta * c into the model; for NVIDIA GPUs
        self._beside: tuple[dict[str, Tensor], Callable[[Tensor], None]] | None = None  # masked weights, their writer
        self._versions = self._current_versions()

    @property
    def weights(self) -> dict[str, Tensor]:
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
            self._remember()
        try:
            if self._write is not None:
                self._write(torch.cat([masks[name].reshape(-1) for name in self.parameters]))
            else:
                for name, parameter in self.parameters.items():
                    for weight, mask, masked in pieces(self._dense[name], masks[name], local(parameter.data)):
                        torch.mul(weight, mask.to(weight.dtype), out=masked)
            yield
        finally:
            weights = [local(parameter.data) for parameter in self.parameters.values()]
            torch._foreach_copy_(weights, [self._dense[name] for name in self.parameters])

    @contextmanager
    def beside(self, masks: Tensor) -> Iterator[None]:
        """Let the parameters point to masked weights in other memory, so that a CUDA graph does not change theta.

        The masks are flat: those of all parameters in a row.
        """
        dense = {name: parameter.data for name, parameter in self.parameters.items()}
        if self._beside is None:
            masked = {name: torch.empty_like(weight) for name, weight in dense.items()}
            self._beside = masked, _masking(list(dense.values()), list(masked.values()))
        masked, write = self._beside
        copies, self._dense = self._dense, dense
        try:
            for name, parameter in self.parameters.items():
                parameter.data = masked[name]
            write(masks)
            yield
        finally:
            for name, parameter in self.parameters.items():
                parameter.data = dense[name]
            self._dense = copies

    def _remember(self) -> None:
        """Copy the dense weights, before masks are first put on."""
        self._dense = {name: local(parameter.data).clone() for name, parameter in self.parameters.items()}
        if self.device.type == "cuda":
            write = _masking(list(self._dense.values()), [local(p.data) for p in self.parameters.values()])
            self._write = Captured(write) if self.capture else write

    def _current_versions(self) -> list[tuple[int, int]]:
        return [(parameter._version, local(parameter).data_ptr()) for parameter in self.parameters.values()]


def _masking(dense: list[Tensor], weights: list[Tensor]) -> Callable[[Tensor], None]:
    """Return a function of flat masks that writes dense * mask into the weights, with one launch where it can."""
    if kernels.available(weights[0].device) and kernels.Covering.fits(dense, weights):
        return kernels.Covering(dense, weights)

    def cover(masks: Tensor) -> None:
        parts = masks.split([weight.numel() for weight in weights])
        for theta, masked, mask in zip(dense, weights, parts, strict=True):
            torch.mul(theta, mask.view(theta.shape), out=masked)

    return cover
