"""The examples with networks of transformers run as written and save masks that load."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import barebones as bb

pytest.importorskip("transformers", reason="the examples need transformers: pip install 'barebones[families]'")
EXAMPLES = Path(__file__).parents[2] / "examples"
SHARDED = EXAMPLES / "sharded_language_model.py"


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


def test_two_processes_prune_train_and_write_one_mask_file(tmp_path):
    path = tmp_path / "masks.safetensors"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SHARDED, path]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}  # two processes cannot share one GPU
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "process 1 of 2: holds the masks of 73,728 weights" in done.stdout
    masks = bb.load_masks(path)
    assert masks.about["kept"] == 14_746
    assert f"14,746 of 147,456 weights kept; masks written to {path}" in done.stdout
    assert len(masks) == 12


def test_without_torchrun_it_says_how_to_start_it():
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    command = [sys.executable, str(SHARDED), "masks.safetensors"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 1
    assert done.stderr == f"start it with torchrun: torchrun --nproc-per-node 2 {SHARDED} MASKS.safetensors\n"
