"""Accounts: counts and FLOPs computed by hand, tied weights counted once, and how the table reads."""

import json
from typing import Any

import pytest
import references
import torch
import zoo
from torch import Tensor, nn
from zoo import Net, keep_all

from barebones.accounting import Account, LayerAccount, account
from barebones.files.masks import encode
from barebones.paths import effective


def test_flops_are_those_of_one_sample_whatever_the_batch():
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 10)), torch.zeros(5, 3, 8, 8)
    counts = [account(model, keep_all(model), example) for example in (x, x[:1], {"input": x})]
    assert counts[0] == counts[1] == counts[2]
    assert counts[0].flops_dense == 2 * (36 * 4 * 27 + 4 * 36 * 10)
    vector = account(nn.Linear(4, 4), {"weight": torch.ones(4, 4) > 0}, torch.zeros(4))  # without a batch
    assert vector.flops_dense == 2 * 16


def flops(model: nn.Module, example: Any) -> dict[str, int | None]:
    return {layer.name: layer.flops_dense for layer in account(model, keep_all(model), example).layers}


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2, bias=False))


def masks_of_small() -> dict[str, Tensor]:
    first = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
    return {"0.weight": first, "3.weight": torch.tensor([[1, 0, 1], [0, 0, 0]], dtype=torch.bool)}


def test_by_hand() -> None:
    counts = account(small(), masks_of_small(), torch.zeros(5, 4))
    first, second = counts.layers
    assert (first.name, first.shape, first.total, first.kept, first.effective) == ("0.weight", (3, 4), 12, 3, 2)
    assert (second.name, second.shape, second.total, second.kept, second.effective) == ("3.weight", (2, 3), 6, 2, 1)
    # 2 per multiply-add, for one sample; one row and two columns are left of the first, one of each of the second
    assert (first.flops_dense, first.flops_kept, first.flops_effective, first.flops_shrunk) == (24, 6, 4, 4)
    assert (second.flops_dense, second.flops_kept, second.flops_effective, second.flops_shrunk) == (12, 4, 2, 2)
    assert (counts.flops_dense, counts.flops_kept, counts.flops_effective, counts.flops_shrunk) == (36, 10, 6, 6)
    assert (counts.total, counts.kept, counts.effective, counts.parameters) == (18, 5, 3, 18 + 3 + 6)
    assert counts.sparsity == pytest.approx(13 / 18)
    assert counts.sparsity_of_all == pytest.approx(13 / 27)
    assert counts.effective_sparsity == pytest.approx(15 / 18)
    assert counts.bytes_dense == 27 * 4
    assert counts.bytes_stored == (27 - 13) * 4 + sum(encode(mask)[1].numel() for mask in masks_of_small().values())
    assert (counts.empty, counts.collapsed) == ([], [])
    narrow = account(small().bfloat16(), masks_of_small(), torch.zeros(1, 4, dtype=torch.bfloat16))
    assert (narrow.effective, narrow.bytes_dense) == (3, 27 * 2)


@pytest.mark.parametrize("density", [0.4, 1.0])
@pytest.mark.parametrize("name", zoo.ZOO)
def test_every_network_of_the_zoo(name: str, density: float) -> None:
    model, example = zoo.build(name)
    masks = zoo.draw_masks(name, model, density)
    with references.Trace(model):
        counts = account(model, masks, example)
    on_paths = effective(model, masks, example)
    assert {layer.name: layer.kept for layer in counts.layers} == {n: int(mask.sum()) for n, mask in masks.items()}
    assert {layer.name: layer.effective for layer in counts.layers} == {n: int(m.sum()) for n, m in on_paths.items()}
    assert counts.parameters == sum(p.numel() for p in model.parameters())
    for costs in [counts, *counts.layers]:
        assert costs.flops_dense >= costs.flops_kept >= costs.flops_effective
        assert costs.flops_dense >= costs.flops_shrunk >= costs.flops_effective
    if density == 1.0:
        assert counts.collapsed == list(zoo.ZOO[name].empty)
    if density == 1.0 and not counts.collapsed:
        assert counts.flops_dense == counts.flops_kept > 0
        assert counts.bytes_stored == counts.bytes_dense
    stored = counts.to_dict()
    assert json.loads(json.dumps(stored)) == stored
    assert (stored["sparsity"], stored["layers"][0]["shape"]) == (counts.sparsity, list(counts.layers[0].shape))
    assert all(len(line) <= 100 for line in str(counts).splitlines())


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Conv2d(3, 8, 3, stride=2), (3, 9, 9), 2 * 8 * 3 * 9 * 16),
        (nn.Conv2d(8, 8, 3, groups=8), (8, 5, 5), 2 * 8 * 9 * 9),  # depthwise
        (nn.Conv3d(2, 3, 2), (2, 4, 4, 4), 2 * 3 * 2 * 8 * 27),
        (nn.ConvTranspose2d(3, 8, 2, stride=2), (3, 5, 5), 2 * 3 * 8 * 4 * 25),  # per input position
        (nn.Linear(6, 4), (7, 6), 2 * 6 * 4 * 7),  # per token
    ],
)
def test_flops_of_a_layer(layer: nn.Module, shape: tuple[int, ...], expected: int) -> None:
    for batch in (1, 2):
        assert flops(layer, torch.randn(batch, *shape)) == {"weight": expected}


def test_flops_of_attention_recurrent_layers_and_matrix_products() -> None:
    attention = nn.MultiheadAttention(8, 2)
    query, key = torch.randn(3, 1, 8), torch.randn(5, 1, 8)  # queries see 3 tokens, keys and values 5
    expected = {"in_proj_weight": 2 * 64 * (3 + 5 + 5), "out_proj.weight": 2 * 64 * 3}
    assert flops(attention, (query, key, key)) == expected
    lstm = nn.LSTM(3, 4, batch_first=True)
    assert flops(lstm, torch.randn(2, 5, 3)) == {"weight_ih_l0": 2 * 16 * 3 * 5, "weight_hh_l0": 2 * 16 * 4 * 5}
    forward = lambda net, x: torch.einsum("bti,oi->bto", torch.relu(x @ net.w), net.v)
    product = Net(forward, w=nn.Parameter(torch.randn(4, 6)), v=nn.Parameter(torch.randn(2, 6)))
    assert flops(product, torch.randn(2, 3, 4)) == {"w": 24 * 6, "v": 12 * 6}


def test_a_layer_called_twice_and_tied_keep_all() -> None:
    shared = nn.Linear(4, 4)
    tied = nn.Linear(4, 4, bias=False)
    tied.weight = shared.weight
    net = nn.Sequential(shared, nn.ReLU(), shared, nn.Tanh(), tied)
    counts = account(net, keep_all(net), torch.zeros(1, 4))
    assert [layer.name for layer in counts.layers] == ["0.weight"]
    assert (counts.total, counts.parameters, counts.flops_dense, counts.bytes_dense) == (16, 20, 3 * 32, 80)


def test_weights_without_a_mask_count_in_the_sums() -> None:
    net, masks = small(), masks_of_small()
    counts = account(net, {"3.weight": masks["3.weight"]}, torch.zeros(1, 4))
    assert (counts.total, counts.flops_dense, counts.flops_kept) == (6, 36, 28)
    assert counts.flops_effective == counts.flops_shrunk == 24 * 2 // 3 + 4  # row 1 of 3 leads nowhere
    assert counts.sparsity_of_all == pytest.approx(4 / 27)
    nothing = account(net, {}, torch.zeros(1, 4))
    assert (nothing.total, nothing.sparsity, nothing.effective, nothing.flops_dense) == (0, 0.0, 0, 36)
    assert "all" in str(nothing)


def test_without_an_example() -> None:
    counts = account(small(), masks_of_small())
    assert (counts.kept, counts.effective, counts.effective_sparsity) == (5, None, None)
    assert (counts.flops_dense, counts.collapsed, counts.layers[0].flops_shrunk) == (None, None, None)
    assert (counts.disconnected_outputs, counts.outputs) == (None, None)
    assert "effective" not in str(counts)
    assert json.loads(json.dumps(counts.to_dict())) == counts.to_dict()


def test_empty_disconnected_and_collapsed_layers_are_marked() -> None:
    masks = masks_of_small() | {"3.weight": torch.zeros(2, 3, dtype=torch.bool)}
    counts = account(small(), masks, torch.zeros(1, 4))
    assert (counts.empty, counts.collapsed, counts.effective) == (["3.weight"], ["3.weight"], 0)
    assert [layer.disconnected for layer in counts.layers] == [True, False]
    text = str(counts)
    assert "COLLAPSED: no signal passes 3.weight." in text
    assert counts.disconnected_outputs == counts.outputs == 2
    assert "outputs" not in text  # no second complaint
    notes = [line.split()[-1] for line in text.splitlines() if line.startswith((" 0 ", " 3 "))]
    assert notes == ["disconnected", "collapsed"]
    assert "empty" in str(account(small(), masks))


@pytest.mark.parametrize(("name", "shown"), [("fc", 1), ("model.layers.0.self_attn.q_projection", 0)])
def test_a_printed_table_fits_80_columns_and_breaks_no_name(name, shown):
    layer = LayerAccount(name, (32, 32), 1024, 512, 512, 16384, 8192, 8192, 16384)
    text = str(Account([layer], 1024, 4096, 2048, 16384, 8192, 8192, 16384))
    assert max(map(len, text.splitlines())) <= 80
    assert f" {name} " in text
    assert text.count("FLOPs/") == 3 * shown
    assert "FLOPs per sample: 16.4 k dense, 8.19 k effective, 16.4 k shrunk." in text
