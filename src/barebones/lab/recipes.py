"""Recipes: lists of experiments, from a built-in function, a Python file, or a grid in a TOML or JSON file."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

from .experiment import DENSE, Experiment

Recipe = Callable[[], Iterable[Experiment]]

NETWORKS = ("resnet50", "vgg19")
SPARSITIES = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
COMPARED = ("random", "snip", "snip-mb", "grasp", "grasp-mb", "iter-snip", "force")
SEEDS = range(3)


def smoke() -> Iterator[Experiment]:
    """Four methods on digits: does everything work? `barebones sweep smoke`; 8 runs, about 20 s on two cores."""
    for seed, method in product(range(2), (DENSE, "random", "snip", "force")):
        rounds = 10 if method == "force" else None
        yield Experiment("small-vgg", "digits", method, sparsity=0.98, seed=seed, rounds=rounds, epochs=4)


def cifar10() -> Iterator[Experiment]:
    """Accuracy against sparsity on CIFAR-10, all methods: the paper's main figure.

    `barebones sweep cifar10 --device cuda`; 258 runs: 2 networks, dense and 7 methods at 6 sparsities, 3 seeds.
    About 43 hours on one H200 (16 minutes for a ResNet-50, 4 for a VGG-19); one whole seed comes after the other.
    """
    for seed, network in product(SEEDS, NETWORKS):
        yield Experiment(network, "cifar10", DENSE, sparsity=0.0, seed=seed)
        for sparsity, method in product(SPARSITIES, COMPARED):
            yield Experiment(network, "cifar10", method, sparsity, seed)


def early_pruning() -> Iterator[Experiment]:
    """Early pruning on CIFAR-10: one epoch of dense training, then the smallest weights go, then the full schedule.

    `barebones sweep early-pruning --device cuda`; 36 runs: 2 networks at 6 sparsities, 3 seeds; about 6 hours on
    one H200.
    """
    for seed, network, sparsity in product(SEEDS, NETWORKS, SPARSITIES):
        yield Experiment(network, "cifar10", "magnitude", sparsity, seed, pretrain=1)


RECIPES: dict[str, Recipe] = {"smoke": smoke, "cifar10": cifar10, "early-pruning": early_pruning}


def experiments(recipe: str) -> list[Experiment]:
    """The experiments of a recipe.

    A recipe is a name in `RECIPES`; or `path/to/file.py:function` or `package.module:function`, a function without
    arguments that returns experiments; or a `.toml` or `.json` file whose keys are fields of `Experiment`, and
    whose lists are crossed. Tables `[[grid]]` in it are several grids, each with what stands above them.

    >>> len(experiments("smoke"))
    8
    """
    if recipe in RECIPES:
        return _checked(recipe, RECIPES[recipe]())
    if Path(recipe).suffix.lower() in (".toml", ".json"):
        return _checked(recipe, _from_file(Path(recipe)))
    if ":" in recipe:
        return _checked(recipe, _called(recipe))
    near = difflib.get_close_matches(recipe.lower(), RECIPES, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    if Path(recipe).suffix == ".py":
        hint = f" (name a function in the file: {recipe}:function)"
    raise ValueError(
        f"there is no recipe {recipe!r}{hint}; choose one of {', '.join(RECIPES)}, or a file.py:function, "
        "or a .toml or .json file"
    )


def crossed(values: Mapping[str, Any]) -> Iterator[Experiment]:
    """An experiment for each choice of one value from every list.

    >>> [(e.method, e.seed) for e in crossed({"method": ["snip", "force"], "seed": [0, 1], "epochs": 2})]
    [('snip', 0), ('snip', 1), ('force', 0), ('force', 1)]
    """
    lists = [value if isinstance(value, list) else [value] for value in values.values()]
    for name, choices in zip(values, lists, strict=True):
        if not choices:
            raise ValueError(f"{name} is an empty list; give it a value, or leave it out for the default")
    for choice in product(*lists):
        yield Experiment.from_dict(dict(zip(values, choice, strict=True)))


def _from_file(path: Path) -> Iterator[Experiment]:
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except OSError as error:
        raise ValueError(f"the recipe {path} cannot be read ({error.strerror}); check its name") from None
    except ValueError as error:
        raise ValueError(f"the recipe {path} is no valid {path.suffix[1:].upper()}: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"the recipe {path} holds no fields of an experiment; write a name and a value for each")
    grids = content.pop("grid", [{}])
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise ValueError(f"grid in the recipe {path} is no list of tables; begin each with [[grid]]")
    try:
        for grid in grids:
            yield from crossed(content | grid)
    except ValueError as error:
        raise ValueError(f"in the recipe {path}: {error}") from None


def _called(recipe: str) -> Iterable[Experiment]:
    """What the function returns, whose name stands behind the last colon."""
    where, _, name = recipe.rpartition(":")
    try:
        module = _file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except FileNotFoundError as error:
        raise ValueError(f"the recipe {recipe} is not there: no file {error.filename or where}") from None
    except Exception as error:  # whatever a stranger's file raises
        hint = "; is its folder on PYTHONPATH?" if isinstance(error, ModuleNotFoundError) else ""
        raise ValueError(f"the recipe {where} cannot be imported ({type(error).__name__}: {error}){hint}") from error
    function = getattr(module, name, None)
    if not callable(function):
        near = difflib.get_close_matches(name, [n for n, value in vars(module).items() if callable(value)], n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"{where} has no function {name!r}{hint}; name one that returns experiments")
    try:
        returned: Iterable[Experiment] = function()
        return list(returned) if not isinstance(returned, Experiment) else [returned]
    except Exception as error:
        raise ValueError(f"the recipe {recipe} failed ({type(error).__name__}: {error})") from error


def _file(path: Path) -> ModuleType:
    """The module in a file; its folder becomes importable, as for a script, so models can stand beside the recipe."""
    if not path.is_file():
        raise FileNotFoundError(2, "no such file", str(path))
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(f"barebones_recipe_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def _checked(recipe: str, made: Iterable[Experiment]) -> list[Experiment]:
    found = list(made)
    if not found:
        raise ValueError(f"the recipe {recipe} is empty; it must give at least one experiment")
    for thing in found:
        if not isinstance(thing, Experiment):
            raise ValueError(f"the recipe {recipe} gave {type(thing).__name__}; it must give Experiment objects alone")
    return found
