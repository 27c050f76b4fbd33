"""Accelerate: prepared optimizers are held, saved states carry the masks, and resuming gives the same weights."""

import pytest
import torch
from torch.utils.data import DataLoader
from training_runs import ROWS, Classifier, assert_resumed, found

import barebones as bb

pytest.importorskip("accelerate", reason="needs accelerate: pip install 'barebones[accelerate]'")

from accelerate import Accelerator
from accelerate.state import AcceleratorState

from barebones.integrations.accelerate import keep_sparse

pytestmark = pytest.mark.filterwarnings("ignore")  # accelerate warns about the torch that it runs on


@pytest.fixture(autouse=True)
def _fresh_state():
    AcceleratorState._reset_state(reset_partial_state=True)  # another file's tests may have left one
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def trained(folder, masks, seed=1, resume=None, act=lambda epoch, model: None, **options) -> Classifier:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, **options)
    model = Classifier(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(ROWS, batch_size=8))
    with keep_sparse(accelerator, model, masks, optimizer):
        if resume:
            accelerator.load_state(str(resume))
        for epoch in range(2 if resume else 0, 4):
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batch)["loss"])
                    accelerator.clip_grad_norm_(model.parameters(), 0.1)
                    optimizer.step()
                    optimizer.zero_grad()
            accelerator.save_state(f"{folder}/{epoch}")
            act(epoch, accelerator.unwrap_model(model))
    assert not accelerator._save_model_state_pre_hook
    assert not accelerator._load_model_state_pre_hook
    return accelerator.unwrap_model(model)


def test_a_run_that_broke_off_resumes_with_the_masks_of_its_checkpoint(tmp_path):
    whole = trained(tmp_path / "whole", found)
    with pytest.raises(ZeroDivisionError):
        trained(tmp_path / "cut", found, act=lambda epoch, model: epoch == 1 and 1 / 0)
    others = {name: ~mask for name, mask in found(Classifier()).items()}
    resumed = trained(tmp_path / "resumed", others, seed=2, resume=tmp_path / "cut" / "1")
    assert_resumed(resumed, whole, bb.load_masks(tmp_path / "resumed" / "3" / "masks.safetensors", resumed))


def test_mixed_precision_and_mask_files(tmp_path):
    masks = found(Classifier())
    bb.save_masks(masks, tmp_path / "masks.safetensors")
    bb.audit(trained(tmp_path, str(tmp_path / "masks.safetensors"), mixed_precision="bf16"), masks)


def test_the_audit_at_the_end_raises(tmp_path):
    with pytest.raises(ValueError, match=r"pruned weights are not zero: layers\.0\.weight"):
        trained(tmp_path, found, act=lambda epoch, model: epoch == 3 and model.layers[0].weight.data.fill_(1.0))
