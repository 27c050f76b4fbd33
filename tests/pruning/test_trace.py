"""Pruning leaves no trace: over many models, between rounds, when it is interrupted, and on torch's settings."""

import itertools
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
import zoo
from references import Items, Trace, equal, few, pairs, tiny
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils.data import DataLoader

from barebones import METHODS, Method, Probe, prune, rounds
from barebones.masks import kept, size
from barebones.running.inputs import call, tensors

FORCE = few("force", rounds=3)
BATCHES = pairs(3)


def inputs(dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 4, generator=generator).to(dtype), torch.tensor([0, 1, 2, 0])) for _ in range(2)]


def summed() -> nn.Module:
    """Two weights that are added: autograd returns one gradient tensor for both."""
    return zoo.Net(lambda net, x: net.head(torch.tanh(F.linear(x, net.a.weight + net.b.weight))),
                   a=nn.Linear(4, 4, bias=False), b=nn.Linear(4, 4, bias=False), head=nn.Linear(4, 3))  # fmt: skip


def counting() -> nn.Module:
    """A model that keeps state in buffers in all the ways that modules do."""

    def forward(net: Any, x: Tensor) -> Tensor:
        net.calls += 1
        net.ages = net.ages + 1
        net.hidden.add_(1.0)
        net.cache = x.detach().mean()
        return net.head(x)

    net = zoo.Net(forward, head=nn.Linear(4, 3), calls=torch.tensor(0), ages=torch.zeros(2))
    net.register_buffer("hidden", torch.zeros(3), persistent=False)
    net.register_buffer("cache", None)
    return net


def mlp(wrap: Callable[[nn.Module], nn.Module] = lambda first: first) -> nn.Sequential:
    return nn.Sequential(wrap(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 3))


def frozen() -> nn.Module:
    model = mlp()
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def compiled_in_place() -> nn.Module:
    model = mlp()
    model.compile(backend="eager")
    return model


compiled = partial(torch.compile, backend="eager")
IMAGES = pairs(2, dtype=torch.float32)
CASES: dict[str, tuple[Callable[[], nn.Module], list[tuple[Tensor, Tensor]]]] = {
    "batch-norm": (lambda: tiny(dtype=torch.float32), IMAGES),
    "channels last": (lambda: tiny(dtype=torch.float32).to(memory_format=torch.channels_last), IMAGES),
    "bfloat16": (lambda: mlp().bfloat16(), inputs(torch.bfloat16)),
    "frozen": (frozen, inputs()),
    "all frozen": (lambda: mlp().requires_grad_(False), inputs()),
    "summed": (summed, inputs()),
    "counting": (counting, inputs()),
    "compiled": (lambda: compiled(mlp()), inputs()),
    "compiled ahead": (lambda: torch.compile(mlp(), backend="aot_eager"), inputs()),
    "compiled in place": (compiled_in_place, inputs()),
    "compiled inside": (lambda: mlp(compiled), inputs()),
    "data parallel": (lambda: nn.DataParallel(mlp()), inputs()),
    "data parallel inside": (lambda: mlp(nn.DataParallel), inputs()),
    "checkpoint": (lambda: mlp(checkpoint_wrapper), inputs()),
    "old checkpoint": (lambda: mlp(partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT)), inputs()),
}


def built(name: str) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(0)
    make, batches = CASES[name]
    return make(), batches


def check_pruning(method: Method, model: nn.Module, batches: list[Any], **options: Any) -> None:
    """Prune 70 % of the weights; the count is exact, and neither between the rounds nor at the end is there a trace."""
    for number, parameter in enumerate(model.parameters()):
        if number % 2:
            parameter.grad = torch.ones_like(parameter)
    with Trace(model) as trace:
        result = prune(model, batches, 0.7, method, **options, on_collapse="ignore", on_round=lambda _: trace.check())
    assert kept(result.masks) == result.rounds[-1].keep == round((1 - 0.7) * size(result.masks))
    assert not any(part in name for name in result.masks for part in ("module.", "_orig_mod", "_checkpoint"))


@pytest.mark.parametrize("method", ["force", "grasp-mb", "grasp-taylor", "synflow", "snip-mb"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if "ahead" in n else n for n in CASES])
def test_no_trace_and_exact_counts(name, method):
    model, batches = built(name)
    check_pruning(few(method, rounds=3, batches=2), model, batches, example=batches[0][0])


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", zoo.names())
def test_no_trace_on_any_network_of_the_zoo(name):
    model, example = zoo.build(name)

    def objective(model: nn.Module, batch: Any) -> Tensor:
        args, kwargs = call(batch)
        return sum(t.square().mean() for t in tensors(model(*args, **kwargs)) if t.is_floating_point())

    check_pruning(few("force", rounds=2), model, [example], objective=objective, scope=lambda _, p: p.dim() >= 2)


@pytest.mark.parametrize("name", CASES)
def test_the_same_twice_and_under_no_grad(name):
    model, batches = built(name)
    first = prune(model, batches, 0.7, FORCE, on_collapse="ignore")
    with torch.no_grad():
        assert equal(first.masks, prune(model, batches, 0.7, FORCE, on_collapse="ignore").masks)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("compiled", "data", "checkpoint", "old"))])
@pytest.mark.parametrize("method", ["force", "grasp"])
def test_wrapped_models_get_the_masks_of_bare_ones(name, method):
    wrapped, batches = built(name)
    torch.manual_seed(0)
    row = few(method, rounds=5)
    assert equal(*(prune(model, batches, 0.5, row, on_collapse="ignore").masks for model in (wrapped, mlp())))


QKV = "attention.q_proj_weight attention.k_proj_weight attention.v_proj_weight"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tied", "first.weight second.weight out.weight"),
        ("language", "qkv.weight out.weight"),  # neither embeddings nor what is tied to them
        ("two inputs", "attention.in_proj_weight attention.out_proj.weight head.weight"),
        ("two sizes", f"{QKV} attention.out_proj.weight head.weight"),
        ("recurrent", "first.weight head.0.weight head.2.weight"),
    ],
)
def test_the_default_scope(name, expected):
    assert list(Probe(zoo.build(name)[0]).parameters) == expected.split()


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
            prune(model, BATCHES, 0.8, few(name, rounds=2), on_collapse="ignore")
        gradients = torch.autograd.grad(value, list(model.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


SWITCHES = """
import torch
from torch import nn
from barebones import prune

def state():
    backends = torch.backends
    modules = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul)
    return [module.fp32_precision for module in modules]

def check(setting):
    before = state()
    prune(nn.Linear(4, 3), [(torch.ones(2, 4), torch.tensor([0, 1]))], 0.5, "snip", on_collapse="ignore")
    assert state() == before, (setting, before, state())

check("nothing")
for name in ("highest", "high", "medium"):  # the older switches first: torch refuses them once a newer one was used
    torch.set_float32_matmul_precision(name)
    check(name)
    assert torch.get_float32_matmul_precision() == name
torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = "tf32"
check("new switches")
torch.backends.fp32_precision = "tf32"
check("new switch of all")
"""

RANDOM_NUMBERS = """
import random, numpy.random, torch
import barebones as bb

def state():
    return random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()

model, x = torch.nn.Linear(4, 3), torch.ones(2, 4)
masks, before = {"weight": torch.ones(3, 4) > 0}, state()
for function in (
    lambda: bb.prune(model, [(x, torch.tensor([0, 1]))], 0.5, "snip", on_collapse="ignore"),
    lambda: bb.effective(model, masks, x),
    lambda: str(bb.account(model, masks, x)),
    lambda: bb.shrink(model, masks, x),
):
    function()
    assert state() == before
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [SWITCHES, RANDOM_NUMBERS], ids=["switches", "random numbers"])
def test_the_first_call_of_a_process_leaves_torchs_switches_and_all_random_numbers(code):
    """This runs in a process of its own: the switches cannot all be put back, and modules are imported only once."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_caller_within_autocast_gets_the_same_masks(precision):
    """Autocast keeps rounded weights until the outermost one ends, and rounds what runs backward within it."""
    model, plan = tiny(dtype=torch.float32), few("force", rounds=5)
    data = [(x.float(), y) for x, y in BATCHES]
    outside = prune(model, data, 0.8, plan, precision=precision, on_collapse="ignore")
    with torch.autocast("cpu", torch.bfloat16):
        inside = prune(model, data, 0.8, plan, precision=precision, on_collapse="ignore")
    assert [(r.loss, r.saliency) for r in inside.rounds] == [(r.loss, r.saliency) for r in outside.rounds]
    assert equal(inside.masks, outside.masks)


def test_a_criterion_within_an_autocast_of_its_own_sees_the_weights_of_the_moment():
    losses = []

    def halved(probe):
        for factor in (0.5, 2):
            with torch.autocast("cpu", torch.bfloat16):
                losses.append(float(probe.user_model(BATCHES[0][0].float()).detach().float().square().mean()))
            with torch.no_grad():
                probe.user_model[-1].weight.mul_(factor)
        return {name: weight.abs() for name, weight in probe.weights.items()}

    prune(tiny(dtype=torch.float32), [(x.float(), y) for x, y in BATCHES], 0.5, Method(halved, rounds=1))
    assert losses[1] < losses[0]


def test_pruning_on_the_cpu_does_not_seed_other_devices(monkeypatch):
    """`torch.manual_seed` seeds every GPU, and what is seeded there nobody puts back."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    prune(mlp(), inputs(), 0.5, "snip", on_collapse="ignore")
    assert seeded == []


def test_an_objective_may_call_backward():
    def objective(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward(retain_graph=True)
        return loss

    check_pruning(FORCE, tiny(), BATCHES, objective=objective)


class Stop(BaseException):
    """Neither an Exception nor known to anybody."""


def stops(error: type[BaseException], at: int) -> Callable[..., Any]:
    """Return a function that draws random numbers and returns its last argument, and raises at one of its calls."""
    calls = itertools.count(1)

    def stop(*arguments: Any) -> Any:
        torch.rand(3), random.random(), numpy.random.rand()
        if next(calls) == at:
            raise error("now")
        return arguments[-1]

    return stop


def loader(stop: Callable[..., Any]) -> DataLoader:
    items = Items(len(BATCHES), lambda index: stop(BATCHES[index]))
    return DataLoader(items, batch_size=None, shuffle=True, generator=GENERATOR)


GENERATOR = torch.Generator().manual_seed(1)
GRASP = few("grasp-mb")
PLACES: dict[str, Callable[..., dict[str, Any]]] = {  # options of `prune` that call a function on the way
    "loss": lambda stop: dict(loss=lambda output, y: stop(F.cross_entropy(output, y))),
    "loss of grasp": lambda stop: dict(loss=lambda output, y: stop(F.cross_entropy(output, y)), method=GRASP),
    "model": lambda stop: dict(objective=lambda m, b: F.cross_entropy(m[4:](stop(m[:4](b[0]))), b[1])),
    "criterion": lambda stop: dict(method=Method(lambda probe: stop(METHODS["force"].criterion(probe)), rounds=4)),
    "callable": lambda stop: dict(batches=lambda index: stop(BATCHES[:2])),
    "loader": lambda stop: dict(batches=loader(stop)),
}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, Stop])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("place", PLACES)
def test_an_exception_leaves_no_trace(place, at, error):
    model, options = tiny(), dict(batches=BATCHES, method=FORCE) | PLACES[place](stops(error, at))
    with Trace(model, [GENERATOR]), pytest.raises(error, match="now"):
        prune(model, sparsity=0.8, **options)


def test_a_callback_that_raises_leaves_no_trace():
    model = tiny()
    with Trace(model), pytest.raises(TypeError):
        prune(model, BATCHES, 0.8, FORCE, on_round=len)


@pytest.mark.parametrize(
    "change", [lambda p: p.add_(1.0), lambda p: setattr(p, "data", p.data + 1.0)], ids=["in place", "replaced"]
)
def test_weights_changed_between_rounds_are_noticed(change: Callable[[nn.Parameter], object]):
    model = tiny()
    steps = rounds(Probe(model, BATCHES), FORCE, 20)
    next(steps), next(steps)
    with torch.no_grad():
        change(model[9].weight)
    with Trace(model), pytest.raises(ValueError, match="changed between"):
        next(steps)
