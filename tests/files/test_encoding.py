"""Encodings: any mask comes back from the fewest bytes."""

import math
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from references import equal
from torch import Tensor

from barebones.files.masks import decode, decode_indices, encode, encode_indices, pack, unpack


def random_mask(shape: tuple[int, ...], density: float, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density


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
    mask = LAYOUTS[layout](random_mask(shape, density, seed))
    encoding, data = encode(mask)
    assert data.dtype == torch.uint8
    assert torch.equal(decode(encoding, data, mask.shape), mask)
    counted = sizes(mask)
    assert data.numel() == counted[encoding] == min(counted.values())


@settings(max_examples=100)
@given(st.lists(st.integers(0, 3) | st.sampled_from([254, 255, 256, 509, 510, 511, 65534, 65535, 65536, 200_000])))
def test_any_gaps_come_back(gaps: list[int]) -> None:
    indices = (torch.tensor(gaps, dtype=torch.int64) + 1).cumsum(0) - 1
    encoding, data = encode_indices(indices)
    assert torch.equal(decode_indices(encoding, data), indices)
    assert data.numel() == min(w * sum(1 + g // (256**w - 1) for g in gaps) for w in (1, 2))


def test_packed_masks_come_back_in_their_order() -> None:
    masks = {"b": random_mask((4, 5), 0.5), "a": random_mask((2000,), 0.01), "c": torch.tensor(True)}
    assert equal(masks, unpack(*pack(masks)))
    with pytest.raises(ValueError, match=r"of w has the type torch.float32; masks must be bool"):
        pack({"w": torch.ones(2)})
