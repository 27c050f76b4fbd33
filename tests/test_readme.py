"""The README's example runs as written, and its table of methods is the library's."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import barebones as bb

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_examples_run_as_written(tmp_path):
    first, second = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in first.splitlines() if line.strip()]) == 15
    code = first + (second if find_spec("torch_pruning") else "")  # the second goes on with what the first made
    env = {**os.environ, "PYTHONWARNINGS": "error", "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert "300×64" in done.stdout
    assert "Sparsity 95.00 %" in done.stdout
    masks, about = bb.load_masks(tmp_path / "masks.safetensors")
    assert about["method"] == "force"
    assert sum(int(m.sum()) for m in masks.values()) == round(0.05 * (64 * 300 + 300 * 10)) == about["kept"]


def test_the_table_lists_the_methods():
    rows = re.findall(r"^\| `([a-z-]+)` \|(?:.*)\| (\d+) \|", README, re.MULTILINE)
    assert {name: int(rounds) for name, rounds in rows} == {name: m.rounds for name, m in bb.METHODS.items()}
