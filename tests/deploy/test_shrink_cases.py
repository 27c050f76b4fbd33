"""A table of small networks, each pruned in one special way, and how wide its layers must be afterwards."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import zoo
from numpy import s_ as S
from references import Trace
from shrinking import BOTH, PIXELS, assert_alike, assert_sound, assert_trains_and_expands, widths
from torch import Tensor, nn
from zoo import Net, conv, keep_all

import barebones as bb
from barebones.deploy.shrink import LayerPlan

pytestmark = pytest.mark.usefixtures("one_thread")

IMAGE = (4, 2, 8, 8)


@dataclass(frozen=True)
class Case:
    """A network, what is pruned, and what must be left of it."""

    make: Callable[[], nn.Module]
    example: Any  # an input, or its shape
    holes: list[tuple[str, Any]]  # (weight, index) of what is pruned
    widths: dict[str, tuple[int, int]]  # layer -> outputs and inputs after shrinking
    folded: dict[str, int] = field(default_factory=dict)  # as in the plan
    partial: bool = False  # only the weights with holes have masks
    modes: tuple[bool, ...] = BOTH  # in which the networks can be compared
    more: tuple[Any, ...] = ()  # other inputs to compare on
    check: Callable[[bb.Shrunk], Any] = lambda small: True  # something else that must be so
    moved: Callable[[Any], Any] = lambda module: True  # whether training has changed what it must have changed

    def build(self) -> tuple[nn.Module, dict[str, Tensor], Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.make()
            shape = isinstance(self.example, tuple) and isinstance(self.example[0], int)
            example = torch.randn(self.example) if shape else self.example
        masks = {} if self.partial else keep_all(model)
        for name, index in self.holes:
            masks.setdefault(name, torch.ones(model.get_parameter(name).shape, dtype=torch.bool))[index] = False
        return model, masks, example


def mlp(*sizes: int, bias: bool = True) -> nn.Sequential:
    """Linear layers 0, 2, 4, ... with ReLU between."""
    layers = [[nn.Linear(i, o, bias=bias), nn.ReLU()] for i, o in itertools.pairwise(sizes)]
    return nn.Sequential(*itertools.chain(*layers))[:-1]


def shifted(model: nn.Sequential, layer: int, shift: float) -> nn.Sequential:
    nn.init.constant_(model[layer].bias, shift)
    return model


def read_by(kernel: int = 1, shift: float = 0.7, mean: float = 0.0, **options: Any) -> nn.Sequential:
    """A convolution, a batch-norm with this shift and mean, an activation, and a convolution that reads it."""
    reader = [nn.Conv2d(4, 5, kernel, **options), nn.ReLU(), nn.Conv2d(5, 3, 1)]
    model = nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), *reader)
    model[1].running_mean.fill_(mean)
    return shifted(model, 1, shift)


def stream(bias: bool = False) -> nn.Module:
    """Two residual blocks on a stream of four channels."""

    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.norm(net.stem(x))
        x = torch.relu(x + net.a(x))
        return net.head(torch.relu(x + net.b(x)).mean((2, 3)))

    a, b = (nn.Sequential(*conv(4, 3), nn.Conv2d(3, 4, 1, bias=bias)) for _ in range(2))
    stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
    return Net(forward, stem=stem, norm=nn.BatchNorm2d(4), a=a, b=b, head=nn.Linear(4, 3))


def constant_of_a_constant(bias: bool) -> nn.Sequential:
    side_by_side = lambda net, x: torch.cat([net.one(x), net.other(x)], 1)
    branches = Net(side_by_side, one=nn.Conv2d(4, 3, 1), other=nn.Conv2d(4, 3, 3, padding=1))
    first = [nn.Conv2d(2, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    return shifted(nn.Sequential(*first, branches, nn.Conv2d(6, 3, 1, bias=bias)), 1, 0.7)


def pooling(net: Any, x: Tensor) -> Tensor:
    x = F.relu(net.stem(x))
    x = x + net.a2(F.relu(net.a(x)))
    x = x + net.b2(F.max_pool2d(F.relu(net.b(x)), 3, 1, 1))
    return net.head(x.mean((2, 3)))


def with_pool() -> nn.Module:
    """Two residual branches, the second with a pool in it."""
    conv = lambda i, o: nn.Conv2d(i, o, 1, bias=False)
    return Net(
        pooling, stem=nn.Conv2d(2, 8, 3, padding=1, bias=False), a=conv(8, 6), a2=conv(6, 8), b=conv(8, 6),
        b2=conv(6, 8), head=nn.Linear(8, 3),
    )  # fmt: skip


def gated(gate: Callable[..., Tensor]) -> nn.Module:
    """Units of which some will be constant, and a gate without gradients that decides about them."""
    units = nn.Linear(5, 8)
    nn.init.constant_(units.bias, 2.0)
    forward = lambda net, x, *more: net.head(gate(F.relu(net.units(x)), x, net.control(x), *more))
    return Net(forward, units=units, control=nn.Linear(5, 8), head=nn.Linear(8, 3))


def zero_where(h: Tensor, off: Tensor) -> Tensor:
    h = h.clone()
    h[off] = 0
    return h


GATES: dict[str, Callable[..., Tensor]] = {
    "comparison": lambda h, x, c: h * (c > 50).to(h.dtype),
    "comparison of the input": lambda h, x, c: h * (x[:, :1] > 50),
    "where": lambda h, x, c: torch.where(c > 50, h, 0.0),
    "masked_fill": lambda h, x, c: h.masked_fill(c < 50, 0.0),
    "assignment": lambda h, x, c: zero_where(h, c < 50),
    "argmax": lambda h, x, c: h * F.one_hot(c.argmax(1), 8),
    "a count": lambda h, x, c: h + len((x > -50).nonzero()) / x.numel(),
    "a search": lambda h, x, c: h + float(0 in (x > -50).long()),
    "a number in Python": lambda h, x, c: h * float(x.detach().abs().max() > 50),
    "a branch in Python": lambda h, x, c: h if bool((x > 50).any()) else h * 0,
}
FAR = (1000 * torch.randn(4, 5), torch.randn(4, 5) - 100)

POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda h: h.sum((2, 3)),
    "mean of padded windows": lambda h: F.avg_pool2d(h, 3, 2, 1).mean((2, 3)),
}


def summed(pool: Callable[[Tensor], Tensor]) -> nn.Module:
    """A pool whose value for constants depends on the size of the input."""
    first = nn.Conv2d(2, 8, 1)
    nn.init.constant_(first.bias, 1.0)
    return Net(lambda net, x: net.head(pool(F.relu(net.first(x)))), first=first, head=nn.Linear(8, 3))


def with_waves(net: Any, x: Tensor) -> Tensor:
    """For one token the row of the buffer is constant, but longer sequences see others."""
    return net.out(torch.relu(net.first(x) + net.waves[: x.shape[1]]))


def lenet(net: Any, x: Tensor) -> Tensor:
    x = F.max_pool2d(F.relu(net.second(F.relu(net.first(x)))), 2)
    return net.last(F.relu(net.hidden(x.view(-1, 24))))  # a width that is written down


def with_numbers() -> nn.Module:
    """Parameters that are no floats; all that they are used for is the order of the outputs, and a factor."""
    order, waves = torch.tensor([3, 1, 0, 2, 9]), torch.tensor([3 + 1j, 1, 0, 2])
    return Net(
        lambda net, x: net.second(net.first(x).relu())[:, net.order[:4]] * net.waves[0].abs(),
        first=nn.Conv2d(2, 8, 3, padding=1, bias=False), second=nn.Conv2d(8, 4, 1),
        order=nn.Parameter(order, requires_grad=False), waves=nn.Parameter(waves, requires_grad=False),
    )  # fmt: skip


def refusing(net: Any, x: Tensor) -> Tensor:
    if net.training:
        raise RuntimeError("not in train mode")
    return net.second(net.first(x))


def two_layers(forward: Callable[..., Tensor]) -> Callable[[], nn.Module]:
    return lambda: Net(forward, first=nn.Linear(4, 6, bias=False), second=nn.Linear(6, 2))


UNWRITTEN_HEAD = [4, 5, 6, 7, 16, 17, 18, 19, 28, 29, 30, 31]  # in queries, keys and values of a fused projection
CASES: dict[str, Case] = {
    # What nothing reads goes, with what only it reads. What nothing writes goes, with what only reads it.
    "a dead end": Case(
        lambda: mlp(4, 6, 6, 6, 3), (2, 4),
        # nothing reads the last one, which alone reads two, which alone read one
        [("6.weight", S[:, 5]), ("4.weight", S[:5, 4:]), ("2.weight", S[:4, 0])],
        {"0": (5, 4), "2": (4, 5), "4": (5, 4), "6": (3, 5)},
        check=lambda small: (
            small.plan.weights == (24 + 32 + 26 + 15, 20 + 20 + 20 + 15)
            and [layer.name for layer in small.plan.layers] == ["0", "2", "4", "6"]
            and small.plan.layers[1] == LayerPlan("2", (6, 5), (6, 4))
        ),
    ),
    "a ring in a stream": Case(  # channel 0 is read only by a channel that writes only channel 0
        stream, IMAGE,
        [("head.weight", S[:, 0]), ("b.0.weight", S[:, 0]), ("a.0.weight", S[1:, 0]), ("a.3.weight", S[1:, 0])],
        {"stem": (3, 2), "a.0": (2, 3), "a.3": (3, 2), "head": (3, 3)},
    ),
    "a channel that one block writes": Case(  # it stays, but what reads it before is gone
        stream, IMAGE, [("stem.weight", S[0]), ("a.3.weight", S[0]), ("a.0.weight", S[0, 1:])],
        {"stem": (4, 2), "a.0": (2, 4), "a.3": (4, 2)},
        moved=lambda net: net.norm.bias[0] != 0,
    ),
    # Constants made of a constant that stays: training moves it, so only a bias can take them over.
    **{
        f"a constant of a constant, {'bias' if bias else 'no bias'}": Case(
            lambda bias=bias: constant_of_a_constant(bias), IMAGE,
            [("0.weight", S[0]), ("3.one.weight", S[0, 1:])],
            {"0": (4, 2), "3.one": (2 if bias else 3, 4)}, {"4": 1} if bias else {},
            moved=lambda net: net[1].bias[0] != 0.7,
        )
        for bias in (True, False)
    },
    "a shift that is pruned before training": Case(
        lambda: read_by(3, 1), IMAGE, [("0.weight", S[0]), ("1.bias", S[0])], {"0": (3, 2), "3": (5, 3)},
    ),
    # Heads and neurons of attention.
    "a head": Case(
        zoo.separate, (2, 5, 6), [("out.weight", S[:, 2:4])], {"q": (4, 6), "k": (4, 6), "v": (4, 6), "out": (6, 4)}
    ),
    **{
        f"{name}, {way}": Case(zoo.ZOO[name].make, (2, 5, 6), [hole], {"project": (24, 6), "out": (6, 8)}, folded)
        for name in ("fused", "sdpa")
        for way, hole, folded in (
            ("unread head", ("out.weight", S[:, 4:8]), {}),
            ("unwritten head", ("project.weight", UNWRITTEN_HEAD), {"out": 4}),  # its values are constant
        )
    },
    "neurons of a transformer": Case(
        lambda: nn.TransformerEncoderLayer(6, 2, 10, dropout=0.0, batch_first=True), (2, 5, 6),
        [("linear1.weight", S[:3]), ("linear2.weight", S[:, 8:])], {"linear1": (5, 6), "linear2": (6, 5)},
        {"linear2": 1},  # behind the ReLU, the other two are zero
    ),
    "a dead layer that is used twice": Case(
        lambda: nn.Sequential(*[nn.Conv1d(2, 2, 3, padding=1), nn.ReLU()] * 2, nn.Conv1d(2, 3, 1)), (3, 2, 6),
        [("4.weight", S[:])], {"4": (3, 0)}, partial=True,
    ),
    # Convolutions in groups.
    "a depthwise chain": Case(
        lambda: nn.Sequential(*conv(2, 6), *conv(6, 6, groups=6), nn.Conv2d(6, 3, 1)), IMAGE,
        [("0.weight", S[0]), ("3.weight", S[1]), ("6.weight", S[:, 2])], {"0": (3, 2), "3": (3, 3), "6": (3, 3)},
        check=lambda small: small.module[3].groups == 3,
    ),
    "groups": Case(  # nothing reads the first; of the others, one and two inputs are zero: they stay equally wide
        lambda: nn.Sequential(
            nn.Conv2d(2, 9, 3, bias=False), nn.ReLU(), nn.Conv2d(9, 9, 3, groups=3, bias=False), nn.ReLU(),
            nn.Conv2d(9, 3, 1),
        ),
        IMAGE, [("4.weight", S[:, :3]), ("0.weight", [3, 6, 7])], {"0": (4, 2), "2": (6, 4), "4": (3, 6)},
        check=lambda small: small.module[2].groups == 2,
    ),
    # What must stay: in front of norms over channels and pools, outputs, sums with the input, fixed widths.
    "group norm": Case(zoo.ZOO["group"].make, IMAGE, [("0.weight", S[:2]), ("2.weight", S[:, 2:4])], {"0": (6, 2)}),
    "layer norm": Case(zoo.ZOO["layer"].make, (4, 4), [("0.weight", S[:2]), ("3.weight", S[:, 2:4])], {"0": (6, 4)}),
    "around": Case(
        zoo.around, (4, 6), [("out.weight", S[0]), ("second.weight", S[1]), ("out.weight", S[:, 2])],
        {"first": (8, 6), "second": (6, 8), "out": (3, 6)},
    ),
    "an output from the middle": Case(
        zoo.many, zoo.build("many")[1], [("c.weight", S[0]), ("d.weight", S[:, 1])], {"c": (6, 6)}
    ),
    "a pool in a dead branch": Case(
        with_pool, IMAGE, [("a2.weight", S[:]), ("b2.weight", S[:])],
        {"a": (0, 0), "a2": (8, 0), "b": (1, 8), "b2": (8, 1)}, check=lambda small: not small.plan.left,
    ),
    "a width that is written down": Case(
        lambda: Net(
            lenet, first=nn.Conv2d(2, 5, 3), second=nn.Conv2d(5, 6, 3), hidden=nn.Linear(24, 7), last=nn.Linear(7, 3)
        ),
        IMAGE, [("second.weight", S[:, :2]), ("hidden.weight", S[:, 4:8]), ("last.weight", S[:, :3])],
        {"first": (3, 2), "second": (6, 3), "hidden": (4, 24), "last": (3, 4)},
        check=lambda small: "shape" in small.plan.left["second"] and "stay in second" in str(small.plan),
    ),
    "computed weights": Case(
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(),
            nn.Linear(6, 3),
        ),
        (2, 5), [("2.weight", S[:, :3]), ("4.weight", S[:, :2])], {"0": (8, 5), "2": (4, 8)}, partial=True,
    ),
    "parameters that are no floats": Case(
        with_numbers, IMAGE, [("first.weight", S[4:])], {"first": (4, 2)},
        check=lambda small: all(len(p) == size for p, size in ((small.module.order, 5), (small.module.waves, 4))),
    ),
    "it runs in its own precision only": Case(
        two_layers(lambda net, x: net.second(torch.relu(net.first(x.float())))), (2, 4),
        [("first.weight", S[:2])], {"first": (4, 4)}, modes=(),
        check=lambda small: torch.equal(small.module(torch.ones(2, 4)), small.expand()(torch.ones(2, 4))),
    ),
    "a bias that is pruned takes nothing over": Case(
        lambda: shifted(mlp(4, 6, 3), 0, 0.5), (2, 4), [("0.weight", S[:2]), ("2.bias", S[1])], {"0": (6, 4)}
    ),
    "a pruned bias of an unwritten channel": Case(
        lambda: shifted(mlp(4, 6, 3), 0, 0.5), (2, 4), [("0.weight", S[:2]), ("0.bias", S[1])], {"0": (4, 4)}, {"2": 1}
    ),
    # Constants that depend on something else than gradients show.
    **{
        f"a gate: {name}": Case(
            lambda gate=gate: gated(gate), (4, 5), [("units.weight", S[:4])], {"units": (8, 5)}, more=FAR
        )
        for name, gate in GATES.items()
    },
    "a buffer of positions": Case(
        lambda: Net(with_waves, first=nn.Linear(5, 6), out=nn.Linear(6, 3), waves=torch.ones(12, 6).tril(-1)),
        (2, 1, 5), [("first.weight", S[:2])], {"first": (6, 5)}, more=(torch.randn(2, 2, 5), torch.randn(2, 8, 5)),
    ),
    "an example without a batch": Case(lambda: mlp(4, 6, 3), (4,), [("2.weight", S[:, :2])], {"0": (4, 4)}),
    "a gate: a mask among the inputs": Case(
        lambda: gated(lambda h, x, c, keep: (h * keep[..., None]).mean(1)),
        (torch.randn(2, 6, 5), torch.ones(2, 6, dtype=torch.bool)), [("units.weight", S[:4])], {"units": (8, 5)},
        more=((torch.randn(2, 6, 5), torch.rand(2, 6) > 0.5),),
    ),
    **{
        f"a pool: {name}, {size} pixels": Case(
            lambda pool=pool: summed(pool), (4, 2, size, size), [("first.weight", S[:4])], {"first": (8, 2)},
            more=tuple(torch.randn(2, 2, other, other) for other in (1, 4, 8, 9)),
        )
        for name, pool in POOLS.items()
        for size in (1, 8)
    },
}  # fmt: skip

# A channel without input, of which batch-norm makes a constant, goes if the reader's bias can take it over exactly.
CONSTANTS: dict[str, tuple[dict[str, Any], int]] = {
    "one pixel": (dict(kernel=1), 3),
    "without padding": (dict(kernel=3), 3),
    "valid padding": (dict(kernel=3, padding="valid"), 3),
    "with padding": (dict(kernel=3, padding=1), 4),  # at the border it is another value
    "same padding": (dict(kernel=3, padding="same"), 4),
    "circular padding": (dict(kernel=3, padding=1, padding_mode="circular"), 3),
    "zero behind the activation": (dict(kernel=3, padding=1, shift=-0.7), 3),
    "zero": (dict(kernel=3, padding=1, shift=0.0), 3),
    "another in eval mode": (dict(kernel=1, mean=0.3), 4),
    "zero in eval mode only": (dict(kernel=1, mean=5.0, shift=0.3), 4),
    "another, but zero behind the activation": (dict(kernel=3, padding=1, mean=5.0, shift=-0.3), 3),
}
for (constant, (reader, width)), bias in itertools.product(CONSTANTS.items(), (True, False)):
    CASES[f"a constant, {constant}, {'bias' if bias else 'no bias'}"] = Case(
        lambda reader=reader, bias=bias: read_by(bias=bias, **reader), IMAGE, [("0.weight", S[0])],
        {"0": (width, 2), "3": (5, width), "5": (3, 5)},
        {"3": 1} if width == 3 and reader.get("shift", 0.7) > 0 else {},
        check=lambda small, bias=bias: small.module[3].bias is None or small.module[3].bias.requires_grad == bias,
    )  # fmt: skip
for end, bias in itertools.product(("a.0.weight", "a.3.weight"), (True, False)):
    CASES[f"a dead branch by {end}, {'bias' if bias else 'no bias'}"] = Case(
        lambda bias=bias: stream(bias), IMAGE, [(end, S[:])], {"stem": (4, 2), "a.3": (4, 0)},
        check=lambda small: "Whole layers removed: a.0, a.1, a.3." in str(small.plan),
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_can_go_goes_and_the_rest_stays(name):
    case = CASES[name]
    model, masks, example = case.build()
    trace = Trace(model)
    small = bb.shrink(model, masks, example)
    trace.check()
    assert {layer: widths(small.module, layer) for layer in case.widths} == case.widths
    assert small.plan.folded == case.folded
    assert ("folded" in str(small.plan)) == bool(case.folded)
    assert case.check(small)
    assert_sound(small)
    reference = zoo.masked(model, masks)
    for inputs in (example, *case.more):
        assert_alike(inputs, reference, small.module, small.expand(), modes=case.modes)
    large = assert_trains_and_expands(small, example, case.modes)
    assert case.moved(small.module)
    model.load_state_dict(large.state_dict())


def test_an_example_of_one_sample_is_enough():
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    masks = {"0.weight": torch.arange(24).view(6, 4) >= 8}
    small = bb.shrink(model, masks, torch.randn(1, 4))
    assert widths(small.module, "0") == (4, 4)
    assert_alike(torch.randn(3, 4), zoo.masked(model, masks), small.module)


def test_an_expert_that_gets_no_token_is_kept():
    def route(net: Any, x: Tensor) -> Tensor:
        y, chosen = torch.zeros_like(x), net.gate(x).argmax(-1)
        for i, expert in enumerate(net.experts):
            (rows,) = torch.where(chosen == i)
            y.index_add_(0, rows, expert(x[rows]))
        return net.head(y)

    model = Net(route, gate=nn.Linear(4, 3), experts=nn.ModuleList(mlp(4, 6, 4) for _ in range(3)), head=mlp(4, 5, 2))
    with torch.no_grad():
        model.gate.bias[0] = 1e6
    masks = keep_all(model)
    masks["head.2.weight"][:, :2] = False
    small = bb.shrink(model, masks, torch.randn(5, 4))
    assert [widths(small.module, layer) for layer in ("experts.2.0", "head.0")] == [(6, 4), (3, 4)]
    nn.init.zeros_(small.module.gate.bias)
    assert_alike(torch.randn(9, 4), small.module, small.expand())


def test_a_network_that_runs_in_eval_mode_only_is_compared_there():
    model = two_layers(refusing)().train()
    masks = {"second.weight": torch.arange(12).view(2, 6) % 6 > 1}
    small = bb.shrink(model, masks, torch.randn(2, 4))
    assert widths(small.module, "first") == (4, 4)
    assert small.module.training
    assert "not in train mode" in small.plan.unchecked
    assert_alike(torch.randn(3, 4), zoo.masked(model, masks), small.module, modes=(False,))
    assert not bb.shrink(nn.Sequential(nn.Linear(4, 2)), {}, torch.randn(2, 4)).plan.unchecked


def test_before_training_shifts_of_channels_without_input_count_as_pruned():
    model = read_by(kernel=3, padding=1)
    masks = keep_all(model)
    masks["0.weight"][0] = False
    small = bb.shrink(model, masks, PIXELS, before_training=True)
    assert [widths(small.module, layer) for layer in ("0", "3")] == [(3, 2), (5, 3)]
    assert small.plan.shifts == {"1": 1}
    assert "1 shifts of channels without input count as pruned: 1." in str(small.plan)
    unshifted = zoo.masked(model, masks)
    with torch.no_grad():
        unshifted[1].bias[0] = 0
    assert_alike(PIXELS, unshifted, small.module, small.expand())
    assert bb.shrink(model, masks, PIXELS).plan.shifts == {}


def test_backward_hooks_do_not_hold_channels_back():
    model = nn.Sequential(nn.Conv2d(2, 8, 3, bias=False), nn.Sequential(*conv(8, 8)), nn.Conv2d(8, 2, 1))
    masks = {"0.weight": (torch.arange(8) < 4).view(8, 1, 1, 1).expand(8, 2, 3, 3).clone()}
    without_hooks = bb.shrink(model, masks, PIXELS).plan.parameters
    hook = model[1].register_full_backward_hook(lambda *_: None)
    assert bb.shrink(model, masks, PIXELS).plan.parameters == without_hooks
    assert len(model[1]._backward_hooks) == 1
    hook.remove()
