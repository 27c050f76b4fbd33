"""Rules, one by one: what each torch function passes on, mixes or cuts."""

from collections.abc import Callable
from dataclasses import make_dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zoo import LOOKUPS, Net, eye, half, keep_all, linears, masked, off, x4

from barebones import METHODS, prune, shrink
from barebones.accounting import account
from barebones.paths import effective, trace
from barebones.scope import parameters


def into_empty(net: Any, x: Tensor) -> Tensor:
    y = torch.empty(2, 4)
    y[:, :2] = net.a(x)[:, :2]
    y[:, 2:].copy_(net.p.expand(2, 2))
    return net.b(y)


def kept_apart(net: Any, x: Tensor) -> Tensor:
    first = net.a(x)
    second = F.relu(first)
    second += x
    return net.b(first)


def without_gradients(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = net.a(x)
    return net.b(x.detach().round().data)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def clamped(h: Tensor) -> Tensor:
    return h.sign() + (h.clamp(-1, 1) - h.clamp(-1, 1).detach())


def own_clamp(net: Any, x: Tensor) -> Tensor:
    net.a.weight.data = torch.renorm(net.a.weight.data, 2, 0, 1.0)
    return net.b(net.a(x))


def counted(net: Any, x: Tensor) -> Tensor:
    """Use sums of floats as integers, like the experts of a language model."""
    h = net.a(x)
    ends = torch.cumsum(h.abs().sum(1), 0, dtype=torch.int32)
    return net.b(h) + ends[:, None]


PASSING = (
    nn.CELU(), nn.ELU(), nn.GELU(), nn.Hardshrink(), nn.Hardsigmoid(), nn.Hardswish(), nn.Hardtanh(),
    nn.LeakyReLU(), nn.LogSigmoid(), nn.Mish(), nn.PReLU(), nn.RReLU(), nn.ReLU(inplace=True), nn.ReLU6(),
    nn.SELU(), nn.Sigmoid(), nn.SiLU(), nn.Softplus(), nn.Softshrink(), nn.Softsign(), nn.Tanh(), nn.Tanhshrink(),
    nn.Threshold(0.1, 1.0), nn.Dropout(), nn.AlphaDropout(), nn.BatchNorm1d(4), nn.GroupNorm(2, 4),
)  # fmt: skip
HALVED: dict[str, Net] = {  # where layer a lets two of four inputs through, two columns of b are reached
    "plain": Net(lambda net, x: net.b(net.a(x)), **linears()),
    "a position": Net(lambda net, x: net.b(net.a(x) + net.p), p=nn.Parameter(torch.randn(4)), **linears()),
    "a buffer": Net(lambda net, x: net.b(net.a(x) - net.p), p=torch.randn(4), **linears()),
    "a scale of 0": Net(lambda net, x: net.b(net.a(x) * net.p), p=nn.Parameter(torch.zeros(4)), **linears()),
    "a mask in a buffer": Net(lambda net, x: net.b(x * net.p), p=torch.tensor([2.0, -3.0, 0.0, 0.0]), **linears()),
    "a masked weight": Net(lambda net, x: net.b(F.linear(x, net.a.weight * net.p)), p=torch.randn(4, 4), **linears()),
    "times 0": Net(lambda net, x: net.b(net.a(x) + 0 * x), **linears()),
    "memory nobody wrote": Net(into_empty, p=nn.Parameter(torch.randn(2)), **linears()),
    "memory with a gradient": Net(lambda net, x: net.b(net.a(x)) + torch.empty(1, requires_grad=True), **linears()),
    "in place, but not here": Net(kept_apart, **linears()),
    "no gradients": Net(without_gradients, **linears()),
    "integers made of floats": Net(counted, **linears()),
    "a function of one's own": Net(lambda net, x: net.b(Sign.apply(net.a(x))), **linears()),
    "a checkpoint": Net(lambda net, x: net.b(checkpoint(net.a, x, use_reentrant=False)), **linears()),
    "an old checkpoint": Net(lambda net, x: net.b(checkpoint(net.a, x, use_reentrant=True)), **linears()),
    "weights changed inside": Net(own_clamp, **linears()),
    "padding": Net(lambda net, x: net.b(F.pad(net.a(x)[:, :2], (0, 2), value=1.0)), **linears()),
    "a straight-through sign": Net(lambda net, x: net.b((h := net.a(x)) + (h.sign() - h).detach()), **linears()),
    "a clamped gradient": Net(lambda net, x: net.b(clamped(net.a(x))), **linears()),
    **{type(layer).__name__: Net(lambda net, x: net.b(net.c(net.a(x))), **linears(c=layer)) for layer in PASSING},
}  # fmt: skip


@pytest.mark.parametrize("name", HALVED)
def test_what_reaches_a_layer(name: str) -> None:
    net = HALVED[name]
    masks = keep_all(net) | {"a.weight": half}
    on_paths = effective(net, masks, x4)
    assert on_paths["b.weight"].equal(torch.tensor([[True, True, False, False]]).expand(4, 4))
    if name != "a mask in a buffer":
        assert on_paths["a.weight"].equal(half)


# An operator that autograd cannot look into, as compiled extensions have them.
opaque = torch.library.custom_op(
    "barebones_tests::doubled", lambda x: 2 * x, mutates_args=(), schema="(Tensor x) -> Tensor"
)

NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer-norm": nn.LayerNorm(4),
    "layer-norm without weights": lambda h: F.layer_norm(h, (4,)),
    "group-norm": nn.GroupNorm(1, 4),
    "group-norm without weights": lambda h: F.group_norm(h, 1),
    "RMS-norm": nn.RMSNorm(4),
    "instance-norm": lambda h: F.instance_norm(h[:, None])[:, 0],
    "local response norm": lambda h: F.local_response_norm(h[..., None], 7)[..., 0],
    "normalize": F.normalize,
    "softmax": nn.Softmax(-1),
    "log-softmax": nn.LogSoftmax(-1),
    "Gumbel": F.gumbel_softmax,
    "a norm by hand": lambda h: (h - h.mean(1, keepdim=True)) * (h.var(1, keepdim=True) + 1).rsqrt(),
}


MIXED: dict[str, Callable[[Any, Tensor], Tensor]] = {  # every value reaches every other
    "maximum": lambda net, x: net.b(net.a(x).max(1, keepdim=True)[0].expand(2, 4)),
    "top two": lambda net, x: net.b(net.a(x).topk(2)[0].repeat(1, 2)),
    "deviation": lambda net, x: net.b(x.detach() * 0 + net.a(x).std(dim=1, keepdim=True)),
    "norm": lambda net, x: net.b(net.a(x).norm(dim=1, keepdim=True).expand(2, 4)),
    **{name: lambda net, x, norm=norm: net.b(norm(net.a(x))) for name, norm in NORMS.items()},
    # functions without a rule of their own
    "Fourier": lambda net, x: net.b(torch.fft.fft(net.a(x)).real),
    "differences": lambda net, x: net.b(torch.diff(net.a(x), append=x[:, :1] * 0)),
    "loss": lambda net, x: net.b(F.mse_loss(net.a(x), x * 0, reduction="none")),
    "sort": lambda net, x: net.b(net.a(x).sort(1)[0]),
    "in place": lambda net, x: net.b(net.a(x).erfinv_()),
    "distances": lambda net, x: net.b(torch.cdist(net.a(x), torch.randn(4, 4))),
    "opaque": lambda net, x: net.b(opaque(net.a(x))),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes(name: str) -> None:
    net = Net(MIXED[name], **linears())
    on_paths = effective(net, {"a.weight": half, "b.weight": ~off}, x4)
    assert on_paths["a.weight"].equal(half)
    assert on_paths["b.weight"].all()
    assert account(net, {"a.weight": off, "b.weight": ~off}, x4).collapsed == ["a.weight"]


ALONG = (torch.softmax, torch.logsumexp, torch.amax, torch.max, torch.std, torch.cumsum, torch.sort, torch.unbind)
ALONG += partial(torch.topk, k=2), partial(torch.chunk, chunks=2)


@pytest.mark.parametrize("function", ALONG, ids=[*map(str, range(len(ALONG)))])
@pytest.mark.parametrize("place", [1, 2])
def test_axis_is_another_name_of_dim(function: Callable[..., Any], place: int) -> None:
    ends = []
    for key in ("dim", "axis"):
        first = lambda y: y if isinstance(y, Tensor) else y[0]
        net = Net(lambda net, x: first(function(net.b(net.a(x)), **{key: place})).select(1, 0), **linears())  # noqa: B023
        x, masks = torch.randn(2, 4, 4), {"a.weight": ~off, "b.weight": eye}
        small = shrink(net, masks, x).module
        ends.append((effective(net, masks, x), {name: p.shape for name, p in small.named_parameters()}))
    assert all(torch.equal(mask, ends[1][0][name]) for name, mask in ends[0][0].items())
    assert ends[0][1] == ends[1][1]


@pytest.mark.parametrize("name", [*(name for name in NORMS if name != "Gumbel"), "sign"])
def test_weights_that_are_not_effective_do_not_change_how_the_outputs_depend_on_the_input(name: str) -> None:
    """In a very sparse pre-norm network; what is on no path is zero, because a constant would count like a bias."""
    whole = NORMS.get(name, clamped)
    norm = lambda h: whole(h) - whole(torch.zeros_like(h))
    net = Net(lambda net, x: net.head(norm(x + net.b(F.gelu(norm(net.a(norm(x))))))), **linears(), head=linears()["a"])
    for seed in range(8):
        torch.manual_seed(seed)
        for layer in (net.a, net.b, net.head):
            layer.bias = None
            nn.init.normal_(layer.weight)
        x, method = torch.randn(32, 4), (replace(METHODS["force"], rounds=3), "random")[seed % 2]
        masks = prune(net, [(x, torch.arange(32) % 4)], 0.85, method, seed=seed, on_collapse="ignore").masks
        outputs = []
        for kept in (masks, effective(net, masks, x[:1])):
            torch.manual_seed(0)
            outputs.append(masked(net, kept)(x))
        change = outputs[1] - outputs[0]
        torch.testing.assert_close(change, change[:1].expand_as(change), rtol=0, atol=1e-5)


def test_a_local_response_norm_reads_its_neighbors_only() -> None:
    net = Net(lambda net, x: net.b(F.local_response_norm(net.a(x)[..., None], 2)[..., 0]), **linears())
    on_paths = effective(net, {"a.weight": eye & (torch.arange(4) == 1), "b.weight": ~off}, x4)
    assert on_paths["b.weight"].any(0).tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    "pool",
    [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.MaxPool2d((2, 3), dilation=2), nn.AdaptiveMaxPool2d(2)],
)
def test_a_max_pool_is_reached_where_its_window_is(pool: nn.Module) -> None:
    x = torch.ones(2, 1, 7, 8)
    weight = nn.Parameter(torch.randn(pool(x)[0].numel(), 1))
    for i in range(56):
        pixel = (torch.arange(56) == i).float().view(7, 8)
        net = Net(lambda net, x: net.pool(x * net.pixel).view(len(x), -1) @ net.w, pixel=pixel, pool=pool, w=weight)
        assert effective(net, keep_all(net), x)["w"].flatten().equal(pool(x * pixel)[0].flatten() > 0)


def test_what_becomes_of_masked_norms_and_biases() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    masks = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in parameters(net).items()}
    masks["1.weight"] = torch.tensor([True, True, False, False])
    masks["2.weight"] = torch.tensor([[True, False, True, False]])
    on_paths = effective(net, masks, x4)
    assert {name: mask.sum().item() for name, mask in on_paths.items()} == {
        "0.weight": 4, "0.bias": 1, "1.weight": 1, "1.bias": 2, "2.weight": 1, "2.bias": 1,
    }  # fmt: skip


def test_queries_and_keys_count_where_a_value_is_reached() -> None:
    net = nn.MultiheadAttention(4, 2, batch_first=True)
    net.forward = lambda x, call=net.forward: call(x, x, x, need_weights=False)[0]  # type: ignore[method-assign]
    all_kept = torch.ones(12, 4, dtype=torch.bool)
    only_values, first_head = all_kept.clone(), all_kept.clone()
    only_values[:8] = False
    first_head[10:] = False  # the values of the second head
    for kept, rows in ((first_head, [True, True, False, False] * 3), (only_values, [False] * 8 + [True] * 4)):
        on_paths = effective(net, {"in_proj_weight": kept, "out_proj.weight": ~off}, torch.randn(1, 3, 4))
        assert on_paths["in_proj_weight"].all(1).tolist() == rows


def test_token_ids_are_input_and_positions_are_not() -> None:
    def forward(net: Any, ids: Tensor, mask: Tensor) -> Any:
        hidden = net.b(net.a(net.embed(ids)) * mask[..., None] + net.position(torch.arange(3)))
        return {"pooled": [hidden.sum(1) / mask.sum(1, keepdim=True)]}

    net = Net(forward, embed=nn.Embedding(7, 4), position=nn.Embedding(3, 4), **linears())
    ids = torch.tensor([[1, 4, 4], [0, 2, 6]])
    for mask in (ids > 0, (ids > 0).long()):
        example = {"ids": ids, "mask": mask}
        assert effective(net, {"a.weight": eye, "b.weight": eye}, example)["b.weight"].equal(eye)
        assert account(net, {"a.weight": off, "b.weight": eye}, example).collapsed == ["a.weight"]


def test_outputs_in_a_tree_and_a_loss_of_its_own() -> None:
    Answer = make_dataclass("Answer", ["loss", "more"])
    net = Net(lambda net, x, y: Answer(F.cross_entropy(net.a(x), y), ({"b": net.b(x)}, "text", y)), **linears())
    masks = {"a.weight": eye, "b.weight": off}
    assert trace(net, masks, (x4, torch.tensor([0, 3]))).outputs == [True, False]
    assert effective(net, masks, (x4, torch.tensor([0, 3])))["a.weight"].equal(eye)


def test_a_slope_of_a_prelu_is_used_where_its_channel_is_reached_and_does_not_stand_for_its_input():
    net = nn.Sequential(nn.Linear(4, 4), nn.PReLU(4), nn.Linear(4, 4))
    on_paths = effective(net, {"0.weight": half, "1.weight": torch.ones(4) > 0, "2.weight": eye}, x4)
    assert on_paths["1.weight"].tolist() == [True, True, False, False]
    assert effective(net, {"0.weight": ~off, "2.weight": half}, x4)["0.weight"].equal(half.any(1)[:, None] | off)
    forward = lambda net, x: net.a(x) + net.slopes(net.offset.expand(2, 4)).view(2, 4)  # slopes of a constant
    constant = Net(forward, slopes=nn.PReLU(1), offset=torch.ones(4), **linears())
    assert effective(constant, {"a.weight": half}, x4)["a.weight"].equal(half)


def test_results_written_in_place_by_position_and_into_out_are_followed():
    def forward(net, x):
        h = net.a(x)
        F.relu(h, True)
        doubled = torch.empty_like(h)
        torch.mul(h, 2.0, out=doubled)
        return net.b(doubled).topk(4).values.div_(x.sum(1, keepdim=True))

    on_paths = effective(Net(forward, **linears()), {"a.weight": eye, "b.weight": half}, x4)
    assert on_paths["a.weight"].equal(half)
    assert on_paths["b.weight"].equal(half)


def test_complex_values_mix_everything_and_factors_may_have_names():
    def forward(net, x):
        h = net.first(x)
        turned = torch.view_as_real(torch.view_as_complex(h.view(len(h), -1, 2)) * torch.tensor(1j)).flatten(1)
        return net.second(torch.baddbmm(turned[:, None], batch1=turned[:, None], batch2=torch.ones(len(h), 4, 4))[:, 0])

    model = Net(forward, first=nn.Linear(3, 4, bias=False), second=nn.Linear(4, 2, bias=False))
    masks = keep_all(model)
    masks["first.weight"][1:] = False
    assert all(kept.equal(masks[name]) for name, kept in effective(model, masks, torch.randn(2, 3)).items())
    masks["first.weight"][0] = False
    assert not any(kept.any() for kept in effective(model, masks, torch.randn(2, 3)).values())


@pytest.mark.parametrize("lookup", LOOKUPS.values(), ids=LOOKUPS)
def test_any_row_of_a_table_may_be_looked_up(lookup: Callable[[Tensor, Tensor], Tensor]) -> None:
    net = Net(lambda net, ids: net.a(lookup(net.table, ids)), table=nn.Parameter(torch.randn(7, 4)), a=nn.Linear(4, 4))
    column = torch.zeros(7, 4, dtype=torch.bool)
    column[6, 2] = True  # no id of the example is 6
    on_paths = effective(net, {"table": column, "a.weight": ~off}, torch.tensor([2, 4, 4]))
    assert on_paths["table"].equal(column)
    assert on_paths["a.weight"][:, 2].all()


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda table: table[:3],
    "slice of more dims": lambda table: table[None][:, :3][0],
    "slice of a transpose": lambda table: table.t()[:, :3].t(),
    "narrow": lambda table: table.narrow(0, 1, 3),
    **{name: partial(lambda lookup, table: lookup(table, torch.tensor([3, 1, 0])), lookup)
       for name, lookup in LOOKUPS.items()},
}  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_rows_of_a_table_that_longer_inputs_use_count_as_used(part: str) -> None:
    """The table has a value in column 2 of one row that the example uses, and of one that it does not use."""
    table = nn.Parameter(torch.randn(7, 4))
    net = Net(lambda net, x: net.a(net.b(x) + PARTS[part](net.table)), table=table, **linears())
    mask = torch.zeros(7, 4, dtype=torch.bool)
    mask[1, 2] = mask[6, 2] = mask[6, 3] = True
    last = (torch.arange(4) < 3).expand(4, 4)  # nothing reads column 3
    used = effective(net, {"table": mask, "a.weight": last, "b.weight": half}, torch.ones(3, 4))["table"]
    assert used.nonzero().tolist() == [[1, 2], [6, 2]]


def test_parts_of_a_weight_that_are_all_used_stay_exact() -> None:
    forward = lambda net, x: F.linear(x, net.w[:2]) + F.linear(x, net.w[2:4]) * F.linear(x, net.w[4:])
    net = Net(forward, w=nn.Parameter(torch.randn(6, 4)))
    mask = torch.rand(6, 4) > 0.5
    assert effective(net, {"w": mask}, torch.ones(3, 4))["w"].equal(mask)


def assigned(h: Tensor) -> Tensor:
    h = h.clone()
    h[h < 0.5] = 0
    h[h > 2] = h[h > 2] / 2
    return h


def routed(h: Tensor) -> Tensor:
    share, expert = h.softmax(-1).topk(1)
    out = torch.zeros_like(h)
    for k in range(3):
        rows = (expert[:, 0] == k).nonzero()[:, 0]
        out.index_add_(0, rows, h[rows] * share[rows])
    return out


def spiking(h: Tensor) -> Tensor:
    left = torch.zeros_like(h)
    for _ in range(2):
        left = left + h
        left = left * (1 - (left > 1).float())
    return left


def experts_by_place(h: Tensor) -> Tensor:
    share, expert = h.softmax(-1).topk(2)
    chosen, out = F.one_hot(expert, h.shape[1]).permute(2, 1, 0), torch.zeros_like(h)
    for each in chosen:
        place, row = torch.where(each)
        out.index_add_(0, row, h[row] * share[row, place, None])
    return out


def winners(kind: torch.dtype) -> Callable[[Tensor], Tensor]:
    def forward(h: Tensor) -> Tensor:
        mask = torch.zeros_like(h, dtype=kind)
        mask[torch.arange(len(h))[:, None], h.topk(2).indices] = 1
        return h * mask

    return forward


DECISIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "comparison": lambda h: h * (h > 1),
    "the other way": lambda h: h * (1 - (h > 1).type_as(h)),
    "the mask of a mask": lambda h: h * ((h > 1).float() == 0),
    "spikes": spiking,
    "winners": winners(torch.bool),
    "shares of winners": winners(torch.float),
    "bools in place": lambda h: h * torch.zeros_like(h).bool().scatter_(-1, h.topk(2).indices, True),
    "experts by place": experts_by_place,
    "limits in place": lambda h: h.unbind(1)[0].clamp_(0, 6)[:, None] + h.clone().clamp_(-1, 1),
    "comparisons": lambda h: h * (h > 0.5).float() * ~(h > 2),
    "constant": lambda h: torch.where(h > 0.5, h, 0.1),
    "count": lambda h: h / (h > 0).sum(-1, keepdim=True),
    "branch": lambda h: h if not h.isnan().any() else h.detach(),
    "integers": lambda h: h * h.argmax(-1, keepdim=True),
    "places": lambda h: h * torch.zeros_like(h).scatter(-1, h.topk(3).indices, 1.0),
    "places in place": lambda h: h * torch.zeros_like(h).scatter_(-1, h.topk(3).indices, 1.0),
    "index": lambda h: h * h.gather(1, (h.argmax(1, keepdim=True) * 0).add_(3)),
    "assignment": assigned,
    "experts": routed,
    "unpooling": lambda h: F.max_unpool1d(*F.max_pool1d(h[None], 2, return_indices=True), 2)[0],
}


@pytest.mark.parametrize("name", DECISIONS)
def test_what_a_signal_decides_cuts_none(name: str) -> None:
    net, masks = Net(lambda net, x: net.b(DECISIONS[name](net.a(x))), **linears()), {"a.weight": ~off, "b.weight": ~off}
    assert all(kept.all() for kept in effective(net, masks, torch.randn(5, 4)).values())
    if name in ("comparison", "comparisons", "constant", "count", "branch", "integers"):
        used = effective(net, masks | {"a.weight": half}, torch.randn(5, 4))["b.weight"]
        assert used.equal(half.any(1).expand(4, 4))
