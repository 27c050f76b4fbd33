"""Cuts that were written to a file shrink a network as those that were found."""

import pytest
import torch
import zoo
from references import equal
from torch import nn

import barebones as bb
from barebones.deploy.shrink import Cuts, apply_cuts, find_cuts
from barebones.files import container, encoding

pytestmark = pytest.mark.usefixtures("one_thread")

NETWORKS = zoo.names(recurrent=False)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (number % 5 > 0)) for number, name in enumerate(NETWORKS)]
)
def test_a_network_is_shrunk_by_a_file_as_without_it(name, tmp_path):
    model, example = zoo.build(name)
    masks = zoo.draw_masks(name, model, 0.3, seed=1)
    for before_training in (False, True):
        cuts = find_cuts(model, masks, example, multiple_of=2, before_training=before_training)
        cuts.save(tmp_path / "cuts", seed=3)
        assert_equal(apply_cuts(model, masks, Cuts.load(tmp_path / "cuts", model)), apply_cuts(model, masks, cuts))


@pytest.mark.parametrize("padding", [0, 1])
def test_all_that_changes_is_in_the_file(padding, tmp_path):
    """Constants go into a new bias; where zeros are padded, shifts count as pruned. Connections are severed."""
    second = nn.Conv2d(6, 6, 1 + 2 * padding, padding=padding, bias=False)
    model = nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), second, nn.ReLU()),
        *(nn.Flatten(), nn.Linear(6 * 16, 3)),
    )
    masks = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in bb.prunable(model).items()}
    masks["0.weight"][:3] = False
    with torch.no_grad():
        model[0].bias[:3], model[1].bias[:3] = 0.0, torch.tensor([0.0, 0.5, 1.0])
    example = torch.randn(2, 2, 4, 4)
    cuts = find_cuts(model, masks, example, before_training=True)
    expected = ([], ["1"], ["3"]) if padding else (["3"], [], ["3"])
    assert (list(cuts.added), list(cuts.zeroed), list(cuts.severed)) == expected
    cuts.save(tmp_path / "cuts")
    found = apply_cuts(model, masks, Cuts.load(tmp_path / "cuts", model))
    assert_equal(found, bb.shrink(model, masks, example, before_training=True))


def assert_equal(a: bb.Shrunk, b: bb.Shrunk) -> None:
    assert a.plan == b.plan
    assert equal(a.masks, b.masks)
    assert repr(a.module) == repr(b.module)
    for one, other in ((a.module, b.module), (a.expand(), b.expand())):
        assert equal(dict(one.state_dict()), dict(other.state_dict()))
        for p, q in zip(one.parameters(), other.parameters(), strict=True):
            assert (p.requires_grad, p.dtype, p.stride()) == (q.requires_grad, q.dtype, q.stride())


@pytest.mark.parametrize("missing", ["layout", "notes"])
def test_a_file_without_one_of_its_parts_is_an_error(missing, tmp_path):
    model, path = nn.Linear(3, 2), tmp_path / "cuts"
    find_cuts(model, {"weight": torch.ones(2, 3) > 0}, torch.randn(2, 3)).save(path)
    tensors, about = container.read(path, "barebones-cuts", 1)
    del about[missing]
    container.write(path, tensors, "barebones-cuts", 1, about)
    with pytest.raises(ValueError, match=r"cuts.*(missing|damaged)"):
        Cuts.load(path, model)


def test_a_file_may_need_as_much_memory_as_its_network_explains(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "ANY_FILE", 100)
    monkeypatch.setattr(encoding, "PER_BYTE", 0)
    model, path = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 20)), tmp_path / "cuts"
    masks = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in bb.prunable(model).items()}
    masks["0.weight"][:3] = False
    find_cuts(model, masks, torch.randn(2, 40)).save(path)
    assert Cuts.load(path, model).severed["2"].shape == (20, 30)
    with pytest.raises(ValueError, match="bytes of memory"):
        Cuts.load(path, nn.Linear(4, 2))
