"""The small network: made, compared with the masked one, and put back into the large one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from io import StringIO
from typing import Any

import torch
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..masks import Masks
from ..paths import call, tensors
from ..rng import forked
from ..scope import bare, matched, parameters
from .coupling import Coupling, coupling
from .cut import Removed, cut, filled, indexed, scattered
from .removal import Choice, Reader, choose, readers
from .signals import constants, reached

TOLERANCE = {torch.double: 1e-6, torch.float: 1e-3}  # of the largest output, by what the comparison is computed in
WIDTH = 100  # columns, as plain text


@dataclass(frozen=True)
class Layer:
    """One layer that became smaller: its channels before and after."""

    name: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    blank: bool = False  # nothing of it is left: it says its bias, or zeros


@dataclass(frozen=True)
class Plan:
    """What `shrink` did; prints as a table, and `to_dict` is ready for JSON."""

    layers: list[Layer]
    parameters: tuple[int, int]  # before and after, as dense tensors
    weights: tuple[int, int]  # that the masks keep, before and after
    folded: dict[str, int] = field(default_factory=dict)  # layer -> constant inputs that its bias took over
    shifts: dict[str, int] = field(default_factory=dict)  # layer -> shifts taken as pruned (before_training)
    left: dict[str, str] = field(default_factory=dict)  # layer -> why channels without a signal stay

    def to_dict(self) -> dict[str, Any]:
        """Everything as numbers, strings, lists and dicts."""
        return asdict(self)

    def __rich__(self) -> Group:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for title in ("layer", "inputs", "outputs", ""):
            table.add_column(title, justify="left" if title in ("layer", "") else "right")
        for layer in self.layers:
            table.add_row(layer.name, _change(layer.inputs), _change(layer.outputs), "blank" if layer.blank else "")
        return Group(*([table] if self.layers else []), Text("\n".join(self._sentences())))

    def _sentences(self) -> list[str]:
        before, after = self.parameters
        share = f" ({100 * after / before:.1f} %)" if before else ""
        blank = [layer.name for layer in self.layers if layer.blank]
        kept, still = self.weights
        sentences = [f"Parameters {before:,} → {after:,}{share}; kept weights {kept:,} → {still:,}."]
        if blank:
            sentences.append(f"Whole layers gone: {', '.join(blank)}.")
        if self.folded:
            sentences.append(f"Constants folded into the biases of: {', '.join(self.folded)}.")
        if self.shifts:
            count = sum(self.shifts.values())
            sentences.append(
                f"{count:,} shifts of channels without input are taken as pruned: {', '.join(self.shifts)}."
            )
        sentences += [f"Left as they are, in {name}: {why}." for name, why in self.left.items()]
        return sentences

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=WIDTH, color_system=None, legacy_windows=False)
        with console.capture() as text:
            console.print(self)
        return "\n".join(line.rstrip() for line in text.get().splitlines())


@dataclass(frozen=True)
class Shrunk:
    """A smaller network, the masks of its weights, and what was done; `expand` is the way back."""

    module: nn.Module
    masks: Masks
    plan: Plan
    _large: nn.Module = field(repr=False)
    _origin: dict[str, Tensor] = field(repr=False)
    _folded: dict[str, Tensor] = field(repr=False)

    def expand(self) -> nn.Module:
        """A network of the original architecture that computes what `module` computes now, trained or not.

        Pruned weights are zero. What was removed has the values it had, so a state dict of it loads anywhere.
        """
        large = deepcopy(self._large)
        scattered(large, self.module, self._origin)
        named = parameters(large)
        with torch.no_grad():
            for name, constant in self._folded.items():
                if name in named and name in self._origin:
                    numbers = self._origin[name].to(constant.device)
                    named[name].view(-1)[numbers.to(named[name].device)] -= constant[numbers].to(named[name])
        return large.train(self.module.training)


def shrink(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    example: Any,
    *,
    multiple_of: int = 1,
    before_training: bool = False,
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
    - `example` is what the model is called with: an input, a tuple of arguments, a dict of them by name, or
      (args, kwargs). A batch of two is enough.

    Needs Torch-Pruning, for the channels that can only go together: `pip install "barebones[shrink]"`.

    >>> net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 2))
    >>> masks = {"0.weight": torch.arange(32).view(8, 4) < 12, "2.weight": torch.ones(2, 8) > 0}
    >>> small = shrink(net, masks, torch.randn(2, 4))
    >>> small.module[0].out_features, small.masks["2.weight"].shape, small.plan.parameters
    (3, torch.Size([2, 3]), (50, 20))
    """
    if find_spec("torch_pruning") is None:
        raise ModuleNotFoundError(
            'shrinking needs Torch-Pruning, which is not installed: pip install "barebones[shrink]"'
        )
    if multiple_of < 1:
        raise ValueError(f"multiple_of is a whole number of channels, 1 or more, not {multiple_of}")
    return _Shrinking(bare(model), masks, example, multiple_of, before_training).run()


class _Failed(Exception):
    """A trial that does not run, or that computes something else."""


@dataclass
class _Trial:
    """A cut that computes what it should, in the precision of the comparison."""

    small: nn.Module
    origin: dict[str, Tensor]
    folded: dict[str, Tensor]
    removed: Removed


class _Shrinking:
    """One shrinking: the masked model in double precision, its coupled channels, and trials of what can go."""

    def __init__(
        self, model: nn.Module, masks: Mapping[str, Tensor], example: Any, multiple_of: int, before_training: bool
    ) -> None:
        self.masks = {name: mask.cpu() for name, _, mask in matched(model, masks)}
        self.model, self.multiple_of, self.before_training = model, multiple_of, before_training
        self.example = example
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.large = _masked(deepcopy(model), masks)
        self.exact, self.dtype = self._exact()
        self.inputs = self._inputs()
        self.shifts: dict[str, int] = {}
        self.left: dict[str, str] = {}

    def run(self) -> Shrunk:
        try:
            coupled = coupling(deepcopy(self.exact), self._cast(self.example))
        except Exception as error:
            raise ValueError(f"could not find the coupled channels of {type(self.model).__name__}: {error}") from error
        layers = dict(self.exact.named_modules())
        reading = self._readers(coupled, layers)
        if self.before_training:
            reading = self._without_shifts(coupled, layers, reading)
        trial = self._best(coupled, reading)
        return self._shrunk(trial)

    def _exact(self) -> tuple[nn.Module, torch.dtype]:
        """The masked model in double precision, where that runs: then rounding is no reason to differ."""
        double = deepcopy(self.large).double()
        try:
            _run(deepcopy(double), tree_map(_doubled, self.example), self.device)
        except Exception:  # it insists on its own precision; if it does not run at all, that is told below
            _run(deepcopy(self.large), self.example, self.device)
            return deepcopy(self.large), torch.float
        return double, torch.double

    def _cast(self, tree: Any) -> Any:
        return tree_map(_doubled, tree) if self.dtype == torch.double else tree

    def _inputs(self) -> list[Any]:
        """What to compare on: the example, and random ones, of twice its size where the model takes that."""
        example = self._cast(self.example)
        with forked(self.device, seed=0):
            wide = tree_map(lambda value: _random(value, 2), example)
            like = tree_map(lambda value: _random(value, 1), example)
        for mode in (False, True):
            try:
                _run(deepcopy(self.exact).train(mode), wide, self.device)
            except Exception:  # a batch of another size, or its batch-norm on one value alone
                return [example, like]
        return [example, wide]

    def _readers(self, coupled: Coupling, layers: Mapping[str, nn.Module]) -> list[Reader]:
        names = {name: layers[name] for (name, side) in coupled.places if side == "in" and name in layers}
        copy = deepcopy(self.exact)
        own = {name: copy.get_submodule(name) for name in names}
        arrives = reached(copy, self.masks, self._cast(self.example), own)
        values = constants(copy, self.inputs[1:], own)
        return readers(coupled, layers, self.masks, arrives, values)

    def _without_shifts(
        self, coupled: Coupling, layers: Mapping[str, nn.Module], reading: list[Reader]
    ) -> list[Reader]:
        """Zero the shifts of channels that could go but for them, until no more can."""
        nothing = torch.zeros_like(coupled.fixed)
        while True:
            now = choose(coupled, reading, nothing, 1, 0).idle
            could = choose(coupled, [one.without_shifts() for one in reading], nothing, 1, 0).idle
            changed = 0
            for (name, side), place in coupled.places.items():
                layer = layers.get(name)
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
            reading = self._readers(coupled, layers)

    # Trials: everything at once, then what may disturb less and less.

    def _best(self, coupled: Coupling, reading: list[Reader]) -> _Trial:
        nothing = torch.zeros_like(coupled.fixed)

        def attempt(pinned: Tensor, at_least: int = 0) -> _Trial:
            return self._trial(coupled, reading, choose(coupled, reading, pinned, self.multiple_of, at_least))

        for at_least in (0, 1):
            try:
                return attempt(nothing, at_least)
            except _Failed:
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
            except _Failed:
                continue
        pinned = torch.ones_like(coupled.fixed)
        try:
            trial = attempt(pinned, 1)
        except _Failed as error:
            raise ValueError(
                f"{type(self.model).__name__} cannot be shrunk: the comparison fails even before a channel is taken "
                f"out ({error}); is its output random, or does it depend on earlier calls?"
            ) from error
        for part in self._parts(coupled):
            free = pinned.clone()
            free[part] = coupled.doubtful[part]
            try:
                trial, pinned = attempt(free, 1), free
            except _Failed as error:
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
            for width in (w for w in range(1, place.size) if place.size % w == 0 and w > 1):
                blocks = idle.view(-1, width).all(1)
                if not blocks.any() or blocks.all():
                    continue
                free = pinned.clone()
                free[labels.view(-1, width)[blocks].flatten()] = False
                try:
                    trial, pinned = attempt(free, at_least), free
                    break
                except _Failed:
                    continue
        return trial

    def _trial(self, coupled: Coupling, reading: list[Reader], choice: Choice) -> _Trial:
        removed = choice.removed(coupled)
        source = deepcopy(self.exact)
        folded = _fold(source, coupled, reading, choice)
        small = indexed(source)
        cut(small, removed, coupled.graph)
        origin = filled(small, source)
        for module in small.modules():
            module.zero_grad(set_to_none=True)
        self._compare(small)
        return _Trial(small, origin, folded, removed)

    def _compare(self, small: nn.Module) -> None:
        """In eval mode, in train mode (without dropout), and in eval mode again with the statistics of that."""
        pair = [_without_dropout(deepcopy(network)) for network in (self.exact, small)]
        random = self._is_random(pair[0])
        for mode in (False,) if random else (False, True, False):
            for given in self.inputs if not mode else self.inputs[1:]:
                try:
                    wanted, got = (_run(network.train(mode), given, self.device) for network in pair)
                except Exception as error:
                    raise _Failed(f"it does not run without them ({_first_line(error)})") from error
                _same(wanted, got, TOLERANCE[self.dtype], "train" if mode else "eval")

    def _is_random(self, network: nn.Module) -> bool:
        network = deepcopy(network).train()
        try:
            runs = [_run(deepcopy(network), self.inputs[1], self.device, seed) for seed in (0, 1)]
        except Exception:  # it cannot train on this example: it is compared in eval mode alone
            return True
        return any(not torch.equal(a, b) for a, b in zip(*runs, strict=True))

    def _shrunk(self, trial: _Trial) -> Shrunk:
        small = trial.small
        _cast_like(small, self.large)
        masks = {
            name: self.masks[name].flatten()[trial.origin[name]].to(parameter.device)
            for name, parameter in parameters(small).items()
            if name in self.masks
        }
        _like_before(small, self.model)
        before = sum(p.numel() for p in self.model.parameters())
        after = sum(p.numel() for p in small.parameters())
        kept = sum(int(mask.sum()) for mask in self.masks.values())
        still = sum(int(mask.sum()) for mask in masks.values())
        folds = {name: int((constant != 0).sum()) for name, constant in trial.folded.items()}
        plan = Plan(_layers(trial.removed, self.large), (before, after), (kept, still), folds, self.shifts, self.left)
        return Shrunk(small, masks, plan, self.large, trial.origin, trial.folded)


def _masked(model: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    with torch.no_grad():
        for _, parameter, mask in matched(model, masks):
            parameter.masked_fill_(~mask, 0)
    model.zero_grad(set_to_none=True)
    return model


def _fold(source: nn.Module, coupled: Coupling, reading: list[Reader], choice: Choice) -> dict[str, Tensor]:
    """Add to the bias of each reader what the constants among its removed inputs bring; what was added, by name."""
    added = {}
    for one in reading:
        gone = choice.gone[coupled.label[one.place.span]]
        channels = gone & one.foldable & ~one.silent
        if not channels.any():
            continue
        layer: Any = source.get_submodule(one.place.name)
        weight = layer.weight.detach().flatten(2).sum(2) if layer.weight.dim() > 2 else layer.weight.detach()
        constant = weight[:, channels.to(weight.device)] @ one.constant[channels].to(weight)
        if not bool((constant != 0).any()):
            continue
        name = f"{one.place.name}.bias" if one.place.name else "bias"
        if layer.bias is None:
            layer.bias = nn.Parameter(constant, requires_grad=False)  # the constant is not trained
        else:
            layer.bias.data += constant
        added[name] = constant
    return added


def _zero_shift(layer: Any, channels: Tensor) -> None:
    with torch.no_grad():
        layer.bias[channels] = 0
        if getattr(layer, "running_mean", None) is not None:
            layer.running_mean[channels] = 0


def _doubled(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _random(value: Any, times: int) -> Any:
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    wide = torch.cat([value] * times)
    return torch.randn_like(wide) if wide.is_floating_point() else wide


def _run(network: nn.Module, example: Any, device: torch.device, seed: int = 0) -> list[Tensor]:
    args, kwargs = call(example)
    with torch.no_grad(), forked(device, seed):
        return [t.detach().clone() for t in tensors(network(*args, **kwargs)) if t.is_floating_point()]


def _without_dropout(network: nn.Module) -> nn.Module:
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return network


def _same(wanted: list[Tensor], got: list[Tensor], tolerance: float, mode: str) -> None:
    if [t.shape for t in wanted] != [t.shape for t in got]:
        raise _Failed("its outputs have another shape without them")
    for a, b in zip(wanted, got, strict=True):
        scale = float(a[a.isfinite()].abs().max()) if a.isfinite().any() else 0.0
        if not torch.allclose(a, b, rtol=0, atol=tolerance * scale + 1e-30, equal_nan=True):
            apart = float((a - b).abs().max())
            raise _Failed(
                f"in {mode} mode its outputs differ by {apart:.3g} without them, where the largest is {scale:.3g}"
            )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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


def _layers(removed: Removed, large: nn.Module) -> list[Layer]:
    """The layers that became smaller, in the order of the model."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for (name, side), mask in removed.items():
        for end in ("in", "out") if side == "both" else (side,):
            found.setdefault(name, {})[end] = (mask.numel(), int((~mask).sum()))
    changed = []
    for name, module in large.named_modules():
        if name not in found or all(before == after for before, after in found[name].values()):
            continue
        ins = getattr(module, "in_channels", getattr(module, "in_features", 0))
        inputs, outputs = found[name].get("in", (ins, ins)), found[name].get("out", (0, 0))
        changed.append(Layer(name, inputs, outputs, blank=0 in (inputs[1], outputs[1])))
    return changed


def _change(sizes: tuple[int, int]) -> str:
    before, after = sizes
    return "" if before == 0 else f"{before:,}" if before == after else f"{before:,} → {after:,}"
