"""The state of a hold: its masks, which a checkpoint keeps and a new process takes up again."""

import subprocess
import sys
from pathlib import Path

import held
import pytest
import torch
from held import Lamb, sgd, train
from references import equal
from torch import optim

from barebones.files.masks import load_masks, save_masks
from barebones.holding import audit, hold

RESUME = """
import torch, held
from barebones.holding import hold

held.X, held.Y = torch.load("batch.pt")
kept = torch.load("checkpoint.pt")
model = held.network(seed=9)
optimizer = held.sgd(model)
with hold(model, held.random_masks(model, 0.5), optimizer) as handle:
    handle.load_state_dict(kept["masks"])
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    held.train(model, optimizer, 2)
torch.save(model.state_dict(), "resumed.pt")
"""


def test_the_state_is_a_copy_of_all_masks(model, masks):
    masks = masks | {"3.bias": torch.ones(8) > 0}  # nothing of it is pruned
    handle = hold(model.to(memory_format=torch.channels_last), masks, sgd(model))
    state = handle.state_dict()
    assert equal(dict(state), masks)
    for mask in state.values():
        mask.fill_(False)
    assert equal(dict(handle.state_dict()), masks)
    model.half()
    handle.remove()
    assert equal(dict(handle.state_dict()), masks)


def test_a_run_that_is_resumed_in_a_new_process_ends_with_the_same_weights(model, masks, tmp_path):
    optimizer = sgd(model)
    handle = hold(model, masks, optimizer)
    train(model, optimizer, 3)
    states = {"masks": handle.state_dict(), "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(states, tmp_path / "checkpoint.pt")  # torch.load reads it as weights only
    torch.save((held.X, held.Y), tmp_path / "batch.pt")
    train(model, optimizer, 2)
    code = f"import sys; sys.path.insert(0, {str(Path(held.__file__).parent)!r})\n{RESUME}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert equal(torch.load(tmp_path / "resumed.pt"), model.state_dict())


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("kind", [optim.Adam, Lamb])
def test_other_masks_of_the_same_network_are_held_from_then_on(kind, gradients, model, masks):
    other = {name: ~mask for name, mask in masks.items()} | {"5.weight": masks["5.weight"] | True}
    optimizer = kind(model.parameters(), lr=0.01)
    handle = hold(model, masks, optimizer, gradients=gradients)
    train(model, optimizer, 2)
    handle.load_state_dict(other)
    assert equal(dict(handle.state_dict()), other)
    held.assert_state_held(optimizer, model, other)
    train(model, optimizer, 2)
    for name in ("0.weight", "3.weight"):
        held.assert_held(model, {name: other[name]})
    assert model[5].weight.all()
    handle.remove()
    hooks = [value for name, value in vars(optimizer).items() if name.endswith("_hooks")]
    assert not any(hooks)
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    handle.load_state_dict(masks)  # zeroes, but does not hold again
    audit(model, masks)
    assert not any(hooks)


def test_the_state_is_a_mask_file(model, masks, tmp_path):
    save_masks(hold(model, masks, sgd(model)).state_dict(), tmp_path / "masks.safetensors")
    assert equal(dict(load_masks(tmp_path / "masks.safetensors", model)), masks)
