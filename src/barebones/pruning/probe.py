"""The probe: it gives a criterion the gradients of a masked model, and the model is restored afterwards."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase

from ..gpu.graphs import Captured
from ..masks import Masks, everything
from ..names import SCORING_PRECISIONS, STATISTICS
from ..running import digest
from ..running.chunks import chunks
from ..running.inputs import first_sample, samples, tensors
from ..running.modes import batch_norms, by_kind, restored, trainable, uncheckpointed, uncompiled
from ..running.precision import autocast, computing, widest
from ..running.rng import forked, reseed
from ..running.shards import is_sharded, local, own_rows, reshard
from ..scope import Pattern, bare, prunable, transposed
from .batches import Batches, Source, micro_batches
from .gradients import LOSSES, Gradients, Loss, Objective, added
from .masking import Masking
from .processes import Shards, sum_over_ranks, unwrapped


class Probe:
    """A model, its dense weights, an objective and batches. A criterion gets gradients and weights from it.

    Inside `with probe.at(masks, index, keep)` the model's prunable weights are theta * c. At the end of the block, the
    model's parameters, buffers, gradients and flags are restored, and so are the global random generators.

    A criterion may use `weights`, the dense theta by name (to read, not to change), `masks`, the current c, `keep`, how
    many weights this round will keep, `generator`, random numbers for this round alone, and the methods `gradient` and
    `hessian_product`.
    """

    keep: int
    index: int
    generator: torch.Generator
    saliency: Tensor  # S(theta, c) of eq. 6 at the last gradient; nan before there is one
    loss_value: Tensor  # likewise
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
        micro_batch: int | None = None,
        shared: bool = False,
        seed: int = 0,
    ) -> None:
        if bn not in STATISTICS:
            raise ValueError(f"bn={bn!r}: choose 'batch' (statistics of the batch) or 'eval' (running statistics)")
        if precision not in SCORING_PRECISIONS:
            raise ValueError(f"precision={precision!r}: choose one of {', '.join(SCORING_PRECISIONS)}")
        if micro_batch is not None and (type(micro_batch) is not int or micro_batch < 1):
            raise ValueError(f"micro_batch={micro_batch!r}: it must be a whole number of samples, at least 1")
        if isinstance(loss, type):
            raise ValueError(f"loss={loss.__name__} is a class; pass a loss function or an object: {loss.__name__}()")
        if isinstance(loss, str) and loss not in LOSSES:
            raise ValueError(f"loss={loss!r}: choose one of {', '.join(LOSSES)}, or pass a function")
        if torch.is_inference_mode_enabled():
            raise ValueError("scoring needs gradients; leave torch.inference_mode() first")
        bare(model)  # refuses what is no module
        self.user_model = model
        self.model, self.group = unwrapped(model)
        reshard(model)
        self.parameters = prunable(model, scope, exclude)
        self.transposed = transposed(model)  # layers whose inputs come first, and their groups
        is_split = any(map(is_sharded, self.parameters.values()))
        self.shards = Shards(self.parameters, self.transposed) if is_split else None
        devices = {parameter.device for parameter in self.parameters.values()}
        if len(devices) > 1:
            raise ValueError(f"the prunable weights lie on several devices ({', '.join(map(str, devices))}); use one")
        self.device = devices.pop()
        if capture and (self.device.type != "cuda" or self.shards is not None):
            where = f"on {self.device}" if self.shards is None else "sharded"
            raise ValueError(f"capture=True records a CUDA graph, but the model is {where}; leave it out")
        if shared and self.shards is not None:
            raise ValueError("shared=True shares batches out, but every rank of a sharded model reads its own batches")
        self.rank: int = self.group.rank() if self.group else 0
        self.ranks: int = self.group.size() if self.group else 1
        self.micro_batch, self.shared = micro_batch, shared and self.ranks > 1
        self.objective, self.loss = objective, LOSSES[loss] if isinstance(loss, str) else loss
        self.bn, self.precision, self.seed, self.capture = bn, precision, seed, capture
        self.batches = Batches(batches, seed, self.device)
        self._gradients = Gradients(
            self.model, list(self.parameters.values()), self.loss, objective, precision, example
        )
        self._masking = Masking(model, self.parameters, self.transposed, self.shards, capture)
        self._norms = [module for module in model.modules() if isinstance(module, _NormBase)]  # with running statistics
        self._digest: Callable[..., Tensor] = Captured(_digest) if capture else _digest
        self._masks: Masks | None = None
        self._forget()

    @property
    def weights(self) -> dict[str, Tensor]:
        """The dense weights theta, without masks; of a sharded model, the rows that this process holds."""
        return self._masking.dense

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """The shapes of the whole weights."""
        return {name: parameter.shape for name, parameter in self.parameters.items()}

    def placed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors in the weights' order and on their device; of a sharded model, the rows of this process."""
        pairs = {name: (tensors[name], parameter) for name, parameter in self.parameters.items()}
        return {n: (local(t) if is_sharded(t) else own_rows(t, p)).to(self.device) for n, (t, p) in pairs.items()}

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
        return self.ranks == 1 and self.shards is None

    # For criteria.

    def gradient(self, temperature: float = 1.0) -> dict[str, Tensor]:
        """Return the gradient of the loss at theta * c for every prunable weight, pruned ones too, at least float32.

        It is the mean over the batches and ranks. The caller may change it; the next one overwrites a captured one.
        """
        total: list[Tensor] = []
        for part, weight in self._read():
            loss, gradients = (self._gradients.captured if self.capture else self._gradients.plain)(part, temperature)
            if self.capture and not self.one_part and not total:  # the next replay overwrites them
                gradients = [gradient.clone() for gradient in gradients]
            self.loss_value += _times(weight, [loss])[0]
            total = added(total, _times(weight, gradients))
        total = self._average(total)
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
            if not self.one_part:
                vector = self._restricted(list(self.gradient(temperature).values()))
            first_digest = self.batches_digest
            total: list[Tensor] = []
            for part, weight in self._read():
                value = self._gradients.value(part, temperature)
                self.loss_value += _times(weight, [value.detach().to(widest(self.device))])[0]
                gradients = self._gradients.with_graph(value)
                if not vector:
                    vector = [gradient.detach() for gradient in gradients]
                    if not self.alone:
                        vector = [gradient / self.ranks for gradient in vector]
                        sum_over_ranks(self.group, vector)
                    self._note_saliency(vector)
                    vector = self._restricted(vector)
                total = added(total, _times(weight, self._gradients.product(gradients, vector)))
        if first_digest is not None and bool(first_digest != self.batches_digest):
            raise ValueError("the second reading of the batches returned other values; pass a list or a plain loader")
        total = self._average(total)
        return dict(zip(self.parameters, self._restricted(total), strict=True))

    # For the steps of a round.

    @contextmanager
    def at(self, masks: Masks | None, index: int, keep: int, batches: int = 1) -> Iterator["Probe"]:
        """Put the masks on the model for round `index`, and take them off at the end. None is the dense network."""
        self._masks, self.index, self.keep, self._count = masks, index, keep, batches
        self.generator = torch.Generator("cpu").manual_seed(digest.text(self.seed, "scores", index))
        self._forget()
        seed = digest.text(self.seed, "round", index)
        with forked(self.device, seed=seed), self._as_configured(), self._masking.under(masks):
            yield self

    def call(self) -> Any:
        """Return an `example`, read from the batches if need be; None if there is none."""
        if self.example is None and self.objective is None and self.batches.source is not None:
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
        """Return the digest of the batches of one round."""
        total = torch.zeros((), dtype=torch.int64, device=self.device)
        for batch in self.batches.in_round(index, count):
            total = self._chained(total, batch)
        return total

    # Private.

    @property
    def one_part(self) -> bool:
        """Whether a round is certain to differentiate one whole batch in each process."""
        return self.batches.single(self._count) and self.micro_batch is None and not self.shared

    def _read(self) -> Iterator[tuple[Any, float]]:
        """Yield the parts of the round's batches that this process differentiates, each with its share of its batch."""
        self.loss_value = torch.zeros((), dtype=widest(self.device), device=self.device)
        self.batches_digest = so_far = torch.zeros((), dtype=torch.int64, device=self.device)
        norms = batch_norms(bare(self.user_model)) if self.shared or self.micro_batch is not None else {}
        together = any(isinstance(norm, nn.SyncBatchNorm) for norm in norms.values())  # all ranks call them at once
        split = self.shared and (together or self.batches.single(self._count))
        number = 0
        for batch in self.batches.in_round(self.index, self._count):
            if samples(batch) == 0:
                raise ValueError(f"batch {number + 1} of round {self.index + 1} has no samples; leave it out")
            self.batches_digest = so_far = self._chained(so_far, batch)
            places = [(rank, self.ranks) for rank in range(self.ranks)] if split else [(0, 1)]
            parts = [list(micro_batches(batch, norms, self.micro_batch, *place)) for place in places]
            if len(parts) * len(parts[0]) > 1:
                self._gradients.check_mean(batch, [part for of_rank in parts for part, _ in of_rank])
            own = parts[self.rank] if split else parts[0] if number % self.ranks == self.rank or not self.shared else []
            if own:
                self._masking.silence(partial(self._gradients.value, own[0][0], 1.0))
            seed = digest.text(self.seed, self.index, number, *([self.rank] if split and self.rank else []))
            reseed(self.device, seed)  # so that dropout repeats when a batch is read again
            yield from own
            number += 1
        self._batches_read = number

    def _chained(self, total: Tensor, batch: Any) -> Tensor:
        return total * digest.MIX + self._digest(*tensors(batch)).to(total.device) + 1

    def _average(self, total: list[Tensor]) -> list[Tensor]:
        """Return the means over all batches from the sums over what this process has differentiated."""
        total = total or self._gradients.zeros()  # with fewer batches than ranks, some have nothing to do
        count: Any = self._batches_read
        if self.shards is not None:  # FSDP has averaged the gradients
            self.loss_value = self.shards.over_ranks(self.loss_value) / torch.distributed.get_world_size()
        elif not self.alone:
            counted = count if not self.shared or self.rank == 0 else 0
            numbers = torch.stack([self.loss_value, torch.full_like(self.loss_value, counted)])
            sum_over_ranks(self.group, [*total, numbers])
            self.loss_value, count = numbers
        if not self.alone or count > 1:
            self.loss_value = self.loss_value / count
            for tensor in total:
                tensor.div_(count)
        return total

    def _note_saliency(self, gradients: list[Tensor]) -> None:
        """Compute S(theta, c) of eq. 6, the sum of |theta dL/dtheta|: the model holds theta * c."""
        weights = [local(parameter.data) for parameter in self.parameters.values()]
        if self.device.type == "cuda":  # a few launches for all layers
            totals = torch.stack(torch._foreach_norm(torch._foreach_mul(weights, gradients), 1)).double()
        else:
            totals = torch.zeros(len(gradients), dtype=widest(self.device), device=self.device)
            for total, *pair in zip(totals, weights, gradients, strict=True):
                for weight, g in chunks(*pair):
                    if g.dim() == 1:  # |w| |g| is w with the sign of g, times g: one pass
                        total += torch.dot(weight.copysign(g), g)
                    else:
                        total += torch.linalg.vector_norm(weight * g, 1)
        self.saliency = (totals if self.shards is None else self.shards.sums(totals)).sum()

    def _restricted(self, values: list[Tensor]) -> list[Tensor]:
        if self._masks is None:
            return values
        return [value * mask for value, mask in zip(values, self._masks.values(), strict=True)]

    def _forget(self) -> None:
        not_a_number = torch.full((), torch.nan, dtype=widest(self.device), device=self.device)
        self.saliency, self.loss_value = not_a_number, not_a_number
        self.batches_digest = None
        self._batches_read = 0

    @contextmanager
    def _as_configured(self) -> Iterator[None]:
        plain = autocast("fp32", self.device, cache=False)  # a criterion's own autocast sees the weights of the moment
        with restored(self.user_model), trainable(self.parameters.values()), plain:
            for norm in self._norms:
                norm.training = self.bn == "batch"
            with torch.enable_grad(), uncheckpointed(), computing(self.device, self.precision):
                yield


def _times(weight: float, tensors: list[Tensor]) -> list[Tensor]:
    return tensors if weight == 1 else list(torch._foreach_mul(tensors, weight))


def _digest(*parts: Tensor) -> Tensor:
    return digest.of_tensors(parts)
