"""Runs: what they leave, early pruning, masks of a file, and that nothing finished is done again."""

import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from lab_runs import ALWAYS, assert_same_run, interrupted, stamps, tensors
from torch import nn

import barebones as bb
from barebones.files.masks import load_masks, masks_digest, save_masks
from barebones.files.weights import load_weights
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run.folder import finished, load_mask, recorded
from barebones.lab.run.loading import trained
from barebones.lab.run.metrics import read
from barebones.lab.run.network import Network, check_micro_batch
from barebones.lab.run.progress import summary
from barebones.lab.run.run import RunOptions, run
from barebones.lab.run.training import evaluate
from barebones.running import digest

CPU = torch.device("cpu")


@pytest.mark.parametrize("changes", [{}, {"scope": "all"}])
def test_a_run_leaves_its_files_and_a_result_that_is_right(changes, short, options):
    short = replace(short, **changes)
    result = run(short, options)
    folder = options.folder(short)
    assert {p.name for p in folder.iterdir()} == ALWAYS
    assert finished(folder, short) == json.loads(json.dumps(result))
    assert recorded(folder) == (short.to_dict(), short.folder)
    assert result["experiment"] == short.to_dict()
    assert result["id"] == short.id
    assert folder.name == short.folder

    network = Network(short, options, CPU)
    load_weights(folder / "weights.safetensors", network.model)
    anew = evaluate(network.model, network.data.test, 512, "fp32", 10)
    assert (result["test"]["top1"], result["test"]["top5"]) == (anew.top1, None)
    assert result["test"]["loss"] == pytest.approx(anew.loss)
    assert result["weights"] == digest.hexadecimal(network.model.parameters())

    masks = load_masks(folder / "mask.safetensors", network.model)
    bb.audit(network.model, masks)
    kept = sum(int(mask.sum()) for mask in masks.values())
    total = sum(mask.numel() for mask in masks.values())
    assert total == sum(w.numel() for w in bb.prunable(network.model, short.scope).values())
    assert (result["kept"], result["prunable"]) == (kept, total)
    assert result["kept"] == round(0.3 * total)
    assert result["sparsity"] == 1 - kept / total
    assert result["effective"] <= kept
    assert result["effective_sparsity"] == pytest.approx(1 - result["effective"] / total)
    assert masks.about["experiment"] == short.to_dict()
    assert masks.about["method"] == "force"

    lines = read(folder / "metrics.jsonl")
    epochs = [line for line in lines if line["stage"] == "train"]
    best = max(epochs, key=lambda line: line["validation"]["top1"])
    expected = {"epoch": best["epoch"], "validation": best["validation"]["top1"], "test": best["test"]["top1"]}
    assert result["best_validation"] == expected
    assert f"after epoch {best['epoch']};" in " ".join(summary(result, folder))
    assert result["seconds"]["train"] == pytest.approx(sum(line["seconds"] for line in epochs))
    assert result["plan"]["epochs"] == 2
    assert result["environment"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    "changes",
    [{}, {"scope": "all"}, {"densities": "erk", "min_per_channel": 2}, {"pattern": "1:2"}, {"unit": "channel"},
     {"sparsity": 0.97, "revive_empty": False}, {"scoring_bn": "eval"}],
)  # fmt: skip
def test_the_masks_are_those_of_the_library_and_training_goes_on_from_them(changes, short, options, undisturbed):
    short = replace(short, **changes)
    run(short, options, until="prune")
    folder = options.folder(short)
    assert {p.name for p in folder.iterdir()} == ALWAYS - {"weights.safetensors", "result.json"}
    network = Network(short, options, CPU)
    options_of_prune = {name.replace("scoring_", ""): value for name, value in ({"sparsity": 0.7} | changes).items()}
    prune = partial(bb.prune, network.model, network.data.train.scoring(128, 1), method="force", rounds=4, seed=1)
    expected = prune(**options_of_prune, on_collapse="ignore")
    if changes.keys() & {"revive_empty", "scoring_bn"}:
        assert float(bb.agreement(prune(sparsity=short.sparsity, on_collapse="ignore").masks, expected.masks)) < 1
    masks = load_masks(folder / "mask.safetensors")
    assert all(torch.equal(masks[name], mask) for name, mask in expected.masks.items())
    assert masks.about["weights"] == expected.about["weights"]
    before = stamps(folder)["mask.safetensors"]
    run(short, options)  # goes on from these masks
    assert stamps(folder)["mask.safetensors"] == before
    assert_same_run(folder, undisturbed(short))


def trained_from(path: Path, maker: Experiment, **changes) -> Experiment:
    unset = ("scoring_precision", "rounds", "batches_per_round", "schedule", "revive_until", "at_least")
    return replace(maker, **dict.fromkeys(unset), method="file", mask=masks_digest(load_masks(path)), **changes)


def test_the_masks_of_a_file_train_as_in_the_run_that_made_them(short, options, tmp_path):
    first = run(short, options)
    mask = options.folder(short) / "mask.safetensors"
    experiment, file_options = trained_from(mask, short), RunOptions(tmp_path / "file", mask=mask, save_every=0)
    interrupted(experiment, file_options, 5)
    result = run(experiment, file_options)
    assert result["weights"] == first["weights"]
    assert (result["test"], result["kept"], result["effective"]) == (first["test"], first["kept"], first["effective"])
    assert result["found_for_these_weights"] is True
    masks, copied = load_masks(mask), load_masks(file_options.folder(experiment) / mask.name)
    assert all(torch.equal(masks[name], copied[name]) for name in masks)
    assert copied.about["run"] == f"{experiment.folder}/mask.safetensors"
    assert masks.about | dict.fromkeys(("run", "metrics")) == copied.about | dict.fromkeys(("run", "metrics"))
    other = run(trained_from(mask, short, seed=2, epochs=1), file_options)
    assert other["found_for_these_weights"] is False
    assert other["kept"] == first["kept"]


def test_a_strangers_masks_are_trained_and_accounted_for(short, options, tmp_path):
    model = Network(short, options, CPU).model
    masks = {name: torch.arange(w.numel()).view(w.shape) % 2 == 0 for name, w in bb.prunable(model).items()}
    path = tmp_path / "theirs"
    total, kept = (sum(int(f(mask)) for mask in masks.values()) for f in (torch.numel, torch.sum))
    claims = dict(prunable=total, kept=kept, sparsity=1 - kept / total, effective=1, effective_sparsity=1 - 1 / total)
    save_masks(masks, path, account=claims, collapsed=["claimed"])
    experiment = trained_from(path, short, sparsity=0.5, epochs=1)
    result = run(experiment, replace(options, mask=path))
    assert result["kept"] == kept
    assert result["effective"] > 1  # it is counted, not believed
    assert result["collapsed"] == []
    assert result["found_for_these_weights"] is False
    load_weights(options.folder(experiment) / "weights.safetensors", model)
    bb.audit(model, masks)


@pytest.mark.parametrize("method", ["rigl", "set"])
def test_evolved_masks_are_those_of_the_trained_network_and_the_mask_file_has_those_of_pruning(method, short, options):
    short = replace(short, sparsity=0.9)
    moving = replace(short, evolve=method)
    result = run(moving, options)
    folder = options.folder(moving)
    found = load_masks(folder / "mask.safetensors")
    run(short, options, until="prune")
    assert masks_digest(found) == masks_digest(load_masks(options.folder(short) / "mask.safetensors"))
    _, network, masks = trained(folder, trust=True)
    bb.audit(network, masks)
    with pytest.raises(ValueError, match="not zero"):
        bb.audit(network, found)
    assert all(mask.count_nonzero() == found[name].count_nonzero() for name, mask in masks.items())
    counts = bb.account(network, masks, torch.zeros(1, 1, 8, 8))
    assert counts.effective != found.about["account"]["effective"]
    names = ("kept", "effective", "flops_effective")
    assert [result[name] for name in names] == [getattr(counts, name) for name in names]
    ended = load_mask(folder, recorded(folder)[1], evolved=True)  # as the report reads them
    assert masks_digest(ended) == masks_digest(masks) != masks_digest(found)


def test_masks_that_changed_or_are_not_there_are_refused(short, options, tmp_path):
    path, weights = tmp_path / "theirs", bb.prunable(Network(short, options, CPU).model)
    save_masks({"w": torch.eye(2) > 0}, path)
    experiment = trained_from(path, short)
    with pytest.raises(ValueError, match="name their file with --mask FILE"):
        run(experiment, options)
    with pytest.raises(ValueError, match="does not match the model"):
        run(experiment, other := replace(options, mask=path, runs=tmp_path / "other"))
    assert not (other.folder(experiment) / "mask.safetensors").exists()
    save_masks({name: weight > 0 for name, weight in weights.items()}, path)
    with pytest.raises(ValueError, match="has changed since it was read"):
        run(experiment, replace(options, mask=path))
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(ValueError, match="damaged"):
        run(experiment, replace(options, mask=path))


def test_a_network_that_cannot_be_saved_or_split_is_refused_before_any_work(short, options, monkeypatch):
    with pytest.raises(ValueError, match=r"--micro-batch splits batches, but layers of nets_for_runs:tiny .*\(1, 5\)"):
        run(short, replace(options, micro_batch=40))
    monkeypatch.setattr(torch.nn.ReLU, "get_extra_state", lambda self: {}, raising=False)
    with pytest.raises(ValueError, match="has extra state, which a weight file cannot hold"):
        run(short, options)
    assert not options.runs.exists()


@pytest.fixture(scope="module")
def normless(networks) -> Experiment:
    """The one batch of a round is split; the last batch of an epoch is smaller than the others."""
    return Experiment("nets_for_runs:plain", "digits", "snip", 0.6, seed=1, epochs=3, batch_size=76, lr=0.02).resolved()


@pytest.mark.parametrize("changes", [{}, {"ham": True, "sam": 0.05}])
def test_micro_batches_train_and_prune_as_whole_batches_do(changes, normless, options, undisturbed, monkeypatch):
    normless = replace(normless, **changes)
    whole, sizes, call = undisturbed(normless), [], nn.Sequential.__call__
    monkeypatch.setattr(nn.Sequential, "__call__", lambda self, x: sizes.append(len(x)) or call(self, x))
    result, expected = run(normless, replace(options, micro_batch=40)), finished(whole)
    folder = options.folder(normless)
    assert max(sizes) == 40
    assert result["environment"]["micro_batch"] == 40
    assert masks_digest(load_masks(folder / "mask.safetensors")) == masks_digest(load_masks(whole / "mask.safetensors"))
    weights = [tensors(path / "weights.safetensors") for path in (folder, whole)]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
    assert result["test"]["loss"] == pytest.approx(expected["test"]["loss"], rel=1e-3)
    assert result["best_validation"]["validation"] == pytest.approx(expected["best_validation"]["validation"], abs=0.02)


@pytest.mark.parametrize(
    ("norm", "until", "settings", "refused"),
    [
        (nn.BatchNorm2d(1), "train", {}, True),
        (nn.BatchNorm2d(1), "train", {"batch_size": 8}, False),
        (nn.BatchNorm2d(1), "prune", {}, True),
        (nn.BatchNorm2d(1), "prune", {"method": "own.py:method"}, True),
        (nn.BatchNorm2d(1), "prune", {"method": "erk", "pretrain": 1}, True),
        (nn.BatchNorm2d(1), "prune", {"scoring_bn": "eval"}, False),
        *((nn.BatchNorm2d(1), "prune", {"method": m}, False) for m in ("magnitude", "random", "erk", "synflow")),
        (nn.InstanceNorm2d(1, track_running_stats=True), "train", {}, True),
        (nn.InstanceNorm2d(1), "train", {}, False),
        (nn.GroupNorm(1, 1), "train", {}, False),
    ],
    ids=str,
)
def test_batches_that_layers_need_whole_are_not_split(norm, until, settings, refused, normless):
    expected = pytest.raises(ValueError, match=r"layers of .* take .*\(0\); leave it out") if refused else nullcontext()
    with expected:
        check_micro_batch(nn.Sequential(norm), replace(normless, **settings), RunOptions(micro_batch=8), until)
