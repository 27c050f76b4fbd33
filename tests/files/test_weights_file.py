"""Weight files: a sparse network in few bytes, back bit for bit, or refused in one sentence."""

import json
import math
import re
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import zoo
from hypothesis import given, settings
from references import equal
from safetensors import safe_open
from torch import Tensor, nn
from zoo import Net

from barebones.files.weights import INTEGER, dense_bytes, load_weights, save_weights
from barebones.models import build

NEVER: Any = print  # the forward pass of networks that are only stored
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Return bytes at random of which NaNs of several payloads, infinities, -0.0 and subnormal numbers are made."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(0, 5, (*shape, dtype.itemsize), generator=generator)
    return torch.tensor([0, 1, 127, 128, 255], dtype=torch.uint8)[chosen].view(dtype).view(shape)


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit."""
    kind = INTEGER[a.element_size()]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.detach().view(kind), b.detach().view(kind))


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def cleared(tensor: Tensor, mask: Tensor | None) -> Tensor:
    return tensor.detach().clone() if mask is None else tensor.detach().masked_fill(~mask, 0.0)


SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple) | st.integers(200, 3000).map(lambda n: (n,))
KINDS, DENSITIES = [*FLOATS, torch.int64, torch.uint8], [None, 0.0, 0.005, 0.1, 0.5, 1.0]
FORMS = st.tuples(SHAPES, st.sampled_from(KINDS), st.sampled_from(DENSITIES))


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(FORMS, min_size=1, max_size=5), st.integers(0, 2**31), st.booleans())
def test_any_network_comes_back_bit_for_bit(tmp_path_factory, forms, seed, last):
    """Networks of any tensors: floats are parameters, with a mask of some density or without; others are buffers."""

    def make(seed: int) -> nn.Module:
        tensors = [random_bits(shape, dtype, seed + i) for i, (shape, dtype, _) in enumerate(forms)]
        tensors = [t.to(memory_format=torch.channels_last) if last and t.dim() == 4 else t for t in tensors]
        parts = {f"t{i}": nn.Parameter(t) if t.is_floating_point() else t for i, t in enumerate(tensors)}
        return Net(NEVER, **parts)

    model, other = make(seed), make(seed + 100)
    masks = {
        f"t{i}": torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density
        for i, (shape, dtype, density) in enumerate(forms)
        if dtype in FLOATS and density is not None
    }
    path = tmp_path_factory.getbasetemp() / "weights.safetensors"
    before, strides = copied(model), {name: tensor.stride() for name, tensor in other.state_dict().items()}
    save_weights(model, masks, path)
    state, loaded_masks, _ = load_weights(path, other)
    assert all(same(before[name], tensor) for name, tensor in model.state_dict().items())  # left untouched
    assert state.keys() == before.keys()
    for name, tensor in before.items():
        assert same(cleared(tensor, masks.get(name)), state[name])
        assert same(state[name], other.state_dict()[name])
        assert other.state_dict()[name].stride() == strides[name]
    assert equal(masks, loaded_masks)


def test_about_and_the_state_come_back(tmp_path):
    (model, example), (other, _) = zoo.build("resnet"), zoo.build("resnet", seed=1)
    model(example)  # so that batch-norm has counted
    masks = zoo.random_masks(model, 0.02)
    save_weights(model, masks, tmp_path / "weights", method="force", rounds=3)
    state, _, about = load_weights(tmp_path / "weights", other)
    assert int(other.bn1.num_batches_tracked) == 1
    kept = sum(int(mask.sum()) for mask in masks.values())
    assert (about["method"], about["rounds"], about["kept"]) == ("force", 3, kept)
    assert zoo.build("resnet")[0].load_state_dict(state, strict=True)
    save_weights(other, masks, tmp_path / "again", **about)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "weights").read_bytes()


PAGE = Path(__file__).parents[2] / "docs" / "export.md"
(READING,) = re.findall(r"```python\n(# shape and encoding.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_it_is_read_with_numpy_alone_by_the_code_of_the_page(tmp_path):
    model = nn.ModuleList([nn.Linear(500, 40), nn.Linear(5000, 300), nn.Linear(8, 5)])
    masks = {f"{i}.weight": zoo.random_masks(model, share)[f"{i}.weight"] for i, share in enumerate((0.01, 0.001, 0.5))}
    save_weights(model, masks, tmp_path / "weights")
    with safe_open(tmp_path / "weights", "numpy") as file:
        layout = json.loads(file.metadata()["about"])["layout"]
        assert {entry["encoding"] for entry in layout.values()} == {"bits", "gaps8", "gaps16"}
        for name, entry in layout.items():
            mask, values = file.get_tensor(f"mask {name}"), file.get_tensor(f"values {name}")
            if entry["encoding"] == "bits":
                weight = np.zeros(math.prod(entry["shape"]), values.dtype)
                weight[np.unpackbits(mask, bitorder="little")[: weight.size] == 1] = values
            else:
                exec(READING, known := {"np": np, "math": math, "mask": mask, "values": values, **entry})
                weight = known["weight"]
            expected = cleared(model.get_parameter(name), masks[name])
            assert np.array_equal(weight.reshape(entry["shape"]), expected.numpy())
        assert np.array_equal(file.get_tensor("whole 0.bias"), model[0].bias.detach().numpy())


def test_tied_weights_are_stored_once(tmp_path):
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4))
        model[1].weight = model[0].weight
        model.append(model[2])
        return model

    model, other = make(), make()
    model.register_buffer("scratch", torch.zeros(3), persistent=False)  # as state_dict does, the file leaves it out
    save_weights(model, zoo.random_masks(model, 0.5), tmp_path / "weights")
    state, masks, _ = load_weights(tmp_path / "weights", nn.DataParallel(other))
    assert list(masks) == ["0.weight"]
    assert state["0.weight"] is state["1.weight"]
    assert state["2.running_mean"] is state["3.running_mean"]
    assert state.keys() == model.state_dict().keys()
    assert other[1].weight is other[0].weight
    assert dense_bytes(model) == 4 * (16 + 4 + 4 + 16) + 8
    with pytest.raises(ValueError, match=re.escape("0.bias (4 of float32 in the file, 5 of float32 in the model)")):
        load_weights(tmp_path / "weights", nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 4)))


def test_a_model_without_memory_is_refused(tmp_path):
    save_weights(nn.Linear(2, 2), {}, tmp_path / "weights")
    with pytest.raises(ValueError, match=r"weight, bias: on the meta device; move the model with to_empty\(\)"):
        load_weights(tmp_path / "weights", nn.Linear(2, 2, device="meta"))


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_network_comes_back_on_another_device(device, tmp_path):
    model, other = build("small-resnet", 10, 8, 1).cuda(), build("small-resnet", 10, 8, 1).to(device)
    masks = zoo.random_masks(model, 0.1)
    save_weights(model, masks, tmp_path / "weights")
    loaded = load_weights(tmp_path / "weights", other)
    assert {mask.device.type for mask in loaded.masks.values()} == {device}
    for name, tensor in other.state_dict().items():
        mask = masks.get(name)
        assert same(cleared(model.state_dict()[name].cpu(), mask), tensor.cpu())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: nn.Linear(3, 2, bias=False), "bias (not in the model)"),
        (lambda: nn.Sequential(nn.Linear(3, 2)), "0.weight (not in the file)"),
        (lambda: nn.Linear(3, 2).half(), "2 of float32 in the file, 2 of float16 in the model"),
    ],
)
def test_another_model_is_refused_and_left_as_it_is(other, message, tmp_path):
    save_weights(nn.Linear(3, 2), {}, tmp_path / "weights")
    model = other()
    before = copied(model)
    with pytest.raises(ValueError, match=f"weights does not match the model: .*{re.escape(message)}"):
        load_weights(tmp_path / "weights", model)
    assert all(same(before[name], tensor) for name, tensor in model.state_dict().items())


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"step": 1}


@pytest.mark.parametrize(
    ("model", "masks", "message"),
    [
        (nn.Linear(2, 2), {"weight": torch.ones(2, 3) > 0}, "the masks do not fit the model"),
        (nn.Linear(2, 2, device="meta"), {}, "weight cannot be stored: it is on the meta device"),
        (Net(NEVER, b=torch.eye(2).to_sparse()), {}, "b cannot be stored: its layout is torch.sparse_coo"),
        (Net(NEVER, b=torch.zeros(2, dtype=torch.complex64)), {}, "b cannot be stored: it is complex"),
        (nn.Sequential(Extra(2, 2)), {}, "0 has extra state"),
    ],
)
def test_what_cannot_be_stored_is_told(model, masks, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        save_weights(model, masks, tmp_path / "weights")
    assert not list(tmp_path.iterdir())


def test_an_expanded_tensor_is_stored_but_not_loaded_into(tmp_path):
    model = nn.Linear(2, 2)
    model.register_buffer("same", torch.ones(1).expand(3))
    save_weights(model, {}, path := tmp_path / "weights")
    assert torch.equal(load_weights(path).state["same"], torch.ones(3))
    with pytest.raises(ValueError, match=r"same: expanded; clone\(\) it before loading"):
        load_weights(path, model)
    model.same = model.same.clone()
    load_weights(path, model)
