"""Lightning: a callback that keeps a network sparse under `Trainer.fit`, also when it resumes."""

from contextlib import ExitStack
from typing import Any

from ..holding import audit, hold
from ..masks import Masks
from .source import Source, masks_for

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    raise ImportError("this callback needs Lightning: pip install 'barebones[lightning]'") from None


class KeepSparse(Callback):
    """Holds the masks of the module, or of its submodule with the name `of`, and puts them into every checkpoint.

    `masks` are masks, a mask file, or a function that prunes the network and returns masks; another network is pruned
    anew. A resumed run takes those of its checkpoint.
    """

    def __init__(self, masks: Source, of: str = "") -> None:
        self.source, self.of, self.masks = masks, of, Masks()
        self.network: Any = None  # the one that the masks are of
        self.held = ExitStack()

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self.resumed = Masks()

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.held.close()  # what a run that was interrupted in this process has left
        network = module.get_submodule(self.of)
        masks = self.resumed or (self.masks if network is self.network else masks_for(network, self.source))
        self.masks = self.held.enter_context(hold(network, masks, trainer.optimizers, gradients=True)).state_dict()
        self.network = network

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        audit(self.network, self.masks)

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        self.held.close()

    def state_dict(self) -> dict[str, Any]:
        return {"masks": self.masks} if self.masks else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resumed = state["masks"]
