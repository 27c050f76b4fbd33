"""`barebones export --to-hub-folder`: what the Hub expects, the same account again, and whole folders or none."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import barebones as bb
from barebones.deploy.hub import FILES, to_hub_folder
from barebones.files.masks import save_masks
from barebones.lab.experiment.experiment import DENSE, Experiment
from barebones.lab.figures import card
from barebones.lab.run import loading
from barebones.lab.run import run as lab
from barebones.models import build

EXPERIMENT = Experiment("small-vgg", "digits", "snip", 0.98, epochs=1, batch_size=256)


def test_the_folder_of_a_run(finished, command):
    done = command("export", finished, "--to-hub-folder", "hub")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "To upload it: hf upload YOUR-NAME/digits-small-vgg-snip-98-s0 hub"
    assert sorted(os.listdir()) == ["hub"]
    assert sorted(os.listdir("hub")) == sorted(FILES)

    experiment, model, masks = loading.trained(finished)
    state = load_file("hub/model.safetensors")
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(state[name][~mask].any() for name, mask in masks.items())
    with safe_open("hub/model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}  # other libraries ask for it

    example = loading.example(experiment, finished)[:1]
    loaded = bb.load_masks("hub/masks.safetensors", model)
    assert bb.account(model, loaded, example) == bb.account(model, masks, example)
    assert loaded.about["experiment"] == experiment.to_dict()
    assert not {"run", "metrics"} & loaded.about.keys()

    config = json.loads(Path("hub/config.json").read_text())
    counts = bb.account(model, masks, example)
    assert (config["sparsity"], config["effective_sparsity"]) == (counts.sparsity, counts.effective_sparsity)
    assert Experiment.from_dict(config["experiment"]) == experiment
    assert (config["num_classes"], config["input_shape"]) == (10, [1, 8, 8])

    text = Path("hub/README.md").read_text()
    result = json.loads((finished / "result.json").read_text())
    assert f"| test accuracy | {result['test']['top1']:.2%}, after the last epoch |" in text
    assert f"| sparsity | {counts.sparsity:.4%}: {counts.kept:,} of {counts.total:,} prunable weights" in text
    assert f"| effective sparsity | {counts.effective_sparsity:.4%}: {counts.effective:,} weights" in text
    assert str(finished) not in text


def test_the_card_is_one_that_the_hub_reads_and_loads_the_network(finished, command, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="the Hub's own reader of cards: pip install huggingface_hub")
    assert command("export", finished, "--to-hub-folder", "hub").code == 0
    about = hub.ModelCard.load(Path("hub/README.md")).data
    assert about.library_name == "barebones"
    [evaluation] = about.eval_results
    assert (evaluation.dataset_type, evaluation.metric_type) == ("digits", "accuracy")
    assert evaluation.metric_value == json.loads((finished / "result.json").read_text())["test"]["top1"]
    monkeypatch.chdir("hub")
    [code] = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert bb.account(names["model"], names["masks"]).kept == names["masks"].about["kept"]


def test_the_card_of_a_skipped_training_says_so(command, tmp_path):
    cut = replace(EXPERIMENT, method="random", sparsity=0.9999, epochs=2).resolved()
    options = lab.RunOptions(runs=tmp_path / "runs", on_collapse="skip")
    result = lab.run(cut, options)
    assert result["collapsed"]
    assert command("export", options.folder(cut), "--to-hub-folder", "hub").code == 0
    text = Path("hub/README.md").read_text()
    assert f"| test accuracy | {result['test']['top1']:.2%}, right after pruning |" in text
    assert "--epochs 2 --batch-size 256 --on-collapse skip\n" in text
    assert "last epoch" not in text


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "force", "rounds": 5, "precision": "bf16", "schedule": "linear"},
        {"method": "magnitude", "pretrain": 1, "rewind": True, "shrink": True, "weight_decay": 1e-3},
        {"method": DENSE, "sparsity": 0.0},
        {"method": "snip-mb", "batches_per_round": 7},
    ],
)
def test_the_command_of_the_card_is_the_experiment(changes, command, monkeypatch):
    experiment = replace(EXPERIMENT, **changes).resolved()
    made = []
    monkeypatch.setattr("barebones.cli.experiments._conclude", lambda requested, *_: made.append(requested))
    [line] = card.commands(experiment, trained=True)
    assert command(*line.split()[1:], "--device", "cpu").code == 0
    assert [requested.resolved() for requested in made] == [experiment]


def test_masks_of_a_file_are_exported_and_named(command, tmp_path):
    found = EXPERIMENT.resolved()
    trained = replace(found, mask="0" * 64, rounds=None, batches_per_round=None, epochs=3)
    prune, train = card.commands(trained, True, found.to_dict())
    assert prune.endswith(" --method snip --sparsity 0.98 --seed 0 --epochs 1 --batch-size 256 -o masks.safetensors")
    assert " --epochs 3 --batch-size 256 --lr 0.1 " in train
    assert train.endswith(" --mask masks.safetensors")
    found, trained = replace(found, shrink=True), replace(trained, epochs=0, weight_decay=0.0)
    assert " --epochs 0 " in (train := card.commands(trained, True, found.to_dict())[1])
    assert " --weight-decay 0.0 " in train
    assert train.endswith(" --no-shrink --mask masks.safetensors")
    found = replace(found, evolve="rigl", weight_decay=0.0).to_dict()
    assert " --evolve none " in card.commands(trained, True, found)[1]
    assert " --weight-decay 0.0 " in card.commands(replace(trained, optimizer="adamw"), True, found)[1]
    masks = {name: torch.rand(p.shape) > 0.5 for name, p in bb.prunable(build("small-vgg", 10, 8, 1)).items()}
    save_masks(masks, tmp_path / "masks")
    done = command("export", "masks", "--to-hub-folder", "hub", "--model", "small-vgg", "--data", "digits")
    assert (done.code, done.err) == (0, "")
    text = Path("hub/README.md").read_text()
    assert "| test accuracy | not trained |" in text
    assert "model-index" not in text
    loaded = bb.load_masks("hub/masks.safetensors")
    assert all(torch.equal(loaded[name], mask) for name, mask in masks.items())


def test_an_earlier_export_is_replaced_on_request(finished, command, tmp_path):
    (tmp_path / "hub").mkdir()  # an empty folder is fine
    assert command("export", finished, "--to-hub-folder", "hub").code == 0
    Path("hub/README.md").write_text("older")
    assert command("export", finished, "--to-hub-folder", "hub", "--replace").code == 0
    assert Path("hub/README.md").read_text().startswith("---\n")
    assert sorted(os.listdir()) == ["hub"]


@pytest.mark.parametrize("theirs", ["README.md", "config.json", "README.md/thesis.txt"])
def test_the_files_of_somebody_else_are_not_replaced(theirs, tmp_path):
    path = tmp_path / "hub" / theirs
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(ValueError, match="no earlier export"):
        to_hub_folder(nn.Linear(2, 2), {"weight": torch.eye(2) > 0}, tmp_path / "hub", {}, "card", replace=True)
    assert path.read_text() == "mine"


def test_the_plain_card_of_a_model_of_ones_own_loads_it(tmp_path, monkeypatch):
    model, masks = nn.Linear(4, 3), {"weight": torch.eye(3, 4) > 0}
    to_hub_folder(model, masks, tmp_path / "hub")
    assert json.loads((tmp_path / "hub" / "config.json").read_text()) == {
        "architecture": "Linear", "prunable": 12, "kept": 3
    }  # fmt: skip
    card = (tmp_path / "hub" / "README.md").read_text()
    assert "# Linear, 3 of 12 prunable weights" in card
    monkeypatch.chdir(tmp_path / "hub")
    other = nn.Linear(4, 3)
    code = card.partition("```python\n")[2].partition("```")[0]
    exec(code, {"model": other, "optimizer": torch.optim.SGD(other.parameters(), lr=0.1)})
    assert torch.equal(other.weight, model.weight * masks["weight"])


def test_an_error_leaves_what_was_there(tmp_path, monkeypatch):
    model, masks = nn.Linear(2, 2), {"weight": torch.eye(2) > 0}
    to_hub_folder(model, masks, tmp_path / "hub", {}, "first")
    with pytest.raises(TypeError):
        to_hub_folder(model, masks, tmp_path / "hub", {"not for JSON": object()}, "second", replace=True)
    real, calls = os.rename, []

    def rename(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError("no luck")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="no luck"):
        to_hub_folder(model, masks, tmp_path / "hub", {}, "third", replace=True)
    with pytest.raises(TypeError):
        to_hub_folder(model, masks, tmp_path / "new", {"not for JSON": object()})
    assert os.listdir(tmp_path) == ["hub"]
    assert (tmp_path / "hub" / "README.md").read_text() == "first"
