"""A shrunk network computes what the masked one computes, is as small as it can be, trains, and goes back."""

import io
import itertools
import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from references import Pooled, Trace, equal
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

import barebones as bb
from barebones.deploy.shrink import network, trials
from barebones.deploy.shrink.removal import Removal
from barebones.models import SmallResNet, SmallVGG
from barebones.paths import effective
from barebones.running.inputs import call, tensors
from barebones.scope import matched, parameters, prunable

pytest.importorskip("torch_pruning", reason="shrink needs Torch-Pruning")


PHASES = (Phase.explicit, Phase.generate)  # networks do not become simpler for minutes of trying


@pytest.fixture(autouse=True)
def one_thread():
    """Networks this small only lose by more, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Networks


class Residual(nn.Module):
    """A block and a way around it."""

    def __init__(self, *block: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(*block)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class Beside(nn.Module):
    """Branches of the same input, concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class UNet(nn.Module):
    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1, groups=groups)
        self.last = nn.Conv2d(12, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        left = torch.relu(self.down(x))
        return self.last(torch.cat([left, torch.relu(self.up(torch.relu(self.middle(left))))], 1))


class Gated(nn.Module):
    """Halves of one layer, one the gate of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.out = nn.Linear(5, 12), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(x).chunk(2, -1)
        return self.out(a * torch.sigmoid(b))


class Squeezed(nn.Module):
    """Squeeze and excite, inside a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.squeeze, self.excite = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 4, 1), nn.Conv2d(4, 6, 1)
        self.out = nn.Conv2d(6, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return self.out(x * gate)


class Attention(nn.Module):
    """Three heads, by hand; `fused` projects all three at once."""

    def __init__(self, fused: bool, sdpa: bool = False) -> None:
        super().__init__()
        self.sdpa = sdpa
        self.norm = nn.LayerNorm(6)
        self.project = nn.ModuleList([nn.Linear(6, 36)] if fused else [nn.Linear(6, 12) for _ in range(3)])
        self.out, self.head = nn.Linear(12, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        inside = torch.cat([project(self.norm(x)) for project in self.project], -1)
        q, k, v = (t.unflatten(-1, (-1, 4)).transpose(1, 2) for t in inside.chunk(3, -1))
        by_hand = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        y = F.scaled_dot_product_attention(q, k, v) if self.sdpa else by_hand
        return self.head(x + self.out(y.transpose(1, 2).flatten(2))).mean(1)


class Separate(nn.Module):
    """Attention with heads of two channels, three projections kept apart, and an MLP: a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(6, 6) for _ in range(4))
        self.mlp = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 6))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (f(x).view(batch, length, -1, 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, -1))
        return x + self.mlp(x)


class Scaled(nn.Module):
    """A layer-scale, as ConvNeXt has it, and a position that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.scale, self.position = nn.Parameter(torch.rand(6, 1, 1) + 0.5), nn.Parameter(torch.rand(1, 6, 1, 1))
        self.out = nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) + self.position
        return self.out(torch.relu(x + self.scale * self.inner(x)))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.mlp = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.mlp(self.embedding(tokens).mean(1))


class Twice(nn.Module):
    """One layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.out = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.shared(torch.relu(self.shared(torch.relu(self.first(x)))))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.out = (
            nn.Linear(4, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 3),
        )
        self.third.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.third(torch.relu(self.second(torch.relu(self.first(x)))))))


class Around(nn.Module):
    """The model's input is added to what a layer makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(x + self.second(torch.relu(self.first(x)))))


class Many(nn.Module):
    """Two inputs, one by name; a dict of outputs, one of them from the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(5, 6), nn.Linear(6, 6)
        self.d, self.e = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, *, other: Tensor) -> dict[str, Any]:
        x = torch.relu(self.a(x) + self.b(other))
        middle = torch.relu(self.c(x))
        return {"middle": middle, "out": (self.e(torch.relu(self.d(middle))), middle.argmax(-1))}


class Functional(nn.Module):
    """Dropout as a function, with the mode of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(torch.relu(self.first(x)), 0.5, self.training)
        return self.out(torch.relu(self.second(x)))


class Buffered(nn.Module):
    """A scale per channel that is no parameter, and a count of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 6, 3), nn.Conv2d(6, 3, 1)
        self.register_buffer("scale", torch.rand(6, 1, 1) + 0.5)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.out(torch.relu(self.second(torch.relu(self.first(x)) * self.scale)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm = nn.Linear(5, 6), nn.LSTM(6, 4, batch_first=True)
        self.head = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(torch.relu(self.first(x)))[0][:, -1])


class Shuffled(nn.Module):
    """Channels are mixed up between two convolutions in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 8, 3, groups=2), nn.Conv2d(8, 8, 3, groups=2)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = x.view(len(x), 2, 4, *x.shape[2:]).transpose(1, 2).reshape(x.shape)
        return self.out(torch.relu(self.second(x)))


class Sliced(nn.Module):
    """A part of the channels goes another way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Conv2d(2, 8, 3), nn.Conv2d(3, 5, 1), nn.Conv2d(10, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.out(torch.cat([x[:, 3:], torch.relu(self.second(x[:, :3]))], 1))


class Writing(nn.Module):
    """Its input is not what it was, afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.first(x.mul_(2))))


def conv(i: int, o: int, k: int = 3, **options: Any) -> list[nn.Module]:
    """A convolution, batch-norm and ReLU."""
    return [nn.Conv2d(i, o, k, padding=k // 2, bias=False, **options), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]


def dense_net() -> nn.Module:
    grown = nn.Sequential(*conv(2, 4), *(Beside(nn.Identity(), nn.Sequential(*conv(w, 3))) for w in (4, 7, 10)))
    return Pooled(nn.Sequential(grown, nn.AvgPool2d(2), *conv(13, 6, 1)), 6)


def inverted(i: int, hidden: int) -> nn.Module:
    return Residual(*conv(i, hidden, 1), *conv(hidden, hidden, groups=hidden), *conv(hidden, i, 1)[:2])


def inception() -> nn.Module:
    pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), *conv(4, 3, 1))
    return Pooled(nn.Sequential(*conv(2, 4), Beside(nn.Sequential(*conv(4, 3)), pool, nn.Identity()), *conv(10, 4)), 4)


def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 6, 3, dilation=2), nn.BatchNorm1d(6), nn.SiLU(), nn.Conv1d(6, 6, 3, padding="same"),
        nn.MaxPool1d(2), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip


def conv3d() -> nn.Module:
    return Pooled(
        nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.Conv3d(4, 5, 3, stride=2)), 5
    )


def mobile() -> nn.Module:
    return Pooled(nn.Sequential(*conv(2, 4), inverted(4, 8), *conv(4, 8, stride=2), inverted(8, 8)), 8)


def resnext() -> nn.Module:
    return Pooled(nn.Sequential(*conv(2, 8), Residual(*conv(8, 6, 1), *conv(6, 6, groups=3), *conv(6, 8, 1))), 8)


def between(*middle: nn.Module) -> nn.Module:
    """Convolutions with something behind each."""
    convs = [nn.Conv2d(2, 6, 3), *(nn.Conv2d(6, 6, 3) for _ in middle[1:]), nn.Conv2d(6, 3, 1)]
    return nn.Sequential(*itertools.chain(*zip(convs, middle, strict=False)), convs[-1])


def flat() -> nn.Module:
    return nn.Sequential(
        *conv(2, 5, stride=2), *conv(5, 4), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)
    )  # fmt: skip


def normed() -> nn.Module:
    rest = [nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)]
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), *rest)


def dropping() -> nn.Module:
    first = [nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.5)]
    return nn.Sequential(*first, nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 3))


IMAGE, TOKENS = (4, 2, 8, 8), (2, 5, 6)
ZOO: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "vgg": (lambda: SmallVGG(3, width=2), (4, 1, 8, 8)),
    "resnet": (lambda: SmallResNet(3, width=2), (4, 1, 8, 8)),
    "mobile": (mobile, IMAGE),
    "multiplier": (lambda: Pooled(nn.Sequential(*conv(2, 4), *conv(4, 8, groups=4), *conv(8, 4, 1)), 4), IMAGE),
    "dense": (dense_net, IMAGE),
    "next": (resnext, IMAGE),
    "unet": (UNet, IMAGE),
    "unet-groups": (lambda: UNet(2), IMAGE),
    "inception": (inception, IMAGE),
    "conv1d": (conv1d, (4, 2, 12)),
    "conv3d": (conv3d, (4, 1, 5, 6, 7)),
    "flatten": (flat, IMAGE),
    "gate": (Gated, (4, 5)),
    "glu": (lambda: nn.Sequential(nn.Linear(5, 12), nn.GLU(), nn.Linear(6, 3)), (4, 5)),
    "squeeze": (Squeezed, IMAGE),
    "encoder": (lambda: nn.TransformerEncoderLayer(6, 2, 10, batch_first=True), TOKENS),
    "separate": (Separate, TOKENS),
    "attention": (lambda: Attention(False), TOKENS),
    "fused": (lambda: Attention(True), TOKENS),
    "sdpa": (lambda: Attention(True, sdpa=True), TOKENS),
    "scale": (Scaled, IMAGE),
    "prelu": (lambda: between(nn.PReLU(6), nn.PReLU()), IMAGE),
    "instance": (lambda: between(nn.Sequential(nn.InstanceNorm2d(6, affine=True), nn.ReLU())), IMAGE),
    "group": (lambda: between(nn.Sequential(nn.GroupNorm(2, 6), nn.ReLU()), nn.ReLU()), IMAGE),
    "layer": (normed, (4, 4)),
    "plain": (
        lambda: between(nn.BatchNorm2d(6, affine=False), nn.ReLU(), nn.BatchNorm2d(6, track_running_stats=False)),
        IMAGE,
    ),
    "words": (Words, torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(0))),
    "twice": (Twice, (4, 4)),
    "tied": (Tied, (4, 4)),
    "around": (Around, (4, 6)),
    "many": (Many, "two"),
    "functional": (Functional, (4, 4)),
    "dropout": (dropping, (4, 4)),
    "buffer": (Buffered, IMAGE),
    "recurrent": (Recurrent, (4, 5, 5)),
    "shuffle": (Shuffled, IMAGE),
    "slice": (Sliced, IMAGE),
    "writing": (Writing, (4, 4)),
    "one": (lambda: nn.Linear(4, 3), (4, 4)),
    "lstm": (lambda: nn.LSTM(4, 3), (4, 2, 4)),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def zoo(name: str, seed: int = 0, trained: bool = True) -> tuple[nn.Module, Any]:
    """A network with batch-norms as after some training, and what it is called with."""
    make, example = ZOO[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
        for module in model.modules():
            if isinstance(module, _BatchNorm) and trained:
                if module.affine:
                    nn.init.uniform_(module.weight, 0.5, 1.5)
                    nn.init.uniform_(module.bias, -0.5, 0.5)
                if module.track_running_stats:
                    module.running_mean.normal_()
                    module.running_var.uniform_(0.5, 2)
        if example == "two":
            example = (torch.randn(4, 4),), {"other": torch.randn(4, 5)}
    return model, torch.randn(example, generator=seeded(seed)) if isinstance(example, tuple) and isinstance(
        example[0], int
    ) else example


def random_masks(model: nn.Module, keep: float, seed: int = 0) -> dict[str, Tensor]:
    """Of each weight some, at random; of some layers whole rows and columns are missing as well."""
    masks = {}
    generator = seeded(seed)
    for name, p in parameters(model).items():
        if p.dim() < 2 or not name.split(".")[-1].startswith(("weight", "in_proj")) or "embedding" in name:
            continue
        mask = torch.rand(p.shape, generator=generator) < keep
        for dim in (0, 1):
            lost = (
                (torch.rand(p.shape[dim], generator=generator) > (keep + 1) / 2 if keep else torch.ones(p.shape[dim]))
                .nonzero()
                .flatten()
            )
            mask.index_fill_(dim, lost, False)
        masks[name] = mask
    return masks


def masked(model: nn.Module, masks: dict[str, Tensor]) -> nn.Module:
    copy = deepcopy(model)
    with torch.no_grad():
        for _, p, mask in matched(copy, masks):
            p.masked_fill_(~mask, 0)
    return copy


def outputs(model: nn.Module, example: Any, train: bool = False) -> list[Tensor]:
    """In float64, without dropout; a copy is run."""
    model = deepcopy(model).double().train(train)
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.MultiheadAttention):
            setattr(module, "p" if isinstance(module, nn.Dropout) else "dropout", 0.0)
    args, kwargs = tree_map(lambda t: t.double() if t.is_floating_point() else t.clone(), call(example))
    with torch.no_grad():
        return [t for t in tensors(model(*args, **kwargs)) if t.is_floating_point()]


def fresh(example: Any, seed: int = 1) -> Any:
    """Random inputs of the same shape."""
    generator = seeded(seed)
    return tree_map(
        lambda t: torch.randn(t.shape, generator=generator) if t.is_floating_point() else t.flip(0), example
    )


def assert_alike(
    a: nn.Module, b: nn.Module, example: Any, modes: tuple[bool, ...] = (False, True), close: float = 1e-5
) -> None:
    for given_ in (example, fresh(example)):
        for mode in modes:
            for x, y in zip(outputs(a, given_, mode), outputs(b, given_, mode), strict=True):
                assert x.shape == y.shape
                assert torch.allclose(x, y, rtol=0, atol=close * float(x.abs().max()) + 1e-9), (
                    mode,
                    (x - y).abs().max(),
                )


# Every network, at every density


@pytest.mark.parametrize("keep", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", ZOO)
def test_the_outputs_are_those_of_the_masked_model(name, keep):
    model, example = zoo(name)
    masks = random_masks(model, keep, seed=1)
    trace, before = Trace(model), tree_map(torch.clone, example)
    small = bb.shrink(model, masks, example)
    trace.check()
    assert all(torch.equal(a, b) for a, b in zip(tensors(call(before)), tensors(call(example)), strict=True))
    modes = (False,) if name == "functional" else (False, True)  # its dropout is not to be switched off
    assert_alike(masked(model, masks), small.module, example, modes)
    assert_alike(masked(model, masks), small.expand(), example, modes)
    assert_fits(small)
    assert survivors(small, model, masks, example)
    if keep == 1.0:
        assert equal(dict(small.module.state_dict()), dict(model.state_dict()))
        assert equal(small.masks, masks)
        assert not small.plan.layers


def assert_fits(small: bb.Shrunk) -> None:
    """The masks are of the weights' shapes, pruned weights are zero, and no hook or gradient is left."""
    named = parameters(small.module)
    assert {n: (m.shape, m.dtype) for n, m in small.masks.items()} == {
        n: (named[n].shape, torch.bool) for n in small.masks
    }
    assert all(not named[n][~m].any() for n, m in small.masks.items())
    assert all(p.grad is None for p in named.values())
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in small.module.modules())


def survivors(small: bb.Shrunk, model: nn.Module, masks: dict[str, Tensor], example: Any) -> bool:
    """Is each kept weight that lies on a path still there? What is marked in the small one shows in the large one."""
    marked = deepcopy(small)
    for p in marked.module.parameters():
        nn.init.constant_(p, 7)
    large = parameters(marked.expand())
    return all(bool((large[name][on_path] == 7).all()) for name, on_path in effective(model, masks, example).items())


@pytest.mark.parametrize("name", ["vgg", "resnet", "mobile", "next", "dense", "flatten", "gate", "separate"])
@pytest.mark.parametrize("keep", [0.15, 0.5])
def test_shrinking_twice_changes_nothing(name, keep):
    model, example = zoo(name, trained=False)
    masks = random_masks(model, keep)
    once = bb.shrink(model, masks, example)
    again = bb.shrink(once.module, once.masks, example)
    assert bb.account(once.module, once.masks, example).effective == bb.account(model, masks, example).effective
    assert {n: p.shape for n, p in again.module.named_parameters()} == {
        n: p.shape for n, p in once.module.named_parameters()
    }
    assert equal(again.masks, once.masks)
    assert not again.plan.layers
    assert_alike(once.module, again.module, example)


@pytest.mark.parametrize(
    "name", ["vgg", "resnet", "mobile", "next", "dense", "flatten", "unet", "gate", "scale", "separate"]
)
@pytest.mark.parametrize("multiple", [3, 4])
def test_widths_are_multiples_or_as_they_were(name, multiple):
    model, example = zoo(name, trained=False)
    masks = random_masks(model, 0.3)
    small = bb.shrink(model, masks, example, multiple_of=multiple)
    assert_alike(masked(model, masks), small.module, example)
    assert_alike(masked(model, masks), small.expand(), example)
    assert_fits(small)
    least = bb.shrink(model, masks, example)
    assert sum(p.numel() for p in least.module.parameters()) <= sum(p.numel() for p in small.module.parameters())
    sums = name in ("dense", "unet", "gate")  # inputs are several layers' outputs, or half of one
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            now, before = widths(small.module, path), widths(model, path)
            assert all(n % multiple == 0 or n == b for n, b in list(zip(now, before, strict=True))[: 1 if sums else 2])


def widths(model: nn.Module, path: str) -> tuple[int, int]:
    """Outputs and inputs; a blank layer has lost one of them."""
    layer: Any = model.get_submodule(path)
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    if isinstance(layer, nn.modules.conv._ConvNd):
        return layer.out_channels, layer.in_channels
    return layer.channels, 0  # it may have lost its outputs as well


# What must go, and what must stay


def everything(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.ones(p.shape, dtype=torch.bool) for name, p in prunable(model).items()}


def mlp(*sizes: int, bias: bool = True) -> nn.Sequential:
    """Linear layers 0, 2, 4, ... with ReLU between."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [[nn.Linear(i, o, bias=bias), nn.ReLU()] for i, o in itertools.pairwise(sizes)]
    return nn.Sequential(*itertools.chain(*layers))[:-1]


def test_a_dead_end_takes_along_what_only_it_reads():
    model = mlp(4, 6, 6, 6, 3)
    masks = everything(model)
    masks["6.weight"][:, 5] = False  # nobody reads this one,
    masks["4.weight"][:5, 4:] = False  # which alone reads these two,
    masks["2.weight"][:4, 0] = False  # which alone read this one
    small = bb.shrink(model, masks, torch.randn(2, 4))
    assert [widths(small.module, str(i)) for i in (0, 2, 4, 6)] == [(5, 4), (4, 5), (5, 4), (3, 5)]
    assert_alike(masked(model, masks), small.module, torch.randn(5, 4))
    assert small.plan.weights == (sum(int(m.sum()) for m in masks.values()), 20 + 20 + 20 + 15)
    assert [layer.name for layer in small.plan.layers] == ["0", "2", "4", "6"]
    assert small.plan.layers[1].inputs == (6, 5)
    assert small.plan.layers[1].outputs == (6, 4)


def test_what_nobody_writes_goes_where_it_is_zero_and_takes_along_what_only_reads_it():
    model = mlp(4, 6, 6, 3, bias=False)
    masks = everything(model)
    masks["0.weight"][:2] = False
    masks["2.weight"][0, 2:] = False
    small = bb.shrink(model, masks, torch.randn(2, 4))
    assert [widths(small.module, str(i)) for i in (0, 2, 4)] == [(4, 4), (5, 4), (3, 5)]
    assert_alike(masked(model, masks), small.module, torch.randn(5, 4))


class Block(nn.Sequential):
    """Convolution, batch-norm, activation and a reader, of which channel 0 has no writer."""

    def __init__(
        self, kernel: int = 1, padding: Any = 0, bias: bool = True, shift: float = 0.7, mean: float = 0.0
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            reader = nn.Conv2d(4, 5, kernel, padding=padding, bias=bias)
            super().__init__(
                nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), reader, nn.ReLU(), nn.Conv2d(5, 3, 1)
            )
        nn.init.constant_(self[1].bias, shift)
        self[1].running_mean.fill_(mean)
        self.masks = everything(self)
        self.masks["0.weight"][0] = False


PIXELS = torch.randn(4, 2, 8, 8, generator=seeded())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("options", "width"),
    [
        (dict(kernel=1), 3),
        (dict(kernel=3), 3),  # without padding it is the same at every place
        (dict(kernel=3, padding="valid"), 3),
        (dict(kernel=3, padding=1), 4),
        (dict(kernel=3, padding="same"), 4),
        (dict(kernel=3, padding=1, shift=-0.7), 3),  # the activation makes it zero
        (dict(kernel=3, padding=1, shift=0.0), 3),
        (dict(kernel=1, mean=0.3), 4),  # in eval mode it is another constant than in train mode
        (dict(kernel=1, mean=5.0, shift=0.3), 4),
        (dict(kernel=3, padding=1, mean=5.0, shift=-0.3), 3),  # not behind the activation
    ],
)  # fmt: skip
def test_a_constant_goes_where_that_is_exact(options, width, bias):
    model = Block(bias=bias, **options)
    small = bb.shrink(model, model.masks, PIXELS)
    assert [widths(small.module, str(i)) for i in (0, 3, 5)] == [(width, 2), (5, width), (3, 5)]
    assert_alike(masked(model, model.masks), small.module, PIXELS)
    fold = width == 3 and options.get("shift", 0.7) > 0
    assert small.plan.folded == ({"3": 1} if fold else {})
    assert ("folded" in str(small.plan)) == fold
    assert small.module[3].bias is None or small.module[3].bias.requires_grad == bias
    fit(small.module, small.masks, PIXELS)
    assert_alike(small.module, small.expand(), PIXELS)
    model.load_state_dict(small.expand().state_dict())


def test_before_training_shifts_of_channels_without_input_are_pruned_and_it_says_so():
    model = Block(kernel=3, padding=1)
    small = bb.shrink(model, model.masks, PIXELS, before_training=True)
    assert [widths(small.module, str(i)) for i in (0, 3)] == [(3, 2), (5, 3)]
    assert small.plan.shifts == {"1": 1}
    assert "count as pruned" in str(small.plan)
    unshifted = masked(model, model.masks)
    with torch.no_grad():
        unshifted[1].bias[0] = 0
    assert_alike(unshifted, small.module, PIXELS)
    assert_alike(unshifted, small.expand(), PIXELS)
    assert bb.shrink(model, model.masks, PIXELS).plan.shifts == {}


class Stream(nn.Module):
    """Two residual blocks on a stream of four channels."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.stem, self.norm = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
            self.a, self.b = (nn.Sequential(*conv(4, 3), nn.Conv2d(3, 4, 1, bias=bias)) for _ in range(2))
            self.head = nn.Linear(4, 3)
        self.masks = everything(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        x = torch.relu(x + self.a(x))
        return self.head(torch.relu(x + self.b(x)).mean((2, 3)))


def fit(
    module: nn.Module, masks: dict[str, Tensor], x: Any, steps: int = 4, decay: float = 0.01, lr: float = 0.1
) -> list[float]:
    """Some steps of held SGD on random classes; the losses."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    if not trainable:
        return []
    optimizer = torch.optim.SGD(trainable, lr=lr, momentum=0.9, weight_decay=decay)
    hold = bb.hold(module, masks, optimizer) if masks else None
    module.train()
    losses = []
    for _ in range(steps):
        args, kwargs = tree_map(torch.clone, call(x))
        out = next(t for t in tensors(module(*args, **kwargs)) if t.is_floating_point()).flatten(1)
        loss = F.cross_entropy(out, torch.arange(len(out)) % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if hold is not None:
        hold.remove()
    return losses


def test_a_channel_that_one_block_alone_writes_stays_and_what_read_it_before_goes():
    model = Stream()
    model.masks["stem.weight"][0] = model.masks["a.3.weight"][0] = False  # the second block alone writes channel 0,
    model.masks["a.0.weight"][0, 1:] = False  # and this one reads nothing else
    small = bb.shrink(model, model.masks, PIXELS)
    assert widths(small.module, "stem") == (4, 2)
    assert widths(small.module, "a.0") == (2, 4)
    assert widths(small.module, "a.3") == (4, 2)
    assert_alike(masked(model, model.masks), small.module, PIXELS)
    fit(small.module, small.masks, PIXELS)
    assert small.module.norm.bias[0] != 0  # channel 0 is no longer zero where the one that is gone read it
    assert_alike(small.module, small.expand(), PIXELS)


@pytest.mark.parametrize("bias", [True, False])
def test_a_constant_made_of_a_constant_that_stays_goes_where_a_bias_takes_it_over(bias):
    """Training moves what stays, so `expand` could not make the constant from it."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        Beside(nn.Conv2d(4, 3, 1), nn.Conv2d(4, 3, 3, padding=1)), nn.Conv2d(6, 3, 1, bias=bias),
    )  # fmt: skip
    nn.init.constant_(model[1].bias, 0.7)
    masks = everything(model)
    masks["0.weight"][0] = False
    masks["3.branches.0.weight"][0, 1:] = False  # made of channel 0 alone, which stays for the other branch
    small = bb.shrink(model, masks, PIXELS)
    assert widths(small.module, "0") == (4, 2)
    assert widths(small.module, "3.branches.0") == (2 if bias else 3, 4)
    assert_alike(masked(model, masks), small.module, PIXELS)
    fit(small.module, small.masks, PIXELS)
    assert small.module[1].bias[0] != 0.7
    assert_alike(small.module, small.expand(), PIXELS)


@pytest.mark.parametrize("bias", [True, False])
def test_a_constant_behind_a_parameter_of_all_channels_goes_back_as_well(bias):
    """Training moves the slope, and the constant that it was made with."""
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.PReLU(), nn.Conv2d(4, 5, 1, bias=bias), nn.ReLU(), nn.Conv2d(5, 3, 1))
    nn.init.constant_(model[0].bias, -0.7)
    masks = everything(model)
    masks["0.weight"][0] = False
    small = bb.shrink(model, masks, PIXELS)
    assert widths(small.module, "0")[0] == (3 if bias else 4)
    fit(small.module, small.masks, PIXELS)
    assert small.module[1].weight != 0.25
    assert_alike(small.module, small.expand(), PIXELS)


def test_a_stream_channel_that_only_feeds_itself_goes():
    model = Stream()
    model.masks["head.weight"][:, 0] = False
    model.masks["b.0.weight"][:, 0] = False
    model.masks["a.0.weight"][1:, 0] = False  # a ring: the stream's channel 0 is read by this one,
    model.masks["a.3.weight"][1:, 0] = False  # which writes nothing but channel 0
    small = bb.shrink(model, model.masks, PIXELS)
    assert [widths(small.module, n) for n in ("stem", "a.0", "a.3", "head")] == [(3, 2), (2, 3), (3, 2), (3, 3)]
    assert_alike(masked(model, model.masks), small.module, PIXELS)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("end", ["a.0.weight", "a.3.weight"])
def test_a_dead_residual_branch_goes_whole(end, bias):
    model = Stream(bias)
    model.masks[end][:] = False
    small = bb.shrink(model, model.masks, PIXELS)
    left = [name for name, _ in small.module.named_parameters() if name.startswith("a.")]
    assert left == (["a.3.bias"] if bias else [])
    assert "Whole layers removed: a.0, a.1, a.3." in str(small.plan)
    assert not {name for name in small.masks if name.startswith("a.")}
    assert_alike(masked(model, model.masks), small.module, PIXELS)
    fit(small.module, small.masks, PIXELS)
    assert_alike(small.module, small.expand(), PIXELS)


@pytest.mark.parametrize("head", [0, 1, 2])
def test_a_dead_head_of_attention_goes_whole(head):
    model = Separate()
    masks = everything(model)
    masks["out.weight"][:, 2 * head : 2 * head + 2] = False
    small = bb.shrink(model, masks, x := torch.randn(2, 5, 6))
    assert [widths(small.module, n) for n in ("q", "k", "v", "out")] == [(4, 6)] * 3 + [(6, 4)]
    assert_alike(masked(model, masks), small.module, x)
    assert_alike(masked(model, masks), small.expand(), x)


@pytest.mark.parametrize("side", ["unread", "unwritten"])
@pytest.mark.parametrize("name", ["fused", "sdpa"])
def test_a_dead_head_of_a_fused_projection_goes_whole(name, side):
    model, x = zoo(name)
    masks = everything(model)
    if side == "unread":
        masks["out.weight"][:, 4:8] = False
    else:
        masks["project.0.weight"].view(3, 3, 4, 6)[:, 1] = False  # its values are constants, and folded
    small = bb.shrink(model, masks, x)
    assert [widths(small.module, n) for n in ("project.0", "out")] == [(24, 6), (6, 8)]
    assert_alike(masked(model, masks), small.module, x)
    assert_alike(masked(model, masks), small.expand(), x)


def test_neurons_of_transformers_go():
    model = nn.TransformerEncoderLayer(6, 2, 10, dropout=0.0, batch_first=True)
    masks = everything(model)
    masks["linear1.weight"][:3] = False
    masks["linear2.weight"][:, 8:] = False
    small = bb.shrink(model, masks, x := torch.randn(2, 5, 6))
    assert [widths(small.module, n) for n in ("linear1", "linear2")] == [(5, 6), (6, 5)]  # three of them are folded
    assert_alike(masked(model, masks), small.module, x)


def test_a_depthwise_chain_shrinks_as_one():
    model = nn.Sequential(*conv(2, 6), *conv(6, 6, groups=6), nn.Conv2d(6, 3, 1))
    masks = everything(model)
    masks["0.weight"][0] = masks["3.weight"][1] = masks["6.weight"][:, 2] = False
    small = bb.shrink(model, masks, PIXELS)
    assert [widths(small.module, str(i)) for i in (0, 3, 6)] == [(3, 2), (3, 3), (3, 3)]
    assert small.module[3].groups == 3
    assert_alike(masked(model, masks), small.module, PIXELS)


def test_groups_stay_equally_wide_and_empty_ones_go():
    model = nn.Sequential(
        nn.Conv2d(2, 9, 3, bias=False),
        nn.ReLU(),
        nn.Conv2d(9, 9, 3, groups=3, bias=False),
        nn.ReLU(),
        nn.Conv2d(9, 3, 1),
    )
    masks = everything(model)
    masks["4.weight"][:, :3] = False  # nobody reads the first group
    masks["0.weight"][[3, 6, 7]] = False  # of the others, one and two inputs are silent
    small = bb.shrink(model, masks, PIXELS)
    assert [widths(small.module, str(i)) for i in (0, 2, 4)] == [(4, 2), (6, 4), (3, 6)]
    assert small.module[2].groups == 2
    assert_alike(masked(model, masks), small.module, PIXELS)


@pytest.mark.parametrize("name", ["group", "layer"])
def test_what_a_norm_over_channels_sees_stays(name):
    model, example = zoo(name)
    masks = everything(model)
    masks["0.weight"][:2] = False
    next(m for n, m in masks.items() if n != "0.weight")[:, 2:4] = False
    small = bb.shrink(model, masks, example)
    assert widths(small.module, "0")[0] == 6
    assert_alike(masked(model, masks), small.module, example)


def test_outputs_and_what_the_input_is_added_to_keep_their_channels():
    model, example = zoo("around")
    masks = everything(model)
    masks["out.weight"][0] = masks["second.weight"][1] = masks["out.weight"][:, 2] = False
    small = bb.shrink(model, masks, example)
    assert [widths(small.module, n) for n in ("first", "second", "out")] == [(8, 6), (6, 8), (3, 6)]
    model, example = zoo("many")
    masks = everything(model)
    masks["c.weight"][0] = masks["d.weight"][:, 1] = False
    assert widths(bb.shrink(model, masks, example).module, "c") == (6, 6)


# The least, by plain rules


def least(reads: list[list[list[int]]], stream: int) -> tuple[int, list[int]]:
    """The widths of stream and hidden layers of a residual network without biases, by following each channel.

    `reads` are 0/1 matrices, as lists: stem, then in and out of each block, then head.
    """
    stem, *middle, head = reads
    blocks = list(zip(middle[::2], middle[1::2], strict=True))
    alive = [any(row) for row in stem]
    arrives, hidden = [], []  # what the stream carries before each block, and what is behind its first layer
    for first, second in blocks:
        arrives.append(list(alive))
        hidden.append([any(r and a for r, a in zip(row, alive, strict=True)) for row in first])
        alive = [
            a or any(r and h for r, h in zip(row, hidden[-1], strict=True))
            for a, row in zip(alive, second, strict=True)
        ]
    needed = [alive[c] and any(row[c] for row in head) for c in range(stream)]
    inner = [[False] * len(h) for h in hidden]
    changed = True
    while changed:
        before = (list(needed), [list(i) for i in inner])
        for b, (first, second) in enumerate(blocks):
            for j in range(len(hidden[b])):
                inner[b][j] |= hidden[b][j] and any(needed[c] and second[c][j] for c in range(stream))
                for c in range(stream):
                    needed[c] |= inner[b][j] and arrives[b][c] and bool(first[j][c])
        changed = before != (needed, inner)
    return sum(needed), [sum(i) for i in inner]


class Additive(nn.Module):
    def __init__(self, stream: int, hidden: list[int], seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.stem, self.head = nn.Linear(3, stream, bias=False), nn.Linear(stream, 3, bias=False)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(stream, h, bias=False), nn.ReLU(), nn.Linear(h, stream, bias=False))
                for h in hidden
            )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@settings(max_examples=25, phases=PHASES)
@given(
    st.integers(1, 5),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from([0.15, 0.3, 0.5]),
    st.integers(0, 10**6),
)
def test_a_residual_network_shrinks_to_the_least(stream, hidden, keep, seed):
    model = Additive(stream, hidden, seed)
    generator = seeded(seed)
    names = ["stem.weight", *(f"blocks.{b}.{i}.weight" for b in range(len(hidden)) for i in (0, 2)), "head.weight"]
    masks = {n: torch.rand(parameters(model)[n].shape, generator=generator) < keep for n in names}
    x = torch.randn(4, 3, generator=generator)
    small = bb.shrink(model, masks, x)
    wide, inner = least([masks[n].int().tolist() for n in names], stream)
    assert_alike(masked(model, masks), small.module, x)
    assert widths(small.module, "stem")[0] == wide
    assert [widths(small.module, f"blocks.{b}.0")[0] for b in range(len(hidden))] == inner
    fit(small.module, small.masks, x, decay=0.1)
    assert_alike(small.module, small.expand(), x)


@settings(max_examples=20, phases=PHASES)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.sampled_from([0.2, 0.4, 0.7]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_a_chain_keeps_the_rows_and_columns_on_paths(sizes, keep, convolutions, seed):
    generator = seeded(seed)
    model: nn.Sequential = mlp(3, *sizes, 2, bias=False)
    x = torch.randn(4, 3, generator=generator)
    if convolutions:
        model = nn.Sequential(
            *(
                nn.Conv2d(m.in_features, m.out_features, 3, padding=1, bias=False) if isinstance(m, nn.Linear) else m
                for m in model
            )
        )
        x = torch.randn(4, 3, 4, 4, generator=generator)
    masks = {n: torch.rand(p.shape, generator=generator) < keep for n, p in parameters(model).items()}
    small = bb.shrink(model, masks, x)
    assert_alike(masked(model, masks), small.module, x)
    paths = effective(model, masks, x)
    for layer, after in itertools.pairwise(range(0, len(model), 2)):
        rows = int(paths[f"{layer}.weight"].flatten(1).any(1).sum())
        assert widths(small.module, str(layer))[0] == rows
        assert widths(small.module, str(after))[1] == rows


# It trains, and goes back


@settings(max_examples=16, phases=PHASES)
@given(
    st.sampled_from([name for name in ZOO if name not in ("functional", "encoder", "dropout", "lstm")]),
    st.sampled_from([0.2, 0.4, 0.6]),
    st.sampled_from([1, 4]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_trained_weights_go_back_into_the_original(name, keep, multiple, before_training, seed):
    model, example = zoo(name, seed, trained=False)
    masks = random_masks(model, keep, seed)
    small = bb.shrink(model, masks, example, multiple_of=multiple, before_training=before_training)
    fit(small.module, small.masks, example, decay=0.05)
    large = small.expand()
    assert_alike(small.module, large, example)
    assert all(not parameters(large)[n][~mask].any() for n, mask in masks.items())
    fresh_one, _ = zoo(name, seed + 1)
    fresh_one.load_state_dict(large.state_dict())
    assert_alike(small.module, fresh_one, example)
    assert type(large) is type(model)
    assert {n: p.dtype for n, p in large.named_parameters()} == {n: p.dtype for n, p in model.named_parameters()}


@pytest.mark.parametrize("kind", ["mlp", "conv", "residual"])
def test_without_constants_it_trains_as_the_masked_one_does(kind):
    x = torch.randn(8, 3, generator=seeded())
    if kind == "mlp":
        model: nn.Module = mlp(3, 10, 10, 3, bias=False)
    elif kind == "conv":
        model, x = (
            nn.Sequential(
                nn.Conv2d(2, 8, 3, bias=False),
                nn.ReLU(),
                nn.Conv2d(8, 8, 3, padding=1, bias=False),
                nn.ReLU(),
                nn.Conv2d(8, 3, 6),
            ),
            PIXELS,
        )
    else:
        model = Additive(6, [5, 5], 0)
    masks = random_masks(model, 0.5, seed=3)
    small = bb.shrink(model, masks, x)
    assert small.plan.parameters[1] < small.plan.parameters[0]
    again = masked(model, masks)
    assert fit(small.module, small.masks, x, steps=8) == pytest.approx(fit(again, masks, x, steps=8), rel=1e-4)
    assert_alike(again, small.expand(), x, close=1e-4)


def test_the_precision_the_format_the_modes_and_the_frozen_are_as_they_were():
    model = nn.Sequential(*conv(2, 6), *conv(6, 6), nn.Conv2d(6, 3, 1)).to(memory_format=torch.channels_last)
    model[3].weight.requires_grad_(False)
    model[4].eval()
    masks = everything(model)
    masks["0.weight"][:2] = masks["6.weight"][:, 3:] = False
    for dtype in (torch.float, torch.half, torch.bfloat16, torch.double):
        model.to(dtype)
        x = PIXELS.to(dtype, memory_format=torch.channels_last)
        trace = Trace(model)
        small = bb.shrink(model, masks, x)
        trace.check()
        assert [widths(small.module, str(i)) for i in (0, 3, 6)] == [(4, 2), (3, 4), (3, 3)]
        for one in (small.module, small.expand()):
            assert [m.training for m in one.modules()] == [m.training for m in model.modules()]
            assert {n: p.requires_grad for n, p in one.named_parameters()} == {
                n: p.requires_grad for n, p in model.named_parameters()
            }
            assert {b.dtype for b in one.state_dict().values()} == {dtype, torch.long}
            assert one[3].weight.is_contiguous(memory_format=torch.channels_last)
            assert not one[3].weight.is_contiguous()
        assert_alike(masked(model, masks), small.module, PIXELS)
    mixed = model.float()
    mixed[6].double()
    mixed[5] = Cast()
    small = bb.shrink(mixed, masks, PIXELS)
    assert small.module[6].weight.dtype == torch.double
    assert widths(small.module, "3") == (3, 4)


class Cast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x).double()


def test_weights_without_masks_are_kept_and_biases_may_have_one():
    model = mlp(4, 6, 3)
    small = bb.shrink(model, {}, torch.randn(2, 4))
    assert equal(dict(small.module.state_dict()), dict(model.state_dict()))
    masks = {"0.weight": torch.arange(24).view(6, 4) >= 8, "0.bias": torch.arange(6) != 1}
    small = bb.shrink(model, masks, torch.randn(2, 4))
    assert_alike(masked(model, masks), small.module, torch.randn(3, 4))
    assert_fits(small)
    nn.init.constant_(model[0].bias, 0.5)
    masks = {"0.weight": torch.arange(24).view(6, 4) >= 8, "2.bias": torch.arange(3) != 1}
    small = bb.shrink(model, masks, torch.randn(2, 4))  # a pruned bias takes nothing over
    assert widths(small.module, "0") == (6, 4)
    assert_alike(masked(model, masks), small.module, torch.randn(3, 4))
    assert_fits(small)


@pytest.mark.parametrize("name", ["vgg", "around"])
def test_under_other_switches_it_is_the_same(name):
    model, example = zoo(name, trained=False)
    masks = random_masks(model, 0.7)
    small = bb.shrink(model, masks, example)
    assert not small.plan.left
    with torch.no_grad():
        without = bb.shrink(model, masks, example)
    with torch.inference_mode():
        inference = bb.shrink(model, masks, example)
    torch.set_default_dtype(torch.double)
    try:
        other = bb.shrink(model, masks, example)
    finally:
        torch.set_default_dtype(torch.float)
    for one in (without, inference, other):
        assert one.plan == small.plan
        assert equal(dict(one.module.state_dict()), dict(small.module.state_dict()))
    fit(without.module, without.masks, example)


def test_it_is_a_plain_module_that_can_be_copied_and_stored():
    model = Stream()
    model.masks["a.0.weight"][:] = False
    small = bb.shrink(model, model.masks, PIXELS)
    stored = io.BytesIO()
    torch.save(small.module.state_dict(), stored)
    stored.seek(0)
    other = deepcopy(small.module)
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    other.load_state_dict(torch.load(stored, weights_only=True))
    assert_alike(small.module, other, PIXELS)
    assert_alike(small.module, deepcopy(small.module), PIXELS)
    assert deepcopy(small).plan == small.plan
    json.dumps(small.plan.to_dict())
    assert all(len(line) <= 100 for line in str(small.plan).splitlines())


class Unteachable(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise ValueError("no targets")
        return super().forward(x)


def test_models_that_run_in_eval_mode_alone_and_batches_of_one():
    model = Unteachable(*mlp(4, 6, 3)).train()
    masks = {"0.weight": torch.arange(24).view(6, 4) >= 8}
    small = bb.shrink(model, masks, torch.randn(2, 4))
    assert widths(small.module, "0") == (4, 4)
    assert small.module.training
    assert_alike(masked(model, masks), small.module, torch.randn(3, 4), modes=(False,))
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    small = bb.shrink(model, masks, torch.randn(1, 4))
    assert widths(small.module, "0") == (4, 4)
    assert_alike(masked(model, masks), small.module, torch.randn(3, 4))


def test_wrapped_models_are_looked_into():
    model, example = zoo("vgg", trained=False)
    masks = random_masks(model, 0.5)
    plain, wrapped = bb.shrink(model, masks, example), bb.shrink(nn.DataParallel(model), masks, example)
    assert equal(dict(plain.module.state_dict()), dict(wrapped.module.state_dict()))


def test_it_is_silent(capfd):
    model, example = zoo("resnet")
    bb.shrink(model, random_masks(model, 0.5), example)
    assert capfd.readouterr() == ("", "")


# Errors


NOISE = seeded()


class Noisy(nn.Module):
    """Its output is random, by a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))) + torch.rand(3, generator=NOISE)


def refused(
    message: str, model: nn.Module, masks: Any, example: Any, error: type[Exception] = ValueError, **options: Any
) -> None:
    trace = Trace(model)
    with pytest.raises(error, match=message) as caught:
        bb.shrink(model, masks, example, **options)
    assert "\n" not in str(caught.value)
    trace.check()


def test_what_cannot_be_done_is_told_in_a_sentence(monkeypatch):
    model, x = mlp(4, 6, 3), torch.randn(2, 4)
    masks = everything(model)
    refused("masks do not fit", model, {"0.weight": torch.ones(6, 5) > 0}, x)
    refused("no parameter nothing", model, {"nothing": torch.ones(6, 4) > 0}, x)
    refused("not a bool tensor", model, {"0.weight": torch.ones(6, 4)}, x)
    refused("masks is a dict", model, [], x)
    refused("does not run on the example", model, masks, torch.randn(2, 5))
    refused("does not run on the example", model, masks, {"x": x})
    for multiple in (0, -8, 1.5):
        refused("multiple_of must be a whole number", model, masks, x, multiple_of=multiple)
    refused("random", Noisy(), {"first.weight": torch.arange(24).view(6, 4) < 12}, x)
    monkeypatch.setattr(network, "find_spec", lambda name: None)
    refused(r"pip install \"barebones\[shrink\]\"", model, masks, x, error=ModuleNotFoundError)


def test_a_wrong_model_is_never_returned(monkeypatch):
    """Were the coupling wrong, the comparison would tell."""
    model, example = zoo("vgg", trained=False)
    masks = everything(model)
    choose = trials.choose

    def too_many(coupled, reading, pinned, multiple_of, at_least):
        choice = choose(coupled, reading, pinned, multiple_of, at_least)
        return Removal(choice.idle | ~(coupled.fixed | pinned), choice.fillers)

    monkeypatch.setattr(trials, "choose", too_many)
    small = bb.shrink(model, masks, example)
    assert_alike(masked(model, masks), small.module, example)
    assert small.plan.left
    assert "Channels without a signal stay" in str(small.plan)


class Pooling(nn.Module):
    """Two residual branches, the second with a pool in it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.a, self.a2 = nn.Conv2d(8, 6, 1, bias=False), nn.Conv2d(6, 8, 1, bias=False)
        self.b, self.b2 = nn.Conv2d(8, 6, 1, bias=False), nn.Conv2d(6, 8, 1, bias=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + self.a2(F.relu(self.a(x)))
        x = x + self.b2(F.max_pool2d(F.relu(self.b(x)), 3, 1, 1))
        return self.head(x.mean((2, 3)))


def test_a_pool_in_a_dead_branch_keeps_one_channel_of_that_branch_alone():
    model = Pooling()
    masks = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in bb.prunable(model).items()}
    masks["a2.weight"][:] = masks["b2.weight"][:] = False
    small = bb.shrink(model, masks, torch.randn(2, 3, 6, 6))
    assert {layer.name: layer.outputs[1] for layer in small.plan.layers} == {"a": 0, "a2": 8, "b": 1, "b2": 8}
    assert not small.plan.left


class Gated(nn.Module):
    """Half of its units are constants, and something that no gradient passes through decides about them."""

    def __init__(self, gate: Callable[..., Tensor]) -> None:
        super().__init__()
        self.units, self.control, self.head = nn.Linear(5, 8), nn.Linear(5, 8), nn.Linear(8, 3)
        self.gate = gate
        nn.init.constant_(self.units.bias, 2.0)

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        return self.head(self.gate(F.relu(self.units(x)), x, self.control(x), *more))


def zero_where(h: Tensor, off: Tensor) -> Tensor:
    h = h.clone()
    h[off] = 0
    return h


GATES: dict[str, Callable[..., Tensor]] = {
    "comparison": lambda h, x, c: h * (c > 50).to(h.dtype),
    "comparison of the input": lambda h, x, c: h * (x[:, :1] > 50),
    "where": lambda h, x, c: torch.where(c > 50, h, 0.0),
    "masked_fill": lambda h, x, c: h.masked_fill(c < 50, 0.0),
    "masked_fill_": lambda h, x, c: h.clone().masked_fill_(c < 50, 0.0),
    "assignment": lambda h, x, c: zero_where(h, c < 50),
    "argmax": lambda h, x, c: h * F.one_hot(c.argmax(1), 8),
    "a count": lambda h, x, c: h + len((x > -50).nonzero()) / x.numel(),
    "a length": lambda h, x, c: h + x[x > -50].numel() / x.numel(),
    "a search": lambda h, x, c: h + float(0 in (x > -50).long()),
    "a number in Python": lambda h, x, c: h * float(x.detach().abs().max() > 50),
    "a branch in Python": lambda h, x, c: h if bool((x > 50).any()) else h * 0,
}


@pytest.mark.parametrize("gate", GATES)
def test_constants_that_a_comparison_decides_about_stay(gate):
    torch.manual_seed(0)
    model = Gated(GATES[gate])
    masks = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in prunable(model).items()}
    masks["units.weight"][:4] = False
    small = bb.shrink(model, masks, torch.randn(4, 5))
    with torch.no_grad():
        for _, parameter, mask in matched(model, masks):
            parameter.masked_fill_(~mask, 0)
        for inputs in (torch.randn(4, 5), 1000 * torch.randn(4, 5), torch.randn(4, 5) - 100):
            torch.testing.assert_close(small.module(inputs), model(inputs))


def test_masks_among_the_inputs_decide_too():
    model = Gated(lambda h, x, c, keep: (h * keep[..., None]).mean(1))
    masks = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in prunable(model).items()}
    masks["units.weight"][:4] = False
    example = torch.randn(2, 6, 5)
    small = bb.shrink(model, masks, (example, torch.ones(2, 6, dtype=torch.bool)))
    with torch.no_grad():
        model.units.weight[:4] = 0
        keep = torch.rand(2, 6) > 0.5
        torch.testing.assert_close(small.module(example, keep), model(example, keep))


@pytest.mark.parametrize("pool", [lambda h: h.sum((2, 3)), lambda h: F.avg_pool2d(h, 3, 2, 1).mean((2, 3))])
@pytest.mark.parametrize("size", [1, 8])
def test_constants_that_depend_on_the_size_of_the_input_stay(size, pool):
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), Then(pool), nn.Linear(8, 3))
    masks = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in prunable(model).items()}
    masks["0.weight"][:4] = False
    nn.init.constant_(model[0].bias, 1.0)
    small = bb.shrink(model, masks, torch.randn(2, 3, size, size))
    with torch.no_grad():
        model[0].weight[:4] = 0
        for other in (1, 4, 8, 9):
            inputs = torch.randn(2, 3, other, other)
            torch.testing.assert_close(small.module(inputs), model(inputs))


class Then(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_circular_padding_comes_to_an_end():
    circular = nn.Conv1d(6, 4, 3, padding=1, padding_mode="circular")
    model = nn.Sequential(nn.Conv1d(2, 6, 3, padding=1), nn.ReLU(), circular, nn.ReLU(), nn.Conv1d(4, 2, 1))
    masks = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in prunable(model).items()}
    masks["0.weight"][:2] = masks["4.weight"][:, 0] = False
    small = bb.shrink(model, masks, torch.randn(2, 2, 9))
    inputs = torch.randn(3, 2, 9)
    torch.testing.assert_close(small.module(inputs), small.expand()(inputs))


def test_a_layer_with_computed_weights_stays():
    first = nn.utils.parametrizations.weight_norm(nn.Linear(5, 8))
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    masks = {"2.weight": torch.ones(6, 8, dtype=torch.bool), "4.weight": torch.ones(3, 6, dtype=torch.bool)}
    masks["2.weight"][:, :3] = masks["4.weight"][:, :2] = False
    small = bb.shrink(model, masks, torch.randn(2, 5))
    assert small.module[0].weight.shape == (8, 5)
    assert small.module[2].weight.shape == (4, 8)


def test_heads_and_neurons_of_a_hugging_face_network_go():
    transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers are not installed")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, vocab_size=50
    )
    model = transformers.BertModel(config)
    masks = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in prunable(model).items()}
    masks["encoder.layer.0.attention.output.dense.weight"][:, 8:16] = False  # the second head
    masks["encoder.layer.0.output.dense.weight"][:, :20] = False
    small = bb.shrink(model, masks, {"input_ids": torch.randint(50, (2, 7))})
    layer = small.module.encoder.layer[0]
    assert layer.attention.self.query.out_features == layer.attention.self.value.out_features == 24
    assert layer.intermediate.dense.out_features == 44


class Restless(nn.Module):
    """Random in train mode, or not to be run there at all."""

    def __init__(self, refuses: bool) -> None:
        super().__init__()
        self.a, self.b, self.refuses = nn.Linear(4, 6, bias=False), nn.Linear(6, 2), refuses

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.refuses:
            raise RuntimeError("not in train mode")
        x = self.a(x)
        return self.b(x + torch.randn_like(x) if self.training else x)


@pytest.mark.parametrize(("refuses", "why"), [(True, "not in train mode"), (False, "random in train mode")])
def test_what_could_not_be_compared_in_train_mode_is_said(refuses, why):
    model = Restless(refuses)
    masks = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in prunable(model).items()}
    masks["b.weight"][:, :2] = False
    small = bb.shrink(model, masks, torch.randn(2, 4))
    assert small.module.a.out_features == 4
    assert why in small.plan.unchecked
    assert f"Compared in eval mode only: {small.plan.unchecked}." in str(small.plan)
    assert not bb.shrink(nn.Sequential(nn.Linear(4, 2)), {}, torch.randn(2, 4)).plan.unchecked


# The order in memory


LAST = torch.channels_last


def strides(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: p.stride() for name, p in network.named_parameters()}


def laid_out_last(network: nn.Module) -> bool:
    return all(p.is_contiguous(memory_format=LAST) for p in network.parameters() if p.dim() == 4)


def plain(network: nn.Module) -> bool:
    return all(p.is_contiguous() for p in network.parameters())


@pytest.mark.parametrize("name", ["vgg", "resnet", "mobile", "next", "unet", "squeeze"])
def test_weights_are_channels_last_in_memory_unless_told_otherwise(name):
    model, example = zoo(name)
    masks = random_masks(model, 0.5, seed=1)
    small, kept = (bb.shrink(model, masks, example, channels_last=last) for last in (True, False))
    assert small.plan == kept.plan
    assert not small.plan.layout
    assert laid_out_last(small.module)
    assert plain(kept.module)
    assert strides(small.module) != strides(kept.module)
    assert equal(dict(small.module.state_dict()), dict(kept.module.state_dict()))
    assert equal(small.masks, kept.masks)
    assert strides(deepcopy(small.module)) == strides(small.module)
    assert_alike(masked(model, masks), small.module, example)
    with torch.no_grad():
        a, b = (one.module.eval()(example) for one in (small, kept))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("convolution", [nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, groups=4)])
def test_kernels_of_one_channel_or_pixel_compute_channels_last_too(convolution):
    x = torch.randn(2, convolution.in_channels, 6, 6)
    assert not convolution(x).is_contiguous(memory_format=LAST)
    small = bb.shrink(convolution, {}, x).module
    assert laid_out_last(small)
    assert small(x).is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("name", ["conv1d", "conv3d", "gate", "words", "encoder"])
def test_networks_without_images_are_as_they_were(name):
    model, example = zoo(name)
    if name == "conv3d":
        model.to(memory_format=torch.channels_last_3d)
    masks = random_masks(model, 0.5)
    small, kept = (bb.shrink(model, masks, example, channels_last=last) for last in (True, False))
    assert small.plan == kept.plan
    assert not small.plan.layout
    assert strides(small.module) == strides(kept.module)


def mixed(model: nn.Module) -> nn.Module:
    """Every other kernel channels last."""
    for p in [p for p in model.parameters() if p.dim() == 4][::2]:
        p.data = p.data.to(memory_format=LAST)
    return model


LAYOUTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda model: model,
    "last": lambda model: model.to(memory_format=LAST),  # type: ignore[call-overload]
    "mixed": mixed,
}


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["vgg", "mobile", "unet"])
def test_what_goes_back_has_the_order_of_the_original(name, layout, last):
    model, example = zoo(name, trained=False)
    model = LAYOUTS[layout](model)
    small, wanted = bb.shrink(model, random_masks(model, 0.5), example, channels_last=last), last or layout == "last"
    assert laid_out_last(small.module) or not wanted
    assert strides(small.expand()) == strides(model)
    fit(small.module, small.masks, example)
    assert laid_out_last(small.module) or not wanted
    large = small.expand()
    assert strides(large) == strides(model)
    assert_alike(small.module, large, example)


def test_the_shrunk_network_is_held_stored_and_exported_as_any_other(tmp_path):
    model, example = zoo("mobile")
    small, kept = (bb.shrink(model, random_masks(model, 0.5), example, channels_last=last) for last in (True, False))
    before = strides(small.module)
    torch.save(kept.module.state_dict(), stored := io.BytesIO())
    stored.seek(0)
    small.module.load_state_dict(torch.load(stored, weights_only=True))
    assert strides(small.module) == before
    losses = [fit(one.module, one.masks, example) for one in (small, kept)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert all(not parameters(small.module)[n][~mask].any() for n, mask in small.masks.items())
    bb.audit(small.module, small.masks)

    wanted = outputs(small.module.eval(), example)[0].float()
    bb.to_sparse(small.module, small.masks, tmp_path / "small.safetensors")
    other = deepcopy(kept.module).eval()
    bb.load_weights(tmp_path / "small.safetensors", other)
    assert equal(dict(other.state_dict()), dict(small.module.state_dict()))
    bb.to_program(small.module, small.masks, example, tmp_path / "small.pt2")
    with open(tmp_path / "small.pt2", "rb") as file:
        program = torch.export.load(file)
    fast = bb.sparsify_for_cpu(small.module, small.masks, example)
    with torch.no_grad():
        for network_ in (program.module(), fast):
            torch.testing.assert_close(network_(example), wanted, rtol=1e-3, atol=1e-4)


class _Viewing(torch.autograd.Function):
    """Backward, it looks at the gradient as rows."""

    @staticmethod
    def forward(context: Any, h: Tensor) -> Tensor:
        return h * 1

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        return grad.view(len(grad), -1).view(grad.shape)


def insisting(h: Tensor) -> Tensor:
    assert h.is_contiguous(), "not in this order"
    return h


def viewed(h: Tensor) -> Tensor:
    return h.view(len(h), -1).view(h.shape)


class Viewed(nn.Module):
    """A function of images that may need them in one order, between two convolutions."""

    def __init__(self, look: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.look = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 3, 1), look

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.look(self, torch.relu(self.first(x)))).mean((2, 3))


VIEWS: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "everywhere": (lambda net, h: viewed(h), "it does not run with channels last (view size is not compatible"),
    "train": (lambda net, h: viewed(h) if net.training else h, "it does not run with channels last (view size"),
    "random": (
        lambda net, h: viewed(h) + torch.rand_like(h) if net.training else h,
        "it does not run in train mode with channels last (view size",
    ),
    "larger": (lambda net, h: h if h.shape[2] == 6 else viewed(h), "it does not run with channels last (view size"),
    "backward": (lambda net, h: _Viewing.apply(h), "it does not train with channels last (view size"),  # type: ignore[no-untyped-call]
    "insisting": (lambda net, h: insisting(h), "it does not run with channels last (not in this order)"),
    "strides": (lambda net, h: h.as_strided(h.shape, torch.empty(h.shape).stride()), "the outputs differ by"),
}


@pytest.mark.parametrize("how", VIEWS)
def test_a_forward_that_needs_the_order_it_has_keeps_it_and_the_plan_says_why(how):
    look, why = VIEWS[how]
    model = Viewed(look)
    masks = everything(model)
    masks["first.weight"][:2] = masks["second.weight"][:, :2] = False
    trace = Trace(model)
    small, kept = (bb.shrink(model, masks, PIXELS, channels_last=last) for last in (True, False))
    trace.check()
    assert why in small.plan.layout
    assert small.plan.to_dict()["layout"] == small.plan.layout
    sentence = f"The weights keep their order in memory: {small.plan.layout}."
    assert sentence in " ".join(str(small.plan).split())
    assert plain(small.module)
    assert not kept.plan.layout
    assert_alike(masked(model, masks), small.module, PIXELS, modes=(False,) if how == "random" else (False, True))
    assert_fits(small)
    fit(small.module, small.masks, PIXELS)
    assert_alike(small.module, small.expand(), PIXELS, modes=(False,))


def test_a_flattening_view_in_front_of_a_linear_layer_keeps_the_order():
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Conv2d(2, 6, 3), nn.Linear(216, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.first(x)).view(len(x), -1))

    model = Flat()
    masks = everything(model)
    masks["first.weight"][:2] = False
    masks["head.weight"][:, :72] = False
    small = bb.shrink(model, masks, PIXELS)
    assert widths(small.module, "first") == (4, 2)
    assert "view size" in small.plan.layout
    assert plain(small.module)
    assert_alike(masked(model, masks), small.module, PIXELS)
    fit(small.module, small.masks, PIXELS)
    assert strides(small.expand()) == strides(model)


def test_a_network_that_cannot_learn_or_run_in_its_own_precision():
    class Taught(nn.Module):
        """Its gradients cannot be had: what they need is written over."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.sigmoid(self.first(x))
            y = self.second(h)
            return y if not self.training else y + h.mul_(2).mean()

    small = bb.shrink(Taught(), {}, PIXELS)
    assert not small.plan.layout
    assert laid_out_last(small.module)
    model = nn.Sequential(*conv(2, 6), nn.Conv2d(6, 3, 1)).half()
    small = bb.shrink(model, {}, PIXELS)  # which is float32: only in float64 both are the same
    assert "it does not run in its own precision" in small.plan.layout
    assert plain(small.module)
    frozen = nn.Sequential(*conv(2, 6), nn.Conv2d(6, 3, 1)).requires_grad_(False)
    assert laid_out_last(bb.shrink(frozen, {}, PIXELS).module)


HALF = (torch.arange(8) < 4).view(8, 1, 1, 1).expand(8, 3, 3, 3).clone()


class Numbered(nn.Module):
    """Parameters that are no floats."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 4, 1)
        self.order = nn.Parameter(torch.tensor([3, 1, 0, 2, 9]), requires_grad=False)
        self.waves = nn.Parameter(torch.tensor([3 + 1j, 1, 0, 2]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())[:, self.order[:4]] * self.waves[0].abs()


def test_parameters_that_are_no_floats_keep_their_values():
    model, x = Numbered(), torch.randn(2, 3, 8, 8)
    small = bb.shrink(model, {"first.weight": HALF}, x)
    assert small.module.first.out_channels == 4
    for module in (small.module, small.expand()):
        assert torch.equal(module.order, model.order)
        assert torch.equal(module.waves, model.waves)


class Chancy(nn.Module):
    """In train mode it is random, and has a second head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.head, self.aside = nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Any:
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        y = self.head(x)
        return (y * (torch.rand(len(x), 1) > 0.2), self.aside(x)) if self.training else y


def test_a_network_that_is_random_in_train_mode_still_runs_in_it():
    x = torch.randn(2, 3, 8, 8)
    small = bb.shrink(Chancy(), {"conv.weight": HALF}, x)
    assert [t.shape for t in small.module.train()(x)] == [(2, 2), (2, 2)]


def test_layers_beside_a_spectral_norm_shrink():
    normed = nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 3))
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), normed, nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 1))
    model = nn.Sequential(*layers).eval()
    kept = HALF[:, :1].expand(8, 8, 3, 3).clone()
    small = bb.shrink(model, {"4.weight": kept}, torch.randn(2, 3, 9, 9), before_training=True)
    assert small.module[4].out_channels == 4


def test_backward_hooks_do_not_hold_channels_back():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.Sequential(nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Conv2d(8, 2, 1),
    )
    masks, x = {"0.weight": HALF}, torch.randn(2, 3, 8, 8)
    bare = bb.shrink(model, masks, x).plan.parameters
    hook = model[1].register_full_backward_hook(lambda *_: None)
    assert bb.shrink(model, masks, x).plan.parameters == bare
    assert len(model[1]._backward_hooks) == 1
    hook.remove()


def test_models_and_examples_without_values_are_refused():
    model, mask = nn.Sequential(nn.Conv2d(3, 8, 3)), {"0.weight": HALF}
    with pytest.raises(ValueError, match="without elements"):
        bb.shrink(model, mask, torch.randn(0, 3, 8, 8))
    with pytest.raises(ValueError, match="meta device"):
        bb.shrink(model.to("meta"), mask, torch.randn(2, 3, 8, 8))
