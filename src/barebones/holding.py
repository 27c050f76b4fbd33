"""Holding: keep pruned weights at exactly zero during training, with any optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn, optim
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop, Rprop, SparseAdam
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from .masks import Masks
from .messages import shortened
from .running.precision import INTEGER
from .running.shards import count, is_sharded, local, sharded_like
from .scope import matched, parameters

if TYPE_CHECKING:
    from .gpu.clearing import Clearing

# Optimizers that update each weight from its own gradient and state alone, so that it is enough to zero the pruned
# weights after a step. Exact types count. Not among them: Muon and LBFGS combine weights, Adafactor uses norms, and the
# state of ASGD holds averaged weights, which are a result.
ELEMENTWISE = {SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta, Adamax, NAdam, RAdam, Rprop, SparseAdam}

# Wrappers that only call the optimizer in their attribute `optimizer`, by class name: nothing needs to be imported.
WRAPPERS = {"AcceleratedOptimizer", "LightningOptimizer"}

HALVES = ("first_step", "second_step", "ascent_step", "descent_step")  # of a step, as SAM and its kin call them

Masked = tuple[str, nn.Parameter, Tensor]  # the name of a weight, the weight and its mask
STALE = "it was probably built for another model, or before this one was copied, wrapped or moved; build it again"


class Hold:
    """Keeps pruned weights at zero until `remove()` or the end of its `with` block; made by `hold`."""

    def __init__(self, model: nn.Module, masked: list[Masked], optimizers: list[Optimizer], gradients: bool) -> None:
        self.model, self.optimizers, self.gradients = model, optimizers, gradients
        self._hooks: list[RemovableHandle] = []
        self._bits: dict[nn.Parameter, Tensor] = {}  # integers of the parameter's width: -1 keeps, 0 prunes
        self._clearings: dict[Any, tuple[list[nn.Parameter], Clearing]] = {}  # by the layout of the weights
        self._take(masked)
        self.apply()
        self._register()
        for optimizer in optimizers:
            for half in filter(partial(hasattr, optimizer), HALVES):
                setattr(optimizer, half, self._around(optimizer, getattr(optimizer, half)))

    def _take(self, masked: list[Masked]) -> None:
        self._named = {name: p for name, p, _ in masked}
        before, self._bits = self._bits, {}
        for _, p, mask in masked:
            bits = before.get(p)  # in the memory of the last masks, where a CUDA graph of a step reads them
            if bits is not None or not local(mask).all():
                if bits is None or bits.is_inference():  # the layout of the weight is three times faster than another
                    bits = torch.empty_like(local(p), dtype=INTEGER[p.element_size()])
                self._bits[p] = bits.copy_(local(mask)).neg_()
        same = before.keys() == self._bits.keys()  # and no weight lies elsewhere in memory, as in another layout
        self._clearings = {key: each for key, each in self._clearings.items() if same and key == _layout(each[0])}
        for held, clearing in self._clearings.values():
            clearing.keep(self._kept(held))

    def _register(self) -> None:
        for optimizer in self.optimizers:
            if type(optimizer) not in ELEMENTWISE:
                self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
            self._hooks.append(optimizer.register_step_post_hook(self._after_step))
            self._hooks.append(optimizer.register_load_state_dict_post_hook(self._clear_state))
        for parameter in self._named.values() if self.gradients else ():
            trains = parameter.requires_grad
            self._hooks.append(parameter.requires_grad_().register_post_accumulate_grad_hook(self._clear_gradient))
            parameter.requires_grad_(trains)  # torch puts no hook on a frozen parameter, but keeps one that is there

    def apply(self) -> None:
        """Zero the pruned weights, their gradients and their optimizer state now.

        >>> layer = nn.Linear(2, 1)
        >>> handle = hold(layer, {"weight": torch.tensor([[True, False]])}, SGD(layer.parameters()))
        >>> _ = nn.init.ones_(layer.weight)  # or load_state_dict of a dense network
        >>> handle.apply()
        >>> layer.weight.tolist()
        [[1.0, 0.0]]
        """
        for parameter in self._bits:
            _clear(parameter, self._bits_for(parameter))
            self._clear_gradient(parameter)
        for optimizer in self.optimizers:
            self._clear_state(optimizer)

    def clear(self, parameters: Sequence[nn.Parameter], tensors: Sequence[Tensor]) -> None:
        """Zero what belongs to pruned weights in tensors of these parameters' shapes, with one launch if possible."""
        held = [(p, t) for p, t in zip(parameters, tensors, strict=True) if p in self._bits]
        alike = all((p.dtype, p.device, p.stride()) == (t.dtype, t.device, t.stride()) for p, t in held)
        if held and alike and (clearing := self._in_one_launch([p for p, _ in held])) is not None:
            clearing([t for _, t in held])
            return
        for parameter, tensor in held:
            _clear(tensor, self._bits_for(parameter))

    @property
    def active(self) -> bool:
        """Whether it has not been removed."""
        return bool(self._hooks)

    def remove(self) -> None:
        """Stop holding. Weights and optimizer stay as they are; call `apply` first to leave a clean state."""
        while self._hooks:
            self._hooks.pop().remove()

    def state_dict(self) -> Masks:
        """Return a copy of the masks: with the states of model and optimizer, this is all a checkpoint needs."""
        masks = Masks()
        for name, p in self._named.items():
            kept = self._bits_for(p) != 0 if p in self._bits else torch.ones_like(local(p), dtype=torch.bool)
            masks[name] = sharded_like(kept, p)
        return masks

    def load_state_dict(self, masks: Mapping[str, Tensor]) -> None:
        """Hold other masks of the same weights from now on, and zero what they prune.

        Call it before the optimizer loads its own state, which is cleared by the masks of that moment. A CUDA graph of
        a step stays valid if masks without a pruned weight still have none.

        >>> layer = nn.Linear(2, 1)
        >>> handle = hold(layer, {"weight": torch.tensor([[True, False]])}, SGD(layer.parameters()))
        >>> handle.load_state_dict({"weight": torch.tensor([[False, True]])})
        >>> handle.state_dict()["weight"].tolist()
        [[False, True]]
        """
        masked = matched(self.model, masks)
        if differing := sorted(masks.keys() ^ self._named.keys()):
            raise ValueError(f"the masks are of other weights ({shortened(differing)}); call hold with them instead")
        self._take(masked)
        self.apply()

    def exchange(self, masks: Masks) -> None:
        """Hold these masks from now on. What they prune, and what they newly keep, becomes zero, with its state.

        An optimizer may have a state of pruned weights, too, which they must not begin with.
        """
        masked = [(name, p, masks[name]) for name, p in self._named.items()]
        bits, self._bits = self._bits, {p: self._bits_for(p) * mask for _, p, mask in masked if p in self._bits}
        try:
            self.apply()
        finally:
            self._bits = bits
        self._take(masked)

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Clear the gradients before a step, and those of its closure."""

        def wrapped(closure: Any) -> Any:
            def evaluate(*args: Any, **kwargs: Any) -> Any:
                self._clear_weights(optimizer)  # the optimizer may have moved them, for example in a line search
                loss = closure(*args, **kwargs)
                self._clear_gradients(optimizer)
                return loss

            return evaluate if callable(closure) else closure

        self._clear_gradients(optimizer)
        args = (*args[:1], *map(wrapped, args[1:2]), *args[2:])  # args[0] is the optimizer, args[1] the closure
        return args, {name: wrapped(value) if name == "closure" else value for name, value in kwargs.items()}

    def _around(self, optimizer: Optimizer, method: Callable[..., Any]) -> Callable[..., Any]:

        def cleared(*args: Any, **kwargs: Any) -> Any:
            if not self._hooks:
                return method(*args, **kwargs)
            self._clear_gradients(optimizer)
            result = method(*args, **kwargs)
            self._after_step(optimizer, args, kwargs)
            return result

        return cleared

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._clear_weights(optimizer)
        if type(optimizer) not in ELEMENTWISE:
            self._clear_state(optimizer)

    def _bits_for(self, parameter: Tensor) -> Tensor:
        """Return the bits for the parameter's present device and width: `model.to` may change both."""
        assert isinstance(parameter, nn.Parameter)
        self._bits[parameter] = self._bits[parameter].to(parameter.device, INTEGER[parameter.element_size()])
        return self._bits[parameter]

    def _held_by(self, optimizer: Optimizer) -> Iterator[nn.Parameter]:
        """Yield the held parameters of an optimizer; parameter groups may be added at any time."""
        return (p for group in optimizer.param_groups for p in group["params"] if p in self._bits)

    def _clear_weights(self, optimizer: Optimizer) -> None:
        held = list(self._held_by(optimizer))
        self.clear(held, held)

    def _in_one_launch(self, held: list[nn.Parameter]) -> Clearing | None:
        """Return the kernel that clears all these weights, or None if it cannot be used."""
        first = held[0]
        if first.device.type != "cuda" or any(map(is_sharded, held)):
            return None
        from .gpu import clearing  # here, because loading Triton takes a while

        layout = _layout(held)
        if layout not in self._clearings:
            if any((p.device, p.element_size()) != (first.device, first.element_size()) for p in held):
                return None
            if clearing.triton is None or first.element_size() < 2 or not all(map(clearing.dense, held)):
                return None
            self._clearings[layout] = held, clearing.Clearing(held, self._kept(held))
        return self._clearings[layout][1]

    def _kept(self, held: list[nn.Parameter]) -> list[Tensor]:
        """Return the bits with the memory layouts of their weights."""
        found = ((p, self._bits_for(p)) for p in held)
        return [b if b.stride() == p.stride() else torch.empty_like(p, dtype=b.dtype).copy_(b) for p, b in found]

    def _clear_gradients(self, optimizer: Optimizer) -> None:
        for parameter in self._held_by(optimizer):
            self._clear_gradient(parameter)

    def _clear_gradient(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse and parameter in self._bits:  # the gradient of an embedding
            parameter.grad = gradient = gradient.coalesce()
            _clear(gradient.values(), self._bits_for(parameter)[tuple(gradient.indices())])
        elif gradient is not None and parameter in self._bits:
            _clear(gradient, self._bits_for(parameter))

    def _clear_state(self, optimizer: Optimizer) -> None:
        """Clear state tensors of their parameter's shape, and reset L-BFGS if it would move pruned weights."""
        for parameter in self._held_by(optimizer):
            inner = getattr(getattr(optimizer, "base_optimizer", None), "state", {})  # of SAM
            for value in tree_leaves([optimizer.state.get(parameter), inner.get(parameter)]):
                same = isinstance(value, Tensor) and value.shape == parameter.shape
                if same and value.is_floating_point():  # 0 is not zero in a quantized state
                    _clear(value, self._bits_for(parameter))
        if isinstance(optimizer, optim.LBFGS):
            params = optimizer.param_groups[0]["params"]
            if (direction := optimizer.state.get(params[0], {}).get("d")) is not None:  # of all weights, flat
                directions = dict(zip(params, direction.split([p.numel() for p in params]), strict=True))
                held = self._held_by(optimizer)
                if any(directions[p].view(p.shape)[self._bits_for(p) == 0].any() for p in held):
                    optimizer.state.clear()  # it remembers the curvature of the dense network


def hold(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    optimizer: Optimizer | Iterable[Optimizer],
    *,
    gradients: bool = False,
) -> Hold:
    """Keep pruned weights at exactly 0.0 during training: now, and after every step of the optimizer(s).

    Pruned weights, their gradients and their optimizer state (the tensors of the weight's shape) become zero at once.
    Torch's elementwise optimizers only need the weights cleared after each step. For any other optimizer, gradients are
    cleared before each step and in its closure, and weights and state after it, so that pruned weights influence no
    norm, trust ratio or preconditioner. `gradients=True` also clears each gradient when `backward` accumulates it, so
    that gradient clipping and logged norms see only the pruned network. A copy of the model and the optimizer is not
    held: call `hold` for it. Optimizers that accelerate or Lightning has wrapped are unwrapped.

    >>> model = nn.Linear(2, 1)
    >>> optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    >>> with hold(model, {"weight": torch.tensor([[True, False]])}, optimizer):
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         model(torch.ones(4, 2)).square().mean().backward()
    ...         optimizer.step()
    >>> model.weight[0, 1].item()
    0.0
    """
    masked = matched(model, masks)
    if not masked:
        raise ValueError("masks is empty, so there is nothing to hold; pass result.masks")
    optimizers = list(map(unwrapped, optimizer if isinstance(optimizer, Iterable) else [optimizer]))
    optimized = _optimized(model, optimizers)
    if not any(parameter in optimized for _, parameter, _ in masked):
        raise ValueError(f"the optimizer has none of the {len(masked)} masked parameters: {STALE}")
    if loose := [name for name, parameter, _ in masked if parameter.requires_grad and parameter not in optimized]:
        warnings.warn(
            f"no optimizer has {shortened(loose)}: these pruned weights are zeroed now but not held; pass every "
            "optimizer that trains them",
            stacklevel=2,
        )
    return Hold(model, masked, optimizers, gradients)


def holds(optimizer: Optimizer) -> list[Hold]:
    """Return what holds weights of an optimizer now."""
    hooks = optimizer._optimizer_step_post_hooks.values()
    return [held for hook in hooks if isinstance(held := getattr(hook, "__self__", None), Hold)]


def unwrapped(optimizer: Any) -> Any:
    while any(kind.__name__ in WRAPPERS for kind in type(optimizer).__mro__):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, Optimizer) or not hasattr(optimizer, "_optimizer_step_post_hooks"):
        name = type(optimizer).__name__
        raise ValueError(f"{name} is not a torch.optim.Optimizer; if it wraps one, pass the wrapped optimizer")
    return optimizer


def _optimized(model: nn.Module, optimizers: list[Optimizer]) -> set[nn.Parameter]:
    """Return all parameters of the optimizers, each of which must have some of the model's."""
    of_model, optimized = set(parameters(model).values()), set()
    for optimizer in optimizers:
        of_optimizer = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        if of_optimizer.isdisjoint(of_model):
            raise ValueError(f"the optimizer {type(optimizer).__name__} has none of the model's parameters: {STALE}")
        optimized |= of_optimizer
    return optimized


def audit(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Check that every pruned weight is exactly zero; if not, raise a `ValueError` with layers and counts.

    >>> audit(nn.Linear(2, 1), {"weight": torch.tensor([[True, False]])})
    Traceback (most recent call last):
    ValueError: 1 pruned weight is not zero: weight (1 of 1); hold the masks during training, or call apply()
    """
    masked = matched(model, masks)
    nonzero = {name: count(sharded_like((local(w) != 0) & ~local(mask), w)) for name, w, mask in masked}
    if total := sum(nonzero.values()):
        layers = [f"{name} ({n} of {mask.numel() - count(mask)})" for name, _, mask in masked if (n := nonzero[name])]
        weights = "1 pruned weight is" if total == 1 else f"{total} pruned weights are"
        raise ValueError(f"{weights} not zero: {shortened(layers)}; hold the masks during training, or call apply()")


def _layout(held: Sequence[nn.Parameter]) -> tuple[Any, ...]:
    return tuple((id(p), p.device, p.dtype, p.stride()) for p in held)


def _clear(tensor: Tensor, bits: Tensor) -> None:
    """Set the pruned entries to 0.0 in place, by a bitwise "and" with 0 where pruned and -1 where kept.

    It is as fast as a product with a float mask (`masked_fill_` is 2 to 10 times slower on a CPU), and it also turns
    NaN, infinity and -0.0 into 0.0.
    """
    integer = INTEGER[tensor.element_size()]
    local(tensor).detach().view(integer).bitwise_and_(bits.to(tensor.device, integer))
