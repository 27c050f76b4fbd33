"""Nothing is ever unpickled."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve"}


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
            keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
            torch_load = ast.unparse(node.func) in ("torch.load", "torch.serialization.load")
            if (torch_load and keywords.get("weights_only") != "True") or keywords.get(
                "allow_pickle", "False"
            ) != "False":
                yield node.lineno


def test_nothing_is_unpickled() -> None:
    files = [path for folder in ("src", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert files
    places = [f"{path}:{line}" for path in files for line in unpicklings(ast.parse(path.read_text(encoding="utf-8")))]
    assert not places, f"use safetensors or JSON, or torch.load(..., weights_only=True): {', '.join(places)}"


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
