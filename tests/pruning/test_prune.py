"""The result of pruning: its header, how it prints, and the check for collapse."""

import pytest
import torch
from references import equal, few, pairs, tiny
from torch import Tensor, nn

from barebones import METHODS, Method, account, load_masks, prune

BATCHES = pairs(3)


def test_a_result_prints_in_a_few_lines():
    result = prune(tiny(), BATCHES, 0.75, "force", rounds=3, on_collapse="ignore")
    lines = str(result).splitlines()
    assert lines[0] == "Pruned by force: 28 of 114 weights kept (0.7544 removed)"
    assert lines[1:] == ["  rounds: 3, layers: 4", f"  collapsed layers: {', '.join(result.collapsed) or 'none'}"]
    assert all(len(repr(part)) < 250 for part in (result, result.last, result.rounds[0], result.masks))


@pytest.mark.parametrize("method", list(METHODS))
def test_the_default_device_does_not_matter(method, tmp_path):
    model, row = tiny(), few(method)
    expected = prune(model, BATCHES, 0.5, row, on_collapse="ignore").masks
    with torch.device("meta"):
        result = prune(model, BATCHES, 0.5, row, on_collapse="ignore")
        result.save(tmp_path / "masks")
        loaded, _ = load_masks(tmp_path / "masks", model)
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


def refuse_collapse(match: str, model: nn.Module, *args: object, **options: object) -> None:
    with pytest.raises(ValueError, match=match):
        prune(model, *args, **options, on_collapse="raise")


def test_collapse_is_warned_about_or_raised():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    batches = [(torch.randn(4, 4), torch.tensor([0, 1, 2, 0]))]
    only_last = Method(lambda probe: {n: torch.full_like(w, float(n[0])) for n, w in probe.weights.items()})
    refuse_collapse(r"0\.weight cut", model, batches, 0.7, only_last)
    with pytest.warns(UserWarning, match=r"no signal passes.*0\.weight"):
        assert prune(model, batches, 0.7, only_last).collapsed == ["0.weight"]
    assert prune(model, batches, 0.7, only_last, on_collapse="ignore").collapsed == ["0.weight"]


def test_a_layer_that_has_a_way_around_is_no_collapse():
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(x + self.a(x))

    batches = [(torch.randn(4, 4), torch.tensor([0, 1, 2, 0]))]
    only_last = Method(lambda probe: {n: torch.full_like(w, float(n[0] == "b")) for n, w in probe.weights.items()})
    assert prune(Residual(), batches, 0.7, only_last).collapsed == []


class Braces(nn.Module):
    """It takes a batch, and nothing smaller; its error has braces in it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 1:
            raise RuntimeError("bad shape {'x': 3}")
        return self.layer(x)


def test_a_check_for_collapse_that_fails_does_not_cost_the_masks():
    batches = [(torch.randn(8, 4), torch.randint(2, (8,)))]
    with pytest.warns(UserWarning, match=r"not checked: .*bad shape \{'x': 3\}"):
        result = prune(Braces(), batches, 0.5, "force", rounds=2)
    assert sum(int(mask.sum()) for mask in result.masks.values()) == 4
    assert prune(Braces(), batches, 0.5, "force", rounds=2, on_collapse="ignore").collapsed == []


def test_without_an_example_the_warning_says_that_nothing_was_checked():
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    with pytest.warns(UserWarning, match="was not checked: there is no example= input"):
        prune(model, None, 0.9, "random")
    refuse_collapse("was not checked", model, None, 0.9, "random")
    prune(model, None, 0.9, "random", on_collapse="raise", example=torch.ones(1, 8))
