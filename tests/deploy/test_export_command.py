"""`barebones export`: what it writes and says for runs and for mask files, and mistakes as errors of one line."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import zoo

from barebones.deploy.shrink import shrink
from barebones.files.masks import load_masks, save_masks
from barebones.files.weights import load_weights
from barebones.lab import network as lab_network
from barebones.lab import run as lab
from barebones.lab import stored
from barebones.lab.experiment import Experiment
from barebones.lab.folder import recorded
from barebones.models import build
from barebones.running.outputs import difference, outputs

MISSING = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: pip install 'barebones[export]'")
IMAGES = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Return the folder of a finished run."""
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn: pip install 'barebones[demo]'")
    options = lab.RunOptions(runs=tmp_path_factory.mktemp("runs"))
    experiment = Experiment("small-resnet", "digits", "snip", 0.9, epochs=1, batch=256).resolved()
    lab.result_of(lab.run(experiment, options))
    return options.folder(experiment)


def test_a_run_is_exported_sparse(finished, command):
    done = command("export", finished, "-o", "network.safetensors")
    assert (done.code, done.err) == (0, "")
    assert "network.safetensors: " in done.out
    assert re.search(r"times smaller than the dense checkpoint \([\d,]+\)\.", done.out)
    assert "bit for bit" in done.out
    experiment, model, masks = stored.trained(finished)
    state, stored_masks, about = load_weights("network.safetensors")
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(stored_masks[name], mask) for name, mask in masks.items())
    assert about["experiment"] == experiment.to_dict()


def test_a_run_is_exported_as_a_program(finished, command):
    done = command("export", finished, "-o", "network.bin", "--format", "torch")
    assert (done.code, done.err) == (0, "")
    assert "Loaded again, its outputs differ by " in done.out
    assert "before training" not in done.out
    _, model, _ = stored.trained(finished)
    with open("network.bin", "rb") as file:
        actual = torch.export.load(file).module()(IMAGES)
    assert difference(outputs(model.eval(), IMAGES), actual) < 1e-5


@needs_onnx
@pytest.mark.slow
def test_a_run_is_exported_as_onnx_in_silence(finished, tmp_path):
    words = [sys.executable, "-W", "default", "-m", "barebones", "export", str(finished), "-o", "network.onnx"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "In onnxruntime, its outputs differ by " in done.stdout
    assert len(done.stdout.splitlines()) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["network.onnx"]


def test_a_mask_file_is_exported_with_its_initial_weights(finished, command):
    done = command("export", finished / "mask.safetensors", "-o", "network.safetensors")
    assert (done.code, done.err) == (0, "")
    assert "before training" in done.out
    experiment = Experiment.from_dict(recorded(finished / "experiment.json"))
    network = lab_network.Network(experiment, lab.RunOptions(), torch.device("cpu"))
    masks, _ = load_masks(finished / "mask.safetensors")
    state, _, _ = load_weights("network.safetensors")
    assert all(torch.equal(state[n], t) for n, t in zoo.masked(network.model, masks).state_dict().items())


def test_a_mask_file_of_unknown_origin_needs_a_network(command, tmp_path):
    save_masks(zoo.random_masks(build("small-vgg", 10, 8, 1), density=0.3), tmp_path / "masks")
    assert "name --model and --data" in command("export", "masks", "-o", "out.safetensors").err
    done = command("export", "masks", "-o", "out.safetensors", "--model", "small-vgg", "--data", "digits")
    assert (done.code, done.err) == (0, "")
    done = command("export", "masks", "-o", "out.safetensors", "--model", "small-resnet", "--data", "digits")
    assert done.code == 2
    assert "does not match the model" in done.err


def test_the_shrunk_network_is_what_is_exported(finished, command):
    pytest.importorskip("torch_pruning", reason="shrinking needs Torch-Pruning")
    done = command("export", finished, "-o", "small.pt2", "--shrink")
    assert (done.code, done.err) == (0, "")
    _, model, masks = stored.trained(finished)
    small = shrink(model, masks, IMAGES)
    with open("small.pt2", "rb") as file:
        program = torch.export.load(file)
    assert sum(p.numel() for p in program.parameters()) < sum(p.numel() for p in model.parameters())
    assert len(list(program.parameters())) <= len(list(small.module.parameters()))
    assert difference(outputs(zoo.masked(model, masks).eval(), IMAGES), program.module()(IMAGES)) < 1e-5


def test_a_compact_file_cannot_be_shrunk(finished, command):
    done = command("export", finished, "-o", "small.safetensors", "--shrink")
    assert done.code == 2
    assert "use --shrink with .onnx and .pt2" in done.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere", "-o", "out.onnx"], "there is no nowhere"),
        ([".", "-o", "out.onnx"], "is not the folder of a run: it has no experiment.json"),
        (["RUN", "-o", "out.tar"], "the name out.tar does not tell the format; use --format onnx, torch, sparse"),
        (["RUN", "-o", "out", "--format", "zip"], "format 'zip' is unknown"),
        (["RUN", "-o", "no/out.onnx"], "there is no folder no"),
        (["RUN", "-o", ".", "--format", "onnx"], "is a folder; name a file"),
        (["RUN", "-o", "out.onnx", "--model", "vgg19"], "--model and --data are for mask files"),
        (["text", "-o", "out.onnx"], "text is not a safetensors file"),
        (["RUN/weights.safetensors", "-o", "out.onnx"], "not a barebones-masks file"),
    ],
)
def test_mistakes_are_one_line(words, problem, finished, command, tmp_path):
    (tmp_path / "text").write_text("nothing of ours" * 10)
    done = command("export", *(word.replace("RUN", str(finished)) for word in words))
    assert done.code == 2
    assert problem in done.err
    assert len(done.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("result.json", None, "is not finished (pruned; trained 1 of 1 epochs); finish it"),
        ("result.json", b"{", "result.json cannot be read"),
        ("experiment.json", b"{", "experiment.json is damaged"),
        ("experiment.json", b"[]", "experiment.json is damaged"),
        ("weights.safetensors", None, "No such file or directory"),
        ("weights.safetensors", b"torn", "weights.safetensors is not a safetensors file"),
        ("mask.safetensors", b"", "mask.safetensors is empty"),
    ],
)
def test_an_unfinished_or_damaged_run_is_one_line(file, content, problem, finished, command, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
    done = command("export", folder, "-o", "out.pt2")
    assert done.code == 2
    assert problem in done.err
    assert len(done.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
