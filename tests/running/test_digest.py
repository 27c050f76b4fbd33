"""Digests: other content gives another number, another layout in memory does not."""

import torch

from barebones.running import digest


def digest_of(tensor: torch.Tensor) -> int:
    return int(digest.of_tensors([tensor]))


def test_a_digest_sees_signs_shapes_and_types():
    x = torch.randn(64, dtype=torch.float64)
    two_signs = x.clone()
    two_signs[[3, 9]] *= -1
    variants = [x, -x, two_signs, x.view(8, 8), x.view(4, 16), x.float(), torch.zeros(8), torch.zeros(4).double()]
    assert len({digest_of(variant) for variant in variants}) == len(variants)


def test_a_digest_does_not_depend_on_the_layout():
    x = torch.randn(3, 5, 7, 9)
    assert digest_of(x) == digest_of(x.to(memory_format=torch.channels_last))
    y = torch.arange(200_000, dtype=torch.float32)  # more than a row of words
    assert digest_of(y) != digest_of(y.flip(0))
    assert digest_of(y[1:]) == digest_of(y[1:].clone())
