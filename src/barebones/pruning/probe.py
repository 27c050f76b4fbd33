"""The probe: it gives a criterion the gradients of a masked model, and the model is restored afterwards.

To put masks on the model means to multiply its weights by the masks; to take them off restores the dense weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ..gpu import kernels
from ..gpu.graphs import Captured
from ..masks import Masks, everything
from ..running import digest
from ..running.inputs import first_sample, tensors
from ..running.modes import by_kind, restored, set_training, trainable, uncompiled, without_reentrant_checkpoints
from ..running.pieces import pieces
from ..running.precision import tf32
from ..running.rng import forked, reseed
from ..running.shards import is_sharded, local, own_rows
from ..scope import Pattern, bare, prunable
from . import ranks
from .batches import Batches, Source
from .gradients import LOSSES, PRECISIONS, Gradients, Loss, Objective, added
from .shards import Shards


class Probe:
    """A model, its dense weights, an objective and batches. A criterion gets gradients and weights from it.

    One probe lives for a whole run. Inside `with probe.at(masks, index, keep)` the model's prunable weights are
    theta * c. At the end of the block, even after an error, the model's parameters, buffers, gradients and flags are
    restored, and so are the global random generators.

    A criterion may use `weights`, the dense theta by name (to read, not to change), `masks`, the current c, `keep`, how
    many weights this round will keep, `generator`, random numbers for this round alone, and the methods `gradient` and
    `hessian_product`.
    """

    keep: int
    index: int
    generator: torch.Generator
    saliency: Tensor  # S(theta, c) of eq. 6 at the last gradient; nan before there is one
    loss_value: Tensor  # at the last gradient; nan before there is one
    batches_digest: Tensor | None  # of the batches read last; None before any is read

    def __init__(
        self,
        model: nn.Module,
        batches: Source | None = None,
        *,
        loss: Loss | str = F.cross_entropy,
        objective: Objective | None = None,
        scope: Pattern | None = None,
        exclude: Pattern = (),
        bn: str = "batch",
        precision: str = "fp32",
        capture: bool = False,
        example: Any = None,
        seed: int = 0,
    ) -> None:
        if bn not in ("batch", "eval"):
            raise ValueError(f"bn={bn!r}: choose 'batch' (statistics of the batch) or 'eval' (running statistics)")
        if precision not in PRECISIONS:
            raise ValueError(f"precision={precision!r}: choose one of {', '.join(PRECISIONS)}")
        if isinstance(loss, type):
            raise ValueError(f"loss={loss.__name__} is a class; pass a loss function or an object: {loss.__name__}()")
        if isinstance(loss, str) and loss not in LOSSES:
            raise ValueError(f"loss={loss!r}: choose one of {', '.join(LOSSES)}, or pass a function")
        if torch.is_inference_mode_enabled():
            raise ValueError("scoring needs gradients; leave torch.inference_mode() first")
        self.user_model, self.model = model, _to_call(model)
        _reshard(model)
        self.parameters = prunable(model, scope, exclude)
        self.shards = Shards(self.parameters) if any(map(is_sharded, self.parameters.values())) else None
        devices = {parameter.device for parameter in self.parameters.values()}
        if len(devices) > 1:
            raise ValueError(f"the prunable weights lie on several devices ({', '.join(map(str, devices))}); use one")
        self.device = devices.pop()
        if capture and self.device.type != "cuda":
            raise ValueError(f"capture=True records a CUDA graph, but the model is on {self.device}; leave it out")
        if capture and self.shards is not None:
            raise ValueError("capture=True records a CUDA graph, but the model is sharded; leave it out")
        self.objective, self.loss = objective, LOSSES[loss] if isinstance(loss, str) else loss
        self.bn, self.precision, self.seed, self.capture = bn, precision, seed, capture
        self.batches = Batches(batches, seed, self.device)
        self._gradients = Gradients(
            self.model, list(self.parameters.values()), self.loss, objective, precision, example
        )
        self._dense: dict[str, Tensor] = {}  # theta: copies, made when masks are first put on
        self._masks: Masks | None = None
        self._put_on: Callable[[Tensor], None] | None = None  # writes theta * c into the model; for NVIDIA GPUs
        self._beside: tuple[dict[str, Tensor], Callable[[Tensor], None]] | None = None  # masked weights, their writer
        self._pinned: Any = None  # the batch that a graph reads, in place of the next one of the stream
        self._versions = self._current_versions()
        self._forget()

    @property
    def weights(self) -> dict[str, Tensor]:
        """The dense weights theta, without masks; of a sharded model, the rows that this process holds."""
        return {name: self._dense.get(name, local(parameter.data)) for name, parameter in self.parameters.items()}

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """The shapes of the whole weights."""
        return {name: parameter.shape for name, parameter in self.parameters.items()}

    def own(self, name: str, whole: Tensor) -> Tensor:
        """Return the rows of a whole tensor that `weights` has under this name, on the same device."""
        return own_rows(whole, self.parameters[name]).to(self.device)

    @property
    def masks(self) -> Masks:
        """The masks that are on: c."""
        return everything(self.weights) if self._masks is None else self._masks

    @property
    def example(self) -> Any:
        """What the model is called with, an input or (args, kwargs): passed by the user, or from the first batch."""
        return self._gradients.example

    @property
    def alone(self) -> bool:
        """Whether no other process shares the gradients."""
        return ranks.ranks(self.user_model) == 1 and self.shards is None

    @property
    def loss_not_finite(self) -> Tensor:
        """Whether the loss is infinite or nan, on the device; nan is no error if no batch was read."""
        return self.loss_value.isinf() if self.batches_digest is None else ~self.loss_value.isfinite()

    # For criteria.

    def gradient(self, temperature: float = 1.0) -> dict[str, Tensor]:
        """Return the gradient of the loss at theta * c for every prunable weight, pruned ones too, at least float32.

        Over several batches it is the mean of the signed gradients. The tensors belong to the caller; captured ones
        are overwritten by the next gradient.
        """
        total: list[Tensor] = []
        captured = None  # S(theta, c) from a CUDA graph
        one_graph = self.capture and self.batches.single(self._count)
        for batch in self._read():
            if self.capture:
                loss, captured, gradients = self._gradients.captured(batch, temperature)
                if not one_graph and not total:  # the next replay overwrites them
                    gradients = [gradient.clone() for gradient in gradients]
            else:
                loss, gradients = self._gradients.plain(batch, temperature)
            self.loss_value += loss
            total = added(total, gradients)
        self._average(total)
        if captured is not None and one_graph and self.alone:
            self.saliency = captured
        else:
            self._note_saliency(total)
        return dict(zip(self.parameters, total, strict=True))

    def hessian_product(self, temperature: float = 1.0) -> dict[str, Tensor]:
        """Return H g at theta * c over the weights that c keeps: (mean H)(mean g) over the round's batches.

        For a single batch both come from one graph; several batches are read twice, for g and then for H g.
        """
        if self.shards is not None:
            raise ValueError("this method needs second derivatives, and sharded weights have none; use snip or force")
        vector: list[Tensor] = []
        with uncompiled(self.model), sdpa_kernel(SDPBackend.MATH):  # neither has second derivatives
            if not self.batches.single(self._count):
                vector = self._restricted(list(self.gradient(temperature).values()))
            first_digest = self.batches_digest
            total: list[Tensor] = []
            for batch in self._read():
                value = self._gradients.value(batch, temperature)
                self.loss_value += value.detach().double()
                gradients = self._gradients.with_graph(value)
                if not vector:
                    vector = [gradient.detach() for gradient in gradients]
                    if not self.alone:
                        vector = [gradient.clone() for gradient in vector]
                        ranks.mean_over_ranks(self.user_model, vector)
                    self._note_saliency(vector)
                    vector = self._restricted(vector)
                total = added(total, self._gradients.product(gradients, vector))
        if first_digest is not None and bool(first_digest != self.batches_digest):
            raise ValueError(
                "the second reading of the batches returned other values than the first, but this method reads them "
                "twice; pass a list, or a loader without state"
            )
        self._average(total)
        return dict(zip(self.parameters, self._restricted(total), strict=True))

    # For the steps of a round.

    @contextmanager
    def at(self, masks: Masks | None, index: int, keep: int, batches: int = 1) -> Iterator[Probe]:
        """Put the masks on the model for round `index`, and take them off at the end. None is the dense network."""
        if self._current_versions() != self._versions:
            raise ValueError("the model's weights were changed between two rounds; start again with a new probe")
        self._masks, self.index, self.keep, self._count = masks, index, keep, batches
        self.generator = torch.Generator("cpu").manual_seed(digest.text(self.seed, "scores", index))
        self._forget()
        if masks is not None and not self._dense:
            self._remember_dense()
        with ExitStack() as stack:
            stack.enter_context(forked(self.device, seed=digest.text(self.seed, "round", index)))
            stack.enter_context(self._as_configured())
            stack.callback(self._take_off)
            if masks is not None:
                if self._put_on is not None:
                    self._put_on(torch.cat([masks[name].reshape(-1) for name in self.parameters]))
                else:
                    for name, parameter in self.parameters.items():
                        for weight, mask, masked in pieces(self._dense[name], masks[name], local(parameter.data)):
                            torch.mul(weight, mask.to(weight.dtype), out=masked)
            yield self

    @contextmanager
    def covered(self, masks: Tensor, batch: Any, noting: bool) -> Iterator[None]:
        """Put flat masks on the model, for a round that is recorded as a CUDA graph; use it within `at(None, ...)`.

        Inside this context `gradient` reads `batch` instead of the next batches. The masked weights are written to
        other memory than the dense ones, and batch-norms update no running statistics, so that a replay of the graph
        changes neither. With `noting=False` the saliency is not computed here, because the caller computes it.
        """
        dense = {name: parameter.data for name, parameter in self.parameters.items()}
        if self._beside is None:
            masked = {name: torch.empty_like(weight) for name, weight in dense.items()}
            self._beside = masked, _masking(list(dense.values()), list(masked.values()))
        masked, write = self._beside
        norms = [
            module
            for module in self.user_model.modules()
            if isinstance(module, _BatchNorm) and module.training and module.track_running_stats
        ]
        outside = self._dense, self.capture
        self._dense, self._pinned, self._noting = dense, batch, noting
        self.capture = False  # the whole round is being captured
        try:
            for norm in norms:
                norm.track_running_stats = False
            for name, parameter in self.parameters.items():
                parameter.data = masked[name]
            write(masks)
            yield
        finally:
            for name, parameter in self.parameters.items():
                parameter.data = dense[name]
            for norm in norms:
                norm.track_running_stats = True
            self._pinned = None
            self._dense, self.capture = outside

    def next_batch(self) -> Any:
        """Return the round's only batch, with the generators seeded for it."""
        batch = next(self.batches.in_round(self.index, 1))
        reseed(self.device, digest.text(self.seed, self.index, 0))
        return batch

    def call(self) -> Any:
        """Return what the model is called with, cut to one sample where possible; None if that is not known."""
        if self.example is None and self.objective is None and self.batches.repeatable:
            batch = next(self.batches.in_round(0, 1))
            if isinstance(batch, list | tuple) and batch:
                self._gradients.example = first_sample(((batch[0],), {}))
        return self.example

    def weights_digest(self) -> Tensor:
        """Return a digest of all parameters, and with bn="eval" of the buffers, which decide the scores too."""
        if self.shards is not None:
            return self.shards.digest(self.parameters)
        content = [*self.user_model.parameters(), *(self.user_model.buffers() if self.bn == "eval" else ())]
        large = [tensor for tensor in content if tensor.dim() > 1]
        small = by_kind(tensor for tensor in content if tensor.dim() <= 1)  # many: all of one kind in a row
        return digest.of_tensors([*large, *(torch.cat([tensor.reshape(-1) for tensor in group]) for group in small)])

    def digest_of(self, index: int, count: int) -> Tensor:
        """Read the batches of one round, and return their digest."""
        total = torch.zeros((), dtype=torch.int64, device=self.device)
        for batch in self.batches.in_round(index, count):
            total = _chained(total, batch)
        return total

    # Private.

    def _read(self) -> Iterator[Any]:
        """Yield the round's batches, each with its own seed, so that dropout repeats when a batch is read again."""
        self.loss_value = torch.zeros((), dtype=torch.float64, device=self.device)
        self.batches_digest = so_far = torch.zeros((), dtype=torch.int64, device=self.device)
        if self._pinned is not None:
            self.batches_digest = _chained(so_far, self._pinned)
            self._batches_read = 1
            yield self._pinned
            return
        number = 0
        for batch in self.batches.in_round(self.index, self._count):
            self.batches_digest = so_far = _chained(so_far, batch)
            reseed(self.device, digest.text(self.seed, self.index, number))
            yield batch
            number += 1
        self._batches_read = number
        self.loss_value /= number

    def _average(self, total: list[Tensor]) -> None:
        if self._batches_read > 1:
            for tensor in total:
                tensor.div_(self._batches_read)
        if self.shards is not None:  # FSDP has averaged the gradients
            self.loss_value = self.shards.over_ranks(self.loss_value) / torch.distributed.get_world_size()
        elif not self.alone:
            ranks.mean_over_ranks(self.user_model, total)

    def _note_saliency(self, gradients: list[Tensor]) -> None:
        """Compute S(theta, c) of eq. 6: the sum over the kept weights of |theta dL/dtheta|.

        The model holds theta * c, so the pruned weights add nothing.
        """
        if self._pinned is not None:
            if self._noting:
                self.saliency = self._gradients.saliency(gradients)
            return
        totals = torch.zeros(len(gradients), dtype=torch.float64, device=self.device)
        for total, parameter, gradient in zip(totals, self.parameters.values(), gradients, strict=True):
            for weight, g in pieces(local(parameter.data), gradient):
                if g.dim() == 1 and g.device.type == "cpu":  # |w| |g| is w with the sign of g, times g: one pass
                    total += torch.dot(weight.copysign(g), g)
                else:
                    total += torch.linalg.vector_norm(weight * g, 1)
        self.saliency = (totals if self.shards is None else self.shards.sums(totals)).sum()

    def _restricted(self, values: list[Tensor]) -> list[Tensor]:
        """Return the values with zeros for the weights that the masks prune."""
        if self._masks is None:
            return values
        return [value * mask for value, mask in zip(values, self._masks.values(), strict=True)]

    def _forget(self) -> None:
        not_a_number = torch.full((), torch.nan, dtype=torch.float64, device=self.device)
        self.saliency, self.loss_value = not_a_number, not_a_number
        self.batches_digest = None
        self._batches_read = 0

    @contextmanager
    def _as_configured(self) -> Iterator[None]:
        """Set flags and precision as this probe needs them, and restore them at the end."""
        with restored(self.user_model), trainable(self.parameters.values()):
            for module in self.user_model.modules():
                if isinstance(module, _NormBase):  # the norms with running statistics
                    set_training(module, self.bn == "batch")
            with torch.enable_grad(), without_reentrant_checkpoints(), tf32(self.device, self.precision != "fp32"):
                yield

    def _remember_dense(self) -> None:
        """Copy the dense weights, before masks are first put on."""
        self._dense = {name: local(parameter.data).clone() for name, parameter in self.parameters.items()}
        if self.device.type == "cuda":
            put_on = _masking(list(self._dense.values()), [local(p.data) for p in self.parameters.values()])
            self._put_on = Captured(put_on) if self.capture else put_on

    def _take_off(self) -> None:
        if self._masks is not None:
            weights = [local(parameter.data) for parameter in self.parameters.values()]
            torch._foreach_copy_(weights, [self._dense[name] for name in self.parameters])

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


def _to_call(model: nn.Module) -> nn.Module:
    """Return the module to call: a compiled model as it is, a data-parallel one without its wrapper.

    Gradients are asked for directly, which skips the wrapper's own reduction; `ranks` does that instead.
    """
    inside = model
    while type(inside).__name__ == "OptimizedModule":
        inside = inside._orig_mod  # type: ignore[assignment]
    return bare(model) if type(inside).__name__ in ("DataParallel", "DistributedDataParallel") else model


def _reshard(model: nn.Module) -> None:
    """Free the whole weights that FSDP2 may still hold after a forward pass; they would hide the sharded ones."""
    for module in model.modules():
        if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__):
            module.reshard()  # type: ignore[operator]


def _chained(total: Tensor, batch: Any) -> Tensor:
    return total * digest.MIX + digest.of_tensors(tensors(batch)).to(total.device) + 1
