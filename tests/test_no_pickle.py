"""Nothing is ever unpickled."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PICKLERS = r"\b(_pickle|pickle|cPickle|cloudpickle|dill|joblib|shelve)\b"
UNSAFE = re.compile(
    rf"(import|from) .*{PICKLERS}|\.{PICKLERS}"
    r"|from torch(\.serialization)? import .*\bload\b|torch(\.serialization)?\.load\((?!.*weights_only=True)"
    r"|allow_pickle=(?!False)"
)


def unpicklings(code: str) -> list[str]:
    """Statements, each on one line, that could run a stranger's pickle."""
    if not re.search(r"pickle|dill|joblib|shelve|\bload\b", code):
        return []  # to parse all files would take seconds
    return [line for line in ast.unparse(ast.parse(code)).splitlines() if UNSAFE.search(line)]


def test_nothing_is_unpickled() -> None:
    files = [path for folder in ("src", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert files
    places = [f"{path}: {line}" for path in files for line in unpicklings(path.read_text(encoding="utf-8"))]
    assert not places, f"use safetensors or JSON, or torch.load(..., weights_only=True): {places}"


@pytest.mark.parametrize(
    ("line", "unsafe"),
    [
        ("torch.load(path, weights_only=True)", False),
        ("from torch import nn", False),
        ("numpy.load(path, allow_pickle=False)", False),
        ("from safetensors.torch import load", False),
        ("import os, pickle", True),
        ("from pickle import loads", True),
        ("torch.serialization.pickle.loads(b'')", True),
        ("from torch import load", True),
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=False)", True),
        ("numpy.load(path,\n           allow_pickle=True)", True),
    ],
)
def test_what_is_unsafe_is_caught(line: str, unsafe: bool) -> None:
    assert bool(unpicklings(line)) == unsafe
