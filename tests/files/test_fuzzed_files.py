"""Files that were changed on purpose, checksums included, are read right or refused in one sentence, in little memory.

`BAREBONES_FUZZ=10000 python -m pytest tests/files/test_fuzzed_files.py` tries 10,000 mutations of each kind of file.
"""

import json
import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import cases
from mutations import forget_peak, mutated, peak_memory, split
from torch import Tensor, nn

from barebones.files.masks import fingerprint, load_masks, save_masks
from barebones.files.weights import MASK, VALUES, WHOLE, Weights, load_weights, save_weights
from barebones.masks import Masks, kept, size
from barebones.pruning.prune import prune
from barebones.pruning.round import Round

MOST = 200 * 2**20  # bytes that reading a file of a few kB may take


class Tied(nn.Module):
    """Layers whose masks have all three encodings, a tied weight, buffers and a weight without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.bits, self.gaps8, self.gaps16 = nn.Linear(8, 9), nn.Linear(40, 50), nn.Linear(300, 200, bias=False)
        self.empty, self.norm, self.table = nn.Linear(30, 20).half(), nn.BatchNorm1d(5), nn.Embedding(3, 4)
        self.again = nn.Linear(8, 9)
        self.again.weight = self.bits.weight


def masks_of(model: Tied) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    densities = {"bits.weight": 0.5, "gaps8.weight": 0.02, "gaps16.weight": 0.0005, "empty.weight": 0.0}
    return {n: torch.rand(model.get_parameter(n).shape, generator=draw) < d for n, d in densities.items()}


EXPERIMENT = {"model": "small-vgg", "data": "digits", "method": "snip", "sparsity": 0.9, "seed": 0, "epochs": 1}


def write_masks(path: Path) -> None:
    masks = masks_of(Tied())
    total, left = size(masks), kept(masks)
    account = {"prunable": total, "kept": left, "sparsity": 1 - left / total, "effective": 0, "effective_sparsity": 1.0}
    about = {"method": "snip", "collapsed": ["empty.weight"], "seconds": 0.5, "weights": "ab", "rounds": 1}
    save_masks(masks, path, experiment=EXPERIMENT, account=account, **about)


def write_weights(path: Path) -> None:
    torch.manual_seed(0)
    model = Tied()
    save_weights(model, masks_of(model), path, experiment=EXPERIMENT)


def write_round(path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 9), nn.Linear(9, 20))
    prune(model, None, 0.9, "random", on_collapse="ignore", on_round=lambda step: step.save(path))


Arrays = dict[str, np.ndarray]


def check_masks(loaded: tuple[Masks, dict[str, Any]], about: dict[str, Any], tensors: Arrays) -> None:
    masks, header = loaded
    assert header["kept"] == kept(masks)
    assert header["prunable"] == size(masks)
    assert header["fingerprint"] == fingerprint(masks)
    assert abs((1 - header["sparsity"]) * size(masks) - kept(masks)) <= 1
    assert masks.keys() == tensors.keys()
    for name, entry in about["layout"].items():
        assert np.array_equal(masks[name].numpy(), decoded(entry, tensors[name]))


def check_weights(loaded: Weights, about: dict[str, Any], tensors: Arrays) -> None:
    state, masks, header = loaded
    assert (header["kept"], header["prunable"]) == (kept(masks), size(masks))
    for name, entry in about["layout"].items():
        where, values = decoded(entry, tensors[MASK + name]), tensors[VALUES + name]
        assert np.array_equal(masks[name].numpy(), where)
        assert np.array_equal(raw(state[name][masks[name]]), values)
        assert not state[name][~masks[name]].count_nonzero()
    wholes = {name.removeprefix(WHOLE): data for name, data in tensors.items() if name.startswith(WHOLE)}
    assert all(np.array_equal(raw(state[name]), data) for name, data in wholes.items())
    assert state.keys() == about["layout"].keys() | wholes.keys() | about["tied"].keys()
    assert all(state[name] is state[first] for name, first in about["tied"].items())


def check_round(step: Round, about: dict[str, Any], tensors: Arrays) -> None:
    assert (step.keep, list(step.record.layers.values())) == (
        kept(step.masks),
        [int(m.sum()) for m in step.masks.values()],
    )
    for name, entry in about["layout"].items():
        assert np.array_equal(step.masks[name].numpy(), decoded(entry, tensors[name]))


def raw(tensor: Tensor) -> np.ndarray:
    """Return the bytes of a tensor."""
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy()


def decoded(entry: dict[str, Any], data: np.ndarray) -> np.ndarray:
    """Decode a mask with numpy, as docs/export.md says."""
    mask = np.zeros(math.prod(entry["shape"]), bool)
    if entry["encoding"] == "bits":
        mask[:] = np.unpackbits(data, bitorder="little")[: mask.size] == 1
    else:
        top = {"gaps8": 255, "gaps16": 65535}[entry["encoding"]]
        units = data.view("<u2" if entry["encoding"] == "gaps16" else "u1").astype(np.int64)
        ends = units != top
        mask[np.cumsum(units + ends)[ends] - 1] = True
    return mask.reshape(entry["shape"])


def plainly(blob: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the header and the bytes of each tensor with nothing but the format's description."""
    text, data = split(blob)
    header = json.loads(text)
    metadata = header.pop("__metadata__")
    assert struct.unpack("<Q", blob[:8])[0] == len(text)
    spans = {name: entry["data_offsets"] for name, entry in header.items()}
    assert sum(end - begin for begin, end in spans.values()) == len(data)
    arrays = {name: np.frombuffer(data[begin:end], np.uint8) for name, (begin, end) in spans.items()}
    return json.loads(metadata["about"]), arrays


def read_masks(path: Path, model: nn.Module | None) -> tuple[Masks, dict[str, Any]]:
    return load_masks(path, model, scope=[*masks_of(Tied())])


KINDS: dict[str, tuple[Callable[..., Any], ...]] = {
    "masks": (write_masks, read_masks, check_masks),
    "weights": (write_weights, load_weights, check_weights),
    "round": (write_round, lambda path, model: Round.load(path), check_round),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_read_right_or_refused(kind: str, tmp_path: Path) -> None:
    write, load, check = KINDS[kind]
    write(path := tmp_path / "file")
    original, draw, accepted = path.read_bytes(), random.Random(0), 0
    for number in range(cases(200)):
        path.write_bytes(blob := mutated(original, draw) if number > 1 else original)
        model, before, problem = Tied() if number % 2 else None, forget_peak(), ""
        try:
            loaded = load(path, model)
        except (ValueError, OSError) as error:  # anything else fails the test
            problem = str(error)
        taken = (peak_memory() or 0) - (before or 0)
        assert taken < MOST, f"case {number} took {taken:,} bytes: {blob!r}"
        assert str(path) in problem or not problem, f"case {number} does not name the file: {problem}"
        assert problem.isprintable(), f"case {number} is more than a sentence: {problem!r}"
        if not problem:
            check(loaded, *plainly(blob))
            accepted += 1
    assert 2 < accepted < number  # some changes, for example of values, make another file that is as good
