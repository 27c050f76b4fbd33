"""The examples with networks of transformers run as written, without a warning, and save masks that load."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import barebones as bb

pytest.importorskip("transformers", reason="the examples need transformers: pip install 'barebones[families]'")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["language_model", "vision_transformer"])
def test_an_example_runs_as_written(name, tmp_path):
    env = {**os.environ, "PYTHONWARNINGS": "error", "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert losses[-1] < losses[0] / 2
    masks = bb.load_masks(tmp_path / f"{name}_masks.safetensors")
    assert masks.about["sparsity"] == pytest.approx(0.8, abs=1e-3)
    assert sum(int(mask.sum()) for mask in masks.values()) == masks.about["kept"]
