"""Bits: a forward pass that computes one bit for every value: whether a signal from the input reaches it.

`Bits` is a `TorchFunctionMode`. It replaces every torch function by its rule, which computes the bits of the outputs
from the bits of the inputs. Bits are never negative, so nothing cancels. After each function all values are 0 or 1
again, and so are all gradients in the backward pass, so nothing overflows. A function without a rule is treated as if
all its outputs depended on all its inputs, which can never make a weight look unused.

A tensor is live if it comes from the input or from a parameter, which is what autograd tracks as `requires_grad`.
A live tensor is a weight (computed from parameters alone), a share (computed from softmaxes alone) or an activation.
"""

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

from ..running.precision import widest
from .calls import Call, selection


class _Alive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.ne(x, 0, out=torch.empty_like(x))  # one pass over memory, unlike (x != 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return torch.ne(grads[0], 0, out=torch.empty_like(grads[0]))


def alive(x: Tensor) -> Tensor:
    """Return 1 where a value is not 0, and do the same to the gradient in the backward pass."""
    return _Alive.apply(x)


def silent(x: Tensor) -> Tensor:
    """Return zeros that pass their gradient on to x."""
    return x - x.detach()


def signal(x: Tensor) -> Tensor:
    """Return the input of a layer, or zeros for a constant: no signal reaches it."""
    return x if x.requires_grad else torch.zeros_like(x, requires_grad=True)


Rule = Callable[["Bits", Call], Any]


@dataclass
class Use:
    """What the forward pass does with one weight: multiply-adds, dense and kept, and whether a signal ends in it."""

    dense: int = 0
    kept: int = 0
    ends: bool = False  # a signal reaches the weight's input, but not its output


# Functions by which Python code reads values, which bits cannot follow.
PEEKS = frozenset("item tolist bool int float complex index numpy equal allclose is_nonzero contains".split())  # noqa: SIM905
# Functions whose result has a length that depends on the values.
COUNTS = frozenset("nonzero argwhere masked_select unique unique_consecutive bincount".split())  # noqa: SIM905
# Functions that number things, such as positions: other inputs may have more of them.
LENGTHS = ("arange", "linspace", "one_hot")
# Functions that write values to some places of their first argument.
WRITES = frozenset("setitem index_put index_add index_copy index_fill scatter scatter_add masked_scatter".split())  # noqa: SIM905
CLAMPS = ("clamp", "clip", "clamp_min", "clamp_max")


class Bits(TorchFunctionMode):
    """The mode, for a model whose parameters were replaced by `weights`; `uses` returns what was done with each.

    Comparisons, and masks among the inputs, do not carry signals, nor cut any: a mask of a comparison counts as true,
    an index as any. In a `strict` mode they carry signals: every value that is computed with them counts as reached,
    and `peeked` is true if Python code has read a value.
    """

    def __init__(self, weights: Mapping[str, Tensor], rules: Mapping[str, Rule], strict: bool = False) -> None:
        super().__init__()
        self.rules, self.strict, self.peeked = rules, strict, False
        # One row per use of a weight: its name, how often each element is used, its size, (kept count, whether it ends)
        self._used: list[tuple[str, int, int, Tensor]] = []
        self._leaves = dict(weights)
        self._parts: dict[str, Tensor] = {}  # by parameter: how often each value is selected, if it is a table
        self.weights: MutableMapping[Tensor, str] = WeakTensorKeyDictionary()
        self.shares: MutableMapping[Tensor, bool] = WeakTensorKeyDictionary()
        self.stored: MutableMapping[Tensor, bool] = WeakTensorKeyDictionary()  # buffers, and views of them
        self.from_input: MutableMapping[Tensor, bool] = WeakTensorKeyDictionary()  # integers and bools from the input
        self.decided: MutableMapping[Tensor, bool] = WeakTensorKeyDictionary()  # the same, from live tensors
        for name, weight in weights.items():
            self.weights[weight] = name

    def inputs(self, tree: Any, device: torch.device | None = None) -> Any:
        """Return the arguments to run on, in which floats are ones.

        Integers are input like floats, unless they are a mask: not the first tensor, and only zeros and ones.
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
                self.from_input[swapped] = True
            return swapped

        return tree_map(swap, tree)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch.enable_grad(), saved_tensors_hooks(lambda x: x, lambda x: x):  # even inside no_grad and checkpoint
            return self._run(Call(func, args, kwargs or {}))

    def _run(self, call: Call) -> Any:
        result = self._result(call)
        if call.inplace or call.out is None:
            return result
        if call.out.shape != result.shape:
            call.out.resize_(result.shape)
        return call.out.copy_(result)

    def _result(self, call: Call) -> Any:
        if torch.is_inference_mode_enabled():
            raise ValueError("a part of it runs under torch.inference_mode(), where no path can be recorded")
        rule = self.rules.get(call.name, as_it_is if call.name.endswith("__get__") else mixed)
        if any(t.is_complex() for t in call.live) and rule not in (as_it_is, skip, blank):
            rule = mixed
        if (found := selection(call)) and (result := self._selected(call, *found)) is not None:
            return result
        depends = call.name in LENGTHS or any(t in self.from_input for t in call.tensors)
        if "dropout" in call.name:  # one that is on in eval mode makes noise of a constant
            given = call.named("input", "p", "training")
            depends = bool(given.get("p", 0.5) and given.get("training", call.name.startswith("dropout")))
        if self.strict and rule not in (skip, blank) and depends:
            return self._flooded(call)
        if rule not in (skip, blank) and any(t in self.decided for t in call.tensors):
            return self._decision(call, rule)
        return self._followed(call, rule)

    def _decision(self, call: Call, rule: Rule) -> Any:
        """Follow a call that takes something that signals decide: a mask counts as true, and cuts nothing."""
        written = call.args[: call.inplace]  # the tensor that an operation in place changes
        if call.name in ("to", "type_as") and call.live and call.args[0] in self.decided:
            return self._decide(call.args[0].to(call.live[0].dtype))
        if not (written and written[0].is_floating_point()):
            plain = call.plain()
            if written or all(t.dtype == torch.bool for t in tree_leaves(plain) if isinstance(t, Tensor)):
                return tree_map(self._decide, (plain, *written))[0]
        call = self._either_way(call)
        if not call.live:
            return tree_map(self._decide, (call.func(*call.args, **call.kwargs), *written))[0]
        if call.name not in WRITES:
            return self._followed(call, rule)
        if all(t is call.args[0] for t in call.live):
            return call.args[0] if call.inplace else call.args[0].clone()
        return self._followed(call, mixed)

    def _followed(self, call: Call, rule: Rule) -> Any:
        if not call.live and rule not in (skip, blank):
            return tree_map(partial(self._constant, call), call.func(*call.args, **call.kwargs))
        if call.inplace and (rule is pass_on or (call.name in CLAMPS and all(t is call.args[0] for t in call.live))):
            return call.args[0]
        if call.returns_integers:  # which autograd does not track
            plain = call.plain()
            if self.strict or call.name.startswith("new_") or call.name.endswith("_like"):  # whatever the values are
                return self._note(call, plain)
            return self._decide(plain)
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
        """Record a result from the input that is not a float, and whether Python code reads values."""
        if isinstance(result, Tensor) and not result.is_floating_point():
            self.from_input[result] = True
        self.peeked |= not isinstance(result, Tensor) and call.name in PEEKS
        selected = call.name == "getitem" and any(t.dtype == torch.bool for t in call.tensors)
        self.peeked |= selected or call.name in COUNTS
        return result

    def _either_way(self, call: Call) -> Call:
        """Return the call with masks that signals decide as true, so that a product or a choice keeps every value."""

        counts = call.name in COUNTS or (call.name == "where" and len(call.tensors) == 1)
        masks = {id(t) for t in call.tensors if (counts or t.dtype == torch.bool) and t in self.decided}
        true = partial(tree_map, lambda value: torch.ones_like(value) if id(value) in masks else value)
        return Call(call.func, true(call.args), true(call.kwargs))

    def _decide(self, result: Any) -> Any:
        """Record what live tensors decide: integers, bools, and floats of these alone, which are filled with 1."""
        if not isinstance(result, Tensor):
            return result
        self.decided[result.fill_(1) if result.is_floating_point() else result] = True
        return result

    def _selected(self, call: Call, table: Tensor, dims: tuple[int, ...]) -> Tensor | None:
        """Follow a part of a table that does not come from the input, such as positions.

        In a strict run, other inputs may select other parts, so a value is reached if any row has one there. Otherwise
        only record which values of a parameter are selected, for `flow`.
        """
        if self.strict and (table in self.weights or (table in self.stored and bool(table.any()))):
            spread = (table.detach() != 0).to(table.dtype).amax(dims, keepdim=True).expand(table.shape).contiguous()
            result = with_table(call, table, spread)
            return alive(result.detach().requires_grad_())
        if table in self.weights and not any(t in self.from_input for t in call.tensors):
            name, part = self.weights[table], with_table(call, table, table).sum()
            (selected,) = torch.autograd.grad(part, self._leaves[name], retain_graph=True, allow_unused=True)
            if selected is not None:
                self._parts[name] = self._parts.get(name, 0) + selected
        return None

    def flow(self, name: str, gradient: Tensor) -> Tensor:
        """Return the gradient of a parameter; rows of a table that the model did not select get that of the others."""
        if name not in self._parts:
            return gradient
        selected = self._parts[name] != 0
        dims = [d for d in range(gradient.dim()) if not selected.all(d).equal(selected.any(d))]
        return gradient + (gradient.sum(dims, keepdim=True) if dims else gradient) * ~selected

    def _flooded(self, call: Call) -> Any:
        """Return a result whose every value counts as reached, because integers or bools from the input change it."""

        def flood(value: Any) -> Any:
            self._note(call, value)
            floats = isinstance(value, Tensor) and value.is_floating_point()
            return _reached(value) if floats else value

        result = call.plain()
        if not call.inplace:
            return tree_map(flood, result)
        target = call.args[0]
        flooded = flood(target)
        return target if flooded is target else target.copy_(flooded)

    def _constant(self, call: Call, result: Any) -> Any:
        """Return the result of a call without live tensors; floats from integers of the input count as reached."""
        if isinstance(result, Tensor) and result._is_view() and any(t in self.stored for t in call.tensors):
            self.stored[result] = True
        if isinstance(result, Tensor) and any(t in self.from_input for t in call.tensors):
            if result.is_floating_point():
                return _reached(result)
            if result.dtype != torch.bool:
                self.from_input[result] = True
        return result

    def _live(self, call: Call, rule: Rule, result: Any) -> Any:
        """Return the bits of a rule's result, as a new tensor unless it is a view, and record a weight or a share."""
        if not isinstance(result, Tensor) or not result.requires_grad:
            return self._decide(result) if not self.strict and not _is_float(result) else result
        if any(result is t for t in call.tensors):
            if rule is as_it_is:
                return result
            bits = result.clone()
        else:
            if rule is not as_it_is and 0 in result.stride():  # the model may write to it in place
                result = result.clone()
            bits = result if result._is_view() or result.is_complex() else alive(result)
        if call.weight is not None:
            self.weights[bits] = call.weight
        elif call.share:
            self.shares[bits] = True
        return bits

    def quiet(self, call: Call, value: Any) -> Any:
        """Return zeros for constants, and for weights among activations: no signal comes from them."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if not value.requires_grad:
            return torch.zeros_like(value)
        return silent(value) if call.weight is None and value in self.weights else value

    def product(
        self, f: Callable[..., Tensor], operands: Sequence[Tensor], uses: Callable[[Tensor], int] | None = None
    ) -> Tensor:
        """Return the bits of f, which is linear in each operand.

        A product of activations is reached if one of them is, because the other may be a constant other than 0.
        Weights and constants cut the signal where they are 0. A share is positive even if no signal reaches it, so a
        product with a share is reached if the other factor is. `uses` computes from the result how often f uses each
        element of a weight.
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
            return silent(t) + 1 if i in moving else ((t != 0) | (operands[i] in self.decided)).float()

        result = reduce(torch.add, [f(*(factor(i, s) for i in range(len(operands)))) for s in signals or [-1]])
        for weight in [operands[i] for i in weights] if signals else []:
            if uses:
                times = uses(result)
            else:
                ones = [torch.ones_like(t, dtype=torch.float, requires_grad=False) for t in operands]
                times = round(float(f(*ones).sum(dtype=widest(result.device))) / weight.numel())
            reached = torch.stack([(operands[i].sum() != 0).to(result.device) for i in signals]).any()
            counts = torch.stack([weight.count_nonzero().to(result.device), (result.sum() == 0) & reached])
            self._used.append((self.weights[weight], times, weight.numel(), counts))
        return result

    def uses(self) -> dict[str, Use]:
        uses: dict[str, Use] = {}
        for name, times, size, counts in self._used:
            kept, ends = counts.tolist()
            use = uses.setdefault(name, Use())
            use.dense += times * size
            use.kept += times * kept
            use.ends |= bool(ends)
        return uses

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        b = None if bias is None else silent(bias).float()
        operands = (signal(x), weight)
        return alive(self.product(lambda x, w: F.linear(x, w, b), operands, lambda y: y.numel() // weight.shape[0]))


def with_table(call: Call, table: Tensor, other: Tensor) -> Tensor:
    args, kwargs = tree_map(lambda a: other if a is table else a, (call.args, call.kwargs))
    return call.func(*args, **kwargs)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _reached(like: Tensor) -> Tensor:
    """Return ones that the model may write to, as it may not write to a leaf of the graph."""
    return alive(torch.ones_like(like, requires_grad=True))


def skip(bits: Bits, call: Call) -> None:
    """Do not call the function, and return None."""


def blank(bits: Bits, call: Call) -> Tensor:
    return call.func(*call.args, **call.kwargs).detach().zero_()


def pass_on(bits: Bits, call: Call) -> Tensor:
    """Return the input: each output value depends on the input value at its place."""
    return call.live[0]


def as_it_is(bits: Bits, call: Call) -> Any:
    """Run the function itself on the bits; this is right for functions that move, copy or sum values."""
    args, kwargs = tree_map(partial(bits.quiet, call), (call.args, call.kwargs))
    if call.inplace:
        target = call.args[0]
        constant = target.is_floating_point() and not target.requires_grad
        args = (target.zero_() if constant else target, *args[1:])
    return call.func(*args, **kwargs)


def mixed(bits: Bits, call: Call) -> Any:
    """Let every output value depend on every input value. Functions that are not in the table get this rule."""

    def single(value: Any) -> Any:  # bits are float32, and constants of a float64 model are not
        return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value

    args, kwargs = tree_map(single, (call.args, call.kwargs))
    result = call.args[0] if call.inplace else call.func(*args, **kwargs)
    if not any(map(_is_float, tree_leaves(result))):
        return result
    signals = [bits.quiet(call, t.real if t.is_complex() else t).float().mean() for t in call.live]
    anything = alive(reduce(torch.add, [signal.to(call.live[0].device) for signal in signals]))

    def depending(value: Any) -> Any:
        if not _is_float(value):
            return value
        every = anything.to(value.device).expand(value.shape)
        return every.to(torch.cfloat) if value.is_complex() else every

    return tree_map(depending, result)
