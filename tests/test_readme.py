"""The README's examples run as written, and its table of methods is that of the library."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import barebones as bb

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_examples_run_as_written(tmp_path):
    first, second = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in first.splitlines() if line.strip()]) == 15
    code = first + second  # the second goes on with what the first made
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
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \| .* \| (\d+) \| (yes|no) \|", README, re.MULTILINE)
    assert [(name, label, int(rounds), data == "yes") for name, label, rounds, data in rows] == [
        (name, method.label, method.rounds, method.needs_data) for name, method in bb.METHODS.items()
    ]


def test_links_to_files_work():
    root = Path(__file__).parents[1]
    for page in [root / "README.md", *root.glob("docs/*.md"), *root.glob("benchmarks/*.md")]:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert ":" in link or (page.parent / link).exists(), f"{page.name}: {link}"
