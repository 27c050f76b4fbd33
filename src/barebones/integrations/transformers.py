"""Transformers: a callback that keeps a network sparse under `Trainer.train`, also when it resumes."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..files.masks import load_masks, save_masks
from ..holding import audit, hold
from ..masks import Masks
from .source import MASKS, Source, masks_for

try:
    from transformers import TrainerCallback, TrainerState, TrainingArguments
except ImportError:
    raise ImportError("this callback needs transformers: pip install 'barebones[transformers]'") from None


class KeepSparse(TrainerCallback):
    """Holds the masks of the model, and writes them into every checkpoint as `masks.safetensors`.

    `masks` are masks, a mask file, or a function that prunes the model and returns masks; another model is pruned
    anew. A resumed run takes those of its checkpoint, which must be one of its output folder.
    """

    def __init__(self, masks: Source) -> None:
        self.source, self.masks = masks, Masks()
        self.model: Any = None  # the one that the masks are of
        self.held = ExitStack()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **of: Any) -> None:
        self.held.close()  # what a run that was interrupted in this process has left
        if state.global_step:  # it resumes: the masks must belong to the weights that were loaded
            self.masks = load_masks(_file(args, state))
            audit(of["model"], self.masks)
        elif self.model is not of["model"]:
            self.masks = Masks(masks_for(of["model"], self.source))
        self.model = of["model"]
        self.held.enter_context(hold(self.model, self.masks, of["optimizer"], gradients=True))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: Any, **of: Any) -> None:
        if state.is_world_process_zero:
            save_masks(self.masks, _file(args, state))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **of: Any) -> None:
        self.held.close()
        audit(of["model"], self.masks)


def _file(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir), f"checkpoint-{state.global_step}", MASKS)
