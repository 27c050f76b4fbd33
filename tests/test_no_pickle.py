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


SAFE = [
    "torch.load(path, weights_only=True)", "numpy.load(path, allow_pickle=False)", "from torch import nn",
    "from safetensors.torch import load",
]  # fmt: skip
PICKLED = [
    "import os, pickle", "from pickle import loads", "torch.serialization.pickle.loads(b'')", "from torch import load",
    "torch.load(path)", "torch.load(path, weights_only=False)", "numpy.load(path,\n           allow_pickle=True)",
]  # fmt: skip


@pytest.mark.parametrize("line", SAFE + PICKLED)
def test_what_is_unsafe_is_caught(line: str) -> None:
    assert bool(unpicklings(line)) == (line in PICKLED)
