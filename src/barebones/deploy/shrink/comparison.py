"""The comparison of two networks: on the same inputs, with the same random numbers, in train and in eval mode."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...messages import first_line
from ...running.inputs import tensors
from ...running.outputs import difference, mismatch, outputs, rounded, tolerance
from ...running.randomize import randomize_
from ...running.rng import Replayed, forked
from ...scope import matched
from .cut import cut_masks, scatter, sever
from .examples import other_sizes, random_inputs


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
        severed: Mapping[str, Tensor],
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
        sever(large, severed)
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
