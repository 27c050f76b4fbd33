"""Masks come back bit for bit from the smallest of three encodings, or not at all."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import zoo
from hypothesis import given, settings
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from barebones.files import container as files
from barebones.files.masks import KIND, VERSION, fingerprint, load_masks, save_masks
from barebones.scope import prunable

TEXT = st.text('aW.0é–\\"/\x1f \n', max_size=8)


def random_mask(shape: tuple[int, ...], density: float, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density


def masks_of(model: nn.Module, density: float = 0.5) -> dict[str, Tensor]:
    return {name: random_mask(w.shape, density).to(w.device) for name, w in prunable(model).items()}


def net(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return list(a) == list(b) and all(b[n].dtype == torch.bool and torch.equal(a[n].cpu(), b[n].cpu()) for n in a)


@settings(deadline=None, max_examples=30)
@given(
    masks=st.dictionaries(
        TEXT,
        st.tuples(st.lists(st.integers(0, 6), max_size=4).map(tuple), st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        max_size=5,
    ),
    about=st.dictionaries(
        st.sampled_from(["method", "seed", "rounds", "weights", "sha256"]),
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    ),
)
def test_any_masks_and_header_come_back(tmp_path_factory: Any, masks: dict, about: dict) -> None:
    path = tmp_path_factory.getbasetemp() / "masks"
    masks = {name: random_mask(*args) for name, args in masks.items()}
    save_masks(masks, path, **about)
    loaded, found = load_masks(path)
    assert equal(masks, loaded)
    assert about.items() <= found.items()


@pytest.mark.parametrize("density", [0.02, 0.4])
@pytest.mark.parametrize("name", zoo.ZOO)
def test_masks_of_every_network_of_the_zoo(tmp_path: Path, name: str, density: float) -> None:
    model, _ = zoo.build(name)
    save_masks(masks := zoo.draw_masks(name, model, density), tmp_path / "m")
    assert equal(masks, load_masks(tmp_path / "m")[0])
    assert equal(masks, load_masks(tmp_path / "m", model, scope=list(masks))[0])


def test_the_header(tmp_path: Path) -> None:
    masks = {"b.weight": torch.arange(1000) < 4, "a.weight": torch.zeros(2, 500, dtype=torch.bool)}
    save_masks(masks, tmp_path / "m", method="force", seed=3, weights="ab12")
    _, about = load_masks(tmp_path / "m")
    assert about == {
        "method": "force",
        "seed": 3,
        "weights": "ab12",
        "sparsity": 0.998,
        "prunable": 2000,
        "kept": 4,
        "fingerprint": fingerprint(masks),
        "library": about["library"],
    }
    with safe_open(tmp_path / "m", "pt") as file:
        assert sorted(file.keys()) == ["a.weight", "b.weight"]
        assert file.metadata()["format"] == KIND
        assert file.metadata()["version"] == str(VERSION)
        assert file.metadata()["library"] == about["library"]
    save_masks(masks, tmp_path / "m", sparsity=0.9979)
    assert load_masks(tmp_path / "m")[1]["sparsity"] == 0.9979


def test_the_fingerprint_is_of_names_and_shapes_alone() -> None:
    a, b = torch.zeros(2, 3), torch.ones(4)
    assert fingerprint({"a": a, "b": b}) == fingerprint({"b": b > 0, "a": a.double()})
    assert len({fingerprint(w) for w in ({"a": a}, {"b": a}, {"a": a.T}, {"a": b}, {"a": a, "b": b}, {})}) == 6


def test_what_was_loaded_can_be_saved_again(tmp_path: Path) -> None:
    save_masks({"w": torch.eye(3) > 0}, tmp_path / "m", method="force")
    masks, about = load_masks(tmp_path / "m")
    save_masks(masks, tmp_path / "n", **about)
    assert (tmp_path / "n").read_bytes() == (tmp_path / "m").read_bytes()


@pytest.mark.parametrize("key", ["kept", "prunable", "fingerprint", "library"])
def test_what_the_masks_tell_is_not_taken_from_the_caller(tmp_path: Path, key: str) -> None:
    save_masks({"w": torch.eye(3) > 0}, tmp_path / "m", **{key: "wrong"})
    assert load_masks(tmp_path / "m")[1][key] != "wrong"


def test_a_value_that_cannot_be_stored_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"seed=tensor.*cannot be stored"):
        save_masks({}, tmp_path / "m", seed=torch.tensor(3))
    assert not list(tmp_path.iterdir())


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "m"
    for make in [
        lambda: save_file(net(2, 2).state_dict(), path),
        lambda: torch.save(net(2, 2).state_dict(), path),
        lambda: files.write(path, {}, KIND, VERSION + 1, {}),
        lambda: files.write(path, {}, KIND, VERSION, {}),
        lambda: files.write(path, {}, KIND, VERSION, {"layout": {"w": {"shape": [1], "encoding": "bits", "kept": 0}}}),
    ]:
        make()
        with pytest.raises(ValueError, match=re.escape(str(path))):
            load_masks(path)


def test_masks_land_on_a_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    save_masks(masks := masks_of(model), tmp_path / "m")
    for wrapped in (model, nn.DataParallel(model)):
        assert equal(masks, load_masks(tmp_path / "m", wrapped)[0])


def test_a_model_that_does_not_match_is_told_where(tmp_path: Path) -> None:
    save_masks(masks_of(net(4, 5, 6)), path := tmp_path / "m")
    for model, messages in [
        (net(4, 5, 7), ["1 of the parameters differ: 1.weight (6×5 in the file, 7×5 in the model)"]),
        (net(4, 5), ["1 of", "1.weight (not in the model)"]),
        (net(4, 5, 6, 7), ["1 of", "2.weight (not in the file); if only some weights have masks, pass scope="]),
        (
            nn.ModuleDict({"x": net(4, 5, 6)}),
            ["4 of", "x.0.weight (not in the file)", "0.weight (not in the model), 1.weight (not in"],
        ),
        (
            net(*[3] * 20),
            ["19 of", "0.weight (5×4 in the file, 3×3 in the model)", "4.weight (not in", " and 14 more;"],
        ),
    ]:
        with pytest.raises(ValueError, match="m does not match the model; ") as caught:
            load_masks(path, model)
        assert all(words in str(caught.value) for words in messages), str(caught.value)


def test_masks_of_fewer_or_more_weights(tmp_path: Path) -> None:
    model = net(4, 5, 6)
    masks = masks_of(model)
    bias = torch.tensor([True] * 6)
    save_masks({"1.weight": masks["1.weight"], "1.bias": bias}, path := tmp_path / "m")
    with pytest.raises(ValueError, match=r"0.weight .not in the file"):
        load_masks(path, model)
    for choice in (dict(exclude="0.*"), dict(scope="1.*"), dict(scope=["1.weight"])):
        loaded, _ = load_masks(path, model, **choice)
        assert equal({"1.weight": masks["1.weight"], "1.bias": bias}, loaded)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_masks_of_and_for_a_gpu(tmp_path: Path) -> None:
    model = net(40, 50, 60).cuda()
    save_masks(masks := masks_of(model, 0.02), tmp_path / "m")
    loaded, _ = load_masks(tmp_path / "m", model)
    assert equal(masks, loaded)
    assert all(mask.is_cuda for mask in loaded.values())
    assert not any(mask.is_cuda for mask in load_masks(tmp_path / "m")[0].values())
