"""The examples of the README and of the pages run as written, and the table of methods is that of the library."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import barebones as bb

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_example_runs_as_written(tmp_path):
    (code,) = snippets(README)
    done = ran(code, tmp_path, PYTHONWARNINGS="error", COLUMNS="120")
    assert not done.stderr
    assert "300×64" in done.stdout
    assert "Sparsity 95.00 %" in done.stdout
    masks = bb.load_masks(tmp_path / "masks.safetensors")
    assert sum(int(m.sum()) for m in masks.values()) == round(0.05 * (64 * 300 + 300 * 10)) == masks.about["kept"]


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def ran(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process, which must succeed."""
    env = {**os.environ, **environment, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done


BEFORE = {  # what the n-th example of a page takes as given, by the sentences before it
    ("speed.md", 0): f"{snippets(README)[0]}\nexample = images = batches[0][0]\n",
    ("export.md", 0): f"{snippets(README)[0]}\nexample = batches[0][0]\n",
    ("training-loop.md", 4): "import functools; torch.compile = functools.partial(torch.compile, backend='eager')\n",
}
SAME = "assert all(map(torch.equal, torch.load('whole.pt').values(), model.state_dict().values()))\n"
AFTER = {  # what it promises
    ("training-loop.md", 2): "torch.save(model.state_dict(), 'whole.pt')\n",
    ("training-loop.md", 3): SAME,
}
PAGES = [page for page in sorted(Path(__file__).parents[1].glob("docs/*.md")) if snippets(page.read_text("utf-8"))]
PAGES = [page for page in PAGES if page.name != "coming-from.md"]  # tests/docs/test_coming_from.py runs it


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_as_written(page, tmp_path):
    """All code of a page runs in one process, except where a comment in its first line says otherwise."""
    if page.name == "training-loop.md":
        for package in ("lightning", "transformers", "accelerate"):
            pytest.importorskip(package, reason=f"needs {package}: pip install 'barebones[{package}]'")
    processes = [""]
    for number, code in enumerate(snippets(page.read_text("utf-8"))):
        if file := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / file[1]).write_text(code)
            continue
        if code.startswith("# shape and encoding:"):
            continue  # tests/files/test_weights_file.py runs it
        if code.startswith("# in a new process\n"):
            processes.append("")
        processes[-1] += BEFORE.get((page.name, number), "") + code + AFTER.get((page.name, number), "")
    for code in filter(None, processes):
        ran(code, tmp_path)


def test_the_table_lists_the_methods():
    page = (Path(__file__).parents[1] / "docs" / "choosing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|`([a-z-]+)`\|([^|]+)\|.*\|(\d+)\|(yes|no)\|", page, re.MULTILINE)
    assert [(name, label, int(rounds), data == "yes") for name, label, rounds, data in rows] == [
        (name, method.label, method.rounds, method.needs_data) for name, method in bb.METHODS.items()
    ]
