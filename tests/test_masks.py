"""Masks are a dict that prints as counts, and functions accept plain dicts in their place."""

import copy
import io
import re

import pytest
import torch
import zoo
from torch.utils._pytree import tree_map

import barebones as bb
from barebones.paths import effective
from barebones.pruning.selection import keep_top


def test_whatever_returns_masks_returns_this_kind(tmp_path):
    model, example = zoo.build("mlp")
    result = bb.prune(model, [], 0.5, "magnitude", example=example)
    masks = result.masks
    bb.save_masks(masks, tmp_path / "masks")
    bb.save_weights(model, masks, tmp_path / "weights")
    others = [
        masks.copy(), copy.copy(masks), copy.deepcopy(masks),
        tree_map(torch.clone, masks), effective(model, masks, example), keep_top({"w": torch.rand(3)}, 1),
        bb.load_masks(tmp_path / "masks"), bb.load_masks(tmp_path / "masks", model),
        bb.load_weights(tmp_path / "weights").masks, bb.load_weights(tmp_path / "weights", model).masks,
        bb.shrink(model, masks, example).masks, result.last.masks,
    ]  # fmt: skip
    assert all(type(m) is bb.Masks for m in [masks, *others])
    assert list(tree_map(torch.clone, masks)) == list(masks)


def test_torch_save_stores_a_dict_that_loads_without_the_class():
    torch.save({"masks": bb.Masks(w=torch.eye(2) > 0)}, file := io.BytesIO())
    assert b"barebones" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["masks"]
    assert list(loaded) == ["w"]
    assert torch.equal(loaded["w"], torch.eye(2) > 0)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ({"w": torch.ones(2)}, {"w": torch.ones(2)}, "masks must be a dict from parameter names to bool tensors"),
        ({"w": torch.ones(2) > 0}, {"v": torch.ones(2) > 0}, "belong to two different models; they differ in v, w"),
        ({"w": torch.ones(2) > 0}, {"w": torch.ones(3) > 0}, "belong to two different models; they differ in w"),
    ],
)
def test_agreement_of_what_cannot_be_compared(a, b, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        bb.agreement(a, b)
