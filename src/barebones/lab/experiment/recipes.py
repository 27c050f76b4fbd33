"""Recipes: lists of experiments, from a built-in function, a function of yours, or a grid in a TOML or JSON file."""

import json
import math
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from ... import imports
from ...imports import check_trusted, is_code
from ...messages import unknown
from .experiment import DENSE, PRUNING, Experiment, method_named
from .protocols import RECOMMENDED

Recipe = Callable[[], Iterable[Experiment]]

NETWORKS = ("resnet50", "vgg19")
SPARSITIES = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
COMPARED = ("random", "snip", "snip-mb", "grasp", "grasp-mb", "iter-snip", "force")
SEEDS = range(3)
EPOCHS = 20  # of the demo
MOST = 100_000  # experiments of a grid; a few short lists would otherwise fill the memory


def smoke() -> Iterator[Experiment]:
    """Three methods at three sparsities on digits, with the settings of the demo, to check that everything works.

    `barebones sweep smoke`; 10 runs, about a minute on two cores.
    """
    base = Experiment("small-vgg", "digits", epochs=EPOCHS)
    yield replace(base, method=DENSE, sparsity=0.0)
    for sparsity, method in product((0.9, 0.97, 0.99), ("random", "snip", "force")):
        rounds = 20 if method == "force" else None
        yield replace(base, method=method, sparsity=sparsity, rounds=rounds, batches_per_round=rounds and 4)


def cifar10() -> Iterator[Experiment]:
    """Accuracy against sparsity on CIFAR-10, all methods: the paper's main figure.

    `barebones sweep cifar10 --device cuda`; 258 runs: 2 networks, dense and 7 methods at 6 sparsities, 3 seeds.
    About 43 hours on one H200 (16 minutes for a ResNet-50, 4 for a VGG-19). All runs of a seed come before the next.
    """
    for seed, network in product(SEEDS, NETWORKS):
        yield Experiment(network, "cifar10", DENSE, sparsity=0.0, seed=seed)
        for sparsity, method in product(SPARSITIES, COMPARED):
            yield Experiment(network, "cifar10", method, sparsity, seed)


def early_pruning() -> Iterator[Experiment]:
    """Early pruning on CIFAR-10: one epoch of dense training, pruning by magnitude, then the full training.

    `barebones sweep early-pruning --device cuda`; 36 runs: 2 networks at 6 sparsities, 3 seeds; about 6 hours on
    one H200.
    """
    for seed, network, sparsity in product(SEEDS, NETWORKS, SPARSITIES):
        yield Experiment(network, "cifar10", "magnitude", sparsity, seed, pretrain=1)


RECIPES: dict[str, Recipe] = {"smoke": smoke, "cifar10": cifar10, "early-pruning": early_pruning}
IMPORTED: list[str] = []  # the files and modules of recipes that this process has imported; workers import them too


def experiments(recipe: str, named: Collection[str] = (), trust: bool = False) -> list[Experiment]:
    """Return the experiments of a recipe.

    A recipe is one of these:

    - a name in `RECIPES`;
    - `path/to/file.py:function` or `package.module:function`, a function without arguments that returns experiments.
      Its file may register methods of its own in `METHODS`; the workers of a sweep import it as well;
    - a `.toml` or `.json` file whose keys are fields of `Experiment`. A list stands for several values, and all
      combinations are run. Each table `[[grid]]` is a grid of its own, which adds to the keys above all tables. Its
      networks, data sets and methods must be in `MODELS`, `DATA`, `METHODS` or `named`, unless the file is trusted:
      others are code.

    >>> len(experiments("smoke"))
    10
    """
    if recipe in RECIPES:
        listed = list(RECIPES[recipe]())
    elif Path(recipe).suffix.lower() in (".toml", ".json"):
        listed = list(_from_file(Path(recipe), named, trust))
    elif ":" in recipe:
        listed = _called(recipe)
    else:
        names = unknown("recipe", recipe, RECIPES)
        raise ValueError(f"{names}; or name a file.py:function, or a .toml or .json file that lists them")
    if not listed:
        raise ValueError(f"the recipe {recipe} is empty; it must return at least one experiment")
    if strangers := {type(value).__name__ for value in listed if not isinstance(value, Experiment)}:
        raise ValueError(f"the recipe {recipe} returned {', '.join(strangers)}; it must return only experiments")
    return listed


def crossed(values: Mapping[str, Any]) -> Iterator[Experiment]:
    """Yield one experiment for each combination of one value from every list.

    A grid of several methods may have settings that one of them does not take: `rounds` for a method of one round, or
    a sparsity for dense. Such a method is run without them, once. `recommended` is that of `barebones run`.

    >>> [(e.method, e.seed) for e in crossed({"method": ["snip", "force"], "seed": [0, 1], "epochs": 2})]
    [('snip', 0), ('snip', 1), ('force', 0), ('force', 1)]
    """
    if (recommended := values.get("recommended")) in (True, False):
        given = {name: value for name, value in values.items() if name != "recommended"}
        values = RECOMMENDED | given if recommended else given
    elif recommended is not None or "mask" in values:
        raise ValueError("recommended is true or false, and mask is for barebones train; change it in the recipe")
    lists = [value if isinstance(value, list) else [value] for value in values.values()]
    for name, choices in zip(values, lists, strict=True):
        if not choices:
            raise ValueError(f"{name} is an empty list; give it a value, or leave it out for the default")
    if (count := math.prod(map(len, lists))) > MOST:
        raise ValueError(f"its lists have {count:,} combinations; a grid has at most {MOST:,}")
    several = len(lists[list(values).index("method")]) > 1 if "method" in values else False
    seen = set()
    for choice in product(*lists):
        settings = dict(zip(values, choice, strict=True))
        unused = _not_taken(**settings) if several else ()
        experiment = Experiment.from_dict({name: value for name, value in settings.items() if name not in unused})
        if experiment not in seen:
            seen.add(experiment)
            yield experiment


def _not_taken(method: str, revive_until: float | None = None, **_: Any) -> set[str]:
    if method == DENSE:
        return {"sparsity", *PRUNING}
    row = method_named(method)
    unused = {
        "rounds": row.rounds == 1 and not is_code(method),
        "revive_empty": not (row.revive_until if revive_until is None else revive_until),
        "scoring_bn": not row.needs_data,
    }
    return {name for name in unused if unused[name]}


def imported(source: str) -> None:
    """Import the module of a recipe, a name or the path of a Python file, and remember it for workers."""
    source = str(Path(source).resolve()) if source.endswith(".py") else source
    imports.imported(source)
    if source not in IMPORTED:
        IMPORTED.append(source)


def _from_file(path: Path, named: Collection[str], trust: bool) -> Iterator[Experiment]:
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except OSError as error:
        raise ValueError(f"the recipe {path} cannot be read ({error.strerror}); check its name") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the recipe {path} is not valid {path.suffix[1:].upper()}: {error}") from None
    if not isinstance(content, dict) or not content:
        raise ValueError(f"the recipe {path} has no fields of an experiment; write a name and a value for each")
    grids = content.pop("grid", [{}])
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise ValueError(f"grid in the recipe {path} is not a list of tables; begin each with [[grid]]")
    for values, name in product([content | grid for grid in grids], ("model", "data", "method")):
        choices = values.get(name)
        for choice in choices if isinstance(choices, list) else [choices]:
            check_trusted(str(choice), path, named, trust, f"--{name}")
    try:
        for grid in grids:
            yield from crossed(content | grid)
    except ValueError as error:
        raise ValueError(f"in the recipe {path}: {error}") from None


def _called(recipe: str) -> list[Experiment]:
    function = imports.named(recipe, "recipe")
    imported(recipe.rpartition(":")[0])
    if not callable(function):
        raise ValueError(f"{recipe} is no function; name one that returns experiments")
    try:
        return list(function())
    except Exception as error:
        raise ValueError(f"the recipe {recipe} failed ({type(error).__name__}: {error})") from error
