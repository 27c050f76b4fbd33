"""Strip a neural network to its bare bones before training: prune at initialization, keep it sparse, account for it."""

from __future__ import annotations

import random
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .running import interrupts as interrupts  # before torch is imported
from .version import __version__

if TYPE_CHECKING:
    from .accounting import Account, account
    from .deploy.export import Exported, to_onnx, to_program
    from .deploy.hub import to_hub_folder
    from .deploy.shrink import Shrunk, shrink
    from .evolution import Evolution, evolve
    from .files.masks import load_masks, save_masks
    from .files.weights import Weights, load_weights, save_weights
    from .holding import Hold, audit, hold
    from .integrations.torch_prune import from_torch_prune
    from .masks import Agreement, Masks, Scores, agreement
    from .paths import effective
    from .pruning.controls import inverted, reinitialized, shuffled
    from .pruning.methods import METHODS, Method
    from .pruning.probe import Probe
    from .pruning.prune import Pruned, prune
    from .pruning.round import Record, Round
    from .pruning.rounds import rounds
    from .pruning.saliency import saliency
    from .pruning.schedules import SCHEDULES, exponential, linear, one_shot, settle
    from .pruning.selection import keep_top
    from .scope import prunable
    from .training import Sam, ham, sam

_HOMES = {  # of public names: modules that are imported when one is used, so that `barebones --help` needs no torch
    "accounting": ("Account", "account"),
    "deploy.export": ("Exported", "to_onnx", "to_program"),
    "deploy.hub": ("to_hub_folder",),
    "deploy.shrink": ("Shrunk", "shrink"),
    "evolution": ("Evolution", "evolve"),
    "files.masks": ("load_masks", "save_masks"),
    "files.weights": ("Weights", "load_weights", "save_weights"),
    "holding": ("Hold", "audit", "hold"),
    "integrations.torch_prune": ("from_torch_prune",),
    "masks": ("Agreement", "Masks", "Scores", "agreement"),
    "paths": ("effective",),
    "pruning.controls": ("inverted", "reinitialized", "shuffled"),
    "pruning.methods": ("METHODS", "Method"),
    "pruning.probe": ("Probe",),
    "pruning.prune": ("Pruned", "prune"),
    "pruning.round": ("Record", "Round"),
    "pruning.rounds": ("rounds",),
    "pruning.saliency": ("saliency",),
    "pruning.schedules": ("SCHEDULES", "exponential", "linear", "one_shot", "settle"),
    "pruning.selection": ("keep_top",),
    "scope": ("prunable",),
    "training": ("Sam", "ham", "sam"),
}

__all__ = [
    "METHODS", "SCHEDULES", "Account", "Agreement", "Evolution", "Exported", "Hold", "Masks", "Method", "Probe",
    "Pruned", "Record", "Round", "Sam", "Scores", "Shrunk", "Weights", "__version__", "account", "agreement", "audit",
    "effective", "evolve", "exponential", "from_torch_prune", "ham", "hold", "inverted", "keep_top", "linear",
    "load_masks", "load_weights", "one_shot", "prunable", "prune", "reinitialized", "rounds", "saliency", "sam",
    "save_masks", "save_weights", "settle", "shrink", "shuffled", "to_hub_folder", "to_onnx", "to_program",
]  # fmt: skip


if not TYPE_CHECKING:  # a type checker that saw this would accept every name

    def __getattr__(name: str) -> Any:
        """Import a public name, or a module of the package, when it is first used (PEP 562)."""
        state = random.getstate()  # rich draws a number when it is imported
        try:
            for module, names in _HOMES.items():
                if name in names:
                    globals()[name] = value = getattr(import_module(f".{module}", __name__), name)
                    return value
            return import_module(f".{name}", __name__)
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":  # a package that the module needs is missing
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        finally:
            random.setstate(state)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
