"""The comparison sees every difference: behind zeros, in random networks, for other tokens; and it leaves no trace."""

import itertools
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import zoo
from shrinking import assert_alike, assert_trains_and_expands, widths
from torch import Tensor, nn
from zoo import Net, keep_all

import barebones as bb
from barebones.deploy.shrink.comparison import random_inputs
from barebones.running.randomize import randomize_
from barebones.running.rng import Replayed
from barebones.scope import matched

pytestmark = pytest.mark.usefixtures("one_thread")


def zero_head() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    nn.init.zeros_(net[2].weight)
    nn.init.zeros_(net[2].bias)
    return net


def scaled(*scales: float, trained: bool = False) -> nn.Module:
    """A branch with one scale or one for each channel: parameters, or a buffer that a schedule raises later."""
    scale = torch.tensor(scales).squeeze()
    return Net(lambda net, x: x + net.scale * net.second(torch.relu(net.first(x))), first=nn.Linear(4, 6),
               second=nn.Linear(6, 4), scale=nn.Parameter(scale) if trained else scale)  # fmt: skip


def zero_gamma() -> nn.Module:
    net = zoo.Residual(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4), nn.BatchNorm1d(4))
    nn.init.zeros_(net.block[-1].weight)
    return net


def grown(net: Any, x: Tensor) -> Tensor:
    """Add a second branch behind a scale that a schedule raises later."""
    return net.skip(x) + net.scales[0] * net.near(x) + net.scales[1] * net.second(torch.relu(net.first(x)))


def one_branch_at_a_time() -> nn.Module:
    return Net(grown, first=nn.Linear(4, 6), second=nn.Linear(6, 4), skip=nn.Linear(4, 4), near=nn.Linear(4, 4),
               scales=torch.tensor([1.0, 0.0]))  # fmt: skip


ZEROS: dict[str, Callable[[], nn.Module]] = {
    "head": zero_head,
    "gamma": zero_gamma,
    "tiny LayerScale": lambda: scaled(1e-20, 1e-20, 1e-20, 1e-20, trained=True),
    "scale in a buffer": lambda: scaled(0.0),
    "tiny scales in a buffer": lambda: scaled(1e-9, 1e-12, -1e-9, 0.0),
    "some scales in a buffer": one_branch_at_a_time,
}


@pytest.mark.usefixtures("careless")
@pytest.mark.parametrize("name", ZEROS)
def test_a_wrong_cut_behind_zeros_is_seen(name):
    model, example = ZEROS[name](), torch.randn(4, 4)
    small = bb.shrink(model, keep_all(model), example)
    assert small.plan.parameters[0] == small.plan.parameters[1]
    assert_alike(example, randomize_(small.module, 0), small.expand())


@pytest.mark.parametrize("name", ZEROS)
def test_a_right_cut_behind_zeros_passes(name):
    model, example = ZEROS[name](), torch.randn(4, 4)
    masks = keep_all(model)
    first, second = [n for n in masks if "weight" in n][:2]
    masks[first][0] = False
    masks[second][:, 1] = False
    small = bb.shrink(model, masks, example)
    assert small.plan.parameters[1] < small.plan.parameters[0]
    assert not small.plan.left
    assert not small.plan.unchecked
    assert_trains_and_expands(small, example)
    assert_alike(example, randomize_(small.module, 0), small.expand())


def two_layers(forward: Callable[[Any, Tensor], Tensor]) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a network of two layers, and masks with which nothing reads two of the channels between them."""
    model = Net(forward, first=nn.Linear(4, 6, bias=False), second=nn.Linear(6, 3))
    masks = keep_all(model)
    masks["second.weight"][:, :2] = False
    return model, masks


def test_outputs_that_tell_nothing_are_reported():
    small = bb.shrink(*two_layers(lambda net, x: net.second(torch.relu(net.first(x))) * 0), torch.randn(4, 4))
    assert small.plan.unchecked == "with other values: its outputs are then all the same, or not finite"
    assert f"Not compared {small.plan.unchecked}." in " ".join(str(small.plan).split())


def test_inputs_for_which_a_network_overflows_are_left_out():
    small = bb.shrink(*two_layers(lambda net, x: net.second(net.first(x).exp().exp())), torch.rand(4, 4) / 100)
    assert widths(small.module, "first") == (4, 4)
    assert not small.plan.unchecked


FLAGS = {  # buffer, and how Python code reads it
    "a bool": (torch.tensor(False), lambda flag: flag),
    "a number": (torch.tensor(1), lambda flag: flag.item() == 0),
    "computed": (torch.tensor([True]), lambda flag: (~flag).any()),
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("branch", ["another order", "a layer", "random"])
def test_a_flag_that_python_reads_is_compared_with_its_other_value(name, branch):
    flag, reads = FLAGS[name]

    def forward(net: Any, x: Tensor) -> Tensor:
        h = torch.relu(net.first(x))
        if reads(net.flag):
            h = F.dropout(h.flip(1)) if branch == "random" else h.flip(1) if branch == "another order" else net.more(h)
        return net.second(h)

    model, masks = two_layers(forward)
    model.register_buffer("flag", flag)
    model.more = nn.Linear(6, 6)
    masks["first.weight"][:2] = False
    small = bb.shrink(model, masks, torch.randn(4, 4))
    for value in (False, True):
        large = small.expand()
        small.module.flag.fill_(value), large.flag.fill_(value)
        with Replayed(seed=0):
            expected = large(torch.ones(1, 4))
        with Replayed(seed=0):
            torch.testing.assert_close(small.module(torch.ones(1, 4)), expected)


CALLS = itertools.count()


def counted(net: Any, h: Tensor) -> Tensor:
    return h + next(CALLS) if net.training else h


CHANCES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "dropout": lambda net, h: F.dropout(h, 0.5, net.training),
    "drop path": lambda net, h: h * h.new_empty(len(h), 1).bernoulli_(0.5) if net.training else h,
    "in Python": lambda net, h: h if not net.training or random.random() > 0.5 else h * 2,
    "noise": lambda net, h: h + torch.randn_like(h) if net.training else h,
    "rrelu": lambda net, h: F.rrelu(h, training=net.training),
}


def with_chance(chance: Callable[[Any, Tensor], Tensor], mixes: bool = False) -> bb.Shrunk:
    """Shrink a network that draws, and may mix its channels in train mode."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = chance(net, torch.relu(net.first(x)))
        return net.second(h) + h.roll(1, 1).sum(1, keepdim=True) if net.training and mixes else net.second(h)

    return bb.shrink(*two_layers(forward), torch.randn(4, 4))


@pytest.mark.parametrize("name", CHANCES)
def test_random_networks_are_compared_in_train_mode(name):
    small, x = with_chance(CHANCES[name]), torch.randn(4, 4)
    assert widths(small.module, "first") == (4, 4)
    assert not small.plan.unchecked
    large = randomize_(small.module, 0).train() and small.expand().train()
    with torch.no_grad():
        results = []
        for network in (small.module, large):
            random.seed(0)
            with Replayed(seed=0):
                results.append(network(x))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", ["dropout", "drop path", "noise"])
def test_a_network_that_needs_a_channel_only_in_train_mode_keeps_it(name):
    small = with_chance(CHANCES[name], mixes=True)
    assert widths(small.module, "first") == (6, 4)


@pytest.mark.parametrize("chance", [lambda net, h: h * (1 + torch.randn(h.shape[1])) if net.training else h, counted])
def test_what_cannot_be_compared_in_train_mode_is_not_cut(chance):
    small = with_chance(chance)
    assert widths(small.module, "first") == (6, 4)
    assert ("every layer" in small.plan.left) == (chance is counted)


GROUP_NORMS: dict[str, str] = {
    "behind a dead convolution": """
        model = nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 4, 3, bias=False),
                              nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 3, 1))
        small = bb.shrink(model, {"0.weight": torch.zeros(4, 2, 3, 3) > 0}, x)
        assert small.plan.layers[1].blank
        for network in (small.module, small.expand()):
            network(x).sum().backward()
            network(x.contiguous(memory_format=torch.channels_last)).sum().backward()
    """,
    "behind a frozen convolution": """
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 3, 1))
        model[0].requires_grad_(False)
        small = bb.shrink(model, {}, x)
        assert "no gradient of a group-norm" in small.plan.layout
        small.module(x).sum().backward()
        bb.shrink(model.to(memory_format=torch.channels_last), {"0.weight": torch.rand(4, 2, 3, 3) > 0.5}, x)
    """,
    "behind a convolution that is not pruned": """
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 3))
        images = x.contiguous(memory_format=torch.channels_last)
        for method in ("snip", "grasp", "grasp-mb", "synflow"):
            batches = [(images, torch.tensor([0, 1]))]
            bb.prune(model, batches, 0.5, method, rounds=1, scope="*", exclude="0.*", on_collapse="ignore")
        model[0].weight.requires_grad_(False)
        bb.shrink(model, {"0.weight": (torch.rand(4, 2, 3, 3) > 0.5) & (torch.arange(4) > 0).view(4, 1, 1, 1)}, images)
    """,
}


def test_no_group_norm_ends_the_process():
    """Torch crashes in the gradient of a group-norm for an input with channels last that needs none."""
    lines = ["import torch, barebones as bb", "from torch import nn", "x = torch.randn(2, 2, 8, 8)"]
    for name, code in GROUP_NORMS.items():
        lines += [f"print({name!r}, flush=True)", textwrap.dedent(code)]
    result = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout


LOOKUPS = zoo.LOOKUPS | {
    "slice": lambda table, places: table[: len(places)],
    "slice of a transpose": lambda table, places: table.t()[:, : len(places)].t(),
    "slice of more dims": lambda table, places: table[None][:, : len(places)][0],
    "narrow": lambda table, places: table.narrow(0, 0, len(places)),
    "one_hot": lambda table, places: F.one_hot(places, len(table)).to(table.dtype) @ table,
}


@pytest.mark.parametrize("name", [*LOOKUPS, "buffer of indices"])
def test_positions_that_the_example_does_not_use_keep_their_channels(name):
    def forward(net: Any, ids: Tensor) -> Tensor:
        n = ids.shape[1]
        relative = name not in LOOKUPS
        rows = net.table[net.index[:n, :n]].sum(1) if relative else LOOKUPS[name](net.table, torch.arange(n))
        return net.out(torch.relu(net.first(net.words(ids)) + rows))

    model = Net(forward, words=nn.Embedding(9, 5), first=nn.Linear(5, 6, bias=False), out=nn.Linear(6, 3),
                table=nn.Parameter(torch.randn(12, 6)),
                index=(torch.arange(12)[:, None] - torch.arange(12)).clamp(min=0))  # fmt: skip
    ids = torch.randint(9, (2, 3))
    masks = keep_all(model)
    masks["first.weight"][:2] = False  # what is left of channels 0 and 1 are positions
    masks["table"][:, 0] = False
    masks["table"][:8, 1] = False  # longer sequences see this one
    small = bb.shrink(model, masks, ids)
    assert widths(small.module, "first")[0] >= 5
    for length in (3, 5, 10, 12):
        assert_alike(torch.randint(9, (2, length)), zoo.masked(model, masks), small.module, small.expand())
    randomize_(small.module, 0, matched(small.module, small.masks))
    assert_alike(torch.randint(9, (2, 12)), small.module, small.expand())


@pytest.mark.parametrize("name", [*zoo.LOOKUPS, "one_hot"])
def test_columns_that_the_tokens_of_the_example_do_not_use_stay(name):
    forward = lambda net, ids: net.out(torch.relu(net.first(LOOKUPS[name](net.table, ids.flatten()))))
    model = Net(forward, table=nn.Parameter(torch.randn(9, 6)), first=nn.Linear(6, 4), out=nn.Linear(4, 3))
    masks = keep_all(model)
    masks["table"][:5, :2] = False
    masks["first.weight"][0, 2:] = False  # its unit reads only columns that are zero for the example's tokens
    ids = torch.randint(5, (2, 4))
    small = bb.shrink(model, masks, ids)
    assert widths(small.module, "first") == (4, 6)
    others = torch.arange(8).view(2, 4) + 1
    assert_alike(others, zoo.masked(model, masks), small.module, small.expand())
    assert bb.account(model, masks, ids).effective == bb.account(model, masks, others).effective


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.long])
def test_images_of_integers_vary(dtype):
    forward = lambda net, x: net.out(torch.relu(net.first(x.float() / 255)).mean((2, 3)))
    model = Net(forward, first=nn.Conv2d(2, 300, 3), out=nn.Linear(300, 3))
    example = torch.randint(200, (2, 2, 5, 5), dtype=dtype)
    wide, *others = random_inputs(model, example, lambda inputs: True)
    assert wide.shape == (4, 2, 5, 5)
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(others, 2))
    assert {t.dtype for t in others} == {dtype}
    masks = keep_all(model)
    masks["out.weight"][:, 10:] = False
    assert widths(bb.shrink(model, masks, example).module, "first") == (10, 2)


def remembering(net: Any, x: Tensor) -> Tensor:
    y, net.state = net.rnn(torch.relu(net.first(x)), net.state)
    return net.last(y)


@pytest.mark.parametrize(
    ("forward", "parts", "example"),
    [
        (lambda net, x: net.last(net.first(net.table(x.long()))), {"table": nn.Embedding(5, 4)}, (64,)),
        (remembering, {"rnn": nn.GRU(6, 6, batch_first=True)}, (3, 2, 4)),
    ],
    ids=["a table of floats", "a state that stays"],
)
def test_a_network_that_runs_on_the_example_alone_is_refused_in_a_sentence(forward, parts, example):
    model = zoo.Net(forward, first=nn.Linear(4, 6), last=nn.Linear(6, 2), **parts)
    model.state = None
    with pytest.raises(ValueError, match="Net cannot be shrunk: it runs on the example but not on random values"):
        bb.shrink(model, {"first.weight": torch.arange(24).view(6, 4) < 12}, torch.ones(example))


def test_a_constant_that_is_dropped_at_random_is_not_folded() -> None:
    net = Net(lambda net, x: net.b(F.dropout(net.a(x), 0.05)), a=nn.Linear(6, 8), b=nn.Linear(8, 3))
    masks = keep_all(net)
    masks["a.weight"][:4] = False
    assert bb.shrink(net, masks, torch.randn(2, 6)).module.a.out_features == 8
