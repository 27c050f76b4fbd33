"""Export: a written file computes what the masked network computes, or nothing is written; no trace is left."""

import logging
import random
import sys
import types
import zipfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy.random
import pytest
import torch
import zoo
from references import Trace
from torch import Tensor, nn

import barebones as bb
from barebones.deploy import export
from barebones.deploy.export import Exported, to_onnx, to_program
from barebones.files.weights import dense_bytes
from barebones.running.outputs import difference, outputs

ONNX = ("onnx", "onnxscript", "onnxruntime")


def built(name: str) -> tuple[nn.Module, dict[str, Tensor], Any]:
    """Return a network of the zoo with masks and an example; its pruned weights are not zero."""
    model, example = zoo.build(name)
    return model, zoo.draw_masks(name, model, density=0.4), example


def masked(name: str) -> nn.Module:
    """Return the same network with its pruned weights at zero, in eval mode."""
    model, masks, _ = built(name)
    return zoo.masked(model, masks).eval()


@pytest.fixture(scope="module")
def program_file(tmp_path_factory) -> Exported:
    return to_program(*built("flatten"), tmp_path_factory.mktemp("exported") / "network.pt2")


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory, onnx_packages) -> Exported:
    with torch.autocast("cpu", torch.bfloat16):  # of the caller; the file is in float32
        return to_onnx(*built("flatten"), tmp_path_factory.mktemp("exported") / "network.onnx")


@pytest.mark.parametrize("fixture", ["program_file", "onnx_file"])
def test_a_file_computes_what_the_masked_network_does_for_any_batch_size(fixture, request):
    exported = request.getfixturevalue(fixture)
    content = Path(exported.path).read_bytes()
    run = torch.export.load(exported.path).module() if fixture == "program_file" else export.session(content)
    for batch in (1, 2, 7):
        images = torch.randn(batch, *zoo.IMAGE[1:])
        assert difference(outputs(masked("flatten"), images), run(images)) < 1e-5
    assert exported.difference < 1e-5
    assert exported.bytes == len(content)
    assert exported.bytes_dense == dense_bytes(masked("flatten"))
    assert exported.ratio == exported.bytes_dense / len(content)


@pytest.mark.parametrize("name", [*zoo.names(exportable=True, recurrent=False), "recurrent"])
def test_a_program_of_the_zoo(name, tmp_path):
    assert to_program(*built(name), tmp_path / "network.pt2").difference < 1e-5


def test_a_program_has_no_path_of_this_machine(program_file):
    with zipfile.ZipFile(program_file.path) as archive:
        assert not any(b".py" in archive.read(name) for name in archive.namelist() if name.endswith(".json"))


@pytest.mark.parametrize(
    ("example", "problem"),
    [
        (torch.zeros(2, 3), "Net cannot be exported for batches of any size"),
        (torch.zeros(0, 3), "no tensor with a batch dimension"),
    ],
)
def test_what_cannot_be_exported_is_one_line(example, problem, tmp_path):
    model = zoo.Net(lambda net, x: net.layer(x.reshape(2, 3)), layer=nn.Linear(3, 1))  # its batch size is fixed
    with pytest.raises(ValueError, match=problem) as error:
        to_program(model, {}, example, tmp_path / "network.pt2")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_a_decoder_is_exported_without_its_cache_and_the_error_says_how(tmp_path, onnx_packages):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_attention_heads=2, **sizes))
    example = {"input_ids": torch.zeros(2, 5, dtype=torch.long)}
    for export_to in (to_onnx, to_program):
        with pytest.raises(ValueError, match=r"model.config.use_cache = False, or pass use_cache=False in the example"):
            export_to(model, {}, example, tmp_path / "network")
    assert to_onnx(model, {}, example | {"use_cache": False}, tmp_path / "network").difference < 1e-5
    model.config.use_cache = False
    assert to_program(model, {}, example, tmp_path / "network").difference < 1e-5


@pytest.mark.parametrize("limit", [-1e9, 0.0])
def test_an_example_that_the_network_writes_to_stays(limit, tmp_path):
    def forward(net: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        return net.layer(x if limit < 0 or x.sum() > limit else -x)  # torch.export refuses a choice by value

    model, example = zoo.Net(forward, layer=nn.Linear(3, 1)), torch.ones(2, 3)
    with nullcontext() if limit < 0 else pytest.raises(ValueError, match="cannot be exported"):
        to_program(model, {}, example, tmp_path / "network.pt2")
    assert torch.equal(example, torch.ones(2, 3))


def test_a_difference_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    other = types.SimpleNamespace(module=lambda: lambda x: torch.zeros(len(x), 3))
    monkeypatch.setattr(torch.export, "load", lambda file: other)
    (path := tmp_path / "network.pt2").write_text("what was there")
    with pytest.raises(ValueError, match="export does not compute what Sequential does: the outputs differ by 1 of"):
        to_program(*built("mlp"), path)
    assert [p.name for p in tmp_path.iterdir()] == ["network.pt2"]
    assert path.read_text() == "what was there"


@pytest.mark.usefixtures("onnx_packages")
@pytest.mark.parametrize("name", ["conv1d", "many", "separate", "recurrent"])
def test_onnx_of_the_zoo(name, tmp_path):
    assert to_onnx(*built(name), tmp_path / "network.onnx").difference < 1e-5


def test_onnx_is_one_plain_file_without_batch_norm(onnx_file):
    import onnx

    onnx.checker.check_model(onnx_file.path, full_check=True)
    proto = onnx.load(onnx_file.path, load_external_data=False)
    assert {node.op_type for node in proto.graph.node} == {"Conv", "Gemm", "Relu", "Reshape"}
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert b".py" not in Path(onnx_file.path).read_bytes()  # no path of this machine
    assert not any(tensor.external_data for tensor in proto.graph.initializer)


@pytest.mark.usefixtures("onnx_packages")
def test_onnx_of_inputs_by_name_one_of_them_without_a_batch(tmp_path):
    model = zoo.Net(lambda net, x, *, scale, weight: {"y": (y := net.layer(x)) * weight, "z": [y.mean(1) * scale]},
                    layer=nn.Linear(4, 3))  # fmt: skip
    named = {"scale": torch.randn(1), "weight": torch.randn(3)}
    exported = to_onnx(model, {}, ((torch.randn(1, 4),), named), tmp_path / "several.onnx")
    x, scale = torch.randn(5, 4), torch.randn(5)
    actual = export.session(Path(exported.path).read_bytes())(x, scale, named["weight"])
    assert difference(outputs(model, {"x": x, "scale": scale, "weight": named["weight"]}), actual) < 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["several.onnx"]


@pytest.mark.usefixtures("onnx_packages")
def test_int8_is_close_and_pruned_weights_are_exactly_zero(tmp_path):
    import onnx

    model, masks, example = built("flatten")
    batches = [(torch.randn(16, *zoo.IMAGE[1:]), torch.zeros(16)) for _ in range(3)]  # with targets
    exported = to_onnx(model, masks, example, path := tmp_path / "network.onnx", int8=batches)
    assert [p.name for p in tmp_path.iterdir()] == ["network.onnx"]
    assert exported.difference < 0.1
    images = torch.randn(5, *zoo.IMAGE[1:])  # another batch size
    assert difference(outputs(masked("flatten"), images), export.session(path.read_bytes())(images)) < 0.1
    onnx.checker.check_model(path, full_check=True)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    for name, mask in masks.items():
        weight, zero = (torch.from_numpy(stored[f"{name}_{part}"].copy()) for part in ("quantized", "zero_point"))
        assert weight.dtype == torch.int8
        assert weight.any()
        assert not weight[~mask].any()
        assert not zero.any()


@pytest.mark.usefixtures("onnx_packages")
def test_in_int8_rows_without_weights_keep_their_bias(tmp_path):
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10)), torch.randn(64, 8)
    nn.init.constant_(model[0].bias, -100)  # no signal passes, and only biases are left
    masks = {"2.weight": (torch.arange(10) % 2 == 0)[:, None].expand(10, 16)}
    assert to_onnx(model, masks, x, tmp_path / "network.onnx", int8=[x]).difference < 0.05


@pytest.mark.usefixtures("onnx_packages")
@pytest.mark.parametrize(("batches", "problem"), [([], "int8 needs batches"), ([torch.zeros(2, 5)], "cannot quantize")])
def test_batches_that_int8_cannot_use_are_one_line(batches, problem, tmp_path):
    with pytest.raises(ValueError, match=problem) as error:
        to_onnx(nn.Linear(4, 3), {}, torch.randn(2, 4), tmp_path / "network.onnx", int8=batches)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def pretended(monkeypatch) -> None:
    """Put empty modules in the place of the packages for ONNX."""
    for name in ONNX:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))


@pytest.mark.parametrize("package", ONNX)
def test_a_missing_package_is_named(package, pretended, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"and {package} is missing: pip install 'barebones\[export\]'"):
        to_onnx(*built("mlp"), tmp_path / "network.onnx")


def test_weights_that_are_too_large_for_onnx_are_an_error(pretended, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "ONNX_BYTES", 100)
    with pytest.raises(ValueError, match="an ONNX file holds at most 2 GB"):
        to_onnx(*built("mlp"), tmp_path / "network.onnx")


BATCHES = [(torch.randn(4, 4), torch.tensor([0, 1, 0, 1]))]
FUNCTIONS: dict[str, Callable[[nn.Module, Any, Any, Path], Any]] = {
    "to_onnx": lambda model, masks, x, path: to_onnx(model, masks, x, path / "network.onnx"),
    "to_onnx in int8": lambda model, masks, x, path: to_onnx(model, masks, x, path / "network.onnx", int8=[x]),
    "to_program": lambda model, masks, x, path: to_program(model, masks, x, path / "network.pt2"),
    "save_weights": lambda model, masks, x, path: bb.save_weights(model, masks, path / "weights.safetensors"),
    "prune": lambda model, masks, x, path: bb.prune(model, BATCHES, 0.5, "iter-snip", rounds=3, on_collapse="ignore"),
    "account": lambda model, masks, x, path: bb.account(model, masks, x),
    "shrink": lambda model, masks, x, path: bb.shrink(model, masks, x),
}


def noise_of_the_caller(net: Any, x: Tensor) -> Tensor:
    """Draw from every global generator, and multiply the draws by zero."""
    return x + 0 * (torch.rand(()) + random.random() + float(numpy.random.rand()))


def noise_of_its_own(net: Any, x: Tensor) -> Tensor:
    noise = torch.rand((), generator=net.noise) + net.python.random() + net.numpy.random() + net.older.rand()
    return x + 1e-3 * float(noise)


def with_its_own() -> nn.Module:
    own = {"noise": torch.Generator(), "python": random.Random(0), "older": numpy.random.RandomState(0)}
    return zoo.Net(noise_of_its_own, numpy=numpy.random.default_rng(0), **own)


NOISES = {"dropout": nn.Identity, "of the caller": lambda: zoo.Net(noise_of_the_caller), "of its own": with_its_own}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("noise", NOISES)
def test_random_numbers_of_the_caller_and_of_the_network_stay(name, noise, tmp_path, request):
    if name.startswith("to_onnx"):
        request.getfixturevalue("onnx_packages")
    body = [nn.BatchNorm1d(6), nn.ReLU(), NOISES[noise](), nn.Dropout(0.5)]
    model = nn.Sequential(nn.Linear(4, 6), *body, nn.Linear(6, 2))
    masks, x = zoo.random_masks(model, 0.5), torch.randn(3, 4)
    levels = [logging.getLogger(name).level for name in export.CHATTY]
    # Some refuse a network that draws so, or cannot export it; they must not have moved its numbers either.
    with Trace(model), suppress(() if noise == "dropout" else ValueError):
        FUNCTIONS[name](model, masks, x, tmp_path)
    assert [logging.getLogger(name).level for name in export.CHATTY] == levels
