"""The result of pruning: its header, how it prints and is drawn, and the check for collapse."""

import functools
import sys
from typing import Any

import pytest
import torch
import zoo
from pruning_runs import BATCHES
from references import equal, few, tiny
from torch import Tensor, nn

from barebones import METHODS, Method, account, load_masks, prune
from barebones.masks import kept

PICTURED = [(torch.randn(8, 4, generator=torch.Generator().manual_seed(n)), torch.arange(8) % 3) for n in range(2)]


@pytest.mark.parametrize("method", list(METHODS))
def test_the_default_device_does_not_matter(method, tmp_path):
    model, row = tiny(), few(method)
    expected = prune(model, BATCHES, 0.5, row, on_collapse="ignore").masks
    with torch.device("meta"):
        result = prune(model, BATCHES, 0.5, row, on_collapse="ignore")
        result.save(tmp_path / "masks")
        loaded = load_masks(tmp_path / "masks", model)
        account(model, loaded, BATCHES[0][0])
    assert equal(loaded, expected)


def test_the_header_distinguishes_related_methods():
    headers = [
        prune(tiny(), BATCHES, 0.5, method, on_collapse="ignore", rounds=3).about
        for method in ("force", "iter-snip", "hybrid")
    ]
    assert [header["revive_until"] for header in headers] == [1.0, 0.0, 0.9]
    assert all(header["schedule"] == "exponential" for header in headers)
    assert len({header["weights"] for header in headers}) == 1


def favoring(name: str) -> Method:
    """Return a method that prunes every layer before this one."""
    return Method(lambda probe: {n: torch.full_like(w, float(n == name)) for n, w in probe.weights.items()})


def test_collapse_is_warned_about_or_raised():
    model, x = zoo.build("mlp")
    prune_all_but_last = functools.partial(prune, model, [(x, x)], 0.7, favoring("2.weight"))
    assert prune_all_but_last(on_collapse="ignore").collapsed == ["0.weight"]
    with pytest.warns(UserWarning, match=r"no signal passes.*0\.weight") as told:
        assert prune_all_but_last().collapsed == ["0.weight"]
    assert len(told) == 1
    assert "outputs" not in str(told[0].message)
    with pytest.raises(ValueError, match=r"collapsed at .*0\.weight"):
        prune_all_but_last(on_collapse="raise")


def test_empty_layers_are_named_in_a_warning_where_a_signal_passes_around_them():
    model, x = zoo.build("around")
    prune_all_but_last = functools.partial(prune, model, [(x, x)], 0.7, favoring("out.weight"))
    with pytest.warns(UserWarning, match=r"on no path.*; 1 of 3 layers keeps no weight: .*set at_least=") as told:
        result = prune_all_but_last(on_collapse="raise")
    assert len(told) == 1
    assert result.collapsed == []
    assert result.empty == [name for name, mask in result.masks.items() if not mask.any()]
    assert ", empty: 1" in repr(result)
    assert prune_all_but_last(on_collapse="ignore", after=result.last).empty == result.empty  # no round is left to run


@pytest.mark.parametrize("columns", [2, 1, 0])
def test_outputs_that_no_signal_reaches_are_counted_in_one_warning_and_never_raised(columns):
    def criterion(probe):  # the last columns of the outputs score lowest, and everything else alike
        scores = {name: torch.ones_like(weight) for name, weight in probe.weights.items()}
        scores["2.weight"][3 - columns :] = 0
        return scores

    model, x = zoo.build("mlp")
    quiet = functools.partial(prune, model, [(x, x)], 6 * columns / 42, Method(criterion))
    assert quiet(on_collapse="ignore").masks["2.weight"].any(1).tolist() == [i < 3 - columns for i in range(3)]
    if not columns:
        assert quiet().collapsed == []  # warnings are errors in these tests
    for on_collapse in ("warn", "raise") if columns else ():
        with pytest.warns(UserWarning, match=f"^no signal reaches {columns} of 3 outputs$") as told:
            assert quiet(on_collapse=on_collapse).collapsed == []
        assert len(told) == 1


def takes_batches(net: Any, x: Tensor) -> Tensor:
    if len(x) == 1:
        raise RuntimeError("bad shape {'x': 3}")
    return net.layer(x)


def test_a_check_for_collapse_that_fails_does_not_cost_the_masks():
    model = zoo.Net(takes_batches, layer=nn.Linear(4, 2))
    batches = [(torch.randn(8, 4), torch.randint(2, (8,)))]
    with pytest.warns(UserWarning, match=r"not checked: .*bad shape \{'x': 3\}"):
        result = prune(model, batches, 0.5, "force", rounds=2)
    assert kept(result.masks) == 4
    assert prune(model, batches, 0.5, "force", rounds=2, on_collapse="ignore").collapsed == []


@pytest.mark.parametrize("name", ["random", "erk", "magnitude"])
def test_without_an_example_the_warning_says_that_nothing_was_checked(name):
    with pytest.warns(UserWarning, match="was not checked: there is no example= input"):
        prune(tiny(), None, 0.5, name)
    with pytest.raises(ValueError, match="was not checked"):
        prune(tiny(), None, 0.5, name, on_collapse="raise")
    prune(tiny(), None, 0.2, name, on_collapse="raise", example=BATCHES[0][0])


def test_notebooks_show_a_bar_per_layer():
    result = prune(zoo.build("mlp")[0], PICTURED, 0.5, "force", rounds=3)
    masks = {"0.weight": torch.zeros(6, 4, dtype=torch.bool), "2.weight": result.masks["2.weight"]}
    empty = account(zoo.build("mlp")[0], masks, PICTURED[0][0])
    for shown, layers in ((result._repr_html_(), result.masks), (empty._repr_html_(), masks)):
        assert shown.count("<tr>") == 2
        for name, mask in layers.items():
            stays, total = int(mask.sum()), mask.numel()
            assert f"<td>{name}</td><td>{stays} of {total}</td>" in shown.replace(' style="text-align:left"', "")
    assert "empty</td>" in empty._repr_html_()


def test_plot_draws_layers_and_rounds_and_marks_empty_layers():
    pytest.importorskip("matplotlib").use("agg")
    model, _ = zoo.build("mlp")
    result = prune(model, PICTURED, 0.5, "force", rounds=3)
    layers, rounds = result.plot()
    assert list(layers.lines[0].get_ydata()) == [int(m.sum()) / m.numel() for m in result.masks.values()]
    lines = {line.get_label(): list(line.get_ydata()) for line in rounds.lines}
    assert lines["kept"] == [record.keep for record in result.rounds]
    assert lines["recovered"] == [record.recovered for record in result.rounds]
    assert layers.get_yscale() == "linear"  # a logarithmic axis within a decade may have no number
    (axes,) = prune(model, PICTURED, 1 - 18 / 42, favoring("2.weight"), on_collapse="ignore").plot()
    filled, empty = axes.lines
    assert (list(filled.get_xdata()), list(empty.get_xdata())) == ([2], [1])


def test_plot_names_the_extra_that_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'barebones\[figures\]'"):
        prune(tiny(), BATCHES, 0.5, "snip").plot()
