"""Masks come back bit for bit from the smallest of three encodings and from files, or not at all."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import zoo
from hypothesis import given, settings
from references import equal
from safetensors import safe_open
from torch import Tensor, nn

from barebones.files import container, weights
from barebones.files import masks as files
from barebones.files.masks import KIND, VERSION, fingerprint, load_masks, masks_digest, save_masks
from barebones.pruning.round import Round


def sizes(mask: Tensor) -> dict[str, int]:
    """Bytes of each encoding, counted one weight at a time."""
    count = {"bits": math.ceil(mask.numel() / 8), "gaps8": 0, "gaps16": 0}
    for name, width in (("gaps8", 1), ("gaps16", 2)):
        gap = 0
        for keep in mask.flatten().tolist():
            gap += not keep
            if keep:
                count[name] += width * (1 + gap // (256**width - 1))
                gap = 0
    return count


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda m: m,
    "transposed": lambda m: m.mT if m.dim() > 1 else m,
    "channels last": lambda m: m.to(memory_format=torch.channels_last) if m.dim() == 4 else m,
    "every other": lambda m: m[..., ::2] if m.dim() else m,
    "expanded": lambda m: m.expand(3, *m.shape),
}


@settings(max_examples=150)
@given(
    shape=st.lists(st.integers(0, 9), max_size=4).map(tuple) | st.integers(0, 3000).map(lambda n: (n,)),
    density=st.sampled_from([0.0, 0.002, 0.02, 0.1, 0.13, 0.5, 1.0]),
    layout=st.sampled_from(sorted(LAYOUTS)),
    seed=st.integers(0, 1000),
)
def test_any_mask_comes_back_from_the_fewest_bytes(shape: tuple, density: float, layout: str, seed: int) -> None:
    mask = LAYOUTS[layout](torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density)
    encoding, data = files.encode(mask)
    assert data.dtype == torch.uint8
    assert torch.equal(files.decode(encoding, data, mask.shape), mask)
    counted = sizes(mask)
    assert data.numel() == counted[encoding] == min(counted.values())


@settings(max_examples=100)
@given(st.lists(st.integers(0, 3) | st.sampled_from([254, 255, 256, 509, 510, 511, 65534, 65535, 65536, 200_000])))
def test_any_gaps_come_back(gaps: list[int]) -> None:
    indices = (torch.tensor(gaps, dtype=torch.int64) + 1).cumsum(0) - 1
    encoding, data = files.encode_indices(indices)
    assert torch.equal(files.decode_indices(encoding, data), indices)
    assert data.numel() == min(w * sum(1 + g // (256**w - 1) for g in gaps) for w in (1, 2))


TEXT = st.text('aW.0é–\\"/\x1f \n', max_size=8)
EYE = {"w": torch.eye(3) > 0}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m"


def net(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))


@settings(max_examples=30)
@given(
    shapes=st.dictionaries(TEXT, st.lists(st.integers(0, 6), max_size=4).map(tuple), max_size=5),
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    about=st.dictionaries(
        st.sampled_from(["method", "seed", "rounds", "weights", "sha256"]),
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    ),
)
def test_any_masks_and_header_come_back(tmp_path_factory: Any, shapes: dict, density: float, about: dict) -> None:
    path = tmp_path_factory.getbasetemp() / "masks"
    masks = {name: torch.rand(shape) < density for name, shape in shapes.items()}
    save_masks(masks, path, **about)
    loaded = load_masks(path)
    assert equal(masks, loaded)
    assert masks_digest(masks) == masks_digest(loaded)
    assert about.items() <= loaded.about.items()


def test_the_header(path: Path) -> None:
    masks = {"b.weight": torch.arange(1000) < 4, "a.weight": torch.zeros(2, 500, dtype=torch.bool)}
    save_masks(masks, path, method="force", seed=3, weights="ab12")
    about = load_masks(path).about
    assert about == {
        "method": "force", "seed": 3, "weights": "ab12", "sparsity": 0.998, "prunable": 2000, "kept": 4,
        "fingerprint": fingerprint(masks), "library": about["library"],
    }  # fmt: skip
    with safe_open(path, "pt") as file:
        assert sorted(file.keys()) == ["a.weight", "b.weight"]
        expected = {"format": KIND, "version": str(VERSION), "library": about["library"]}
        assert expected.items() <= file.metadata().items()
    save_masks(masks, path, sparsity=0.9979, account={"effective": 2}, collapsed=["b.weight"])  # as a run says more
    told = {"sparsity": 0.9979, "account": {"effective": 2}, "collapsed": ["b.weight"]}
    assert told.items() <= load_masks(path).about.items()


def test_the_fingerprint_is_of_names_and_shapes_alone() -> None:
    a, b = torch.zeros(2, 3), torch.ones(4)
    assert fingerprint({"a": a, "b": b}) == fingerprint({"b": b > 0, "a": a.double()})
    assert len({fingerprint(w) for w in ({"a": a}, {"b": a}, {"a": a.T}, {"a": b}, {"a": a, "b": b}, {})}) == 6


def test_what_was_loaded_can_be_saved_again_and_what_the_masks_tell_is_not_taken_from_the_caller(path: Path) -> None:
    save_masks(EYE, path, method="force")
    masks = load_masks(path)
    content = path.read_bytes()
    save_masks(masks, path, **masks.about | dict.fromkeys(("kept", "prunable", "fingerprint", "library"), "wrong"))
    assert path.read_bytes() == content


HUGE = [({"shape": shape, "encoding": "gaps8"}, "80 bytes cannot stand for") for shape in ([2**26], [2**31, 2**31])]
WRONG = [({"shape": shape}, "") for shape in ([4], [3, 6], None)] + [({"kept": 4}, ""), ({"encoding": "zip"}, "")]


@pytest.mark.parametrize("read", [load_masks, weights.load_weights, Round.load])
@pytest.mark.parametrize(("change", "words"), HUGE + WRONG)
def test_a_header_that_does_not_fit_its_masks_is_refused(read: Any, change: dict, words: str, path: Path) -> None:
    tensors, layout = files.pack({str(i): torch.eye(3) > 0 for i in range(40)})
    kind = {load_masks: KIND, weights.load_weights: weights.KIND}.get(read, "barebones-round")
    stored = {weights.MASK * (kind == weights.KIND) + name: data for name, data in tensors.items()}
    about = {"layout": {name: e | change for name, e in layout.items()}, "tied": {}, "counts": [], "measures": []}
    container.write(path, stored, kind, 1, about)
    with pytest.raises(ValueError, match=f"m has a header that does not fit its masks .{words}"):
        read(path)


@pytest.mark.parametrize(
    ("model", "messages"),
    [
        (net(4, 5, 7), ["1 of the parameters differ: 1.weight (6×5 in the file, 7×5 in the model)"]),
        (net(4, 5, 6, 7), ["1 of", "2.weight (not in the file); if only some weights have masks, pass scope="]),
        (nn.ModuleDict({"x": net(4, 5, 6)}),
         ["4 of", "x.0.weight (not in the file)", "0.weight (not in the model), 1.weight (not in"]),
        (net(*[3] * 20), ["19 of", "0.weight (5×4 in the file, 3×3 in the model)", "4.weight (not in", " and 14 more"]),
    ],
)  # fmt: skip
def test_a_model_that_does_not_match_is_told_where(path: Path, model: nn.Module, messages: list[str]) -> None:
    save_masks(zoo.keep_all(net(4, 5, 6)), path)
    with pytest.raises(ValueError, match="m does not match the model; ") as caught:
        load_masks(path, model)
    assert all(words in str(caught.value) for words in messages), str(caught.value)


def test_masks_of_fewer_or_more_weights(path: Path) -> None:
    model = net(4, 5, 6)
    masks = {"1.weight": zoo.random_masks(model, 0.5)["1.weight"], "1.bias": torch.tensor([True] * 6)}
    save_masks(masks, path)
    with pytest.raises(ValueError, match=r"0.weight .not in the file"):
        load_masks(path, model)
    for choice in (dict(exclude="0.*"), dict(scope="1.*"), dict(scope=["1.weight"])):
        assert equal(masks, load_masks(path, nn.DataParallel(model), **choice))


@pytest.mark.gpu
def test_masks_of_and_for_a_gpu(path: Path) -> None:
    model = net(40, 50, 60).cuda()
    masks = {name: mask.cuda() for name, mask in zoo.random_masks(model, 0.02).items()}
    save_masks(masks, path)
    loaded = load_masks(path, model)
    assert equal(masks, loaded)
    assert all(mask.is_cuda for mask in loaded.values())
    assert not any(mask.is_cuda for mask in load_masks(path).values())
