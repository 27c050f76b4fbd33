"""Lightning: a callback that keeps a network sparse under `Trainer.fit`, also when it resumes."""

from __future__ import annotations

from typing import Any

from ..holding import Hold, audit, hold
from .source import Source, masks_for

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    raise ImportError("this callback needs Lightning: pip install 'barebones[lightning]'") from None


class KeepSparse(Callback):
    """Holds the masks of the module, or of its submodule with the name `of`, and puts them into every checkpoint.

    `masks` are masks, a mask file, or a function that prunes the network and returns masks. A resumed run takes those
    of its checkpoint.
    """

    def __init__(self, masks: Source, of: str = "") -> None:
        self.masks, self.of = masks, of
        self.handle: Hold | None = None

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._release()  # what a run that was interrupted in this process has left
        network = module.get_submodule(self.of)
        self.masks = masks_for(network, self.masks)
        self.handle = hold(network, self.masks, trainer.optimizers, gradients=True)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        audit(module.get_submodule(self.of), self.state_dict()["masks"])

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self._release()

    def _release(self) -> None:
        if self.handle is not None:
            self.handle.remove()

    def state_dict(self) -> dict[str, Any]:
        return {"masks": self.handle.state_dict()} if self.handle is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.masks = state["masks"]
