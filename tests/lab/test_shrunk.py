"""Runs on the shrunk network: they end like the others, and leave the whole network behind."""

import pytest
import torch
import zoo
from lab_runs import interrupted, tiny
from torch import nn

import barebones as bb
from barebones.files.weights import load_weights
from barebones.lab.run import progress, training
from barebones.lab.run import shrunk as small_networks
from barebones.lab.run.loading import trained
from barebones.lab.run.network import Network
from barebones.lab.run.run import RunOptions, run
from barebones.lab.run.training import evaluate
from barebones.masks import everything, kept
from barebones.scope import masked_copy

ADAMW = {"optimizer": "adamw", "lr": 0.01, "lr_schedule": "one-cycle", "label_smoothing": 0.1, "pretrain": 1}
THIN = {"ham": True, "sam": 0.05}
ADAMW |= THIN


@pytest.mark.parametrize("settings", [{}, {"lr_schedule": "cosine", "warmup": 1}, ADAMW], ids=str)
def test_a_run_that_goes_on_trains_the_same_small_network(settings, tmp_path, options):
    shorter = tiny("wide", method="iter-snip", sparsity=0.98, rounds=3, batch_size=256, shrink=True, **settings)
    undisturbed = run(shorter, RunOptions(tmp_path / "undisturbed"))
    before, after = undisturbed["shrunk"]["parameters"]
    assert after < before
    run(shorter, options, until="prune")
    for stop in (0, 3, 4):  # before the first training step, after some, and in the second epoch
        interrupted(shorter, options, stop)
    result = run(shorter, options)
    assert (result["weights"], result["test"]) == (undisturbed["weights"], undisturbed["test"])
    all_kept, left = result["shrunk"]["weights"]
    assert all_kept == result["kept"] > left >= result["effective"]
    assert 0 < result["shrunk"]["flops"] < 1
    assert f"to {after:,} parameters" in " ".join(progress.summary(result, options.folder(shorter)))
    whole, folder = Network(shorter, options, torch.device("cpu")), options.folder(shorter)
    load_weights(folder / "weights.safetensors", whole.model)  # which are those of the whole network
    bb.audit(whole.model, bb.load_masks(folder / "mask.safetensors", whole.model))
    evaluated = evaluate(whole.model, whole.data.test, 256, "fp32", 10)
    assert evaluated.top1 == pytest.approx(result["test"]["top1"], abs=0.01)  # other shapes round differently
    assert before == sum(p.numel() for p in whole.model.parameters())


@pytest.mark.parametrize("settings", [{"evolve": "set"}, THIN | {"evolve": "rigl", "ablate": 0.5}])
def test_masks_of_a_small_network_move_among_channels_with_a_signal(settings, tmp_path, options, monkeypatch):
    monkeypatch.setattr(training, "MOVES", 8)
    moving = tiny("wide", method="iter-snip", sparsity=0.98, rounds=3, batch_size=256, shrink=True, **settings)
    undisturbed = run(moving, RunOptions(tmp_path / "undisturbed"))
    for stop in (0, 3, 6):
        interrupted(moving, options, stop)
    result, folder = run(moving, options), options.folder(moving)
    assert (result["weights"], result["test"]) == (undisturbed["weights"], undisturbed["test"])
    _, network, masks = trained(folder, trust=True)
    bb.audit(network, masks)
    found = bb.load_masks(folder / "mask.safetensors")
    whole = Network(moving, options, torch.device("cpu"))
    images = next(whole.data.test.epoch(2))[0]
    small = small_networks.to_train(whole.model, found, images)
    assert result["kept"] == result["shrunk"]["weights"][1] == kept(masks) == kept(small.masks) < kept(found)
    places = small.expand_masks(small_networks.places(small, images))
    for name, mask in small.expand_masks(small.masks).items():
        assert masks[name].count_nonzero() == mask.count_nonzero()
        assert not (masks[name] & ~places[name]).any()
        assert name == "7.weight" or not torch.equal(masks[name], mask)
        assert kept(everything(small.masks)) > kept(places)  # some channels only fill up the widths
    evaluated = evaluate(network, whole.data.test, 256, "fp32", 10)
    assert evaluated.top1 == pytest.approx(result["test"]["top1"], abs=0.01)


class Branches(nn.Module):
    """Two convolutions with batch-norms. Its masks keep weights that lead nowhere, and some that only read zeros."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 12, 3, bias=bias), nn.Conv2d(12, 12, 3, bias=False)
        self.norms, self.last = nn.ModuleList(nn.BatchNorm2d(12) for _ in range(2)), nn.Linear(12, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return one value for each of three classes."""
        hidden = self.norms[0](self.first(images)).relu()
        return self.last(self.norms[1](self.second(hidden)).relu().mean((2, 3)))

    def masks(self) -> bb.masks.Masks:
        """Return masks that let a signal pass through the first channels, and keep weights of the second ones."""
        masks = {name: torch.zeros_like(p, dtype=torch.bool) for name, p in self.named_parameters() if p.dim() > 1}
        masks["first.weight"][:2] = True  # the second channel is not read
        masks["second.weight"][0, 0] = masks["second.weight"][1, 2] = True  # the third channel is not written
        masks["last.weight"][:, :2] = True
        return bb.masks.Masks(masks)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_weights_off_the_paths_are_not_trained(images):
    network = Branches()
    masks = network.masks()
    useful = small_networks.useful(network, masks, images)
    assert kept(masks) == 18 + 18 + 6
    assert {name: mask.nonzero()[:, 0].unique().tolist() for name, mask in useful.items()} == {
        "first.weight": [0], "second.weight": [0], "last.weight": [0, 1, 2]
    }  # fmt: skip
    assert kept(useful) == 9 + 9 + 3
    small = small_networks.to_train(network, masks, images)
    assert small.module.first.out_channels == 8  # filled up
    assert kept(small.masks) == kept(useful)
    for train in (False, True):
        torch.testing.assert_close(small.module.train(train)(images), masked_copy(network, masks).train(train)(images))


def test_masks_that_moved_in_a_small_network_prune_all_that_was_removed(images, monkeypatch):
    network = Branches()
    masks = network.masks()
    masks["second.weight"][8:, 1] = True  # they read a channel that is written, and nothing reads them
    monkeypatch.setattr(small_networks, "useful", lambda network, masks, images: masks)
    small = small_networks.to_train(network, masks, images)
    evolved = everything(small.masks)  # what grew reads channels that only filled up the widths
    nn.init.normal_(small.module.second.weight)
    large, whole = small_networks.expanded(small, evolved, masks)
    assert kept(whole) == kept(evolved)
    assert kept(small_networks.expanded(small, bb.masks.Masks(), masks)[1]) == 0  # layers that were removed
    bb.audit(large, whole)
    for train in (False, True):
        torch.testing.assert_close(large.train(train)(images), small.module.train(train)(images))


def test_a_place_is_where_a_weight_would_be_on_a_path(images):
    network = Branches()
    small = small_networks.to_train(network, network.masks(), images)
    for name, places in small_networks.places(small, images).items():
        for index in everything(small.masks)[name].nonzero()[::11]:
            added = {n: mask.clone() for n, mask in small.masks.items()}
            added[name][tuple(index)] = True
            assert places[tuple(index)] == bb.effective(small.module, added, images)[name][tuple(index)]


def test_weights_that_pass_on_a_constant_are_trained(images):
    network = Branches()
    nn.init.ones_(network.norms[0].bias)  # the third channel is a constant, and the second convolution reads it
    assert kept(small_networks.useful(network, network.masks(), images)) == kept(network.masks())
    biased = Branches(bias=True)
    biased.norms = nn.ModuleList([nn.Identity(), nn.BatchNorm2d(12)])
    nn.init.ones_(biased.norms[1].bias)
    assert kept(small_networks.useful(biased, biased.masks(), images)) == kept(biased.masks())


def test_masks_stay_as_they_are_where_no_path_is_known(images):
    network = Branches()
    cut = bb.masks.Masks({name: mask & (name != "second.weight") for name, mask in network.masks().items()})
    assert kept(small_networks.useful(network, cut, images)) == kept(cut)
    network.forward = lambda x: torch.tensor(Branches.forward(network, x).tolist())  # the paths cannot be followed
    assert kept(small_networks.useful(network, network.masks(), images)) == kept(network.masks())


def test_networks_to_train_are_channels_last_where_they_can_be():
    images = torch.randn(2, 2, 8, 8)
    model = nn.Sequential(nn.Conv2d(2, 12, 3), nn.ReLU(), nn.Conv2d(12, 12, 1), nn.Flatten(), nn.Linear(432, 3))
    masks = bb.masks.Masks({"0.weight": torch.ones(12, 2, 3, 3, dtype=torch.bool)})
    masks["0.weight"][:5] = False
    nn.init.zeros_(model[0].bias)
    for layout in (torch.channels_last, torch.contiguous_format):
        small = small_networks.to_train(model, masks, images).module
        assert small[0].out_channels == 8
        assert all(p.is_contiguous(memory_format=layout) for p in small.parameters() if p.dim() == 4)
        small(images).sum().backward()
        model[3] = zoo.Net(lambda net, x: x.view(len(x), -1))  # which needs the other order


def test_a_network_that_does_not_run_on_the_cpu_is_shrunk_where_it_is(images, monkeypatch):
    network, found, real = Branches(), [], small_networks.find_cuts
    monkeypatch.setattr(small_networks, "find_cuts", lambda model, *a, **b: found.append(model) or real(model, *a, **b))
    for accepted in (True, False):
        monkeypatch.setattr(small_networks, "accepts", lambda *_, accepted=accepted: accepted)
        small_networks.to_train(network, network.masks(), images)
    assert [each is network for each in found] == [False, True]
