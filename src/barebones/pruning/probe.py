"""The probe: a model under masks, asked for gradients, left without a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ..gpu import kernels
from ..gpu.graphs import Captured
from ..masks import Masks, Scores, everything
from ..running import digest
from ..running.inputs import first_sample, mapped, tensors
from ..running.pieces import pieces
from ..running.precision import tf32
from ..running.rng import forked, reseed
from ..scope import Pattern, bare, prunable
from . import ranks as parallel
from .batches import Batches, Source

Loss = Callable[[Any, Any], Tensor]
Objective = Callable[[nn.Module, Any], Tensor]

LOSSES: dict[str, Loss] = {
    "cross-entropy": F.cross_entropy,
    "nll-on-logits": F.nll_loss,  # what the paper's own code applies to raw outputs; kept to reproduce it
}
PRECISIONS = ("fp32", "tf32", "bf16")


class Probe:
    """A model, its dense weights, an objective and batches: what a criterion may ask questions of.

    One probe lives for a whole run. Inside `with probe.at(masks, index, keep)` the model's prunable weights
    are theta * c; outside of it, and whenever control leaves it, the model is what it was: parameters,
    buffers, gradients, flags and the global generators.

    `weights` holds the dense theta by name (to read, not to change), `masks` the current c, `keep` how many
    weights this round will keep, and `generator` random numbers of this round's own.
    """

    keep: int
    index: int
    generator: torch.Generator
    saliency: Tensor  # S(theta, c) of eq. 6 at the last gradient
    loss_value: Tensor
    batches_digest: Tensor | None  # of what was read last

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
        if isinstance(loss, str) and loss not in LOSSES:
            raise ValueError(f"loss={loss!r}: choose one of {', '.join(LOSSES)}, or pass a function")
        if torch.is_inference_mode_enabled():
            raise ValueError("scoring needs gradients; leave torch.inference_mode() first")
        self.given = model
        self.model = _callable(model)
        self.parameters = prunable(model, scope, exclude)
        devices = {p.device for p in self.parameters.values()}
        if len(devices) > 1:
            raise ValueError(f"the prunable weights lie on several devices ({', '.join(map(str, devices))}); use one")
        self.device = devices.pop()
        if capture and self.device.type != "cuda":
            raise ValueError(f"capture=True records a CUDA graph, but the model is on {self.device}; leave it out")
        self.objective, self.loss = objective, LOSSES[loss] if isinstance(loss, str) else loss
        self.bn, self.precision, self.seed = bn, precision, seed
        self.batches = Batches(batches, seed, self.device)
        self.capture = capture
        self._gradients: dict[Any, Captured] = {}  # by the form of a batch and the temperature
        self._covering = Captured(self._cover) if capture else self._cover
        self.example = example  # what the model is called with: an input, or (args, kwargs)
        self._dense: dict[str, Tensor] = {}  # theta: copies, made once a mask is first put on
        self._masks: Masks | None = None
        self._put_on: Callable[[Tensor], None] | None = None
        self._beside: tuple[dict[str, Tensor], Callable[[Tensor], None]] | None = None  # masked weights, their maker
        self._pinned: Any = None  # the batch that a replay reads, in place of the next of the stream
        self._versions = self._current_versions()
        self._forget()

    @property
    def weights(self) -> dict[str, Tensor]:
        """The dense weights theta, whatever masks are on."""
        return {name: self._dense.get(name, p.data) for name, p in self.parameters.items()}

    @property
    def masks(self) -> Masks:
        """The masks that are on: c."""
        return everything(self.weights) if self._masks is None else self._masks

    @contextmanager
    def at(self, masks: Masks | None, index: int, keep: int, batches: int = 1) -> Iterator[Probe]:
        """Put the masks on (None: the dense network) for round `index`; take everything off again after."""
        if self._current_versions() != self._versions:
            raise ValueError("the model's weights were changed between two rounds; start again with a new probe")
        self._masks, self.index, self.keep, self._count = masks, index, keep, batches
        self.generator = torch.Generator("cpu").manual_seed(digest.text(self.seed, "scores", index))
        self._forget()
        if masks is not None:
            self._remember()
        with ExitStack() as stack:
            stack.enter_context(forked(self.device, seed=digest.text(self.seed, "round", index)))
            stack.enter_context(self._as_configured())
            stack.callback(self._take_off)
            if masks is not None:
                if self.device.type == "cuda":
                    self._covering(torch.cat([masks[name].reshape(-1) for name in self.parameters]))
                else:
                    for name, parameter in self.parameters.items():
                        for weight, mask, masked in pieces(self._dense[name], masks[name], parameter.data):
                            torch.mul(weight, mask.to(weight.dtype), out=masked)
            yield self

    @contextmanager
    def covered(self, masks: Tensor, batch: Any, noting: bool) -> Iterator[None]:
        """Within `at(None, ...)`: flat masks on, all gradients of this batch, masks off again. It can be captured.

        The masked weights lie beside the model's own, and batch-norms keep no statistics: a replay changes neither.
        Without `noting` the saliency is left to who is inside.
        """
        own = {name: p.data for name, p in self.parameters.items()}
        if self._beside is None:
            there = {name: torch.empty_like(weight) for name, weight in own.items()}
            self._beside = there, _masking(list(own.values()), list(there.values()))
        norms = [m for m in self.given.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
        outside = self._dense, self.capture
        self._dense, self._pinned, self._noting = own, batch, noting
        self.capture = False  # this is within a capture
        try:
            for norm in norms:
                norm.track_running_stats = False
            for name, parameter in self.parameters.items():
                parameter.data = self._beside[0][name]
            self._beside[1](masks)
            yield
        finally:
            for name, parameter in self.parameters.items():
                parameter.data = own[name]
            for norm in norms:
                norm.track_running_stats = True
            self._pinned = None
            self._dense, self.capture = outside

    def next_batch(self) -> Any:
        """The round's only batch, and everything seeded for it."""
        batch = next(self.batches.of(self.index, 1))
        reseed(self.device, digest.text(self.seed, self.index, 0))
        return batch

    @property
    def alone(self) -> bool:
        """Whether no other process shares the gradients."""
        return parallel.ranks(self.given) == 1

    def _remember(self) -> None:
        if not self._dense:
            self._dense = {name: p.data.clone() for name, p in self.parameters.items()}

    def gradient(self, temperature: float = 1.0) -> dict[str, Tensor]:
        """The gradient of the loss at theta * c for every prunable weight, pruned ones too, at least float32.

        Over several batches it is the mean of the signed gradients. The tensors belong to the caller; captured ones
        are overwritten by the next gradient.
        """
        total: list[Tensor] = []
        single = self.capture and self.batches.single(self._count)
        for batch in self._read():
            value, noted, found = self._gradient_of(batch, temperature)
            self.loss_value += value
            total = _added(total, found if single or total or not self.capture else [g.clone() for g in found])
        self._average(total)
        if single and parallel.ranks(self.given) == 1:
            self.saliency = noted
        else:
            self._note_saliency(total)
        return dict(zip(self.parameters, total, strict=True))

    def _gradient_of(self, batch: Any, temperature: float) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Loss, S(theta, c) where it is captured, and gradient of one batch."""
        if not self.capture:
            value = self._evaluate(batch, temperature)
            return value.detach().double(), value, self._differentiate(value)
        form, leaves = taken_apart(batch)

        def compute(*tensors: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
            places = iter(tensors)
            value = self._evaluate(mapped(form, lambda _: next(places)), temperature)
            found = self._differentiate(value)
            return value.detach().double(), self._noted(found), found

        return self._gradients.setdefault((repr(form), temperature), Captured(compute))(*leaves)

    def _cover(self, masks: Tensor) -> None:
        """Put flat masks on: the model's weights become theta * c."""
        if self._put_on is None:
            self._put_on = _masking(list(self._dense.values()), [p.data for p in self.parameters.values()])
        self._put_on(masks)

    def hessian_product(self, temperature: float = 1.0) -> dict[str, Tensor]:
        """H g at theta * c over the weights that c keeps: (mean H)(mean g) over the round's batches.

        Of a single batch both come from one graph; several are read twice, for g and then for H g.
        """
        vector: list[Tensor] = []
        with _uncompiled(self.model), sdpa_kernel(SDPBackend.MATH):  # neither has second derivatives
            if not self.batches.single(self._count):
                vector = self._restricted(list(self.gradient(temperature).values()))
            first = self.batches_digest
            total: list[Tensor] = []
            for batch in self._read():
                value = self._evaluate(batch, temperature)
                self.loss_value += value.detach().double()
                own = self._differentiate(value, create_graph=True)
                if not vector:
                    vector = [g.detach() for g in own]
                    if parallel.ranks(self.given) > 1:
                        vector = [g.clone() for g in vector]
                        parallel.mean_over_ranks(self.given, vector)
                    self._note_saliency(vector)
                    vector = self._restricted(vector)
                total = _added(total, self._differentiate(own, vector))
        if first is not None and bool(first != self.batches_digest):
            raise ValueError("the batches were others when read a second time; pass a list, or a loader without state")
        self._average(total)
        return dict(zip(self.parameters, self._restricted(total), strict=True))

    def call(self) -> Any:
        """What the model is called with, one sample of it where that can be told: an input, or (args, kwargs).

        The `example` given, or else seen at the first batch; None where there is neither.
        """
        if self.example is None and self.objective is None and self.batches.repeatable:
            batch = next(self.batches.of(0, 1))
            if isinstance(batch, list | tuple) and batch:
                self.example = first_sample(((batch[0],), {}))
        return self.example

    def weights_digest(self) -> Tensor:
        """Of all that decides the scores and is not a batch: every parameter, and the buffers where norms use them."""
        every = [*self.given.parameters(), *(self.given.buffers() if self.bn == "eval" else ())]
        large = [t for t in every if t.dim() > 1]
        rows = _by_kind([t for t in every if t.dim() <= 1])  # many small ones, of each kind in one row
        return digest.content([*large, *(torch.cat([t.reshape(-1) for t in row]) for row in rows.values())])

    def digest_of(self, index: int, count: int) -> Tensor:
        """The digest of the batches of one round, read for nothing else."""
        total = torch.zeros((), dtype=torch.int64, device=self.device)
        for batch in self.batches.of(index, count):
            total = _chained(total, batch)
        return total

    def _read(self) -> Iterator[Any]:
        """The round's batches, each under its own seed: what is random in the model repeats with the batch."""
        self.loss_value = torch.zeros((), dtype=torch.float64, device=self.device)
        self.batches_digest = read = torch.zeros((), dtype=torch.int64, device=self.device)
        if self._pinned is not None:
            self.batches_digest = _chained(read, self._pinned)
            self._taken = 1
            yield self._pinned
            return
        number = 0
        for batch in self.batches.of(self.index, self._count):
            self.batches_digest = read = _chained(read, batch)
            reseed(self.device, digest.text(self.seed, self.index, number))
            yield batch
            number += 1
        self._taken = number
        self.loss_value /= number

    def _evaluate(self, batch: Any, temperature: float) -> Tensor:
        self._foreign = {t.data_ptr() for t in (*tensors(batch), *self.given.parameters(), *self.given.buffers())}
        autocast = torch.autocast(  # within another one, its cache would hold weights of earlier masks
            self.device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False
        )
        with autocast, self._seeing(), self._cooled(temperature):
            if self.objective is not None:
                value = self.objective(self.model, batch)
            else:
                if not isinstance(batch, list | tuple) or len(batch) != 2:
                    raise ValueError(
                        f"a batch is a pair (input, target), but this one is a {type(batch).__name__}; pass "
                        "objective=lambda model, batch: ... for batches of another form"
                    )
                value = self.loss(self.model(batch[0]), batch[1])
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"the loss must be a scalar tensor, not {shape}; reduce it with mean() or sum()")
        if not value.requires_grad:
            raise ValueError("the loss does not depend on the weights: it carries no gradient (detached, or no_grad?)")
        return value.reshape(())

    def _differentiate(
        self, outputs: Tensor | list[Tensor], vectors: list[Tensor] | None = None, create_graph: bool = False
    ) -> list[Tensor]:
        parameters = list(self.parameters.values())
        if vectors is not None:  # a product with second derivatives, which vanish where a gradient is constant
            pairs = [(o, v) for o, v in zip(outputs, vectors, strict=True) if o.requires_grad]
            outputs, vectors = [o for o, _ in pairs], [v for _, v in pairs]
            if not pairs:
                return [torch.zeros_like(p, dtype=_at_least_float(p)) for p in parameters]
        found = torch.autograd.grad(outputs, parameters, vectors, create_graph=create_graph, allow_unused=True)
        if vectors is None and all(g is None for g in found):
            raise ValueError("the loss does not depend on any prunable weight; check scope= and the objective")
        result = [
            torch.zeros_like(p, dtype=_at_least_float(p)) if g is None else g.to(_at_least_float(p))
            for g, p in zip(found, parameters, strict=True)
        ]
        return result if create_graph else _unshared(result, self._foreign)

    def _average(self, total: list[Tensor]) -> None:
        if self._taken > 1:
            for tensor in total:
                tensor.div_(self._taken)
        if parallel.ranks(self.given) > 1:
            parallel.mean_over_ranks(self.given, total)

    def _noted(self, gradient: list[Tensor]) -> Tensor:
        """S(theta, c), with a few launches for all layers."""
        products = torch._foreach_mul([p.data for p in self.parameters.values()], gradient)
        return torch.stack(torch._foreach_norm(products, 1)).double().sum()

    def _note_saliency(self, gradient: list[Tensor]) -> None:
        """S(theta, c) of eq. 6: the sum over the kept weights of |theta dL/dtheta|; the model holds theta * c."""
        if self._pinned is not None:
            if self._noting:
                self.saliency = self._noted(gradient)
            return
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for parameter, own in zip(self.parameters.values(), gradient, strict=True):
            for weight, g in pieces(parameter.data, own):
                if g.dim() == 1 and g.device.type == "cpu":  # |w| |g| is w with the sign of g, times g: one pass
                    total += torch.dot(weight.copysign(g), g)
                else:
                    total += torch.linalg.vector_norm(weight * g, 1)
        self.saliency = total

    def _restricted(self, tensors: list[Tensor]) -> list[Tensor]:
        if self._masks is None:
            return tensors
        return [t * mask for t, mask in zip(tensors, self._masks.values(), strict=True)]

    def _forget(self) -> None:
        nothing = torch.full((), torch.nan, dtype=torch.float64, device=self.device)
        self.saliency, self.loss_value = nothing, nothing
        self.batches_digest = None
        self._taken = 0

    @contextmanager
    def _seeing(self) -> Iterator[None]:
        """Note what the model is called with, the first time."""
        if self.example is not None:
            yield
            return

        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.example = first_sample((args, kwargs)) if self.example is None else self.example

        hook = self.model.register_forward_pre_hook(note, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    @contextmanager
    def _cooled(self, temperature: float) -> Iterator[None]:
        """The model's output divided by the temperature, where it is a tensor."""
        if temperature == 1.0:
            yield
            return

        def divide(_: nn.Module, __: Any, output: Any) -> Any:
            return output / temperature if isinstance(output, Tensor) else output

        hook = self.model.register_forward_hook(divide)
        try:
            yield
        finally:
            hook.remove()

    @contextmanager
    def _as_configured(self) -> Iterator[None]:
        """Flags, buffers and precision as this probe wants them, and as they were after."""
        modules = list(self.given.modules())
        flags = [module.training for module in modules]
        buffers = [(module._buffers, dict(module._buffers)) for module in modules if module._buffers]
        kept = _Kept([b for _, own in buffers for b in own.values() if b is not None])
        frozen = [p for p in self.parameters.values() if not p.requires_grad]
        gradients = [(p, p.grad) for p in self.given.parameters()]
        try:
            for parameter, gradient in gradients:
                if gradient is not None:
                    parameter.grad = None  # an objective that calls backward() must not add to the caller's
            for module in modules:
                if isinstance(module, _NormBase):  # the norms with running statistics
                    _set_training(module, self.bn == "batch")
            for parameter in frozen:
                parameter.requires_grad_(True)
            with torch.enable_grad(), tf32(self.device, self.precision != "fp32"):
                yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)
            for parameter, gradient in gradients:
                if parameter.grad is not gradient:
                    parameter.grad = gradient
            for module, flag in zip(modules, flags, strict=True):
                _set_training(module, flag)
            for table, own in buffers:
                if list(map(id, table.values())) != list(map(id, own.values())):
                    table.clear()
                    table.update(own)
            kept.put_back()

    def _take_off(self) -> None:
        if self._masks is not None:
            torch._foreach_copy_([p.data for p in self.parameters.values()], [self._dense[n] for n in self.parameters])

    def _current_versions(self) -> list[tuple[int, int]]:
        return [(p._version, p.data_ptr()) for p in self.parameters.values()]


def _masking(dense: list[Tensor], weights: list[Tensor]) -> Callable[[Tensor], None]:
    """What takes flat masks and writes the dense weights, masked, into the others; with one launch where it can."""
    if kernels.available(weights[0].device) and kernels.Covering.fits(dense, weights):
        return kernels.Covering(dense, weights)

    def cover(masks: Tensor) -> None:
        parts = masks.split([w.numel() for w in weights])
        for weight, masked, mask in zip(dense, weights, parts, strict=True):
            torch.mul(weight, mask.view(weight.shape), out=masked)

    return cover


def not_finite(scores: Scores, probe: Probe) -> Tensor:
    """Whether the loss, then each layer's scores, hold anything that is not finite; a bool vector."""
    loss = probe.loss_value.isinf() if probe.batches_digest is None else ~probe.loss_value.isfinite()
    values = list(scores.values())
    if loss.device.type == "cuda" and all(v.dtype == torch.float32 for v in values):  # a few launches for all layers
        return torch.cat([loss.view(1), ~torch.stack(torch._foreach_norm(values, math.inf)).isfinite()])
    flags = [loss, *(_has_not_finite(score) for score in scores.values())]
    return torch.stack(flags)


def _has_not_finite(score: Tensor) -> Tensor:
    if score.device.type == "cpu" and score.is_floating_point() and score.sum().isfinite():
        return torch.zeros((), dtype=torch.bool, device="cpu")  # the cheap way; a sum may overflow where no score does
    return ~score.isfinite().all()


class _Kept:
    """The values of some tensors, to be put back; on an accelerator in few launches."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.values = [
            (group, torch.cat([t.detach().reshape(-1) for t in group])) for group in _by_kind(tensors).values()
        ]

    def put_back(self) -> None:
        for group, flat in self.values:
            parts = flat.split([t.numel() for t in group])
            torch._foreach_copy_([t.data for t in group], [p.view(t.shape) for p, t in zip(parts, group, strict=True)])


def _by_kind(tensors: list[Tensor]) -> dict[Any, list[Tensor]]:
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return groups


def _set_training(module: nn.Module, flag: bool) -> None:
    if module.training != flag:
        module.training = flag


def _callable(model: nn.Module) -> nn.Module:
    """What to call: a compiled model as it is, a data-parallel one without its wrapper.

    Gradients are asked for directly, which skips the wrapper's own reduction; `parallel` does that instead.
    """
    inside = model
    while type(inside).__name__ == "OptimizedModule":
        inside = inside._orig_mod  # type: ignore[assignment]
    return bare(model) if type(inside).__name__ in ("DataParallel", "DistributedDataParallel") else model


def _uncompiled(model: nn.Module) -> AbstractContextManager[Any]:
    compiled = any(type(m).__name__ == "OptimizedModule" or m._compiled_call_impl for m in model.modules())
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def taken_apart(batch: Any) -> tuple[Any, list[Tensor]]:
    """The form of a batch and the tensors in it; `mapped` puts others in their places."""
    leaves: list[Any] = []
    form = mapped(batch, leaves.append)
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        raise ValueError("a batch with more than tensors in it cannot be captured; leave out capture=True")
    return form, leaves


def _chained(total: Tensor, batch: Any) -> Tensor:
    return total * digest.MIX + digest.content(tensors(batch)).to(total.device) + 1


def _at_least_float(parameter: Tensor) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)


def _unshared(tensors: list[Tensor], foreign: set[int]) -> list[Tensor]:
    """Tensors that may be changed in place.

    Autograd may hand out one gradient for two weights that are added, an expanded one, or what a function saved.
    """
    seen = set(foreign)
    mine = []
    for tensor in tensors:
        if tensor.data_ptr() in seen or 0 in tensor.stride():
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        seen.add(tensor.data_ptr())
        mine.append(tensor)
    return mine


def _added(total: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    return [a.add_(b) for a, b in zip(total, more, strict=True)] if total else more
