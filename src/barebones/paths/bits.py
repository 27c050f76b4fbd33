"""Bits: a forward pass in which only one bit of every value is left, reached from the input or not.

`Bits` is a `TorchFunctionMode` that replaces every torch function by what it does to that bit. Nothing is negative,
so nothing cancels, and each step ends in a bit, forward and backward, so nothing overflows. Functions without a rule
run as they are.

A tensor is live if it comes from the input or from a parameter, which is what autograd tracks as `requires_grad`.
Live tensors are weights (made of parameters alone), shares (made of softmaxes alone) or else activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary


class _Alive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.ne(x, 0, out=torch.empty_like(x))  # one pass, unlike (x != 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return torch.ne(grads[0], 0, out=torch.empty_like(grads[0]))


def alive(x: Tensor) -> Tensor:
    """One bit of each value, and backward of each gradient."""
    return _Alive.apply(x)


def silent(x: Tensor) -> Tensor:
    """Zeros that pass their gradient on."""
    return x - x.detach()


def signal(x: Tensor) -> Tensor:
    """The input of a layer: a constant is one that nothing reaches."""
    return x if x.requires_grad else torch.zeros_like(x, requires_grad=True)


class Call:
    """A call of a torch function, as the mode sees it."""

    def __init__(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        name = getattr(func, "__name__", "")
        owner = getattr(func, "__self__", None) if name in ("__get__", "__set__") else None  # of a property
        self.name = f"{owner.__name__}.{name}" if owner else name.split(".")[0].strip("_")
        self.inplace = (name[-1:] == "_" != name[-2:-1]) or name == "__setitem__" or kwargs.get("inplace") is True
        self.tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        self.live = [t for t in self.tensors if t.requires_grad]
        self.weight: str | None = None  # what it returns is a weight: the name of the first parameter in it
        self.share = False  # what it returns is a share

    def named(self, *slots: str) -> dict[str, Any]:
        """The arguments by name, given the names of the positional ones."""
        return dict(zip(slots, self.args, strict=False)) | self.kwargs

    def plain(self) -> Any:
        """What it returns on the bare values, for its shape."""
        args, kwargs = tree_map(lambda a: a.detach() if isinstance(a, Tensor) else a, (self.args, self.kwargs))
        return self.func(*args, **kwargs)


Rule = Callable[["Bits", Call], Any]


@dataclass
class Use:
    """What the forward does with one weight: multiply-adds, dense and kept; and does a signal end in it?"""

    dense: int = 0
    kept: int = 0
    ends: bool = False  # something reached its input, nothing left it


# What a forward looks at a tensor with in Python, where no bit can follow.
PEEKS = frozenset("item tolist bool int float complex index numpy equal allclose is_nonzero contains".split())  # noqa: SIM905
# What returns as many values as the values decide: looking at its length is looking at them.
COUNTS = frozenset("nonzero argwhere masked_select unique unique_consecutive bincount".split())  # noqa: SIM905


class Bits(TorchFunctionMode):
    """The mode, for parameters that have become `weights`; `uses` tells what the forward did with each.

    Comparisons, and masks among the inputs, are no signals: they end where they begin. A `strict` mode takes them for
    signals, too, that reach whatever they decide about, and notes in `peeked` that Python has looked at a value.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], rules: Mapping[str, Rule], strict: bool = False, counting: bool = True
    ) -> None:
        super().__init__()
        self.rules, self.strict, self.counting, self.peeked = rules, strict, counting, False
        self._used: list[tuple[str, int, int, Tensor]] = []  # of each use: weight, times, size; kept, whether it ends
        self.weights: MutableMapping[Tensor, str] = WeakTensorKeyDictionary()
        self.shares: MutableMapping[Tensor, bool] = WeakTensorKeyDictionary()
        self.given: MutableMapping[Tensor, bool] = WeakTensorKeyDictionary()  # integers that come from the input
        for name, weight in weights.items():
            self.weights[weight] = name

    def inputs(self, tree: Any, device: torch.device | None = None) -> Any:
        """The arguments to run on: floats become ones, others are copied.

        Integers are input like floats, unless they are a mask: not the first tensor, and nothing but 0 and 1.
        """
        first = next((t for t in tree_leaves(tree) if isinstance(t, Tensor)), None)

        def swap(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if value.is_floating_point():
                return alive(torch.ones(value.shape, device=device or value.device, requires_grad=True))
            swapped = value.detach().to(device, copy=True)
            mask = value.dtype == torch.bool or (value is not first and not ((value < 0) | (value > 1)).any())
            if self.strict or not mask:
                self.given[swapped] = True
            return swapped

        return tree_map(swap, tree)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch.enable_grad(), saved_tensors_hooks(_itself, _itself):  # whatever no_grad and checkpoint ask for
            return self._run(Call(func, args, kwargs or {}))

    def _run(self, call: Call) -> Any:
        if torch.is_inference_mode_enabled():
            raise ValueError("part of it runs under torch.inference_mode(), where no path can be recorded")
        rule = self.rules.get(call.name, as_it_is)
        if self.strict and rule not in (nothing, blank) and any(t in self.given for t in call.tensors):
            return self._flooded(call)
        if not call.live and rule not in (nothing, blank):
            return tree_map(partial(self._constant, call), call.func(*call.args, **call.kwargs))
        if call.inplace and rule is pass_on:
            return call.args[0]
        if call.live and all(t in self.weights for t in call.live):
            call.weight = self.weights[call.live[0]]
        call.share = all(t in self.shares for t in call.live)
        result = rule(self, call)
        if self.strict and call.weight is None:
            tree_map(partial(self._note, call), result)
        if call.inplace and rule is not as_it_is:
            return call.args[0].copy_(alive(result))
        return tree_map(partial(self._live, call, rule), result)

    def _note(self, call: Call, result: Any) -> Any:
        """What is no float any more, a comparison say, still depends on the input."""
        if isinstance(result, Tensor) and not result.is_floating_point():
            self.given[result] = True
        self.peeked |= not isinstance(result, Tensor) and call.name in PEEKS
        chosen = call.name == "getitem" and any(t.dtype == torch.bool for t in call.tensors)
        self.peeked |= chosen or call.name in COUNTS
        return result

    def _flooded(self, call: Call) -> Any:
        """Where integers or truth values from the input decide, everything may be reached."""

        def flood(value: Any) -> Any:
            self._note(call, value)
            floats = isinstance(value, Tensor) and value.is_floating_point()
            return torch.ones_like(value, requires_grad=True) if floats else value

        result = call.plain()
        if not call.inplace:
            return tree_map(flood, result)
        target = call.args[0]
        self._note(call, target)
        if target.is_floating_point():
            with torch.no_grad():
                target.fill_(1)
            target.requires_grad_()
        return target

    def _constant(self, call: Call, result: Any) -> Any:
        """What nothing live went into: where integers of the input did, a source of bits; else as it is."""
        if isinstance(result, Tensor) and any(t in self.given for t in call.tensors):
            if result.is_floating_point():
                return torch.ones_like(result, requires_grad=True)
            if result.dtype != torch.bool:
                self.given[result] = True
        return result

    def _live(self, call: Call, rule: Rule, result: Any) -> Any:
        """The bits of what a rule returned, tagged: a new tensor, where the function itself would make one."""
        if not isinstance(result, Tensor) or not result.requires_grad:
            return result
        if any(result is t for t in call.tensors):
            if rule is as_it_is:
                return result
            bits = result.clone()
        else:
            bits = result if result._is_view() else alive(result)
        if call.weight is not None:
            self.weights[bits] = call.weight
        elif call.share:
            self.shares[bits] = True
        return bits

    def quiet(self, call: Call, value: Any) -> Any:
        """What does not come from the input reaches nothing: constants, and weights in a call with activations."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if not value.requires_grad:
            return torch.zeros_like(value)
        return silent(value) if call.weight is None and value in self.weights else value

    def product(
        self, f: Callable[..., Tensor], operands: Sequence[Tensor], uses: Callable[[Tensor], int] | None = None
    ) -> Tensor:
        """f, linear in each operand, where any activation is reached: a factor beside it may be a constant.

        Weights and constants cut where they are 0. Shares are positive whatever reaches them: they pass on what
        they weigh. `uses` tells from the result how often f uses each element of a weight.
        """
        weights = [i for i, t in enumerate(operands) if t in self.weights]
        moving = [i for i, t in enumerate(operands) if t.requires_grad and i not in weights]
        signals = [i for i in moving if operands[i] not in self.shares] or moving

        def factor(i: int, signal: int) -> Tensor:
            t = operands[i].float()
            if i in weights or i == signal:
                return t
            if i in signals:
                return torch.ones_like(t)
            return silent(t) + 1 if i in moving else (t != 0).float()

        result = reduce(torch.add, [f(*(factor(i, s) for i in range(len(operands)))) for s in signals or [-1]])
        for weight in [operands[i] for i in weights] if signals and self.counting else []:
            if uses:
                times = uses(result)
            else:
                ones = [torch.ones_like(t, dtype=torch.float, requires_grad=False) for t in operands]
                times = round(float(f(*ones).sum(dtype=torch.double)) / weight.numel())
            began = torch.stack([(operands[i].sum() != 0).to(result.device) for i in signals]).any()
            found = torch.stack([weight.count_nonzero().to(result.device), (result.sum() == 0) & began])
            self._used.append((self.weights[weight], times, weight.numel(), found))
        return result

    def uses(self) -> dict[str, Use]:
        """What the forward did with each weight; an accelerator is asked once."""
        told: dict[str, Use] = {}
        for device in {found.device for *_, found in self._used}:
            used = [row for row in self._used if row[-1].device == device]
            numbers = torch.stack([found for *_, found in used]).tolist()
            for (name, times, size, _), (kept, ends) in zip(used, numbers, strict=True):
                use = told.setdefault(name, Use())
                use.dense += times * size
                use.kept += times * kept
                use.ends |= bool(ends)
        return told

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The bits of a linear layer."""
        x, b = (
            x if x.requires_grad else torch.zeros_like(x, requires_grad=True),
            None if bias is None else silent(bias).float(),
        )
        return alive(self.product(lambda x, w: F.linear(x, w, b), (x, weight), lambda y: y.numel() // weight.shape[0]))


def _itself(x: Tensor) -> Tensor:
    return x


def nothing(bits: Bits, call: Call) -> None:
    """Left out."""


def blank(bits: Bits, call: Call) -> Tensor:
    """Memory that nobody has written holds nothing."""
    return call.func(*call.args, **call.kwargs).zero_()


def pass_on(bits: Bits, call: Call) -> Tensor:
    """Each value depends on the same one before."""
    return call.live[0]


def as_it_is(bits: Bits, call: Call) -> Any:
    """The function itself, on what comes from the input."""
    args, kwargs = tree_map(partial(bits.quiet, call), (call.args, call.kwargs))
    if call.inplace:
        target = call.args[0]
        constant = target.is_floating_point() and not target.requires_grad
        args = (target.zero_() if constant else target, *args[1:])
    return call.func(*args, **kwargs)
