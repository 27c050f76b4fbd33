"""Lightning: the callback holds masks, its checkpoints carry them, and a resumed run ends with the same weights."""

import warnings

import pytest
import torch
from references import equal
from torch.utils.data import DataLoader
from training_runs import ROWS, Classifier, assert_resumed, found

import barebones as bb

pytest.importorskip("lightning", reason="needs Lightning: pip install 'barebones[lightning]'")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that Lightning imports
    import lightning.pytorch as pl
    from lightning.pytorch.core.optimizer import LightningOptimizer

    from barebones.integrations.lightning import KeepSparse

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns about loaders, loggers and torch


class Module(pl.LightningModule):
    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.net = Classifier(seed)

    def training_step(self, batch, index):
        loss = self.net(**batch)["loss"]
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


def fit(module, *callbacks, resume=None, **options) -> Module:
    plain = {"accelerator": "cpu", "devices": 1, "logger": False, "max_epochs": 1}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(callbacks=list(callbacks), **{**plain, **quiet, **options})
    trainer.fit(module, DataLoader(ROWS, batch_size=8), ckpt_path=resume)
    return module


def fitted(folder, masks, *callbacks, seed=1, resume=None, **options) -> Module:
    options = {"max_epochs": 4, "gradient_clip_val": 0.1, "accumulate_grad_batches": 2, **options}
    saving = pl.callbacks.ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
    return fit(Module(seed), saving, KeepSparse(masks, of="net"), *callbacks, resume=resume, **options)


def test_a_run_that_broke_off_resumes_with_the_masks_of_its_checkpoint(tmp_path):
    class Break(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            assert (trainer.current_epoch, index) != (2, 5), "broken off"

    whole = fitted(tmp_path / "whole", found)
    with pytest.raises(AssertionError, match="broken off"):
        fitted(tmp_path / "cut", found, Break())
    [resumable] = sorted((tmp_path / "cut").glob("epoch=1.ckpt"))
    assert not (tmp_path / "cut" / "epoch=2.ckpt").exists()
    never = lambda model: pytest.fail("a resumed run prunes nothing")
    resumed = fitted(tmp_path / "cut", never, seed=2, resume=resumable)
    masks = torch.load(resumable, weights_only=True)["callbacks"]["KeepSparse"]["masks"]
    assert_resumed(resumed.net, whole.net, masks)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_mixed_precision_mask_files_and_clipping_that_sees_only_the_pruned_network(precision, tmp_path):
    seen = []

    class Gradients(pl.Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            seen.extend(module.net.get_parameter(name).grad[~mask] for name, mask in masks.items())

    masks, path = found(Classifier()), tmp_path / "masks.safetensors"
    bb.save_masks(masks, path)
    bb.audit(fitted(tmp_path, path, Gradients(), precision=precision, max_epochs=1).net, masks)
    assert seen
    assert not any(gradient.any() for gradient in seen)


def test_the_audit_at_the_end_raises(tmp_path):
    class Spoil(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            module.net.layers[0].weight.data.fill_(1.0)

    with pytest.raises(ValueError, match=r"pruned weights are not zero: layers\.0\.weight"):
        fitted(tmp_path, found, Spoil(), max_epochs=1)


def test_hold_unwraps_lightnings_optimizer():
    model = Classifier()
    masks, optimizer = found(model), torch.optim.SGD(model.parameters(), lr=0.1)
    bb.hold(model, masks, LightningOptimizer(optimizer))
    assert optimizer._optimizer_step_post_hooks


def test_another_network_is_pruned_anew_and_the_same_one_is_not(tmp_path):
    pruned, callback = [], KeepSparse(lambda net: pruned.append(net) or found(net), of="net")
    first, second = Module(1), Module(2)
    for module in (first, second, second):
        fit(module, callback, default_root_dir=tmp_path)
    assert pruned == [first.net, second.net]
    assert equal(dict(callback.masks), dict(found(Classifier(2))))
