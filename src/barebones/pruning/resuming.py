"""Resuming: the settings that a run writes into its rounds, and the checks that rounds and ranks have the same ones."""

import functools
from typing import Any

import torch.distributed
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ..running import digest
from ..running.shards import is_sharded
from .methods import Method
from .probe import Probe
from .round import Round


def plan_of(probe: Probe, method: Method, counts: list[int], in_layers: dict[str, int] | None = None) -> dict[str, Any]:
    """Return the settings of a run, in plain values that a file can hold."""
    return {
        "criterion": function_name(method.criterion),
        "objective": function_name(probe.objective or probe.loss),
        "counts": counts,
        "batches_per_round": method.batches_per_round,
        "revive": round(method.revive_until * method.rounds),
        "revive_empty": method.revive_empty,
        "at_least": method.at_least,
        "densities": in_layers,
        "min_per_channel": method.min_per_channel,
        "pattern": method.pattern,
        "unit": method.unit,
        "target": method.target,
        "bn": probe.bn,
        "precision": probe.precision,
        "training": digest.text([m.training for m in probe.model.modules() if not isinstance(m, _NormBase)]),
        "seed": probe.seed,
    }


def check_same_ranks(probe: Probe, method: Method, plan: dict[str, Any]) -> None:
    """Raise a ValueError in all processes if they prune one network with different settings, or hold other weights."""
    if probe.alone:
        return
    settings = {name: plan[name] for name in plan if name not in ("objective", "training")}  # may be local functions
    settings["criterion"] = plan["criterion"].partition("(")[0]  # bound objects may print as addresses
    if method.needs_data and not probe.shared:  # processes that read their own batches may shuffle them differently
        settings["seed"] = None
    whole = [parameter for parameter in probe.user_model.parameters() if not is_sharded(parameter)]
    settings["weights"] = int(digest.of_tensors(whole))
    digests = torch.tensor([digest.text(value) for value in settings.values()], device=probe.device)
    ends = torch.stack([digests, -digests])
    torch.distributed.all_reduce(ends, torch.distributed.ReduceOp.MAX, group=probe.group)
    names = [name for name, (most, least) in zip(settings, ends.T.tolist(), strict=True) if most != -least]
    if names == ["weights"] or (not names and probe.shards is not None and probe.shards.copies_differ()):
        raise ValueError("the processes hold different weights; build the network with the same seed, or load one file")
    if names:
        cure = "pass the same sparsity, method, seed and options in each"
        raise ValueError(f"the processes prune one network with different settings ({', '.join(names)}); {cure}")


def function_name(function: object) -> str:
    """Return the name of a function, with the values bound to a `partial` and the settings of a loss module."""
    if isinstance(function, functools.partial):
        values = [*enumerate(function.args), *function.keywords.items()]
        bound = [f"{key}={function_name(value) if callable(value) else repr(value)}" for key, value in values]
        return f"{function_name(function.func)}({', '.join(bound)})"
    if isinstance(function, nn.Module):
        settings = {key: value for key, value in vars(function).items() if isinstance(value, int | float | str)}
        return f"{function!r} {settings}"
    return getattr(function, "__qualname__", type(function).__qualname__)


def check_same_run(after: Round, plan: dict[str, Any], weights_digest: int, probe: Probe, method: Method) -> None:
    """Raise a ValueError unless the round `after` was made with the same settings, weights and batches."""
    if not isinstance(after, Round):
        raise ValueError(f"after= is the last Round (result.last, or Round.load(path)), not a {type(after).__name__}")
    if differing := [key for key in plan if plan[key] != after.plan.get(key)]:
        then, now = ({key: str(settings.get(key))[:40] for key in differing} for settings in (after.plan, plan))
        raise ValueError(f"this round was made with other settings: {', '.join(differing)} (then {then}, now {now})")
    counts = plan["counts"]  # before the first round, and after each
    if not 0 <= after.index < len(counts) - 1 or (method.unit == "weight" and counts[after.index + 1] != after.keep):
        raise ValueError(f"this round keeps {after.keep} weights, but round {after.index + 1} of this run does not")
    shapes = {name: mask.shape for name, mask in after.masks.items()}
    if probe.shapes != shapes or after.weights_digest != weights_digest:
        raise ValueError("this round was made with other weights; start from the same initialization to continue it")
    if after.batches_digest and after.batches_digest != int(probe.digest_of(after.index, method.batches_per_round)):
        raise ValueError("this round was made with other batches; pass the same data and seed to continue it")
