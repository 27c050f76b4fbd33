"""Export: what is written computes what the masked network computes, or nothing is written."""

import io
import logging
import re
import shutil
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from barebones.cli import app as cli
from barebones.deploy import export
from barebones.deploy.export import Exported, to_onnx, to_program, to_sparse
from barebones.deploy.shrink import shrink
from barebones.files.masks import load_masks, save_masks
from barebones.files.weights import dense_bytes, load_weights
from barebones.lab import network as lab_network
from barebones.lab import run as lab
from barebones.lab import stored
from barebones.lab.experiment import Experiment
from barebones.lab.folder import recorded
from barebones.models import build
from barebones.running.outputs import difference, outputs
from barebones.scope import prunable

MISSING = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: pip install 'barebones[export]'")
IMAGES = (2, 1, 8, 8)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_masks(model: nn.Module, density: float = 0.3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.rand(w.shape, generator=generator) < density for name, w in prunable(model).items()}


def masked(model: nn.Module, masks: dict[str, Tensor]) -> nn.Module:
    """The model itself, its pruned weights zeroed by hand."""
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_parameter(name).mul_(mask)
    return model.eval()


class Network(NamedTuple):
    make: Callable[[], nn.Module]  # always the same one
    masks: dict[str, Tensor]
    folder: Path


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Network:
    """A ResNet whose batch-norms have seen something, none of its pruned weights zero."""
    model = build("small-resnet", 10, 8, 1)
    for seed in range(3):
        model(noise(16, 1, 8, 8, seed=seed))
    state = model.state_dict()

    def make() -> nn.Module:
        again = build("small-resnet", 10, 8, 1)
        again.load_state_dict(state)
        return again

    return Network(make, random_masks(model), tmp_path_factory.mktemp("exported"))


# ONNX


@pytest.fixture(scope="module")
def onnx_file(network) -> Exported:
    return to_onnx(network.make(), network.masks, noise(*IMAGES), network.folder / "network.onnx")


def running(path: str) -> Callable[..., list[Tensor]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda **given: [torch.from_numpy(a) for a in session.run(None, {n: t.numpy() for n, t in given.items()})]


@needs_onnx
@pytest.mark.parametrize("batch", [1, 2, 7])
def test_onnx_computes_what_the_masked_network_does(network, onnx_file, batch):
    images = noise(batch, *IMAGES[1:], seed=5)
    [found] = running(onnx_file.path)(x=images)
    assert difference(outputs(masked(network.make(), network.masks), images), found) < 1e-5
    assert onnx_file.difference < 1e-5


@needs_onnx
def test_onnx_is_one_plain_file_without_batch_norm(network, onnx_file):
    import onnx

    onnx.checker.check_model(onnx_file.path, full_check=True)
    proto = onnx.load(onnx_file.path, load_external_data=False)
    assert {node.op_type for node in proto.graph.node} == {"Add", "Conv", "Gemm", "ReduceMean", "Relu"}
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    content = Path(onnx_file.path).read_bytes()
    assert onnx_file.bytes == len(content)
    assert onnx_file.bytes_dense == dense_bytes(network.make())
    assert onnx_file.ratio == onnx_file.bytes_dense / len(content)
    assert b".py" not in content  # no path of this machine
    assert not any(tensor.external_data for tensor in proto.graph.initializer)


class Several(nn.Module):
    """Arguments by name, several outputs, a tensor that has no batch; grouped, depthwise and transposed layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.ConvTranspose2d(2, 4, 2, 2, groups=2, bias=False), nn.BatchNorm2d(4)
        self.deep = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.twice = nn.BatchNorm2d(4)

    def forward(self, x: Tensor, *, scale: Tensor, weight: Tensor) -> dict[str, Any]:
        y = self.norm(self.up(x))
        z = self.deep(y)
        return {"z": self.twice(self.twice(z)) * weight, "means": [y.mean((1, 2, 3)) * scale, z.sum()]}


@needs_onnx
def test_onnx_of_several_inputs_and_outputs(tmp_path):
    model = Several()
    model(noise(4, 2, 3, 3), scale=torch.ones(4), weight=torch.ones(4, 1, 1))
    given = {"scale": noise(1), "weight": noise(4, 1, 1, seed=1)}
    exported = to_onnx(model, {}, ((noise(1, 2, 3, 3),), given), tmp_path / "several.onnx")
    assert model.training
    more = {"x": noise(3, 2, 3, 3, seed=2), "scale": noise(3, seed=3), "weight": given["weight"]}
    expected = outputs(model.eval(), more)
    found = running(exported.path)(**more)
    assert difference([expected["z"], *expected["means"]], found) < 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["several.onnx"]


@needs_onnx
def test_a_difference_leaves_nothing_behind(network, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "session", lambda blob: lambda images: [torch.zeros(len(images), 10)])
    path = tmp_path / "network.onnx"
    path.write_text("what was there")
    with pytest.raises(ValueError, match="onnxruntime does not compute what SmallResNet does: the outputs differ by 1"):
        to_onnx(network.make(), network.masks, noise(*IMAGES), path)
    assert [p.name for p in tmp_path.iterdir()] == ["network.onnx"]
    assert path.read_text() == "what was there"


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(package, network, tmp_path, monkeypatch):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None if name == package else types.ModuleType(name))
    with pytest.raises(ImportError, match=rf"and {package} is missing: pip install 'barebones\[export\]'"):
        to_onnx(network.make(), network.masks, noise(*IMAGES), tmp_path / "network.onnx")


@needs_onnx
def test_what_is_too_large_for_onnx_is_told(network, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "ONNX_BYTES", 100_000)
    with pytest.raises(ValueError, match="an ONNX file holds at most 2 GB"):
        to_onnx(network.make(), network.masks, noise(*IMAGES), tmp_path / "network.onnx")


# torch.export


@pytest.fixture(scope="module")
def program_file(network) -> Exported:
    return to_program(network.make(), network.masks, noise(*IMAGES), network.folder / "network.pt2")


def test_a_program_computes_what_the_masked_network_does(network, program_file):
    program = torch.export.load(program_file.path)
    plain = masked(network.make(), network.masks)
    for batch in (1, 2, 7):
        images = noise(batch, *IMAGES[1:], seed=5)
        assert difference(outputs(plain, images), program.module()(images)) < 1e-5
    assert not any("batch_norm" in str(node.target) for node in program.graph.nodes)
    assert program_file.bytes == Path(program_file.path).stat().st_size


def test_a_program_has_nothing_to_unpickle_but_its_example(program_file):
    content = Path(program_file.path).read_bytes()
    assert export._without_code(content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert not any(b".py" in archive.read(name) for name in archive.namelist() if name.endswith(".json"))


def test_a_program_with_code_in_it_is_noticed():
    for name, content in {"a.pt": b"\x80\x04cos\nsystem\n.", "b.json": b'{"use_pickle": true}'}.items():
        with zipfile.ZipFile(blob := io.BytesIO(), "w") as archive:
            archive.writestr(name, content)
        assert not export._without_code(blob.getvalue())


def test_batch_norm_may_stay(network, tmp_path):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    exported = to_program(model, {}, noise(2, 4), tmp_path / "network.pt2", fold=False)
    program = torch.export.load(exported.path)
    assert any("batch_norm" in str(node.target) for node in program.graph.nodes)


class Fixed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(2, 3))


@pytest.mark.parametrize(
    ("model", "example", "told"),
    [
        (Fixed(3, 1), torch.zeros(2, 3), "Fixed cannot be exported for batches of any size"),
        (nn.Linear(3, 1), torch.tensor(1.0), "no tensor with a batch dimension"),
        (nn.Linear(3, 1), torch.zeros(0, 3), "no tensor with a batch dimension"),
    ],
)
def test_what_cannot_be_exported_is_told_in_one_line(model, example, told, tmp_path):
    with pytest.raises(ValueError, match=told) as error:
        to_program(model, {}, example, tmp_path / "network.pt2")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_exporting_leaves_no_trace(network, program_file, tmp_path):
    levels = [logging.getLogger(name).level for name in export.CHATTY]
    model = network.make()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    to_sparse(model, network.masks, tmp_path / "weights")
    with pytest.raises(ValueError, match="the masks do not fit the model"):
        to_program(model, {"fc.weight": torch.ones(1) > 0}, noise(*IMAGES), tmp_path / "network.pt2")
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [logging.getLogger(name).level for name in export.CHATTY] == levels


def test_a_sparse_file_is_read_back(network, tmp_path):
    exported = to_sparse(network.make(), network.masks, tmp_path / "weights", method="random")
    state, masks, about = load_weights(exported.path)
    plain = masked(network.make(), network.masks)
    assert all(torch.equal(state[name], tensor) for name, tensor in plain.state_dict().items())
    assert about["method"] == "random"
    assert masks.keys() == network.masks.keys()
    assert exported.difference == 0


# the command


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch, capsys, tmp_path) -> Callable[..., Done]:
    """`barebones export` with these words, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["barebones", "export", *map(str, words)])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        return Done(leaving.value.code or 0, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a finished run."""
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn: pip install 'barebones[demo]'")
    place = lab.RunOptions(runs=tmp_path_factory.mktemp("runs"))
    experiment = Experiment("small-resnet", "digits", "snip", 0.9, epochs=1, batch=256).resolved()
    lab.result_of(lab.run(experiment, place))
    return place.folder(experiment)


def test_a_run_is_exported_sparse(finished, command):
    done = command(finished, "-o", "network.safetensors")
    assert (done.code, done.err) == (0, "")
    assert "network.safetensors: " in done.out
    assert re.search(r"times smaller than the dense checkpoint \([\d,]+\)\.", done.out)
    assert "bit for bit" in done.out
    experiment, model, masks = stored.trained(finished)
    state, found, about = load_weights("network.safetensors")
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(found[name], mask) for name, mask in masks.items())
    assert about["experiment"] == experiment.to_dict()


def test_a_run_is_exported_as_a_program(finished, command):
    done = command(finished, "-o", "network.bin", "--format", "torch")
    assert (done.code, done.err) == (0, "")
    assert "Loaded again, its outputs differ by " in done.out
    assert "before training" not in done.out
    _, model, _ = stored.trained(finished)
    with open("network.bin", "rb") as file:
        found = torch.export.load(file).module()(noise(3, 1, 8, 8))
    assert difference(outputs(model.eval(), noise(3, 1, 8, 8)), found) < 1e-5


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
    done = command(finished / "mask.safetensors", "-o", "network.safetensors")
    assert (done.code, done.err) == (0, "")
    assert "before training" in done.out
    experiment = Experiment.from_dict(recorded(finished / "experiment.json"))
    network = lab_network.Network(experiment, lab.RunOptions(), torch.device("cpu"))
    masks, _ = load_masks(finished / "mask.safetensors")
    state, _, _ = load_weights("network.safetensors")
    assert all(torch.equal(state[n], t) for n, t in masked(network.model, masks).state_dict().items())


def test_a_mask_file_of_unknown_origin_needs_a_network(command, tmp_path):
    save_masks(random_masks(build("small-vgg", 10, 8, 1)), tmp_path / "masks")
    assert "name --model and --data" in command("masks", "-o", "out.safetensors").err
    done = command("masks", "-o", "out.safetensors", "--model", "small-vgg", "--data", "digits")
    assert (done.code, done.err) == (0, "")
    done = command("masks", "-o", "out.safetensors", "--model", "small-resnet", "--data", "digits")
    assert done.code == 2
    assert "does not match the model" in done.err


def test_the_shrunk_network_is_what_is_exported(finished, command):
    pytest.importorskip("torch_pruning", reason="shrinking needs Torch-Pruning")
    done = command(finished, "-o", "small.pt2", "--shrink")
    assert (done.code, done.err) == (0, "")
    _, model, masks = stored.trained(finished)
    small = shrink(model, masks, noise(*IMAGES))
    with open("small.pt2", "rb") as file:
        program = torch.export.load(file)
    assert sum(p.numel() for p in program.parameters()) < sum(p.numel() for p in model.parameters())
    assert len(list(program.parameters())) <= len(list(small.module.parameters()))
    found = program.module()(noise(3, 1, 8, 8))
    assert difference(outputs(masked(model, masks), noise(3, 1, 8, 8)), found) < 1e-5


def test_a_compact_file_is_of_the_whole_network(finished, command):
    done = command(finished, "-o", "small.safetensors", "--shrink")
    assert done.code == 2
    assert "use --shrink with .onnx and .pt2" in done.err


@pytest.mark.parametrize(
    ("words", "told"),
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
def test_mistakes_are_one_line(words, told, finished, command, tmp_path):
    (tmp_path / "text").write_text("nothing of ours" * 10)
    done = command(*(word.replace("RUN", str(finished)) for word in words))
    assert done.code == 2
    assert told in done.err
    assert len(done.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        (
            "result.json",
            None,
            "is not finished (pruned; trained 1 of 1 epochs); finish it",
        ),
        ("result.json", b"{", "result.json cannot be read"),
        ("experiment.json", b"{", "experiment.json is damaged"),
        ("experiment.json", b"[]", "experiment.json is damaged"),
        ("weights.safetensors", None, "No such file or directory"),
        ("weights.safetensors", b"torn", "weights.safetensors is not a safetensors file"),
        ("mask.safetensors", b"", "mask.safetensors is empty"),
    ],
)
def test_a_run_that_is_not_whole_is_one_line(file, content, told, finished, command, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
    done = command(folder, "-o", "out.pt2")
    assert done.code == 2
    assert told in done.err
    assert len(done.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
