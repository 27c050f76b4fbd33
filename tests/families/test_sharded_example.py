"""The example of a sharded language model runs as its first lines say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import barebones as bb

EXAMPLE = Path(__file__).parents[2] / "examples" / "sharded_language_model.py"


@pytest.mark.slow
def test_two_processes_prune_train_and_write_one_mask_file(tmp_path):
    pytest.importorskip("transformers", reason="the example prunes a network of transformers")
    path = tmp_path / "masks.safetensors"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLE, path]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}  # two processes cannot share one GPU
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "process 1 of 2: holds the masks of 73,728 weights" in done.stdout
    masks = bb.load_masks(path)
    assert masks.about["kept"] == 14_746
    assert f"14,746 of 147,456 weights kept; masks written to {path}" in done.stdout
    assert len(masks) == 12


def test_without_torchrun_it_says_how_to_start_it():
    pytest.importorskip("transformers", reason="the example prunes a network of transformers")
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    command = [sys.executable, str(EXAMPLE), "masks.safetensors"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 1
    assert done.stderr == f"start it with torchrun: torchrun --nproc-per-node 2 {EXAMPLE} MASKS.safetensors\n"
