"""The small network: made, compared with the masked one, and put back into the large one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ...masks import Masks
from ...running.precision import tf32
from ...running.rng import forked
from ...scope import bare, layers, matched, parameters
from .compare import (
    Failed,
    compare,
    differentiated,
    doubled,
    first_line,
    larger,
    longer,
    outputs,
    random_like,
    single,
    without_dropout,
)
from .coupling import Coupling, coupling
from .cut import Removed, cells, cut, filled, indexed, scattered, with_channels_last
from .plan import ShrinkPlan, changed
from .removal import Reader, Removal, choose, readers, severed
from .signals import constants, reached

# Of the largest output, by what the comparison is computed in.
TOLERANCE = {torch.double: 1e-6, torch.float: 1e-3, torch.half: 2e-2, torch.bfloat16: 1e-1}
Wanted = list[tuple[bool, Any, list[Tensor]]]  # train mode, input, outputs


@dataclass(frozen=True)
class Shrunk:
    """A smaller network, the masks of its weights, and what was done; `expand` is the way back."""

    module: nn.Module
    masks: Masks
    plan: ShrinkPlan
    _large: nn.Module = field(repr=False)
    _origin: dict[str, Tensor] = field(repr=False)

    def expand(self) -> nn.Module:
        """A network of the original architecture that computes what `module` computes now, trained or not.

        Its state dict loads into the original. Pruned weights are zero, and what was removed has the values it had;
        only weights between what was removed and what was not are zero, if they brought no more than a constant:
        a zero that training may have moved, or what a bias has taken over.
        """
        large = deepcopy(self._large)
        scattered(large, self.module, self._origin)
        _like_before(large, self.module)
        return large


def require_torch_pruning() -> None:
    """A clear error where it is absent."""
    if find_spec("torch_pruning") is None:
        raise ModuleNotFoundError(
            'shrinking needs Torch-Pruning, which is not installed: pip install "barebones[shrink]"'
        )


def shrink(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    example: Any,
    *,
    multiple_of: int = 1,
    before_training: bool = False,
    channels_last: bool = True,
) -> Shrunk:
    """The network without every channel, neuron and whole branch that carries no signal from input to output.

    The small network is a plain `nn.Module` whose outputs are those of the masked model, in train and in eval mode.
    That is checked on the example and on random inputs of its shape; a difference is a `ValueError`. The model is
    left untouched.

    - What nobody reads goes. What nobody writes is a constant (a batch-norm's shift, a bias): it goes where it is zero,
      or where the bias of its readers can take it over exactly, and else it stays.
    - `before_training` takes the shift of a channel without input for pruned too. The outputs are then those of the
      masked model with these shifts at zero, and `plan.shifts` counts them.
    - `multiple_of` keeps enough idle channels for every width to be a multiple of it, as tensor cores like it.
    - `channels_last` lays 4-d weights out with the channels last in memory, which is faster: values and shapes are the
      same. False keeps the order that they have in the model, as does a forward pass that cannot do with another, such
      as one with a `view` of pixels and channels; `plan.layout` says so.
    - `example` is what the model is called with: an input, a tuple of arguments, a dict of them by name, or
      (args, kwargs). A batch of two is enough.

    Needs Torch-Pruning, for the channels that can only go together: `pip install "barebones[shrink]"`.

    >>> net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 2))
    >>> masks = {"0.weight": torch.arange(32).view(8, 4) < 12, "2.weight": torch.ones(2, 8) > 0}
    >>> small = shrink(net, masks, torch.randn(2, 4))
    >>> small.module[0].out_features, small.masks["2.weight"].shape, small.plan.parameters
    (3, torch.Size([2, 3]), (50, 20))
    """
    require_torch_pruning()
    if type(multiple_of) is not int or multiple_of < 1:
        raise ValueError(f"multiple_of is a whole number of channels, 1 or more, not {multiple_of}")
    with torch.inference_mode(False):
        return _Shrinking(bare(model), masks, example, multiple_of, before_training, channels_last).run()


@dataclass
class _Trial:
    """A cut that computes what it should, in the precision of the comparison."""

    small: nn.Module
    origin: dict[str, Tensor]
    removed: Removed
    severed: dict[str, Tensor]
    counts: dict[str, int]  # of the constants that were folded, by layer


class _Shrinking:
    """One shrinking: the masked model in double precision, its coupled channels, and trials of what can go."""

    def __init__(
        self,
        model: nn.Module,
        masks: Mapping[str, Tensor],
        example: Any,
        multiple_of: int,
        before_training: bool,
        channels_last: bool,
    ) -> None:
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        if self.device.type == "meta":
            raise ValueError("the model is on the meta device and has no weights; give it some first, with to_empty()")
        self.masks = {name: mask.cpu() for name, _, mask in matched(model, masks)}
        self.model, self.multiple_of, self.before_training = model, multiple_of, before_training
        self.example, self.channels_last = example, channels_last
        if any(t.numel() == 0 for t in tree_leaves(example) if isinstance(t, Tensor)):
            raise ValueError("the example holds a tensor without elements; pass a batch of two")
        try:
            copy = deepcopy(model)
        except RuntimeError as error:
            raise ValueError(f"{type(model).__name__} cannot be copied ({first_line(error)})") from error
        self.large = _masked(copy, masks)
        self.exact, self.dtype = self._exact()
        self.trains, self.unchecked = True, ""  # whether it runs in train mode, and why it is not compared there
        self.inputs, self.modes = self._inputs()
        self.others = self._others()
        self.wanted: Wanted = []
        self.shifts: dict[str, int] = {}
        self.left: dict[str, str] = {}

    def run(self) -> Shrunk:
        try:
            coupled = coupling(_aside(self.exact), self._cast(self.example))
        except Exception as error:
            raise ValueError(f"could not find the coupled channels of {type(self.model).__name__}: {error}") from error
        reading = self._readers(coupled)
        if self.before_training:
            reading = self._without_shifts(coupled, reading)
        self.wanted = self._wanted(self.exact, self.inputs, self.others)
        trial = self._best(coupled, reading)
        return self._shrunk(trial)

    def _exact(self) -> tuple[nn.Module, torch.dtype]:
        """The masked model in double precision, where that runs: then rounding is no reason to differ."""
        double = deepcopy(self.large).double()
        try:
            outputs(_aside(double).eval(), tree_map(doubled, self.example), self.device)
            return double, torch.double
        except Exception:  # it insists on its own precision; if it does not run at all, that is told below
            own = deepcopy(self.large)
        try:
            outputs(_aside(own).eval(), self.example, self.device)
        except Exception as error:
            raise ValueError(
                f"{type(self.model).__name__} does not run on the example ({first_line(error)}); pass what it is "
                "called with: an input, a tuple of arguments, a dict of them by name, or (args, kwargs)"
            ) from error
        return own, torch.float

    def _cast(self, tree: Any) -> Any:
        return tree_map(doubled, tree) if self.dtype == torch.double else tree

    def _inputs(self) -> tuple[list[Any], tuple[bool, ...]]:
        """What to compare on: the example, and random ones, of twice its size where the model takes that.

        And the modes: eval, train, and eval with the statistics of that; or eval alone, where train mode is random.
        """
        example = self._cast(self.example)
        with forked(self.device, seed=0):
            wide = tree_map(lambda value: random_like(value, 2), example)
            like = tree_map(lambda value: random_like(value, 1), example)
        for inputs in (wide, like):  # a model may insist on its batch size, and batch-norm on more than one value
            try:
                runs = [outputs(without_dropout(_aside(self.exact)).train(), inputs, self.device, s) for s in (0, 1)]
            except Exception as error:  # told in the plan, if the other does not run either
                self.unchecked = f"it does not run in train mode ({first_line(error)})"
                continue
            random = any(not torch.equal(a, b) for a, b in zip(*runs, strict=True))
            self.unchecked = "its outputs are random in train mode" if random else ""
            return [example, inputs], (False,) if random else (False, True, False)
        self.trains = False
        return [example, like], (False,)

    def _others(self) -> list[Any]:
        """Inputs of other sizes that the model takes in eval mode: one sample, larger images, longer sequences.

        Whether it takes them is tried on the CPU: an index out of range ends a process that uses a GPU.
        """
        probe = _aside(self.exact) if self.device.type == "cpu" else deepcopy(self.exact).cpu()
        found = []
        for resize in (single, larger, longer):
            try:
                with forked(self.device, seed=1):
                    given = resize(self.inputs[1])
                outputs(probe.eval(), tree_map(_on_cpu, given), torch.device("cpu"))
                found.append(given)
            except Exception:  # it does not take them, so they need not be compared
                continue
        return found

    def _readers(self, coupled: Coupling) -> list[Reader]:
        copy = _aside(self.exact)
        named = dict(copy.named_modules())
        own = {name: named[name] for (name, side) in coupled.places if side == "in" and name in named}
        arrives, peeked = reached(copy, self.masks, self._cast(self.example), own)
        if peeked:
            self.left["every layer"] = (
                "channels with a constant value, since the forward pass looks at values in Python"
            )
        runs = [(False, given) for given in (*self.others, self.inputs[1])] + [(True, self.inputs[1])] * self.trains
        values = constants(copy, runs, own, self.device)
        return readers(coupled, self.exact, self.masks, arrives, values)

    def _without_shifts(self, coupled: Coupling, reading: list[Reader]) -> list[Reader]:
        """Zero the shifts of channels that could go but for them, until no more can."""
        nothing, named = torch.zeros_like(coupled.fixed), dict(self.exact.named_modules())
        while True:
            now = choose(coupled, reading, nothing, 1, 0).idle
            could = choose(coupled, [one.without_shifts() for one in reading], nothing, 1, 0).idle
            changed = 0
            for (name, side), place in coupled.places.items():
                layer = named.get(name)
                bias = getattr(layer, "bias", None)
                if side == "in" or layer is None or not isinstance(bias, Tensor):
                    continue
                channels = (could & ~now)[coupled.label[place.span]].to(bias.device)
                count = int((channels & (bias != 0)).sum())
                if count:
                    _zero_shift(layer, channels)
                    _zero_shift(self.large.get_submodule(name), channels)
                    self.shifts[name] = self.shifts.get(name, 0) + count
                    changed += count
            if not changed:
                return reading
            reading = self._readers(coupled)

    # Trials: everything at once, then what may disturb less and less.

    def _best(self, coupled: Coupling, reading: list[Reader]) -> _Trial:
        nothing = torch.zeros_like(coupled.fixed)

        def attempt(pinned: Tensor, at_least: int = 0) -> _Trial:
            return self._trial(coupled, reading, choose(coupled, reading, pinned, self.multiple_of, at_least))

        for at_least in (0, 1):
            try:
                return attempt(nothing, at_least)
            except Failed:
                continue
        sure = self._sure(coupled, attempt)
        if not coupled.doubtful.any():
            return sure[0]
        return self._heads(coupled, reading, sure, attempt)

    def _sure(self, coupled: Coupling, attempt: Callable[..., _Trial]) -> tuple[_Trial, Tensor, int]:
        """Without the doubtful ones; where even that fails, layer by layer: what cannot go is left, and told."""
        for at_least in (0, 1):
            try:
                return attempt(coupled.doubtful, at_least), coupled.doubtful, at_least
            except Failed:
                continue
        pinned = torch.ones_like(coupled.fixed)
        try:
            trial = attempt(pinned, 1)
        except Failed as error:
            raise ValueError(
                f"{type(self.model).__name__} cannot be shrunk: the comparison fails even before a channel is taken "
                f"out ({error}); is its output random, or does it depend on earlier calls?"
            ) from error
        for part in self._parts(coupled):
            free = pinned.clone()
            free[part] = coupled.doubtful[part]
            try:
                trial, pinned = attempt(free, 1), free
            except Failed as error:
                name = next(p.name for p in coupled.places.values() if coupled.label[p.span][0] in part)
                self.left[name] = str(error)
        return trial, pinned, 1

    def _parts(self, coupled: Coupling) -> list[Tensor]:
        """The labels of each set of layers that are coupled at all."""
        parts: list[Tensor] = []
        seen = torch.zeros_like(coupled.fixed)
        for place in coupled.places.values():
            labels = coupled.label[place.span].unique()
            fresh = labels[~seen[labels] & ~coupled.fixed[labels]]
            if place.side != "in" and len(fresh):
                parts.append(fresh)
                seen[fresh] = True
        return parts

    def _heads(
        self, coupled: Coupling, reading: list[Reader], sure: tuple[_Trial, Tensor, int], attempt: Callable[..., _Trial]
    ) -> _Trial:
        """Whole heads of attention: blocks of channels, of the smallest size that still computes the same."""
        trial, pinned, at_least = sure
        for part in self._parts(coupled):
            if not coupled.doubtful[part].any():
                continue
            writers = (p for p in coupled.places.values() if p.side != "in")
            place = next(p for p in writers if bool((coupled.label[p.span] == part[0]).any()))
            labels = coupled.label[place.span]
            free = pinned.clone()
            free[part] = False
            idle = choose(coupled, reading, free, 1, 0).idle[labels]
            for width in (w for w in range(2, place.size) if place.size % w == 0):
                blocks = idle.view(-1, width).all(1)
                if not blocks.any() or blocks.all():
                    continue
                free = pinned.clone()
                free[labels.view(-1, width)[blocks].flatten()] = False
                try:
                    trial, pinned = attempt(free, at_least), free
                    break
                except Failed:
                    continue
        return trial

    def _trial(self, coupled: Coupling, reading: list[Reader], choice: Removal) -> _Trial:
        removed = choice.removed(coupled)
        folds, counts = _folds(coupled, reading, choice)
        names = {id(module): f"{path}.bias".lstrip(".") for path, module in layers(self.exact)}
        folded = {names[id(self.exact.get_submodule(layer))]: added for layer, added in folds.items()}
        small = indexed(self.exact, folds)
        try:
            cut(small, removed, coupled.graph)
        except Exception as error:  # a layer that is not what it seems, such as one with computed weights
            raise Failed(f"it cannot be cut ({first_line(error)})") from error
        origin = filled(small, self.exact, folded)
        self._compare(small, self.wanted, TOLERANCE[self.dtype], "without them")
        return _Trial(small, origin, removed, severed(coupled, reading, choice), counts)

    def _wanted(self, model: nn.Module, inputs: list[Any], others: list[Any]) -> Wanted:
        """What a model returns, without dropout, in the order of the runs."""
        network = without_dropout(_aside(model))
        wanted: Wanted = []
        for mode in self.modes:
            for given in inputs[1:] if wanted else (*inputs, *others):
                wanted.append((mode, given, outputs(network.train(mode), given, self.device)))
        return wanted

    def _compare(self, small: nn.Module, runs: Wanted, tolerance: float, how: str) -> None:
        network = without_dropout(_aside(small))
        for mode, given, wanted in runs:
            try:
                got = outputs(network.train(mode), given, self.device)
            except Exception as error:
                raise Failed(f"it does not run {how} ({first_line(error)})") from error
            compare(wanted, got, tolerance, "train" if mode else "eval", how)
        if self.trains and not any(mode for mode, *_ in runs):  # random: it cannot be compared, but it must run
            try:
                outputs(network.train(), runs[1][1], self.device)
            except Exception as error:
                raise Failed(f"it does not run in train mode {how} ({first_line(error)})") from error

    # The layout, compared in the model's own precision: in float64 a GPU takes no notice of it.

    def _laid_out(self, small: nn.Module) -> tuple[nn.Module, str]:
        """The network with its weights channels last in memory; or as it is, and why."""
        if not self.channels_last or all(p.dim() != 4 for p in small.parameters()):
            return small, ""
        last = with_channels_last(deepcopy(small))
        tolerance = max(TOLERANCE.get(p.dtype, 0) for p in small.parameters())
        inputs, others = ([self._uncast(given) for given in some] for some in (self.inputs, self.others))
        with tf32(self.device, False):
            try:
                wanted = self._wanted(small, inputs, others)
            except Exception as error:
                return small, f"it does not run in its own precision ({first_line(error)})"
            try:
                self._compare(last, wanted, tolerance, "with channels last")
                self._compare_backward(small, last, inputs[1])
            except Failed as error:
                return small, str(error)
        return last, ""

    def _uncast(self, tree: Any) -> Any:
        return tree_map(lambda own, t: t.to(own.dtype) if isinstance(t, Tensor) else t, self.example, tree)

    def _compare_backward(self, small: nn.Module, last: nn.Module, given: Any) -> None:
        """Where it can be trained, it can with channels last."""
        try:
            differentiated(without_dropout(_aside(small)).train(), given, self.device)
        except Exception:  # it cannot
            return
        try:
            differentiated(without_dropout(_aside(last)).train(), given, self.device)
        except Exception as error:
            raise Failed(f"it does not train with channels last ({first_line(error)})") from error

    def _shrunk(self, trial: _Trial) -> Shrunk:
        small = trial.small
        _cast_like(small, self.large)
        masks = {
            name: self.masks[name].flatten()[trial.origin[name]].to(parameter.device)
            for name, parameter in parameters(small).items()
            if name in self.masks
        }
        _like_before(small, self.model)
        small, layout = self._laid_out(small)
        before = sum(p.numel() for p in self.model.parameters())
        after = sum(p.numel() for p in small.parameters())
        kept = sum(int(mask.sum()) for mask in self.masks.values())
        still = sum(int(mask.sum()) for mask in masks.values())
        with torch.no_grad():
            for name, read in trial.severed.items():
                layer: Any = self.large.get_submodule(name)
                layer.weight.masked_fill_(cells(read, layer).to(layer.weight.device), 0)
        plan = ShrinkPlan(
            changed(trial.removed, self.large), (before, after), (kept, still), trial.counts, self.shifts, self.left,
            self.unchecked, layout,
        )  # fmt: skip
        return Shrunk(small, Masks(masks), plan, self.large, trial.origin)


def _masked(model: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    with torch.no_grad():
        for _, parameter, mask in matched(model, masks):
            parameter.masked_fill_(~mask, 0)
    model.zero_grad(set_to_none=True)
    return model


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def _aside(network: nn.Module) -> nn.Module:
    """A copy to run, with modes and buffers of its own; the parameters are the same."""
    return deepcopy(network, {id(parameter): parameter for parameter in network.parameters()})


def _folds(coupled: Coupling, reading: list[Reader], choice: Removal) -> tuple[dict[str, Tensor], dict[str, int]]:
    """What the constants among its removed inputs bring to each reader, for its bias; and how many they are."""
    added, counts = {}, {}
    for one in reading:
        gone = choice.gone[coupled.label[one.place.span]]
        channels = gone & one.foldable & ~one.silent
        if not channels.any():
            continue
        weight: Any = one.layer.weight
        weight = weight.detach().flatten(2).sum(2) if weight.dim() > 2 else weight.detach()
        constant = weight[:, channels.to(weight.device)] @ one.constant[channels].to(weight)
        if bool((constant != 0).any()):
            added[one.place.name], counts[one.place.name] = constant, int(channels.sum())
    return added, counts


def _zero_shift(layer: Any, channels: Tensor) -> None:
    with torch.no_grad():
        layer.bias[channels] = 0
        if getattr(layer, "running_mean", None) is not None:
            layer.running_mean[channels] = 0


def _cast_like(small: nn.Module, large: nn.Module) -> None:
    """Back to the precision of each tensor; a bias that there was not before has that of its layer's weight."""
    dtypes = {name: t.dtype for name, t in (*large.named_parameters(), *large.named_buffers())}
    for name, parameter in small.named_parameters():
        parameter.data = parameter.data.to(dtypes.get(name) or dtypes[f"{name.removesuffix('bias')}weight"])
    for path, module in small.named_modules():
        for last, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[last] = buffer.to(dtypes[f"{path}.{last}" if path else last])


def _like_before(small: nn.Module, model: nn.Module) -> None:
    """Train or eval mode, module by module."""
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in small.named_modules():
        module.training = modes.get(name, model.training)
