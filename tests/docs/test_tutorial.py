"""The tutorial runs from start to end, and is kept with its outputs."""

import os
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"


@pytest.fixture
def notebook():
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat: pip install 'barebones[notebook]'")
    return nbformat.read(PATH, as_version=4)


def test_it_is_kept_with_its_outputs_and_small(notebook):
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert len(outputs) > 5
    assert all(output.output_type in ("stream", "execute_result") for output in outputs)
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert PATH.stat().st_size < 100_000


@pytest.mark.nightly
def test_it_runs(notebook, monkeypatch, tmp_path):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn: pip install 'barebones[demo]'")
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install 'barebones[notebook]'")
    client = pytest.importorskip("nbclient", reason="needs nbclient: pip install 'barebones[notebook]'")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "default")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PATH.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]))
    fresh = [(cell.cell_type, cell.source) for cell in notebook.cells]
    client.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == fresh
