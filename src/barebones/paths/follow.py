"""Following paths: run the model's own forward pass once on bits, and find the weights on a path to the output.

Parameters are replaced by their masks, or by ones. Each value becomes one bit: whether a signal from the input reaches
it. The gradient of the outputs with respect to a mask is then positive exactly at those weights whose input is reached
and whose output reaches an output of the model.
"""

import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..masks import Masks, everything
from ..running.inputs import call, first_sample, tensors
from ..running.modes import uncheckpointed
from ..running.rng import forked, own_generators
from ..scope import bare, matched, parameters, placed, refuse_scripted, refuse_sharded
from .bits import Bits, Use
from .rules import RULES


def effective(model: nn.Module, masks: Mapping[str, Tensor], example: Any) -> Masks:
    """Return masks of the kept weights that lie on a path from an input to an output.

    No signal of the input passes through the others, which may still pass on a constant, such as a bias. `example` is
    what the model is called with, as in `shrink`.

    >>> first, second = torch.eye(2) > 0, torch.tensor([[True, False]])  # the second unit is not used
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> effective(net, {"0.weight": first, "2.weight": second}, torch.zeros(1, 2))["0.weight"].tolist()
    [[True, False], [False, False]]
    """
    matched(model, masks)  # whether they fit
    return trace(model, masks, example).effective


@dataclass(frozen=True)
class Trace:
    """The result of one run: which outputs are reached, the uses of each weight, the kept weights on a path.

    `places` are where a weight is on a path, or would be if it alone were added.
    """

    outputs: list[bool]
    uses: dict[str, Use]
    effective: Masks
    places: Masks
    peeked: bool = False  # Python code has read values; known after a strict run
    samples: int = 1  # in the example; 1 where its first dimension does not count them
    disconnected: int = 0  # columns of the outputs that no signal reaches in any sample
    columns: int = 0  # of the outputs with two dimensions, which are samples and, for example, classes


def losses(model: nn.Module, masks: Mapping[str, Tensor], example: Any, traced: Trace) -> tuple[list[str], int]:
    """Return the collapsed layers, which disconnect the network, and how many output columns the masks disconnect.

    A layer is collapsed if it is empty, and alone makes an output unreachable. If no single layer is the reason, the
    layers in which the signal ends are returned. What no signal reaches in the dense network does not count.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> masks, example = {"0.weight": torch.ones(2, 2) > 0, "1.weight": torch.ones(1, 2) < 0}, torch.zeros(1, 2)
    >>> losses(net, masks, example, trace(net, masks, example))
    (['1.weight'], 1)
    """
    if all(traced.outputs) and not traced.disconnected:
        return [], 0
    full = everything(masks)
    dense, sample = trace(model, full, example, backward=False), example
    columns = max(traced.disconnected - dense.disconnected, 0)

    def disconnected(after: Trace) -> bool:
        return any(was and not still for was, still in zip(dense.outputs, after.outputs, strict=True))

    if not disconnected(traced):
        return [], columns
    if traced.samples > 1:  # one sample is enough, and faster, except for a model that needs as many as there are
        with suppress(ValueError):
            if trace(model, full, first_sample(example), backward=False).outputs == dense.outputs:
                sample = first_sample(example)
    emptied = {name: full | {name: mask} for name, mask in masks.items() if not mask.any()}
    alone = [name for name, kept in emptied.items() if disconnected(trace(model, kept, sample, backward=False))]
    return alone or [name for name in masks if name in traced.uses and traced.uses[name].ends], columns


def trace(
    model: nn.Module, masks: Mapping[str, Tensor], example: Any, backward: bool = True, strict: bool = False
) -> Trace:
    """Run the model on bits. The model does not change, and the masks must fit it.

    Without `backward`, `effective` and `places` are empty. A `strict` run also follows comparisons and masks among the
    inputs to the values that are computed with them, in the forward pass only.
    """
    model = bare(model)
    refuse_sharded(model, "follow its paths")
    named = parameters(model)
    kept = {name: placed(mask, named[name]) for name, mask in masks.items()}
    devices = list({p.device for p in named.values()}) or [torch.device("cpu")]
    try:
        with ExitStack() as stack:
            for guard in (*guards(devices[0]), own_generators(model.modules())):
                stack.enter_context(guard)
            bits = {
                name: (kept[name].float() if name in kept else torch.ones(p.shape, device=p.device)).requires_grad_()
                for name, p in named.items()
                if p.is_floating_point()
            }
            mode = Bits(bits, RULES, strict)
            args, kwargs = mode.inputs(call(example), devices[0] if len(devices) == 1 else None)
            stand_ins = {id(named[name]): bit for name, bit in bits.items()}
            with standing_in(model, stand_ins):
                buffers = [t for t in stand_ins.values() if t.is_floating_point() and not t.requires_grad]
                mode.stored.update(dict.fromkeys(buffers, True))
                with mode:
                    outputs = [t for t in tensors(model(*args, **kwargs)) if t.is_floating_point()]
                ends = [t.sum() for t in outputs if t.requires_grad]
                if not ends:
                    raise ValueError("none of its outputs is a float tensor that depends on its input or its weights")
                if backward and kept:
                    torch.autograd.backward(ends, inputs=[bits[name] for name in kept])
            reached = [t.requires_grad and bool((t != 0).any()) for t in outputs]
            tables = [t for t in outputs if t.requires_grad and t.dim() == 2]
            disconnected = sum(int((t == 0).all(0).count_nonzero()) for t in tables)
            columns = sum(t.shape[1] for t in tables)
            on_paths, places = Masks(), Masks()
            for name, mask in kept.items() if backward else ():
                flow = bits[name].grad
                place = torch.zeros_like(mask) if flow is None else mode.flow(name, flow) != 0
                places[name], on_paths[name] = (each.to(masks[name].device) for each in (place, mask & place))
            samples = _samples(model, call(example), outputs)
            return Trace(reached, mode.uses(), on_paths, places, mode.peeked, samples, disconnected, columns)
    except Exception as error:
        advice = "" if isinstance(error, ValueError) else "; pass an example that the model accepts"
        raise ValueError(f"could not follow the paths through {type(model).__name__}: {error}{advice}") from error


def _samples(model: nn.Module, inputs: Any, outputs: list[Tensor]) -> int:
    """Return the first size of all inputs and the first output if it is the same and counts samples; otherwise 1.

    >>> net = nn.Linear(3, 1)
    >>> _samples(net, [torch.zeros(8, 3)], [torch.zeros(8)]), _samples(net, [torch.zeros(3, 9, 9)], [torch.zeros(10)])
    (8, 1)
    """
    if any(getattr(module, "batch_first", None) is False for module in model.modules()):
        return 1
    given = [t for t in tensors(inputs) if t.dim()]
    sizes = {t.shape[0] for t in [*given, *outputs[:1]] if t.dim()}
    batched = any(t.dim() > 1 for t in given)
    return max(sizes.pop(), 1) if len(sizes) == 1 and batched else 1


def guards(device: torch.device) -> Iterator[Any]:
    """Yield the contexts that protect a run from the caller's settings, and the caller's random state from the run."""
    yield forked(device)
    yield uncheckpointed()
    yield warnings.catch_warnings(action="ignore")
    yield torch.inference_mode(False)
    yield torch.enable_grad()
    yield torch.autocast(device.type, enabled=False)
    yield torch.backends.cudnn.flags(enabled=False)  # FFT and Winograd convolutions would
    yield torch.backends.nnpack.flags(enabled=False)  # turn exact zeros into rounding errors
    if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled
        yield torch.compiler.set_stance("force_eager")


@contextmanager
def standing_in(model: nn.Module, bits: dict[int, Tensor], training: bool = False) -> Iterator[None]:
    """Put the model in eval or train mode, with `bits` in place of parameters (by id) and copies of other tensors.

    Afterwards all modules have their old attributes, and the dicts, lists and sets among these have their old content.
    """
    modules = list(model.modules())
    refuse_scripted(model)

    def stand_in(value: Any) -> Any:
        if isinstance(value, Tensor) and id(value) not in bits:
            bits[id(value)] = value.detach().clone()
        return bits[id(value)] if isinstance(value, Tensor) else value

    kinds = (dict, OrderedDict, list, set)
    saved = [(m, dict(vars(m)), {k: v.copy() for k, v in vars(m).items() if type(v) in kinds}) for m in modules]
    try:
        for module in modules:
            for table in (vars(module), module._parameters, module._buffers):
                table.update({key: stand_in(value) for key, value in table.items()})
            vars(module).update(training=training, _backward_hooks={}, _backward_pre_hooks={})
        yield
    finally:
        for module, attributes, contents in saved:
            vars(module).clear()
            vars(module).update(attributes)
            for key, content in contents.items():
                attributes[key].clear()
                (attributes[key].extend if type(content) is list else attributes[key].update)(content)
