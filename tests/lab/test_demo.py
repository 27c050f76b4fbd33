"""The demo: it runs, prints a row for each method, and its sentences follow the numbers."""

import io
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from barebones.data import digits
from barebones.lab import demo
from barebones.models import initialize, small_resnet, small_vgg
from barebones.scope import prunable


def run(**options) -> tuple[str, dict[demo.Case, demo.Outcome]]:
    console = Console(record=True, width=120, file=io.StringIO())
    outcomes = demo.run(console, **options)
    return console.export_text(), outcomes


def test_it_prints_a_row_for_each_method():
    text, outcomes = run(seeds=1, epochs=1, rounds=2, networks=["ResNet"], workers=1)
    assert len(outcomes) == len(demo.METHODS)
    for method in demo.METHODS:
        assert f"│ {demo.NAMES.get(method, method)}" in text
    assert "98" in text.splitlines()[0] + text.splitlines()[1]
    for case, outcome in outcomes.items():
        assert 0 <= outcome.accuracy <= 100
        assert (outcome.sparsity < 1) == (case.method == "dense")
        assert outcome.sparsity >= 100 * demo.NETWORKS["ResNet"][1] - 0.1 or case.method == "dense"


@pytest.mark.slow
def test_the_numbers_depend_on_the_seeds_alone_and_not_on_the_processes():
    cases = [demo.Case("ResNet", "force", 0, epochs=1, rounds=2), demo.Case("ResNet", "random", 1, epochs=1)]
    clock = {"pruning": 0.0, "training": 0.0}
    alone, together = (
        {
            case: replace(outcome, **clock)
            for _, finished in demo.measured(cases, workers)
            for case, outcome in finished.items()
        }
        for workers in (1, 2)
    )
    assert alone == together
    assert list(alone) == cases


def made_up(**accuracies: float) -> dict[demo.Case, demo.Outcome]:
    values = {"dense": 99.0, "random": 40.0, "snip": 10.0, "iter-snip": 95.0, "force": 94.0, "hybrid": 96.0}
    values |= {name.replace("_", "-"): value for name, value in accuracies.items()}
    return {demo.Case("VGG", method, 0): demo.Outcome(value, 99.0, False, 1.0, 1.0) for method, value in values.items()}


@pytest.mark.parametrize(
    ("accuracies", "shown", "words"),
    [
        ({}, True, "near chance and below random pruning"),
        ({"snip": 35.0}, True, "below random pruning"),
        ({"snip": 60.0}, False, "above random pruning"),
        ({"force": 30.0}, False, "near chance"),
        ({"iter_snip": 9.0}, False, "near chance"),
    ],
)
def test_what_it_says_follows_from_the_numbers(accuracies, shown, words):
    first, last = demo.sentences(made_up(**accuracies))
    assert words in first
    assert ("as the paper says." in last and "not as the paper says" not in last) == shown


@pytest.mark.parametrize("make", [small_vgg, small_resnet])
def test_the_networks_take_digits(make):
    model = initialize(make(), generator=torch.Generator().manual_seed(0))
    assert model(torch.randn(3, 1, 8, 8)).shape == (3, 10)
    for weight in (p for p in model.parameters() if p.dim() == 4 and p.numel() > 5000):
        fan_in = weight[0].numel()
        assert float(weight.detach().std()) == pytest.approx((2 / fan_in) ** 0.5, rel=0.1)


def test_the_digits_are_split_once_and_for_all():
    data = digits()
    assert len(data.train_labels) + len(data.test_labels) == 1797
    assert torch.equal(data.test_images, digits().test_images)
    assert abs(float(data.train_images.mean())) < 1e-4
    assert data.test_labels.bincount().min() > 30
    everything = torch.cat([data.train_images, data.test_images]).flatten(1)
    assert len(everything.unique(dim=0)) == 1797  # no image is in both


@pytest.mark.parametrize(("make", "weights"), [(small_vgg, 266_384), (small_resnet, 54_096)])
def test_the_networks_are_as_large_as_the_demo_says(make, weights):
    assert sum(p.numel() for p in prunable(make()).values()) == weights


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'barebones\[demo\]'"):
        demo.run(Console(file=io.StringIO()), seeds=1, epochs=1)
