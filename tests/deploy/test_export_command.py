"""`barebones export` and `shrink`: what they write and say for runs and mask files, and mistakes in one line."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import zoo

import barebones as bb
from barebones.files.masks import save_masks
from barebones.files.weights import load_weights
from barebones.lab.run import loading
from barebones.lab.run import run as lab
from barebones.lab.run.network import Network
from barebones.models import build
from barebones.running.outputs import difference, outputs


def test_a_run_is_exported_sparse(finished, command):
    done = command("export", finished, "-o", "network.safetensors")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"network\.safetensors: .* times smaller than the dense checkpoint \([\d,]+\)\.", done.out)
    experiment, model, masks = loading.trained(finished)
    state, stored_masks, about = load_weights("network.safetensors")
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(stored_masks[name], mask) for name, mask in masks.items())
    assert about["experiment"] == experiment.to_dict()


@pytest.mark.parametrize("words", [("--format", "torch"), ("--shrink",)])
def test_a_run_is_exported_as_a_program(words, finished, command):
    out = "network.pt2" if words == ("--shrink",) else "network.bin"
    done = command("export", finished, "-o", out, *words)
    assert (done.code, done.err) == (0, "")
    assert "Loaded again, the largest difference of the outputs is " in done.out
    assert "before training" not in done.out
    assert ("% of the dense checkpoint (" in done.out) == ("--shrink" not in words)  # nor "1 times smaller"
    _, model, _ = loading.trained(finished)
    with open(out, "rb") as file:
        program = torch.export.load(file)
    images = torch.randn(3, 1, 8, 8)
    assert difference(outputs(model.eval(), images), program.module()(images)) < 1e-5
    weights, dense = (sum(p.numel() for p in m.parameters() if p.dim() > 1) for m in (program, model))
    assert (weights < dense) == ("--shrink" in words)


@pytest.mark.usefixtures("onnx_packages")
def test_a_run_is_exported_as_onnx_in_silence(finished, command):
    done = command("export", finished, "-o", "network.onnx")
    assert (done.code, done.err) == (0, "")  # and warnings are errors in tests
    assert "In onnxruntime, the largest difference of the outputs is " in done.out
    assert len(done.out.splitlines()) == 2
    assert [path.name for path in Path().iterdir()] == ["network.onnx"]


@pytest.mark.nightly
@pytest.mark.usefixtures("onnx_packages")
def test_a_run_is_exported_in_int8_with_its_accuracy_before_and_after(finished, command):
    done = command("export", finished, "-o", "network.onnx", "--shrink", "--int8")
    assert (done.code, done.err) == (0, "")
    found = re.search(r"accuracy in onnxruntime: ([\d.]+)% in float32, (.+)% in int8", done.out)
    before, after = map(float, found.groups())
    assert before == pytest.approx(100 * json.loads((finished / "result.json").read_text())["test"]["top1"], abs=0.3)
    assert after == pytest.approx(before, abs=5)
    assert f"network.onnx: {Path('network.onnx').stat().st_size:,} bytes" in done.out
    assert [path.name for path in Path().iterdir()] == ["network.onnx"]


def test_a_mask_file_is_exported_with_its_initial_weights(finished, command):
    done = command("export", finished / "mask.safetensors", "-o", "network.safetensors")
    assert (done.code, done.err) == (0, "")
    assert "before training" in done.out
    model = Network(loading.trained(finished)[0], lab.RunOptions(), torch.device("cpu")).model
    state, masks, _ = load_weights("network.safetensors")
    assert all(torch.equal(state[n], t) for n, t in zoo.masked(model, masks).state_dict().items())
    torch.nn.init.ones_(next(model.parameters()))  # as weights that somebody sets by hand
    bb.prune(model, [(torch.ones(2, 1, 8, 8), torch.ones(2))], 0.9, "magnitude").save("theirs")
    for words in (("export", "-o", "network.safetensors"), ("shrink", "--json")):
        done = command(*words, "theirs", "--model", "small-vgg", "--data", "digits")
        assert (done.code, done.err[:54]) == (0, "warning: these masks were found for other weights, but")


def test_a_mask_file_of_unknown_origin_needs_a_network(command, mistake, tmp_path):
    save_masks(zoo.random_masks(build("small-vgg", 10, 8, 1), density=0.3), tmp_path / "masks")
    words = ("export", "masks", "-o", "out.safetensors", "--data", "digits")
    mistake("pass --model and --data", *words[:4])
    assert command(*words, "--model", "small-vgg").code == 0
    mistake("does not match the model", *words, "--model", "small-resnet")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("nowhere -o out.onnx", "there is no file or folder nowhere; name a run's folder"),
        (". -o out.onnx", "is not the folder of a run: it has no experiment.json"),
        ("RUN -o out.tar", "the name out.tar does not tell the format; use --format onnx, torch, sparse"),
        ("RUN -o no/out.onnx", "there is no folder no"),
        ("RUN -o out.onnx --model vgg19", "--model and --data are for mask files"),
        ("RUN -o out.safetensors --shrink", "use --shrink with .onnx and .pt2"),
        ("RUN -o out.pt2 --int8", "--int8 is for ONNX files"),
        ("RUN/mask.safetensors -o out.onnx --int8", "--int8 needs a trained network, and a mask file has none"),
        ("text -o out.onnx", "text is not a safetensors file"),
        ("text -o ../NAME/text", "text is what would be exported; name another file to write"),
        ("RUN -o RUN/mask.safetensors", "mask.safetensors is what would be exported"),
        ("RUN -o RUN/weights.safetensors", "weights.safetensors is what would be exported"),
        ("RUN", "name the file to write with -o FILE, or a folder for the Hub with --to-hub-folder DIR"),
        ("RUN --to-hub-folder hub -o x.onnx", "leave out --out, --format, --shrink"),
        ("RUN --to-hub-folder full", "full is not empty; name another folder, or allow --replace"),
        ("RUN --to-hub-folder full --replace", "full also holds notes.txt, which would be lost"),
        ("RUN --to-hub-folder no/hub", "to write hub into; create it first"),
        ("RUN -o x.onnx --replace", "--replace is for --to-hub-folder"),
        # a run that is not finished, or damaged: FILE is not there, or has this content
        ("COPY -o out.pt2 result.json", "is not finished (pruned; trained 1 of 1 epochs); finish it"),
        ("COPY -o out.pt2 result.json={", "result.json is damaged"),
        ("COPY -o out.pt2 experiment.json=[]", "experiment.json is damaged"),
        ("COPY -o out.pt2 weights.safetensors", "weights.safetensors is missing; delete the result.json"),
        ("COPY -o out.pt2 weights.safetensors=torn", "weights.safetensors is not a safetensors file"),
    ],
)
def test_mistakes_are_one_line(words, problem, finished, mistake, tmp_path):
    (tmp_path / "text").write_text("nothing of ours" * 10)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    words = words.replace("RUN", str(finished)).replace("NAME", tmp_path.name).split()
    if words[0] == "COPY":
        shutil.copytree(finished, "COPY")
        name, _, content = (damage := words.pop()).partition("=")
        Path("COPY", name).unlink()
        if "=" in damage:
            Path("COPY", name).write_text(content)
    mistake(problem, "export", *words)
    assert {path.name for path in tmp_path.iterdir()} <= {"text", "full", "COPY"}
    assert [path.read_text() for path in (tmp_path / "full").iterdir()] == ["mine"]


def test_shrink_shows_the_plan(finished, command, mistake):
    printed = command("shrink", finished).out
    assert re.search(r"Parameters [\d,]+ → [\d,]+ \(", printed)
    assert "FLOPs of an image" in printed
    plan = json.loads(command("shrink", finished, "--json", "--multiple-of", 4).out)
    assert plan["flops"][1] < plan["flops"][0]
    assert all(layer["outputs"][1] % 4 == 0 or layer["outputs"][1] == layer["outputs"][0] for layer in plan["layers"])
    mistake("experiment.json is not a safetensors file", "shrink", finished / "experiment.json")
