"""The comparison of two networks: on the same inputs, with the same random numbers, in train and in eval mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ...messages import first_line
from ...running.inputs import tensors
from ...running.outputs import difference, mismatch, outputs, rounded, tolerance
from ...running.randomize import randomize_
from ...running.rng import Replayed, forked
from ...scope import matched
from .cut import cut_masks, scatter, zero_connections

Draw = Callable[[Tensor], Tensor]
# What inputs may look like: pixels between 0 and 1, normalized values, bytes, and values without any bounds.
SCALES: tuple[Draw, ...] = (
    torch.randn_like,
    torch.rand_like,
    lambda like: 255 * torch.rand_like(like),
    lambda like: 1000 * torch.randn_like(like),
)


class Unusable(Exception):
    """A changed network cannot replace the original: it does not run, or it computes something else."""


@dataclass(frozen=True)
class Comparison:
    """The inputs and modes in which networks are compared."""

    inputs: list[Any]  # the example, and random values of its shape, as a larger batch if the network accepts that
    scaled: list[Any]  # random values of several sizes, for a few samples
    other_sizes: list[Any]  # one sample, larger images and longer sequences, if the network accepts them
    trains: bool  # whether they are compared in train mode too
    unchecked: str  # why not
    repeats: bool  # whether the outputs are the same again if random numbers are replayed
    replayed: bool  # whether there are random numbers

    @staticmethod
    def for_network(model: nn.Module, example: Any) -> Comparison:
        device = next((t.device for t in (*model.parameters(), *tensors(example))), torch.device("cpu"))
        probe = copy_sharing_parameters(model) if device.type == "cpu" else deepcopy(model).cpu()
        with forked(device, seed=0):
            wide, same_size, *scaled = random_inputs(probe, example, partial(accepts, probe))
        replays: list[Replayed] = []

        def replayed(train: bool, inputs: Any) -> Any:
            with Replayed(seed=0) as replay:
                replays.append(replay)
                return outputs(copy_sharing_parameters(model).train(train), inputs)

        replayed(False, example)
        trains, unchecked, repeats = False, "", True
        # Batch-norms need more than one value for each channel, but some networks accept only the example's batch size.
        for inputs in (wide, same_size):
            try:
                repeats = difference(replayed(True, inputs), replayed(True, inputs)) == 0
            except Exception as error:
                unchecked = f"in train mode: it does not run in train mode ({first_line(error)})"
                continue
            trains, unchecked = repeats, "" if repeats else "in train mode: its outputs are random"
            break
        with forked(device, seed=1):
            sizes = other_sizes(inputs, partial(accepts, probe))
        return Comparison([example, inputs], scaled, sizes, trains, unchecked, repeats, any(r.used for r in replays))

    def run(self, network: nn.Module, inputs: Any) -> list[Tensor]:
        with self.random_numbers():
            return [t.clone() for t in tensors(outputs(network, inputs))]  # a later run may overwrite the originals

    def random_numbers(self) -> AbstractContextManager[Any]:
        return Replayed(seed=0) if self.replayed else nullcontext()

    def check(self, large: nn.Module, small: nn.Module, change: str) -> None:
        """Raise `Unusable` unless two networks return the same in eval mode, in train mode, and in eval mode again."""
        large, small = copy_sharing_parameters(large), copy_sharing_parameters(small)
        runs = [(False, inputs) for inputs in (*self.inputs, *self.other_sizes)]
        runs += [(train, self.inputs[1]) for train in (True, False) if self.trains]
        for train, inputs in runs:
            before = copy_sharing_parameters(large.train(train))
            self._check_run(before, self.run(large, inputs), small.train(train), inputs, change)

    def _check_run(self, large: nn.Module, expected: list[Tensor], small: nn.Module, inputs: Any, change: str) -> None:
        try:
            returned = self.run(small, inputs)
        except Exception as error:
            raise Unusable(f"it does not run {change} ({first_line(error)})") from error

        def again() -> list[Tensor]:  # with weights and inputs that differ by one rounding
            with self.random_numbers():
                return list(tensors(rounded(large, inputs)))

        limit = tolerance(large, large.training)
        if reason := mismatch(expected, returned, limit, again if self.repeats else None):
            raise Unusable(f"{change}, in {'train' if large.training else 'eval'} mode, {reason}")

    def check_randomized(
        self,
        large: nn.Module,
        small: nn.Module,
        masks: Mapping[str, Tensor],
        origin: Mapping[str, Tensor],
        zeroed_connections: Mapping[str, Tensor],
        rests_on_values: bool,
    ) -> bool:
        """Raise `Unusable` unless a cut network and the large one agree for random values, as after training.

        With the present values a wrong cut may not show: a branch may be multiplied by zero until training has begun.
        If the large network computes constants from removed channels (`rests_on_values`), these and what is frozen keep
        their values. Return whether this tells anything: whether outputs differ at all.
        """
        telling = False
        large, small, kept = deepcopy(large), deepcopy(small), cut_masks(masks, origin, small)
        frozen = [(p, p.detach().clone()) for p in small.parameters() if rests_on_values and not p.requires_grad]
        if not rests_on_values:
            randomize_(large, len(self.scaled), matched(large, masks))
        zero_connections(large, zeroed_connections)
        for seed, inputs in enumerate(self.scaled):
            randomize_(small, seed, matched(small, kept))
            with torch.no_grad():
                for parameter, value in frozen:
                    parameter.copy_(value)
            scatter(large, small, origin)
            if next(large.parameters()).device.type != "cpu" and not accepts(deepcopy(large).cpu(), inputs):
                continue  # it computes indices from its values, and these are out of range
            for train in (False, True) if self.trains and seed < 2 else (False,):
                before = copy_sharing_parameters(large.train(train))
                try:
                    expected = self.run(large, inputs)
                except Exception:  # it does not run with these values
                    continue
                floats = [t for t in expected if t.is_floating_point() or t.is_complex()]
                if not any(bool(t.isnan().any()) for t in floats):
                    self._check_run(before, expected, small.train(train), inputs, "without them, with other values")
                    finite = [t[t.isfinite()] for t in floats]
                    telling |= any(bool((values != values[:1]).any()) for values in finite)
        return telling


def accepts(network: nn.Module, inputs: Any) -> bool:
    """Whether a network on the CPU runs in eval mode. On a GPU, an index out of range would end the process."""
    try:
        outputs(network.eval(), tree_map(lambda t: t.cpu() if isinstance(t, Tensor) else t, inputs))
    except Exception:  # of any class, since it is the user's forward pass: the network does not take such inputs
        return False
    return True


def copy_sharing_parameters(network: nn.Module) -> nn.Module:
    """Return a copy with its own modes and buffers: running it does not change the network."""
    return deepcopy(network, {id(parameter): parameter for parameter in network.parameters()})


def random_inputs(model: nn.Module, example: Any, accepts: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield normal values for a batch that is twice as large and for one of the same size, then a few of each scale.

    Integers that the model may use as indices are drawn below the size of the largest table that it `accepts` them for.
    """
    leaves, form = tree_flatten(example)
    sizes = {size for tensor in (*model.parameters(), *model.buffers()) for size in tensor.shape}

    def accepts_leaves(new: list[Any]) -> bool:
        return accepts(tree_unflatten(new, form))

    limits = [_limit(leaves, place, sizes, accepts_leaves) for place in range(len(leaves))]

    def drawn(draw: Draw, rows: Draw) -> Any:
        base = [rows(leaf) if isinstance(leaf, Tensor) and leaf.dim() else leaf for leaf in leaves]
        new = [_values(leaf, draw, limit) for leaf, limit in zip(base, limits, strict=True)]
        if any(limits) and not accepts_leaves(new):  # the integers may depend on each other
            new = [_values(leaf, draw, None) for leaf in base]
        return tree_unflatten(new, form)

    def few(leaf: Tensor) -> Tensor:
        return torch.cat([leaf] * samples)[:samples]

    yield drawn(torch.randn_like, lambda leaf: torch.cat([leaf, leaf]))
    yield drawn(torch.randn_like, torch.clone)
    samples = 2 if any(leaf.dim() > 3 for leaf in tensors(leaves)) else 4  # enough for batch-norms
    rows = few if accepts(drawn(torch.randn_like, few)) else torch.clone
    for draw in SCALES:
        yield drawn(draw, rows)


def _values(leaf: Any, draw: Draw, limit: int | None) -> Any:
    if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim():
        return draw(leaf)
    return leaf if limit is None else torch.randint_like(leaf, limit)


def _limit(leaves: list[Any], place: int, sizes: set[int], accepts: Callable[[list[Any]], bool]) -> int | None:
    """Return the size of the largest table that an integer input may index; None for floats, masks and constants."""
    leaf = leaves[place]
    if not isinstance(leaf, Tensor) or leaf.is_floating_point() or leaf.is_complex() or leaf.dtype == torch.bool:
        return None
    first = next(value for value in leaves if isinstance(value, Tensor))
    if leaf.dim() == 0 or (leaf is not first and int(leaf.min()) >= 0 and int(leaf.max()) <= 1):
        return None
    fewest, most = int(leaf.max()) + 1, torch.iinfo(leaf.dtype).max  # the values of the example are allowed, at least
    for size in sorted({fewest, *(size for size in sizes if fewest < size <= most)} - {0, 1}, reverse=True):
        draws = (torch.full_like(leaf, size - 1), torch.randint_like(leaf, size))
        if all(accepts([*leaves[:place], draw, *leaves[place + 1 :]]) for draw in draws):
            return size
    return None


def other_sizes(inputs: Any, accepts: Callable[[Any], bool]) -> list[Any]:
    """Return what a model accepts of: one sample, one of twice the height and width, a sequence of twice the length."""
    batch = next((len(t) for t in tensors(inputs) if t.dim()), 0)

    def resized(stretched: slice, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value[:1] if value.dim() and len(value) == batch else value
        for dim in range(value.dim())[stretched]:
            value = torch.cat([value, value], dim)
        return torch.randn_like(value) if value.is_floating_point() else value

    sizes = [tree_map(partial(resized, stretched), inputs) for stretched in (slice(0), slice(2, None), slice(1, 2))]
    return [size for size in sizes if accepts(size)]
