"""The pictures of a result: bars for notebooks, and a plot."""

import sys

import pytest
import torch
from torch import nn

import barebones as bb

BATCHES = [(torch.randn(8, 6, generator=torch.Generator().manual_seed(n)), torch.arange(8) % 3) for n in range(2)]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def test_notebooks_show_a_bar_per_layer(model: nn.Module) -> None:
    result = bb.prune(model, BATCHES, 0.5, "force", rounds=3)
    masks = {"0.weight": torch.zeros(8, 6, dtype=torch.bool), "2.weight": result.masks["2.weight"]}
    empty = bb.account(model, masks, BATCHES[0][0])
    for shown, layers in ((result._repr_html_(), result.masks), (empty._repr_html_(), masks)):
        assert shown.count("<tr>") == 2
        for name, mask in layers.items():
            kept, total = int(mask.sum()), mask.numel()
            assert f"<td>{name}</td><td>{kept} of {total}</td>" in shown.replace(' style="text-align:left"', "")
    assert f"width:{12 * int(result.masks['0.weight'].sum()) / 48:.3f}em" in result._repr_html_()
    assert "empty</td>" in empty._repr_html_()
    pale = int(masks["2.weight"].sum()) / 24  # kept, but on no path
    assert f"width:{12 * pale:.3f}em;background:#f2c9ad" in empty._repr_html_()


def test_plot_draws_layers_and_rounds(model: nn.Module) -> None:
    pytest.importorskip("matplotlib").use("agg")
    result = bb.prune(model, BATCHES, 0.5, "force", rounds=3)
    layers, rounds = result.plot()
    assert list(layers.lines[0].get_ydata()) == [int(m.sum()) / m.numel() for m in result.masks.values()]
    lines = {line.get_label(): list(line.get_ydata()) for line in rounds.lines}
    assert lines["kept"] == [record.keep for record in result.rounds]
    assert lines["recovered"] == [record.recovered for record in result.rounds]
    assert len(bb.prune(model, BATCHES, 0.5, "snip").plot()) == 1


def test_plot_marks_empty_layers(model: nn.Module) -> None:
    pytest.importorskip("matplotlib").use("agg")
    first = bb.Method(lambda probe: {n: w.abs() + (n == "2.weight") for n, w in probe.weights.items()})
    (axes,) = bb.prune(model, BATCHES, 1 - 24 / 72, first, on_collapse="ignore").plot()
    filled, empty = axes.lines
    assert (list(filled.get_xdata()), list(empty.get_xdata())) == ([2], [1])


def test_plot_names_the_extra_that_it_needs(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'barebones\[figures\]'"):
        bb.prune(model, BATCHES, 0.5, "snip").plot()
