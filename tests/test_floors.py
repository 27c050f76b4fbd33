"""Imports point down only, nobody below imports the package's face, and nothing is ever unpickled."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "barebones"
FACE = ("__init__", "__main__")  # on no floor: the table of contents, and its door

FLOORS = [  # top to bottom; a name is a module or a folder of them
    ["cli"],
    ["options"],
    ["lab", "bench"],
    ["training"],
    ["shrink", "sparse", "export", "account", "hold", "saliency", "theory"],
    ["prune"],
    ["replay"],
    ["methods", "round"],
    ["criteria"],
    ["fold", "weightfile"],
    ["probe"],
    ["paths", "masks", "selection", "maskfile", "batches"],
    ["scope", "schedules", "parallel", "digest", "files", "pieces", "rng", "capture", "kernels"],
    ["models", "data", "version"],  # import nothing of ours
]
SIDEWAYS = {("selection", "masks"), ("maskfile", "masks")}
FLOOR_OF = {name: depth for depth, names in enumerate(FLOORS) for name in names}

PICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve"}


def sources(package: Path) -> dict[str, ast.Module]:
    """The parsed file of each module, by its name under the package: "masks", "lab.config", "lab.__init__"."""
    return {
        ".".join(path.relative_to(package).with_suffix("").parts): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(package.rglob("*.py"))
    }


def imports(tree: ast.Module, module: str) -> Iterator[tuple[int, str, list[str]]]:
    """Line, the dotted module imported from, and the names taken; of our own imports, made absolute."""
    here = ["barebones", *module.split(".")[:-1]]  # the folder that one dot means
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "barebones":
                    yield node.lineno, alias.name, []
        elif isinstance(node, ast.ImportFrom):
            start = here[: len(here) - node.level + 1] if node.level else []
            source = ".".join([*start, *filter(None, [node.module])])
            if source.split(".")[0] == "barebones":
                yield node.lineno, source, [alias.name for alias in node.names]


def bound(tree: ast.Module) -> set[str]:
    """The names that the face binds, which hide the modules of the same name: `prune` is a function there."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def faults(package: Path) -> list[str]:
    """What breaks the floors, one sentence each."""
    found = []
    modules = sources(package)
    tops = {name.split(".")[0] for name in modules}
    on_face = bound(modules.get("__init__", ast.Module([], [])))
    for module, tree in modules.items():
        top = module.split(".")[0]
        if top in FACE:
            continue
        if top not in FLOOR_OF:
            found.append(f"{module} is on no floor: put {top!r} on one, in FLOORS of tests/test_floors.py")
            continue
        for line, source, names in imports(tree, module):
            if source != "barebones":
                targets = {source.split(".")[1]}
            elif names and all(name in tops - on_face for name in names):
                targets = set(names)
            else:
                found.append(f"{module}:{line} imports the face of the package: import from the module that defines it")
                continue
            for target in sorted(targets - {top}):
                down = target in FLOOR_OF and FLOOR_OF[target] > FLOOR_OF[top]
                if not down and (top, target) not in SIDEWAYS:
                    found.append(f"{module}:{line} imports {target}, which is not on a lower floor")
    return found


def unpicklings(tree: ast.Module) -> Iterator[int]:
    """Lines that could run a stranger's pickle."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            if any(alias.name.split(".")[0] in PICKLERS for alias in node.names):
                yield node.lineno
        elif isinstance(node, ast.ImportFrom):
            hidden = node.module in ("torch", "torch.serialization") and "load" in [alias.name for alias in node.names]
            if hidden or (node.module or "").split(".")[0] in PICKLERS:
                yield node.lineno
        elif isinstance(node, ast.Attribute):
            if node.attr in PICKLERS:  # torch.serialization.pickle
                yield node.lineno
        elif isinstance(node, ast.Call):
            said = {word.arg: ast.unparse(word.value) for word in node.keywords}
            torch_load = ast.unparse(node.func) in ("torch.load", "torch.serialization.load")
            if (torch_load and said.get("weights_only") != "True") or said.get("allow_pickle", "False") != "False":
                yield node.lineno


def test_imports_point_down_only() -> None:
    assert not faults(PACKAGE), "\n".join(faults(PACKAGE))


def test_nothing_is_unpickled() -> None:
    found = [f"{module}:{line}" for module, tree in sources(PACKAGE).items() for line in unpicklings(tree)]
    assert not found, f"use safetensors or JSON, or torch.load(..., weights_only=True): {', '.join(found)}"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("prune", "from barebones.masks import everything"),
        ("prune", "from .masks import everything"),
        ("prune", "from . import masks, schedules"),
        ("prune", "import barebones.masks"),
        ("prune", "import math, torch"),
        ("selection", "from barebones.masks import Masks"),
        ("lab/run", "from .config import Config"),
        ("lab/run", "from barebones.lab import config"),
        ("lab/run", "from ..prune import prune"),
        ("lab/__init__", "from .run import run"),
        ("data/digits", "from .images import Images"),
        ("__main__", "from barebones.cli import main"),
    ],
)
def test_the_floors_allow(module: str, line: str, tmp_path: Path) -> None:
    assert not faults(house(tmp_path, module, line))


@pytest.mark.parametrize(
    ("module", "line", "why"),
    [
        ("masks", "from barebones.prune import prune", "imports prune, which is not on a lower floor"),
        ("masks", "def late():\n    from .prune import prune", "imports prune, which is not"),
        ("masks", "from .selection import keep_top", "imports selection, which is not"),
        ("hold", "from barebones.account import account", "imports account, which is not"),
        ("lab/run", "from barebones.bench import core", "imports bench, which is not"),
        ("lab/run", "from ..cli import main", "imports cli, which is not"),
        ("data/digits", "from barebones.models import vgg", "imports models, which is not"),
        ("masks", "from barebones.nowhere import x", "imports nowhere, which is not"),
        ("cli", "import barebones", "imports the face"),
        ("cli", "import barebones as bb", "imports the face"),
        ("cli", "from barebones import prune", "imports the face"),  # the function, though a module has its name
        ("cli", "from . import prune", "imports the face"),
        ("cli", "from . import masks, METHODS", "imports the face"),
        ("lab/run", "from .. import METHODS", "imports the face"),
        ("cli", "from barebones import *", "imports the face"),
        ("helpers", "", "put 'helpers' on one"),
    ],
)
def test_the_floors_refuse(module: str, line: str, why: str, tmp_path: Path) -> None:
    [fault] = faults(house(tmp_path, module, line))
    assert fault.startswith(module.replace("/", "."))
    assert why in fault


def house(folder: Path, module: str, line: str) -> Path:
    """A small package on the floors, with this line in this module."""
    files = dict.fromkeys(["masks", "schedules", "methods", "prune"], "")
    files["__init__"] = "from .methods import METHODS\nfrom .prune import prune\n"
    for name, text in {**files, module: line}.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ("import pickle", True),
        ("from pickle import loads", True),
        ("import torch; torch.serialization.pickle.loads(b'')", True),
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=False)", True),
        ("torch.load(path, weights_only=True)", False),
        ("from torch import load", True),
        ("from torch import nn", False),
        ("numpy.load(path, allow_pickle=True)", True),
        ("numpy.load(path, allow_pickle=False)", False),
        ("from safetensors.torch import load", False),
    ],
)
def test_unpickling_is_caught(line: str, caught: bool) -> None:
    assert bool(list(unpicklings(ast.parse(line)))) is caught
