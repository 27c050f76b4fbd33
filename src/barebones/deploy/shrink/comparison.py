"""The comparison of two networks: on the same inputs, with the same random numbers, in train and in eval mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...messages import first_line
from ...running.inputs import tensors
from ...running.outputs import difference, mismatch, outputs, rounded, tolerance
from ...running.rng import Replayed, forked
from .examples import other_sizes, random_inputs


class Unusable(Exception):
    """A changed network cannot replace the original: it does not run, or it computes something else."""


@dataclass(frozen=True)
class Run:
    """One run of a network: its mode and inputs, what it returned, and the tolerance for another network's outputs."""

    train: bool
    inputs: Any
    returned: list[Tensor]
    limit: float
    rounded: Callable[[], list[Tensor]]  # returns the same up to rounding, to measure how much that matters


@dataclass(frozen=True)
class Comparison:
    """The inputs and modes in which networks are compared. If they are random, their random numbers are replayed.

    The modes are eval, train, and eval again with the statistics that batch-norms collected in train mode. Eval
    is the only mode for a network that does not run in train mode; `unchecked` then says why. A network whose outputs
    differ even if random numbers are replayed does not `repeat`.
    """

    inputs: list[Any]  # the example, and random values of its shape, as a larger batch if the network accepts that
    scaled: list[Any]  # random values of several sizes, for a few samples
    other_sizes: list[Any]  # one sample, larger images and longer sequences, if the network accepts them
    modes: tuple[bool, ...]
    unchecked: str
    repeats: bool
    replayed: bool

    @staticmethod
    def for_network(model: nn.Module, example: Any) -> Comparison:
        """Find the inputs and modes in which this network runs."""
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
        modes: tuple[bool, ...] = (False,)
        unchecked, repeats = "", True
        # Batch-norms need more than one value for each channel, but some networks accept only the example's batch size.
        for inputs in (wide, same_size):
            try:
                repeats = difference(replayed(True, inputs), replayed(True, inputs)) == 0
            except Exception as error:
                unchecked = f"in train mode: it does not run in train mode ({first_line(error)})"
                continue
            modes = (False, True, False) if repeats else modes
            unchecked = "" if repeats else "in train mode: its outputs are random"
            break
        with forked(device, seed=1):
            sizes = other_sizes(inputs, partial(accepts, probe))
        return Comparison([example, inputs], scaled, sizes, modes, unchecked, repeats, any(r.used for r in replays))

    @property
    def trains(self) -> bool:
        """Whether the networks are compared in train mode."""
        return True in self.modes

    def cast(self, like: Any) -> Comparison:
        """Return the same comparison with inputs of the types of an example."""

        def cast(trees: list[Any]) -> Any:
            return [
                tree_map(lambda value, t: t.to(value.dtype) if isinstance(t, Tensor) else t, like, tree)
                for tree in trees
            ]

        return replace(self, inputs=cast(self.inputs), scaled=cast(self.scaled), other_sizes=cast(self.other_sizes))

    def run(self, network: nn.Module, inputs: Any) -> list[Tensor]:
        """Return the tensors among the outputs of a network."""
        with self.random_numbers():
            return [t.clone() for t in tensors(outputs(network, inputs))]  # a later run may overwrite the originals

    def rounded(self, model: nn.Module, train: bool, inputs: Any) -> list[Tensor]:
        """Return the outputs of a network whose weights and inputs differ by one rounding."""
        with self.random_numbers():
            return list(tensors(rounded(copy_sharing_parameters(model).train(train), inputs)))

    def random_numbers(self) -> AbstractContextManager[Any]:
        """Return a context in which every network gets the same random numbers."""
        return Replayed(seed=0) if self.replayed else nullcontext()

    def runs(self, model: nn.Module) -> list[Run]:
        """Run a network in all modes on all inputs, and return the runs."""
        network = copy_sharing_parameters(model)
        result: list[Run] = []
        for train in self.modes:
            for inputs in self.inputs[1:] if result else (*self.inputs, *self.other_sizes):
                returned = self.run(network.train(train), inputs)
                result.append(
                    Run(train, inputs, returned, tolerance(model, train), partial(self.rounded, model, train, inputs))
                )
        return result

    def check(self, network: nn.Module, expected: list[Run], change: str) -> None:
        """Raise `Unusable` unless the network returns the expected outputs.

        `change` names the change that was made to the network, for the error message: "with channels last".
        """
        network = copy_sharing_parameters(network)
        for known in expected:
            with runnable(change):
                returned = self.run(network.train(known.train), known.inputs)
            if reason := mismatch(known.returned, returned, known.limit, known.rounded if self.repeats else None):
                raise Unusable(f"{change}, in {'train' if known.train else 'eval'} mode, {reason}")


def accepts(network: nn.Module, inputs: Any) -> bool:
    """Whether a network on the CPU runs in eval mode. On a GPU, an index out of range would end the process."""
    try:
        outputs(network.eval(), tree_map(lambda t: t.cpu() if isinstance(t, Tensor) else t, inputs))
    except Exception:  # of any class, since it is the user's forward pass: the network does not take such inputs
        return False
    return True


@contextmanager
def runnable(change: str) -> Iterator[None]:
    """Raise `Unusable` if a changed network does not run in this context."""
    try:
        yield
    except Exception as error:
        raise Unusable(f"it does not run {change} ({first_line(error)})") from error


def copy_sharing_parameters(network: nn.Module) -> nn.Module:
    """Return a copy with its own modes and buffers, which shares its parameters with the network.

    Running the copy does not change the network.
    """
    return deepcopy(network, {id(parameter): parameter for parameter in network.parameters()})
