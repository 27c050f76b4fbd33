"""Holding: pruned weights stay at exactly zero while the others train, under any optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop, Rprop, SparseAdam
from torch.utils.hooks import RemovableHandle

from .gpu import kernels
from .scope import matched, parameters

# Optimizers that update each weight from its own gradient and state alone: what a pruned weight gathers reaches
# no other, and zeroing the weights after a step is enough. Exact types, since a subclass may do more. Left out:
# Muon and LBFGS mix weights, Adafactor takes norms, and ASGD's state holds averaged weights, which are a result.
ELEMENTWISE = {SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta, Adamax, NAdam, RAdam, Rprop, SparseAdam}

# A weight is cleared by a bitwise "and": with 0 where pruned, with all ones where kept. That is as fast as a product
# with a float mask (masked_fill_: 2 to 10 times slower on a CPU), and NaN, infinity and -0.0 become 0.0 as well.
INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes per element


class Hold:
    """What keeps pruned weights at zero, until `remove()` or the end of its `with` block; `hold` makes it."""

    def __init__(self, bits: dict[nn.Parameter, Tensor], optimizers: list[Optimizer], gradients: bool) -> None:
        self._bits = bits  # per parameter, integers of its width: -1 keeps, 0 prunes
        self._optimizers = optimizers
        self._hooks: list[RemovableHandle] = []
        self._clearing: tuple[Any, kernels.Clearing] | None = None
        self.apply()
        for optimizer in optimizers:
            if type(optimizer) not in ELEMENTWISE:
                self._hooks.append(optimizer.register_step_pre_hook(self._before))
            self._hooks.append(optimizer.register_step_post_hook(self._after))
            self._hooks.append(optimizer.register_load_state_dict_post_hook(self._clear_state))
        for parameter in bits if gradients else ():
            trains = parameter.requires_grad
            self._hooks.append(parameter.requires_grad_().register_post_accumulate_grad_hook(self._clear_gradient))
            parameter.requires_grad_(trains)  # a hook outlasts freezing, but does not go on a frozen parameter

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
            _clear(parameter, self._bits_of(parameter))
            self._clear_gradient(parameter)
        for optimizer in self._optimizers:
            self._clear_state(optimizer)

    def remove(self) -> None:
        """End the holding. Weights and optimizer stay as they are; `apply` before it leaves clean state."""
        while self._hooks:
            self._hooks.pop().remove()

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Before a step of an unknown optimizer: clear the gradients, those its closure will compute too."""

        def pruned(closure: Any) -> Any:
            def evaluate(*args: Any, **kwargs: Any) -> Any:
                self._clear_weights(optimizer)  # a line search or a perturbation may have moved them
                loss = closure(*args, **kwargs)
                self._clear_gradients(optimizer)
                return loss

            return evaluate if callable(closure) else closure

        self._clear_gradients(optimizer)
        args = (*args[:1], *map(pruned, args[1:2]), *args[2:])  # the optimizer itself, then the closure
        return args, {name: pruned(value) if name == "closure" else value for name, value in kwargs.items()}

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._clear_weights(optimizer)
        if type(optimizer) not in ELEMENTWISE:
            self._clear_state(optimizer)

    def _bits_of(self, parameter: Tensor) -> Tensor:
        """The parameter's bits, where it is now and as wide as it is now: `model.to` may come at any time."""
        assert isinstance(parameter, nn.Parameter)
        self._bits[parameter] = self._bits[parameter].to(parameter.device, INTEGER[parameter.element_size()])
        return self._bits[parameter]

    def _of(self, optimizer: Optimizer) -> Iterator[nn.Parameter]:
        """The held parameters of an optimizer, asked anew each time: groups may be added."""
        return (p for group in optimizer.param_groups for p in group["params"] if p in self._bits)

    def _clear_weights(self, optimizer: Optimizer) -> None:
        held = list(self._of(optimizer))
        if held and (clearing := self._all_at_once(held)) is not None:
            clearing(held)
            return
        for parameter in held:
            _clear(parameter, self._bits_of(parameter))

    def _all_at_once(self, held: list[nn.Parameter]) -> kernels.Clearing | None:
        """What clears all these weights with one launch, where they are on a GPU that has it."""
        first = held[0]
        if not kernels.available(first.device):
            return None
        layout = [(id(p), p.device, p.dtype, p.stride()) for p in held]
        if self._clearing is None or self._clearing[0] != layout:
            if any((p.device, p.element_size()) != (first.device, first.element_size()) for p in held):
                return None
            if first.element_size() < 2 or not all(kernels.dense(p) for p in held):
                return None
            kept = [torch.empty_like(p, dtype=torch.bool).copy_(self._bits_of(p) != 0) for p in held]
            self._clearing = layout, kernels.Clearing(held, kept)
        return self._clearing[1]

    def _clear_gradients(self, optimizer: Optimizer) -> None:
        for parameter in self._of(optimizer):
            self._clear_gradient(parameter)

    def _clear_gradient(self, parameter: Tensor) -> None:
        gradient, bits = parameter.grad, self._bits_of(parameter)
        if gradient is not None and gradient.is_sparse:  # of an embedding
            parameter.grad = gradient = gradient.coalesce()
            _clear(gradient.values(), bits[tuple(gradient.indices())])
        elif gradient is not None:
            _clear(gradient, bits)

    def _clear_state(self, optimizer: Optimizer) -> None:
        """Clear all state that is shaped as its parameter, and a memory of L-BFGS that would move pruned weights."""
        for parameter in self._of(optimizer):
            for value in _tensors(optimizer.state.get(parameter)):
                if value.shape == parameter.shape and value.is_floating_point():  # in a quantized state 0 is no zero
                    _clear(value, self._bits_of(parameter))
        if isinstance(optimizer, optim.LBFGS):
            every = optimizer.param_groups[0]["params"]
            if (flat := optimizer.state.get(every[0], {}).get("d")) is not None:  # the direction, of all weights
                of = dict(zip(every, flat.split([p.numel() for p in every]), strict=True))
                if any(of[p].view(p.shape)[self._bits_of(p) == 0].any() for p in self._of(optimizer)):
                    optimizer.state.clear()  # what it remembers is the curvature of another network


def hold(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    optimizer: Optimizer | Iterable[Optimizer],
    *,
    gradients: bool = False,
) -> Hold:
    """Keep pruned weights at exactly 0.0 through training: now, and after every step of the optimizer(s).

    Changes model and optimizer: pruned weights, their gradients and their optimizer state (what is shaped as the
    weight) become zero at once. From then on torch's elementwise optimizers have the weights cleared after each
    step, and any other has gradients cleared before a step and in its closure, weights and state after it, so that
    pruned weights reach no norm, trust ratio or preconditioner. Parameters keep their names and nothing is put on
    the model. `gradients=True` also clears each gradient as `backward` accumulates it, so that gradient clipping
    and logged norms see the pruned network only. A copy of model and optimizer is not held: call `hold` on it.

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
    found = matched(model, masks)
    if not found:
        raise ValueError("masks is empty: there is nothing to hold")
    optimizers = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
    own, owned = set(parameters(model).values()), set()
    stale = "it was probably built for another model, or before this one was copied, wrapped or moved; build it anew"
    for each in optimizers:
        if not isinstance(each, Optimizer) or not hasattr(each, "_optimizer_step_post_hooks"):
            raise ValueError(f"{type(each).__name__} is no torch.optim.Optimizer of its own; pass the one it wraps")
        theirs = {parameter for group in each.param_groups for parameter in group["params"]}
        if theirs.isdisjoint(own):
            raise ValueError(f"the optimizer {type(each).__name__} owns none of the model's parameters: {stale}")
        owned |= theirs
    if not any(parameter in owned for _, parameter, _ in found):
        raise ValueError(f"the optimizer owns none of the {len(found)} masked parameters: {stale}")
    loose = [name for name, parameter, _ in found if parameter.requires_grad and parameter not in owned]
    if loose:
        warnings.warn(
            f"no optimizer given owns {', '.join(loose[:5])}{' and others' if len(loose) > 5 else ''}: these pruned "
            "weights are zeroed now and not held; pass every optimizer that trains them",
            stacklevel=2,
        )
    bits = {}
    for _, parameter, mask in found:
        if not mask.all():  # laid out as the weight is, which is three times faster than otherwise
            bits[parameter] = torch.empty_like(parameter, dtype=INTEGER[parameter.element_size()]).copy_(mask).neg_()
    return Hold(bits, optimizers, gradients)


def audit(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Raise a `ValueError` that names layers and counts if any pruned weight is not exactly zero (NaN is not).

    >>> audit(nn.Linear(2, 1), {"weight": torch.tensor([[True, False]])})
    Traceback (most recent call last):
    ValueError: 1 pruned weight is not zero: weight (1 of 1); hold the masks through training, or call apply()
    """
    alive = {name: int(((w != 0) & ~mask).count_nonzero()) for name, w, mask in matched(model, masks)}
    if total := sum(alive.values()):
        where = ", ".join(f"{name} ({n} of {int((~masks[name]).count_nonzero())})" for name, n in alive.items() if n)
        some = "1 pruned weight is" if total == 1 else f"{total} pruned weights are"
        raise ValueError(f"{some} not zero: {where}; hold the masks through training, or call apply()")


def _clear(tensor: Tensor, bits: Tensor) -> None:
    """Set the pruned entries to 0.0 in place; autograd sees a changed tensor, and no operation."""
    integer = INTEGER[tensor.element_size()]
    tensor.detach().view(integer).bitwise_and_(bits.to(tensor.device, integer))


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _tensors(value)
