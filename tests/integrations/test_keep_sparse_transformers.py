"""Transformers: the callback holds masks, its checkpoints carry them, and a resumed run ends with the same weights."""

import pytest
from references import equal
from training_runs import ROWS, Classifier, assert_resumed, found

import barebones as bb

pytest.importorskip("transformers", reason="needs transformers: pip install 'barebones[transformers]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'barebones[accelerate]'")

from transformers import Trainer, TrainerCallback, TrainingArguments

from barebones.integrations.transformers import KeepSparse

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns about the torch that it runs on


class At(TrainerCallback):
    """Does something after a step."""

    def __init__(self, step, act) -> None:
        self.step, self.act = step, act

    def on_step_end(self, args, state, control, **of):
        if state.global_step == self.step:
            self.act(of["model"])


def trainer(folder, masks, *callbacks, model=None, **options) -> Trainer:
    steps = {"max_steps": 8, "save_steps": 3, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True}
    arguments = TrainingArguments(str(folder), learning_rate=0.05, **{**steps, **quiet, **options})
    callbacks = [masks if isinstance(masks, KeepSparse) else KeepSparse(masks), *callbacks]
    return Trainer(model or Classifier(), arguments, train_dataset=ROWS, eval_dataset=ROWS, callbacks=callbacks)


def trained(*args, seed=1, resume=None, **options) -> Classifier:
    training = trainer(*args, model=Classifier(seed), **options)
    training.train(resume)
    return training.model


def test_a_run_that_broke_off_resumes_with_the_masks_of_its_checkpoint(tmp_path):
    whole = trained(tmp_path / "whole", found)
    with pytest.raises(ZeroDivisionError):
        trained(tmp_path / "cut", found, At(5, lambda model: 1 / 0))
    assert [path.name for path in (tmp_path / "cut").iterdir()] == ["checkpoint-3"]
    never = lambda model: pytest.fail("a resumed run prunes nothing")
    resumed = trained(tmp_path / "cut", never, seed=2, resume=True)
    assert_resumed(resumed, whole, bb.load_masks(tmp_path / "cut" / "checkpoint-6" / "masks.safetensors", resumed))


def test_mixed_precision_mask_files_the_best_model_and_clipping_that_sees_only_the_pruned_network(tmp_path):
    seen = []

    class Gradients(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model, **of):
            seen.extend(model.get_parameter(name).grad[~mask] for name, mask in masks.items())

    masks = found(Classifier())
    bb.save_masks(masks, tmp_path / "masks.safetensors")
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 3, "save_total_limit": 1}
    training = trainer(tmp_path, tmp_path / "masks.safetensors", Gradients(), bf16=True, **best)
    for _ in range(2):  # again, with the same masks
        training.train()
        bb.audit(training.model, masks)
    assert seen
    assert not any(gradient.any() for gradient in seen)


def test_the_audit_at_the_end_raises(tmp_path):
    spoil = At(8, lambda model: model.layers[0].weight.data.fill_(1.0))
    with pytest.raises(ValueError, match=r"pruned weights are not zero: layers\.0\.weight"):
        trained(tmp_path, found, spoil)


def test_a_checkpoint_without_its_masks_or_with_others_is_refused(tmp_path):
    masks = found(Classifier())
    trained(tmp_path, masks, max_steps=3)
    path = tmp_path / "checkpoint-3" / "masks.safetensors"
    bb.save_masks({name: ~mask for name, mask in masks.items()}, path)
    with pytest.raises(ValueError, match="pruned weights are not zero"):
        trained(tmp_path, masks, resume=True)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"checkpoint-3/masks\.safetensors"):
        trained(tmp_path, masks, resume=True)


def test_an_interrupted_run_does_not_hold_on_to_its_masks(tmp_path):
    masks = found(Classifier())
    others = {name: ~mask for name, mask in masks.items()}
    state = {name: value.clone() for name, value in Classifier().state_dict().items()}
    callback = KeepSparse(masks)
    training = trainer(tmp_path, callback, At(2, lambda model: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        training.train()
    training.remove_callback(At)
    training.model.load_state_dict(state)
    callback.masks = bb.Masks(others)
    training.train()
    bb.audit(training.model, others)
    assert all(training.model.get_parameter(name)[mask].all() for name, mask in others.items())


def test_another_network_is_pruned_anew_and_the_same_one_is_not(tmp_path):
    networks, pruned = map(Classifier, range(9)), []
    callback = KeepSparse(lambda model: pruned.append(model) or found(model))
    training = trainer(tmp_path, callback, max_steps=2)
    training.model_init = lambda: next(networks)
    training.train()
    training.train()  # with the next network, as in a search for hyper-parameters
    training.model_init = None
    training.train()
    assert pruned[1:] == [training.model]
    assert equal(dict(callback.masks), dict(found(Classifier(1))))
