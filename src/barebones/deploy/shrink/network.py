"""The small network: made from the masked one, and expanded back into the large one."""

from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ...masks import Masks, kept, size
from ...messages import first_line
from ...paths.coupling import Coupling, find_coupling
from ...running.backward import guarded
from ...running.inputs import call, tensors
from ...running.outputs import device_of, outputs
from ...running.rng import forked
from ...scope import bare, masked_copy, matched, parameters
from .comparison import Comparison, Unusable, copy_sharing_parameters
from .cut import cut_masks, scatter, without, zero_connections
from .plan import Cuts, ShrinkPlan, smaller_layers
from .removal import ChannelReader, constants, prune_shifts, reached, readers, zero_shifts
from .trials import Trials


@dataclass(frozen=True, repr=False)
class Shrunk:
    """A smaller network, the masks of its weights, and what was removed; `expand` returns a network of the old size."""

    module: nn.Module
    masks: Masks
    plan: ShrinkPlan
    _large: nn.Module
    _origin: dict[str, Tensor]

    def __repr__(self) -> str:
        (before, after), (_, weights) = self.plan.parameters, self.plan.weights
        return f"Shrunk(parameters {before:,} → {after:,}, {weights:,} weights kept)"

    def expand_masks(self, masks: Mapping[str, Tensor]) -> Masks:
        """Return masks of weights of `module` as masks of the original weights: what was removed is pruned."""
        large, whole = parameters(self._large), Masks()
        for name, _, mask in matched(self.module, masks):
            whole[name] = torch.zeros(large[name].shape, dtype=torch.bool, device="cpu")
            whole[name].view(-1)[self._origin[name].reshape(-1).cpu()] = mask.reshape(-1).cpu()
        return whole

    def expand(self) -> nn.Module:
        """Return a network of the original architecture that computes what `module` computes now, trained or not.

        Its state dict loads into the original model. Pruned weights are zero. What was removed has its old values,
        except the weights between removed and kept channels: they are zero where a bias has taken over what they
        added, or where they carry a zero that training may have changed.
        """
        large = deepcopy(self._large)
        scatter(large, self.module, self._origin)
        _copy_modes(large, self.module)
        return large


def shrink(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    example: Any,
    *,
    multiple_of: int = 1,
    before_training: bool = False,
    channels_last: bool = True,
) -> Shrunk:
    """Return the network without the channels, neurons and branches that carry no signal from input to output.

    The small network is a plain `nn.Module`. It returns what the masked model returns, in train and in eval mode. This
    is checked on the example and on random inputs of its shape, with the present values and with random ones, and with
    the other value of each flag (a buffer that holds a single 0 or 1). A channel whose removal fails the check is kept,
    and `plan.left` says why.

    - A channel that nothing reads is removed. A channel that nothing writes is constant: it holds a bias or the shift
      of a batch-norm. It is removed if the constant is zero, or if the biases of all layers that read it can take it
      over exactly.
    - `before_training` treats the shift of a channel without input as pruned. The small network then returns what the
      masked model returns with these shifts at zero, and `plan.shifts` counts them.
    - `multiple_of` keeps enough channels without a signal to make every width a multiple of it, as tensor cores
      prefer. Their kept weights stay, although they are on no path; to prune them, pass the masks of `effective`.
    - `channels_last` stores 4-d weights with their channels last in memory, which is faster. If the network cannot run
      so, for example because it uses `view` on images, they keep their order, and `plan.layout` says why.
    - `example` is what the model is called with: an input, a tuple of arguments, a dict of them by name, or
      (args, kwargs). A batch of two is enough.

    >>> net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 2))
    >>> masks = {"0.weight": torch.arange(32).view(8, 4) < 12, "2.weight": torch.ones(2, 8) > 0}
    >>> small = shrink(net, masks, torch.randn(2, 4))
    >>> small.module[0].out_features, small.masks["2.weight"].shape, small.plan.parameters
    (3, torch.Size([2, 3]), (50, 20))
    >>> small
    Shrunk(parameters 50 → 20, 18 weights kept)
    """
    return apply_cuts(model, masks, find_cuts(model, masks, example, multiple_of, before_training, channels_last))


def find_cuts(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    example: Any,
    multiple_of: int = 1,
    before_training: bool = False,
    channels_last: bool = True,
) -> Cuts:
    """Return what `shrink` removes from the network, and all else that it changes; this is nearly all of its work."""
    if type(multiple_of) is not int or multiple_of < 1:
        raise ValueError(f"multiple_of must be a whole number of channels, 1 or more, not {multiple_of}")
    name = type(model).__name__
    with torch.inference_mode(False):
        model = bare(model)
        if any(p.device.type == "meta" for p in model.parameters()):
            raise ValueError("the model is on the meta device and has no weights; give it some first, with to_empty()")
        if any(t.numel() == 0 for t in tree_leaves(example) if isinstance(t, Tensor)):
            raise ValueError("the example holds a tensor without elements; pass a batch of two")
        cpu_masks, large = _masked(model, masks)
        exact, exact_example = _in_float64(large, example)
        comparison = Comparison.for_network(exact, exact_example)
        try:
            coupling = find_coupling(exact, exact_example, (False, True) if comparison.trains else (False,))
        except Exception as error:
            raise ValueError(f"could not find the coupled channels of {name}: {error}") from error
        reasons: dict[str, str] = {}
        zeroed: dict[str, Tensor] = {}
        shifts: dict[str, int] = {}
        observe = partial(_observe, exact, cpu_masks, exact_example, coupling, comparison, reasons)
        try:
            if before_training:
                reading, zeroed, shifts = prune_shifts(coupling, observe, exact)
            else:
                reading = observe()
            trials = Trials(exact, cpu_masks, coupling, reading, comparison, multiple_of)
            trial = trials.best()
        except (RuntimeError, IndexError) as error:
            reason = f"it runs on the example but not on random values ({first_line(error)})"
            cure = "give a table its indices as integers, and keep no state between two calls"
            raise ValueError(f"{name} cannot be shrunk: {reason}; {cure}") from error
        layout = _reason_against_channels_last(_restored(trial.small, model), example) if channels_last else ""
        unchecked = comparison.unchecked
        if not (unchecked or trial.telling):
            unchecked = "with other values: its outputs are then all the same, or not finite"
        plan = ShrinkPlan(
            layers=smaller_layers(trial.removed, large),
            parameters=(size(parameters(model)), size(parameters(trial.small))),
            weights=(kept(cpu_masks), kept(cut_masks(cpu_masks, trial.origin, trial.small))),
            folded=trial.folded,
            shifts=shifts,
            left=reasons | trials.left,
            unchecked=unchecked,
            layout=layout,
        )
        return Cuts(trial.removed, trial.added, zeroed, trial.zeroed_connections, channels_last and not layout, plan)


def apply_cuts(model: nn.Module, masks: Mapping[str, Tensor], cuts: Cuts) -> Shrunk:
    """Return the network that `shrink` returned when it found these cuts for the same network and masks."""
    with torch.inference_mode(False):
        model = bare(model)
        cpu_masks, large = _masked(model, masks)
        for name, channels in cuts.zeroed.items():
            zero_shifts(large.get_submodule(name), channels)
        small, origin = without(large, cuts.removed, cuts.added)
        small = _restored(small, model)
        if cuts.channels_last:
            _with_channels_last(small)
        zero_connections(large, cuts.zeroed_connections)
        return Shrunk(small, cut_masks(cpu_masks, origin, small), cuts.plan, large, origin)


def _masked(model: nn.Module, masks: Mapping[str, Tensor]) -> tuple[Masks, nn.Module]:
    large = masked_copy(model, masks)
    large.zero_grad(set_to_none=True)
    return Masks({name: mask.cpu() for name, mask in masks.items()}), large


def _in_float64(large: nn.Module, example: Any) -> tuple[nn.Module, Any]:
    """Return the network and the example in float64, where rounding errors are small, if it runs in it."""
    doubles = tree_map(lambda t: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t, example)
    for network, inputs in ((deepcopy(large).double(), doubles), (deepcopy(large), example)):
        try:
            outputs(copy_sharing_parameters(network).eval(), inputs)
            return network, inputs
        except Exception as error:
            reason = error
    problem = f"{type(large).__name__} does not run on the example ({first_line(reason)})"
    cure = "pass what it is called with: an input, a tuple of arguments, a dict of them by name, or (args, kwargs)"
    raise ValueError(f"{problem}; {cure}") from reason


def _observe(
    model: nn.Module, masks: Masks, example: Any, coupling: Coupling, comparison: Comparison, reasons: dict[str, str]
) -> list[ChannelReader]:
    copy = copy_sharing_parameters(model)
    modules = dict(copy.named_modules())
    layers = {name: modules[name] for (name, side) in coupling.slots if side == "in" and name in modules}
    arrives, peeked = reached(copy, masks, example, layers)
    if peeked:
        reasons["every layer"] = "channels with a constant value, since the forward pass looks at values in Python"
    random = comparison.inputs[1]
    tokens = any(not t.is_floating_point() for t in tensors(call(example)))
    runs = [(False, inputs) for inputs in (*comparison.other_sizes, *comparison.scaled[: 4 * tokens], random)]
    runs += [(True, random)] * comparison.trains
    return readers(coupling, model, masks, arrives, constants(copy, runs, layers))


def _restored(small: nn.Module, model: nn.Module) -> nn.Module:
    """Give a cut network the precision (a new bias that of its layer's weight) and the modes of the original."""
    dtypes = {name: t.dtype for name, t in (*model.named_parameters(), *model.named_buffers())}
    for name, tensor in (*small.named_parameters(), *small.named_buffers()):
        tensor.data = tensor.data.to(dtypes.get(name) or dtypes[f"{name.removesuffix('bias')}weight"])
    _copy_modes(small, model)
    return small


def _copy_modes(network: nn.Module, model: nn.Module) -> None:
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in network.named_modules():
        module.training = modes.get(name, model.training)


def _with_channels_last(network: nn.Module) -> nn.Module:
    """Put the channels of all 4-d parameters last in memory, and return the network."""
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    return network


def _reason_against_channels_last(network: nn.Module, example: Any) -> str:
    """Say why a network must keep its order: it does not compute or train with channels last. Else return ""."""
    if all(p.dim() != 4 for p in network.parameters()):
        return ""
    changed = _with_channels_last(deepcopy(network))

    def train(network: nn.Module) -> None:
        args, kwargs = call(tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, comparison.inputs[1]))
        with forked(device_of(network, example), seed=0), comparison.random_numbers(), torch.enable_grad():
            ends = [t for t in tensors(copy_sharing_parameters(network).train()(*args, **kwargs)) if t.requires_grad]
            wanted = [parameter for parameter in network.parameters() if parameter.requires_grad]
            with guarded(ends, unaided=True):
                torch.autograd.grad(ends, wanted, list(map(torch.ones_like, ends)), allow_unused=True)

    try:
        comparison = Comparison.for_network(network, example)
        comparison.check(network, changed, "with channels last")
    except Unusable as error:
        return str(error)
    except Exception as error:
        return f"it does not run in its own precision ({first_line(error)})"
    with suppress(Exception):  # it cannot be trained in any order
        train(network)
        try:
            train(changed)
        except Exception as error:
            return f"it does not train with channels last ({first_line(error)})"
    return ""
