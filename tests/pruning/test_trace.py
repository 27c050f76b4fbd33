"""Pruning leaves no trace: over a zoo of models, between rounds, and wherever an exception strikes."""

import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy
import pytest
import references
import torch
import torch.multiprocessing
import torch.nn.functional as F
from references import Pooled, Trace, assert_top, equal, pairs, tiny, weights_of
from torch import Tensor, nn

from barebones import METHODS, Method, Probe, prune, rounds
from barebones.masks import kept, size

FORCE = replace(METHODS["force"], rounds=3)
BATCHES = pairs(3)
CLASSES = torch.tensor([0, 1, 2, 0])
Entry = tuple[nn.Module, list[Any], dict[str, Any]]


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(4, *shape, generator=generator).to(dtype), CLASSES) for _ in range(2)]


class Attending(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True, **options), nn.Linear(8, 3)
        self.odd = bool(options)

    def forward(self, x: Tensor) -> Tensor:
        other = x[..., :6] if self.odd else x
        return self.head(self.attention(x, other, other)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Language(nn.Module):
    """Its embedding is its output layer, and it computes its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle = nn.Embedding(7, 6), nn.Linear(6, 6)
        self.out = nn.Linear(6, 7, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.out(torch.tanh(self.middle(self.embedding(tokens))))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Summed(nn.Module):
    """Autograd hands out one and the same gradient tensor for both weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(F.linear(x, self.a.weight + self.b.weight)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


class Counting(nn.Module):
    """Keeps state in buffers in all the ways that modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("ages", torch.zeros(2))
        self.register_buffer("hidden", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.ages = self.ages + 1
        self.hidden.add_(1.0)
        return self.head(x)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def zoo() -> dict[str, Callable[[], Entry]]:
    def frozen() -> Entry:
        model = mlp()
        model[0].weight.requires_grad_(False)
        model[2].bias.requires_grad_(False)
        return model, inputs(4), {}

    def channels_last() -> Entry:
        return tiny().float().to(memory_format=torch.channels_last), pairs(2, dtype=torch.float32), {}

    def all_frozen() -> Entry:
        return mlp().requires_grad_(False), inputs(4), {}

    def transformer() -> Entry:
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
        return nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)), inputs(3, 8), {}

    def language() -> Entry:
        tokens = torch.arange(12).view(3, 4) % 7
        batches = [{"tokens": tokens, "labels": tokens.roll(1)}, {"tokens": tokens.flip(0), "labels": tokens}]
        return Language(), batches, dict(objective=lambda m, b: m(**b)["loss"])

    def tuples() -> Entry:
        model = nn.Sequential(nn.Linear(4, 6), Splitting())
        return model, inputs(4), dict(loss=lambda output, y: F.cross_entropy(output[0] + output[1][0], y))

    def sub_modules(wrap: Callable[[nn.Module], nn.Module]) -> Entry:
        return nn.Sequential(wrap(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 3)), inputs(4), {}

    def compiled_in_place() -> Entry:
        model = mlp()
        model.compile(backend="eager")
        return model, inputs(4), {}

    return {
        "batch-norm": lambda: (tiny(dtype=torch.float32), pairs(2, dtype=torch.float32), {}),
        "float64": lambda: (tiny(), BATCHES, {}),
        "bfloat16": lambda: (mlp().bfloat16(), inputs(4, dtype=torch.bfloat16), {}),
        "channels last": channels_last,
        "frozen": frozen,
        "all frozen": all_frozen,
        "tied": lambda: (Tied(), inputs(4), {}),
        "summed": lambda: (Summed(), inputs(4), {}),
        "grouped": lambda: (Pooled(nn.Conv2d(4, 6, 3, groups=2), 6), inputs(4, 5, 5), {}),
        "depthwise": lambda: (Pooled(nn.Conv2d(4, 4, 3, groups=4), 4), inputs(4, 5, 5), {}),
        "1-d": lambda: (Pooled(nn.Conv1d(2, 4, 3), 4), inputs(2, 6), {}),
        "3-d": lambda: (Pooled(nn.Conv3d(1, 3, 2), 3), inputs(1, 3, 3, 3), {}),
        "transposed": lambda: (Pooled(nn.ConvTranspose2d(2, 4, 3), 4), inputs(2, 3, 3), {}),
        "attention": lambda: (Attending(), inputs(3, 8), {}),
        "attention of several sizes": lambda: (Attending(kdim=6, vdim=6), inputs(3, 8), {}),
        "transformer": transformer,
        "dropout": lambda: (nn.Sequential(nn.Linear(4, 9), nn.Dropout(0.5), nn.Linear(9, 3)), inputs(4), {}),
        "recurrent": lambda: (Recurrent(), inputs(4, 5), {}),
        "language": language,
        "tuples": tuples,
        "counting": lambda: (Counting(), inputs(4), {}),
        "compiled": lambda: (torch.compile(mlp(), backend="eager"), inputs(4), {}),
        "compiled ahead": lambda: (torch.compile(mlp(), backend="aot_eager"), inputs(4), {}),
        "compiled in place": compiled_in_place,
        "compiled inside": lambda: sub_modules(lambda m: torch.compile(m, backend="eager")),
        "data parallel": lambda: (nn.DataParallel(mlp()), inputs(4), {}),
        "data parallel inside": lambda: sub_modules(nn.DataParallel),
    }  # fmt: skip


class Splitting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        return self.a(x), [self.b(x)]


def built(name: str) -> Entry:
    torch.manual_seed(0)
    return zoo()[name]()


NEEDS_FLOATS = ("language",)


@pytest.mark.parametrize("name", zoo())
class TestZoo:
    @pytest.mark.parametrize("method", ["force", "grasp-mb", "grasp-taylor", "synflow", "snip-mb"])
    def test_no_trace_and_exact_counts(self, name, method):
        model, batches, options = built(name)
        if method == "synflow":
            if name in NEEDS_FLOATS:
                pytest.skip("synflow needs an input of ones")
            options["example"] = batches[0][0]
        for number, parameter in enumerate(model.parameters()):
            if number % 2:
                parameter.grad = torch.ones_like(parameter)
        trace = Trace(model)
        row = METHODS[method]
        few = dict(rounds=min(row.rounds, 3), batches_per_round=min(row.batches, 2), on_collapse="ignore")
        result = prune(model, batches, 0.7, method, **few, **options, on_round=lambda _: trace.check())
        trace.check()
        assert kept(result.masks) == result.rounds[-1].keep == round(0.3 * size(result.masks))
        assert not any("module." in n or "_orig_mod" in n for n in result.masks)

    def test_the_same_twice_and_under_no_grad(self, name):
        model, batches, options = built(name)
        first = prune(model, batches, 0.7, "force", rounds=2, on_collapse="ignore", **options)
        with torch.no_grad():
            second = prune(model, batches, 0.7, "force", rounds=2, on_collapse="ignore", **options)
        assert equal(first.masks, second.masks)


@pytest.mark.parametrize("name", ["compiled", "compiled ahead", "compiled in place", "data parallel"])
def test_wrapped_models_get_the_masks_of_bare_ones(name):
    wrapped, batches, _ = built(name)
    torch.manual_seed(0)
    bare = mlp()
    for method in ("force", "grasp"):
        found, expected = (prune(m, batches, 0.5, method, on_collapse="ignore").masks for m in (wrapped, bare))
        assert equal(found, expected)


def test_default_scope_of_the_zoo():
    def names(name: str) -> list[str]:
        return list(Probe(built(name)[0]).parameters)

    assert names("tied") == ["first.weight", "head.weight"]
    assert names("language") == ["middle.weight"]
    assert names("attention") == ["attention.in_proj_weight", "attention.out_proj.weight", "head.weight"]
    assert names("recurrent") == ["head.weight"]
    assert [n.rsplit(".")[-1] for n in names("attention of several sizes")[:3]] == [
        "q_proj_weight",
        "k_proj_weight",
        "v_proj_weight",
    ]


def test_a_shared_gradient_is_not_changed_twice():
    """theta_a * g and theta_b * g, not theta_b * theta_a * g; over several batches too."""
    model = built("summed")[0].double()
    batches = inputs(4, dtype=torch.float64)
    expected = references.snip(model, references.ones(weights_of(model)), batches)
    probe = Probe(model, batches)
    with probe.at(None, 0, 1, 2):
        found = METHODS["snip"].criterion(probe)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])


def test_a_gradient_that_belongs_to_somebody_else_is_not_changed():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, w: Tensor, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return (w * x).sum()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            return ctx.saved_tensors[0], None

    model, batch = nn.Linear(3, 2), torch.arange(6.0).view(2, 3) + 1
    prune(model, [batch], 0.5, "snip", objective=lambda m, b: Product.apply(m.weight, b), on_collapse="ignore")
    assert torch.equal(batch, torch.arange(6.0).view(2, 3) + 1)


def test_a_graph_from_before_can_still_be_used():
    for model in (tiny(), tiny().eval()):
        (x, y), *_ = BATCHES
        value = F.cross_entropy(model(x), y)
        expected = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
        for name in ("force", "grasp"):
            prune(model, BATCHES, 0.8, name, on_collapse="ignore")
        found = torch.autograd.grad(value, list(model.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_buffer_that_is_filled_on_the_way_is_empty_again():
    class Caching(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.register_buffer("cache", None)

        def forward(self, x: Tensor) -> Tensor:
            self.cache = x.detach().mean()
            return super().forward(x)

    model = Caching()
    trace = Trace(model)
    prune(model, inputs(4), 0.5, "snip", on_collapse="ignore")
    trace.check()


class Stop(BaseException):
    """Neither an Exception nor known to anybody."""


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, Stop])
@pytest.mark.parametrize("method", ["force", "grasp-mb"])
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_loss_that_raises(error, method, call):
    calls = 0

    def loss(output: Tensor, target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        torch.rand(3), random.random(), numpy.random.rand()
        if calls == call:
            raise error("now")
        return F.cross_entropy(output, target)

    model = tiny()
    trace = Trace(model)
    with pytest.raises(error, match="now"):
        prune(model, BATCHES, 0.8, method, loss, batches_per_round=2)
    trace.check()


def test_a_model_that_raises_within_its_forward():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(7, 3))
    trace = Trace(model)
    with pytest.raises(RuntimeError):
        prune(model, inputs(4), 0.5)
    trace.check()


@pytest.mark.parametrize("after", [0, 1, 2])
def test_batches_that_raise(after):
    class Source:
        def __iter__(self) -> Iterator[Any]:
            torch.rand(3), random.random(), numpy.random.rand()
            yield from BATCHES[:after]
            raise OSError("the disk is gone")

    model = tiny()
    trace = Trace(model)
    with pytest.raises(OSError, match="the disk"):
        prune(model, Source(), 0.8, FORCE)
    trace.check()
    generator = torch.Generator().manual_seed(1)
    loader = torch.utils.data.DataLoader(Broken(after), batch_size=1, shuffle=False, generator=generator)
    trace = Trace(model, [generator])
    with pytest.raises(OSError, match="the disk"):
        prune(model, loader, 0.8, FORCE, objective=lambda m, b: F.cross_entropy(m(b[0][0]), b[1][0]))
    trace.check()


class Broken(torch.utils.data.Dataset):
    def __init__(self, after: int) -> None:
        self.after = after

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index >= self.after:
            raise OSError("the disk is gone")
        return BATCHES[index % 3]


@pytest.mark.parametrize("at", [0, 1])
def test_a_criterion_that_raises(at):
    def criterion(probe: Probe) -> dict[str, Tensor]:
        scores = probe.gradient()
        torch.rand(3), random.random(), numpy.random.rand()
        if probe.index == at:
            raise LookupError("here")
        return scores

    model = tiny()
    trace = Trace(model)
    with pytest.raises(LookupError, match="here"):
        prune(model, BATCHES, 0.8, Method(criterion, rounds=2))
    trace.check()


def test_a_callback_that_raises_and_a_generator_that_is_left():
    model = tiny()
    trace = Trace(model)

    def stop(step: object) -> None:
        trace.check()
        raise Stop

    with pytest.raises(Stop):
        prune(model, BATCHES, 0.8, FORCE, on_round=stop)
    trace.check()
    steps = rounds(Probe(model, BATCHES), FORCE, 20)
    next(steps), next(steps)
    trace.check()
    steps.close()
    trace.check()


def test_a_callback_cannot_change_the_run():
    expected = prune(tiny(), BATCHES, 0.8, FORCE, on_collapse="ignore").masks

    def vandal(step: Any) -> None:
        if step.index < 2:
            for mask in step.masks.values():
                mask.fill_(False)

    assert equal(prune(tiny(), BATCHES, 0.8, FORCE, on_round=vandal, on_collapse="ignore").masks, expected)


def test_non_finite_scores_leave_no_trace():
    model = tiny()
    trace = Trace(model)
    with pytest.raises(FloatingPointError):
        prune(model, [(x * torch.nan, y) for x, y in BATCHES], 0.8, FORCE)
    trace.check()


SWITCHES = """
import torch
from torch import nn
from barebones import prune

def state():
    backends = torch.backends
    modules = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul)
    return [module.fp32_precision for module in modules]

{}
before = state()
prune(nn.Linear(4, 3), [(torch.ones(2, 4), torch.tensor([0, 1]))], 0.5, "snip", on_collapse="ignore")
assert state() == before, (before, state())
{}
"""


@pytest.mark.parametrize(
    ("set_up", "then"),
    [
        ("", "assert torch.get_float32_matmul_precision() == 'highest'"),
        ("torch.set_float32_matmul_precision('high')", "assert torch.get_float32_matmul_precision() == 'high'"),
        ("torch.set_float32_matmul_precision('medium')", "assert torch.get_float32_matmul_precision() == 'medium'"),
        ("torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = 'tf32'", ""),
        ("torch.backends.fp32_precision = 'tf32'", ""),
    ],
    ids=["nothing", "high", "medium", "new switches", "new switch of all"],
)
def test_torchs_switches_of_precision_stay(set_up, then):
    """In a process of its own: torch refuses its older switches once the newer ones were used."""
    done = subprocess.run([sys.executable, "-c", SWITCHES.format(set_up, then)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_caller_within_autocast_gets_the_same_masks():
    """Autocast keeps rounded weights until the outermost one ends: those of the first masks."""
    model, plan = tiny(dtype=torch.float32), replace(METHODS["force"], rounds=5)
    data = [(x.float(), y) for x, y in BATCHES]
    outside = prune(model, data, 0.8, plan, precision="bf16", on_collapse="ignore")
    with torch.autocast("cpu", torch.bfloat16):
        inside = prune(model, data, 0.8, plan, precision="bf16", on_collapse="ignore")
    assert [r.loss for r in inside.rounds] == [r.loss for r in outside.rounds]
    assert equal(inside.masks, outside.masks)


def test_pruning_on_the_cpu_does_not_seed_other_devices(monkeypatch):
    """`torch.manual_seed` seeds every GPU, and what is seeded there nobody puts back."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    prune(mlp(), inputs(4), 0.5, "snip", on_collapse="ignore")
    assert seeded == []


def test_weights_changed_between_rounds_are_noticed():
    for change in (lambda p: p.add_(1.0), lambda p: setattr(p, "data", p.data + 1.0)):
        model = tiny()
        steps = rounds(Probe(model, BATCHES), FORCE, 20)
        next(steps), next(steps)
        with torch.no_grad():
            change(model[9].weight)
        changed = model[9].weight.clone()
        with pytest.raises(ValueError, match="changed between"):
            next(steps)
        assert torch.equal(model[9].weight, changed)


def test_the_flags_of_wrappers_inside_stay_under_synflow():
    model = nn.Sequential(nn.DataParallel(nn.Linear(4, 6)), nn.Linear(6, 3)).train()
    prune(model, None, 0.5, "synflow", example=torch.ones(1, 4), rounds=2, on_collapse="ignore")
    assert all(m.training for m in model.modules())


# Two processes.

RANKS = 2


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def _rank(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", timedelta(seconds=60), rank=rank, world_size=RANKS
    )
    found = {}
    mine = pairs(4)[rank::RANKS]
    for name in ("force", "grasp", "grasp-mb"):
        for kind in ("plain", "channels last", "compiled"):
            model = tiny()
            if kind == "channels last":
                model = model.to(memory_format=torch.channels_last)
            wrapped = nn.parallel.DistributedDataParallel(model)
            given = torch.compile(wrapped, backend="eager") if kind == "compiled" else wrapped
            trace = Trace(given)
            row = METHODS[name]
            method = replace(row, rounds=min(row.rounds, 2), batches=min(row.batches, 2))
            try:
                found[name, kind] = [s.masks for s in rounds(Probe(given, mine), method, 20)]
                trace.check()
            except Exception as error:  # the same on every rank
                found[name, kind] = f"{type(error).__name__}: {error}"
    torch.save(found, f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, str], list[dict[str, Tensor]]]]:
    folder = str(tmp_path_factory.mktemp("ranks"))
    torch.multiprocessing.spawn(_rank, (_free_port(), folder), nprocs=RANKS)
    return [torch.load(f"{folder}/{rank}", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize("kind", ["plain", "channels last", "compiled"])
@pytest.mark.parametrize("name", ["force", "grasp", "grasp-mb"])
def test_ranks_agree_and_score_the_mean_gradient(of_ranks, name, kind):
    first, second = (masks[name, kind] for masks in of_ranks)
    assert not isinstance(first, str), first
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        assert equal(a, b)
    model, before = tiny(), references.ones(weights_of(tiny()))
    count = 2 if name == "grasp-mb" else 1
    for index, masks in enumerate(first):
        batches = [b for r in range(RANKS) for b in references.of_round(pairs(4)[r::RANKS], index, count)]
        scores = (
            references.snip(model, before, batches) if name == "force" else references.grasp(model, before, batches)
        )
        assert_top(masks, scores, kept(masks))
        before = masks
