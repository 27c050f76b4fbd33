"""Masks come back bit for bit from the smallest of three encodings, or not at all."""

import math
import re
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
from torch import nn
from zoo import Net

from barebones.files import container as files
from barebones.files import weights
from barebones.files.encoding import check_size
from barebones.files.masks import KIND, VERSION, fingerprint, load_masks, masks_digest, save_masks
from barebones.files.weights import MASK, VALUES, load_weights
from barebones.models import MODELS, build
from barebones.pruning.round import Round

TEXT = st.text('aW.0é–\\"/\x1f \n', max_size=8)
EYE = {"w": torch.eye(3) > 0}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m"


def no_forward(net: Any) -> None:
    """Stand for the forward pass of networks that are only read."""


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
    loaded, loaded_about = load_masks(path)
    assert equal(masks, loaded)
    assert masks_digest(masks) == masks_digest(loaded)
    assert about.items() <= loaded_about.items()


@pytest.mark.parametrize("name", zoo.ZOO)
def test_masks_of_every_network_of_the_zoo(path: Path, name: str) -> None:
    model, _ = zoo.build(name)
    for density in (0.02, 0.4):
        save_masks(masks := zoo.draw_masks(name, model, density), path)
        assert equal(masks, load_masks(path)[0])
        assert equal(masks, load_masks(path, nn.DataParallel(model), scope=list(masks))[0])


def test_the_header(path: Path) -> None:
    masks = {"b.weight": torch.arange(1000) < 4, "a.weight": torch.zeros(2, 500, dtype=torch.bool)}
    save_masks(masks, path, method="force", seed=3, weights="ab12")
    _, about = load_masks(path)
    assert about == {
        "method": "force", "seed": 3, "weights": "ab12", "sparsity": 0.998, "prunable": 2000, "kept": 4,
        "fingerprint": fingerprint(masks), "library": about["library"],
    }  # fmt: skip
    with safe_open(path, "pt") as file:
        assert sorted(file.keys()) == ["a.weight", "b.weight"]
        expected = {"format": KIND, "version": str(VERSION), "library": about["library"]}
        assert expected.items() <= file.metadata().items()
    save_masks(masks, path, sparsity=0.9979)
    assert load_masks(path)[1]["sparsity"] == 0.9979


def test_the_fingerprint_is_of_names_and_shapes_alone() -> None:
    a, b = torch.zeros(2, 3), torch.ones(4)
    assert fingerprint({"a": a, "b": b}) == fingerprint({"b": b > 0, "a": a.double()})
    assert len({fingerprint(w) for w in ({"a": a}, {"b": a}, {"a": a.T}, {"a": b}, {"a": a, "b": b}, {})}) == 6


def test_what_was_loaded_can_be_saved_again_and_what_the_masks_tell_is_not_taken_from_the_caller(path: Path) -> None:
    save_masks(EYE, path, method="force")
    masks, about = load_masks(path)
    content = path.read_bytes()
    save_masks(masks, path, **about | dict.fromkeys(("kept", "prunable", "fingerprint", "library"), "wrong"))
    assert path.read_bytes() == content


@pytest.mark.parametrize("about", [{}, {"layout": {"w": {"shape": [1], "encoding": "bits", "kept": 0}}}])
def test_files_without_masks_are_refused(path: Path, about: dict) -> None:
    files.write(path, {}, KIND, VERSION, about)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        load_masks(path)


COUNTS = dict(prunable=9, kept=3, sparsity=6 / 9, effective=2, effective_sparsity=7 / 9, flops_dense=18)
ODD = {  # an entry of the header of `EYE`, its value, and what is said about it; ... stands for no such entry
    "no sparsity": ("sparsity", ..., "its header is damaged: it has no sparsity"),
    "null sparsity": ("sparsity", None, "its header is damaged: sparsity None is not a number"),
    "text as sparsity": ("sparsity", "0.6", "sparsity '0.6' is not a number"),
    "true as sparsity": ("sparsity", True, "sparsity True is not a number"),
    "another sparsity": ("sparsity", 0.95, "sparsity 0.95 does not fit masks that keep 3 of 9 weights"),
    "negative sparsity": ("sparsity", -1, "sparsity -1 does not fit"),
    "huge sparsity": ("sparsity", 10**400, "is too large"),
    "no kept": ("kept", ..., "it has no kept"),
    "another kept": ("kept", 4, "its header says kept 4, but its masks have 3"),
    "kept as a float": ("kept", 3.0, "kept 3.0 is not a whole number"),
    "another prunable": ("prunable", 10, "its header says prunable 10, but its masks have 9"),
    "no fingerprint": ("fingerprint", ..., "it has no fingerprint"),
    "another fingerprint": ("fingerprint", "ab", "its fingerprint is not that of the names and shapes"),
    "library": ("library", [], "library [] is not a text"),
    "experiment 5": ("experiment", 5, "experiment 5 is not a table"),
    "experiment as a list": ("experiment", ["force"], "experiment ['force'] is not a table"),
    "account {}": ("account", {}, "its account is damaged: it has no prunable"),
    "account 5": ("account", 5, "account 5 is not a table"),
    "another count": ("account", COUNTS | dict(kept=4), "says kept 4, but its masks have 3"),
    "another sparsity in the account": ("account", COUNTS | dict(sparsity=0.1), "sparsity 0.1 does not fit"),
    "more effective than kept": ("account", COUNTS | dict(effective=4), "its account has 4 effective weights"),
    "effective sparsity": ("account", COUNTS | dict(effective_sparsity=0.1), "and sparsity 0.1 of them"),
    "effective sparsity alone": ("account", COUNTS | dict(effective=None), "has None effective weights"),
    "text in the account": ("account", COUNTS | dict(flops_dense="18"), "flops_dense '18' is not a whole number"),
    "an accuracy in the account": ("account", COUNTS | dict(test=1), "it has an unknown entry 'test'"),
    "negative FLOPs": ("account", COUNTS | dict(flops_dense=-1), "its account is damaged: a count is negative"),
    "too many outputs": ("account", COUNTS | dict(disconnected_outputs=3, outputs=2), "3 disconnected outputs of 2"),
    "outputs of unknown": ("account", COUNTS | dict(disconnected_outputs=3), "has 3 disconnected outputs of None"),
    "negative outputs": ("account", COUNTS | dict(disconnected_outputs=-1, outputs=2), "damaged: a count is negative"),
    "negative seconds": ("seconds", -1, "seconds -1 is negative"),
    "collapsed": ("collapsed", "w", "collapsed 'w' is not a list"),
    "collapsed numbers": ("collapsed", [1], "the entry of collapsed 1 is not a text"),
    "seconds": ("seconds", "long", "seconds 'long' is not a number"),
    "no layout": ("layout", ..., "the layout of its masks is missing"),
    "layout as a list": ("layout", [], "the layout of its masks is missing"),
    "layout without masks": ("layout", {}, "it holds w, which the layout of its masks does not list"),
}


@pytest.mark.parametrize(("entry", "value", "message"), ODD.values(), ids=ODD)
def test_odd_headers_are_one_sentence(path: Path, entry: str, value: Any, message: str) -> None:
    save_masks(EYE, path, account=COUNTS)
    tensors, about = files.read(path, KIND, VERSION)
    files.write(path, tensors, KIND, VERSION, {k: v for k, v in (about | {entry: value}).items() if v is not ...})
    for model in (None, Net(no_forward, w=nn.Parameter(torch.eye(3)))):
        with pytest.raises(ValueError, match=f"m: .*{re.escape(message)}") as caught:
            load_masks(path, model, scope="w")
        assert "\n" not in str(caught.value)
    if entry in ("sparsity", "account", "collapsed", "seconds") and value is not ...:  # what may not be read
        with pytest.raises(ValueError, match=re.escape(message)):
            save_masks(EYE, path, **{entry: value})


def test_the_account_of_a_run_comes_back_with_every_count(path: Path) -> None:
    save_masks(EYE, path, account=COUNTS, experiment={"seed": 1}, collapsed=["w"], seconds=3)
    about = load_masks(path)[1]
    nothing = dict(flops_effective=None, flops_shrunk=None, disconnected_outputs=None, outputs=None, not_followed=None)
    assert about["account"] == COUNTS | nothing
    assert (about["experiment"], about["collapsed"], about["seconds"]) == ({"seed": 1}, ["w"], 3)


BOMBS = {  # shapes of masks of a few bytes, and the number of weights in all
    "2^31 weights": [[2**31]],
    "2^40 weights": [[2**20, 2**20]],
    "2^62 weights": [[2**62]],
    "many layers": [[2**26]] * 40,
}


@pytest.mark.parametrize("kind", ["masks", "weights", "round"])
@pytest.mark.parametrize("shapes", BOMBS.values(), ids=BOMBS)
def test_a_few_bytes_never_become_gigabytes(path: Path, shapes: list[list[int]], kind: str) -> None:
    layout = {str(i): {"shape": shape, "encoding": "gaps8", "kept": 1} for i, shape in enumerate(shapes)}
    total, kept = sum(map(math.prod, shapes)), len(shapes)
    blank = {str(i): torch.empty(shape, dtype=torch.bool, device="meta") for i, shape in enumerate(shapes)}
    about: dict[str, Any] = {
        "prunable": total,
        "kept": kept,
        "sparsity": 1 - kept / total,
        "fingerprint": fingerprint(blank),
    }
    tensors = {name: torch.zeros(1, dtype=torch.uint8) for name in layout}
    if kind == "masks":
        files.write(path, tensors, KIND, VERSION, about | {"library": "1", "layout": layout})
        model = Net(no_forward, **{"0": nn.Parameter(torch.eye(3))})
        with pytest.raises(ValueError, match="m does not match the model"):  # nor is anything allocated with a model
            load_masks(path, model, scope="0")
        read: Any = load_masks
    elif kind == "weights":
        tensors = {MASK + n: t for n, t in tensors.items()} | {VALUES + n: torch.ones(1) for n in tensors}
        files.write(path, tensors, weights.KIND, 1, about | {"tied": {}, "layout": layout})
        read = load_weights
    else:
        numbers = {"index": 0, "keep": kept, "seconds": 0.1, "plan": {}, "counts": [0] * 5 + [1] * kept}
        files.write(path, tensors, "barebones-round", 1, numbers | {"layout": layout, "measures": ["0x0p+0"] * 2})
        read = Round.load
    with pytest.raises(ValueError, match=r"m: it would take [\d,]+ bytes of memory, but its \d+ bytes of data may"):
        read(path)


def test_the_bound_admits_the_networks_of_the_library() -> None:
    for name in MODELS:
        with torch.device("meta"):
            model = build(name, 1000, 224)
        check_size(sum(p.numel() for p in model.parameters() if p.dim() > 1), stored=0)


def test_masks_that_keep_none_of_many_weights_are_read(path: Path) -> None:
    masks = {"w": torch.zeros(10**8, dtype=torch.bool)}
    save_masks(masks, path)
    assert path.stat().st_size < 1000
    assert equal(masks, load_masks(path)[0])


@pytest.mark.parametrize(
    ("model", "messages"),
    [
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
    ],
)
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
        assert equal(masks, load_masks(path, model, **choice)[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_masks_of_and_for_a_gpu(path: Path) -> None:
    model = net(40, 50, 60).cuda()
    masks = {name: mask.cuda() for name, mask in zoo.random_masks(model, 0.02).items()}
    save_masks(masks, path)
    loaded, _ = load_masks(path, model)
    assert equal(masks, loaded)
    assert all(mask.is_cuda for mask in loaded.values())
    assert not any(mask.is_cuda for mask in load_masks(path)[0].values())
