"""Export: a written file computes what the masked network computes, or nothing is written."""

import io
import logging
import sys
import types
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from torch import Tensor, nn

from barebones.deploy import export
from barebones.deploy.export import Exported, to_onnx, to_program, to_sparse
from barebones.files.weights import dense_bytes, load_weights
from barebones.running.outputs import difference, outputs

MISSING = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: pip install 'barebones[export]'")
IMAGES = (2, 1, 8, 8)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def built(name: str) -> tuple[nn.Module, dict[str, Tensor], Any]:
    """Return a network of the zoo with masks and an example; its pruned weights are not zero."""
    model, example = zoo.build(name)
    return model, zoo.draw_masks(name, model, density=0.4), example


def masked(name: str) -> nn.Module:
    """Return the same network with its pruned weights at zero, in eval mode."""
    model, masks, _ = built(name)
    return zoo.masked(model, masks).eval()


# torch.export


NOT_EXPORTABLE = {"shuffle": "it fixes its batch size", "language": "torch.export cannot read **kwargs"}
PROGRAMS = [*(name for name in zoo.names(exportable=True, recurrent=False) if name not in NOT_EXPORTABLE), "recurrent"]
QUICK = {"mlp", "many", "writing", "tied", "mobile", "unet-groups", "conv1d", "conv3d", "plain", "words"}


@pytest.fixture(scope="module")
def program_file(tmp_path_factory) -> Exported:
    return to_program(*built("resnet"), tmp_path_factory.mktemp("exported") / "network.pt2")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PROGRAMS])
def test_a_program_computes_what_the_masked_network_does(name, tmp_path):
    exported = to_program(*built(name), tmp_path / "network.pt2")
    assert exported.difference < 1e-5
    assert exported.bytes == Path(exported.path).stat().st_size


def test_a_program_takes_any_batch_size_and_has_no_batch_norm(program_file):
    program = torch.export.load(program_file.path)
    for batch in (1, 2, 7):
        images = noise(batch, *IMAGES[1:], seed=5)
        assert difference(outputs(masked("resnet"), images), program.module()(images)) < 1e-5
    assert not any("batch_norm" in str(node.target) for node in program.graph.nodes)


def test_batch_norm_may_stay(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    exported = to_program(model, {}, noise(2, 4), tmp_path / "network.pt2", fold=False)
    program = torch.export.load(exported.path)
    assert any("batch_norm" in str(node.target) for node in program.graph.nodes)


def test_the_only_pickle_in_a_program_is_its_example(program_file):
    with zipfile.ZipFile(program_file.path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    for name, content in contents.items():
        if name.endswith(".json"):
            assert b".py" not in content  # no path of this machine
            assert b'"use_pickle": true' not in content
        if name.endswith(".pt") and content:
            torch.load(io.BytesIO(content), weights_only=True)


@pytest.mark.parametrize(
    ("name", "content"), [("a.pt", b"\x80\x04cos\nsystem\n."), ("b.json", b'{"use_pickle": true}')]
)
def test_a_program_with_code_in_it_is_not_loaded(name, content, tmp_path, monkeypatch):
    def save(program, file) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(name, content)

    monkeypatch.setattr(torch.export, "save", save)
    monkeypatch.setattr(torch.export, "load", lambda file: pytest.fail("it was loaded"))
    assert to_program(nn.Linear(4, 3), {}, noise(2, 4), tmp_path / "network.pt2").difference == 0


class Fixed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(2, 3))


@pytest.mark.parametrize(
    ("model", "example", "problem"),
    [
        (Fixed(3, 1), torch.zeros(2, 3), "Fixed cannot be exported for batches of any size"),
        (nn.Linear(3, 1), torch.tensor(1.0), "no tensor with a batch dimension"),
        (nn.Linear(3, 1), torch.zeros(0, 3), "no tensor with a batch dimension"),
    ],
)
def test_what_cannot_be_exported_is_one_line(model, example, problem, tmp_path):
    with pytest.raises(ValueError, match=problem) as error:
        to_program(model, {}, example, tmp_path / "network.pt2")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_exporting_leaves_no_trace(tmp_path):
    levels = [logging.getLogger(name).level for name in export.CHATTY]
    model, masks, example = built("flatten")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    to_program(model, masks, example, tmp_path / "network.pt2")
    to_sparse(model, masks, tmp_path / "weights")
    with pytest.raises(ValueError, match="the masks do not fit the model"):
        to_program(model, {"fc.weight": torch.ones(1) > 0}, example, tmp_path / "network.pt2")
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [logging.getLogger(name).level for name in export.CHATTY] == levels


# ONNX


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory) -> Exported:
    return to_onnx(*built("resnet"), tmp_path_factory.mktemp("exported") / "network.onnx")


def running(path: str) -> Callable[..., list[Tensor]]:
    """Return a function that runs the file in onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda **inputs: [torch.from_numpy(a) for a in session.run(None, {n: t.numpy() for n, t in inputs.items()})]


@needs_onnx
@pytest.mark.parametrize("batch", [1, 2, 7])
def test_onnx_computes_what_the_masked_network_does(onnx_file, batch):
    images = noise(batch, *IMAGES[1:], seed=5)
    [actual] = running(onnx_file.path)(x=images)
    assert difference(outputs(masked("resnet"), images), actual) < 1e-5
    assert onnx_file.difference < 1e-5


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv1d", "many", "separate", "recurrent"])
def test_onnx_of_the_zoo(name, tmp_path):
    assert to_onnx(*built(name), tmp_path / "network.onnx").difference < 1e-5


@needs_onnx
def test_onnx_is_one_plain_file_without_batch_norm(onnx_file):
    import onnx

    onnx.checker.check_model(onnx_file.path, full_check=True)
    proto = onnx.load(onnx_file.path, load_external_data=False)
    assert {node.op_type for node in proto.graph.node} == {"Add", "Conv", "Gemm", "ReduceMean", "Relu"}
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    content = Path(onnx_file.path).read_bytes()
    assert onnx_file.bytes == len(content)
    assert onnx_file.bytes_dense == dense_bytes(masked("resnet"))
    assert onnx_file.ratio == onnx_file.bytes_dense / len(content)
    assert b".py" not in content  # no path of this machine
    assert not any(tensor.external_data for tensor in proto.graph.initializer)


class Several(nn.Module):
    """Arguments by name, several outputs, an input without a batch; grouped, depthwise and transposed layers."""

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
    named = {"scale": noise(1), "weight": noise(4, 1, 1, seed=1)}
    exported = to_onnx(model, {}, ((noise(1, 2, 3, 3),), named), tmp_path / "several.onnx")
    assert model.training
    three = {"x": noise(3, 2, 3, 3, seed=2), "scale": noise(3, seed=3), "weight": named["weight"]}
    expected = outputs(model.eval(), three)
    assert difference([expected["z"], *expected["means"]], running(exported.path)(**three)) < 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["several.onnx"]


@needs_onnx
def test_a_difference_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "session", lambda blob: lambda x: [torch.zeros(len(x), 3)])
    path = tmp_path / "network.onnx"
    path.write_text("what was there")
    with pytest.raises(ValueError, match="onnxruntime does not compute what Sequential does: the outputs differ by 1"):
        to_onnx(*built("mlp"), path)
    assert [p.name for p in tmp_path.iterdir()] == ["network.onnx"]
    assert path.read_text() == "what was there"


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(package, tmp_path, monkeypatch):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None if name == package else types.ModuleType(name))
    with pytest.raises(ImportError, match=rf"and {package} is missing: pip install 'barebones\[export\]'"):
        to_onnx(*built("mlp"), tmp_path / "network.onnx")


@needs_onnx
def test_weights_that_are_too_large_for_onnx_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "ONNX_BYTES", 100)
    with pytest.raises(ValueError, match="an ONNX file holds at most 2 GB"):
        to_onnx(*built("mlp"), tmp_path / "network.onnx")


# compact files


@pytest.mark.parametrize("name", ["resnet", "tied", "two inputs"])
def test_a_compact_file_is_read_back(name, tmp_path):
    model, masks, _ = built(name)
    exported = to_sparse(model, masks, tmp_path / "weights", method="random")
    state, stored_masks, about = load_weights(exported.path)
    assert all(torch.equal(state[key], tensor) for key, tensor in masked(name).state_dict().items())
    assert about["method"] == "random"
    assert stored_masks.keys() == masks.keys()
    assert exported.difference == 0
