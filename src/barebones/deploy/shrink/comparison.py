"""The comparison of two networks: on the same inputs, with the same random numbers, in train and in eval mode."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...running.inputs import tensors
from ...running.outputs import difference, mismatch, outputs, tolerance
from ...running.rng import forked


class Unusable(Exception):
    """A changed network cannot replace the original: it does not run, or it computes something else."""


@dataclass(frozen=True)
class Run:
    """One run of a network: its mode and inputs, what it returned, and the tolerance for another network's outputs."""

    train: bool
    inputs: Any
    returned: list[Tensor]
    limit: float


@dataclass(frozen=True)
class Comparison:
    """The inputs and modes in which networks are compared. Dropout is off.

    The modes are eval, train, and eval again with the statistics that batch-norms collected in train mode. Eval
    is the only mode for a network that does not run in train mode, or is random there; `unchecked` then says why.
    """

    inputs: list[Any]  # the example, and random values of its shape, as a larger batch if the network accepts that
    other_sizes: list[Any]  # one sample, larger images and longer sequences, if the network accepts them
    modes: tuple[bool, ...]
    trains: bool  # whether the network runs in train mode
    unchecked: str

    @staticmethod
    def for_network(model: nn.Module, example: Any) -> Comparison:
        """Find the inputs and modes in which this network runs."""
        device = next((t.device for t in (*model.parameters(), *tensors(example))), torch.device("cpu"))
        with forked(device, seed=0):
            wide = tree_map(lambda value: _random(value, times=2), example)
            same_size = tree_map(lambda value: _random(value, times=1), example)
        modes: tuple[bool, ...] = (False,)
        trains, unchecked = False, ""
        # Batch-norms need more than one value for each channel, but some networks accept only the example's batch size.
        for inputs in (wide, same_size):
            try:
                runs = [_run(without_dropout(copy_sharing_parameters(model)).train(), inputs, seed) for seed in (0, 1)]
            except Exception as error:
                unchecked = f"it does not run in train mode ({first_line(error)})"
                continue
            trains, unchecked = True, ""
            if difference(*runs) > 0:
                unchecked = "its outputs are random in train mode"
            else:
                modes = (False, True, False)
            break
        return Comparison([example, inputs], _other_sizes(model, inputs, device), modes, trains, unchecked)

    def cast(self, like: Any) -> Comparison:
        """Return the same comparison with inputs of the types of an example."""

        def cast(tree: Any) -> Any:
            return tree_map(lambda value, t: t.to(value.dtype) if isinstance(t, Tensor) else t, like, tree)

        return replace(
            self, inputs=[cast(tree) for tree in self.inputs], other_sizes=[cast(tree) for tree in self.other_sizes]
        )

    def runs(self, model: nn.Module) -> list[Run]:
        """Run a network in all modes on all inputs, and return the runs."""
        network = without_dropout(copy_sharing_parameters(model))
        result: list[Run] = []
        for train in self.modes:
            for inputs in self.inputs[1:] if result else (*self.inputs, *self.other_sizes):
                result.append(Run(train, inputs, _run(network.train(train), inputs), tolerance(model, train)))
        return result

    def check(self, network: nn.Module, expected: list[Run], change: str) -> None:
        """Raise `Unusable` unless the network returns the expected outputs.

        `change` names the change that was made to the network, for the error message: "with channels last".
        """
        network = without_dropout(copy_sharing_parameters(network))
        for run in expected:
            try:
                returned = _run(network.train(run.train), run.inputs)
            except Exception as error:
                raise Unusable(f"it does not run {change} ({first_line(error)})") from error
            if reason := mismatch(run.returned, returned, run.limit):
                raise Unusable(f"{change}, in {'train' if run.train else 'eval'} mode, {reason}")
        if self.trains and True not in self.modes:  # random in train mode: it cannot be compared, but it must run
            try:
                _run(network.train(), self.inputs[1])
            except Exception as error:
                raise Unusable(f"it does not run in train mode {change} ({first_line(error)})") from error


def copy_sharing_parameters(network: nn.Module) -> nn.Module:
    """Return a copy with its own modes and buffers, which shares its parameters with the network.

    Running the copy does not change the network.
    """
    return deepcopy(network, {id(parameter): parameter for parameter in network.parameters()})


def without_dropout(network: nn.Module) -> nn.Module:
    """Switch off the dropout layers of a network, and return it."""
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return network


def first_line(error: Exception) -> str:
    """Return the first line of an error message, or the name of the error if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _run(network: nn.Module, inputs: Any, seed: int = 0) -> list[Tensor]:
    return [t.clone() for t in tensors(outputs(network, inputs, seed))]  # a later run may overwrite the originals


def _random(value: Any, times: int) -> Any:
    """Return random numbers for a batch that is `times` as large; integers are repeated."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    wide = torch.cat([value] * times)
    return torch.randn_like(wide) if wide.is_floating_point() else wide


def _other_sizes(model: nn.Module, inputs: Any, device: torch.device) -> list[Any]:
    """Return the inputs of other sizes that the model accepts in eval mode.

    This is tried on the CPU: on a GPU, an index out of range would end the process.
    """
    probe = copy_sharing_parameters(model) if device.type == "cpu" else deepcopy(model).cpu()
    batch = next((len(t) for t in tensors(inputs) if t.dim()), 0)
    accepted = []
    # First one sample, then one of twice the height and width (the dimensions after the channels), then, for sequences,
    # one of twice the length (the dimension before the channels).
    for stretched in (slice(0), slice(2, None), slice(1, 2)):

        def resized(value: Any, stretched: slice = stretched) -> Any:
            if not isinstance(value, Tensor):
                return value
            value = value[:1] if value.dim() and len(value) == batch else value
            for dim in range(value.dim())[stretched]:
                value = torch.cat([value, value], dim)
            return torch.randn_like(value) if value.is_floating_point() else value

        try:
            with forked(device, seed=1):
                other = tree_map(resized, inputs)
            outputs(probe.eval(), tree_map(lambda t: t.cpu() if isinstance(t, Tensor) else t, other))
            accepted.append(other)
        except Exception:  # the model does not accept such inputs
            continue
    return accepted
