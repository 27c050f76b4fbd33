"""Bad input gets an error that says what to do, before a mask leaves and without a trace."""

import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from pruning_runs import BATCHES, FORCE
from references import Trace, few, tiny, weights_of
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import prune as torch_prune

import barebones as bb
from barebones import METHODS, Method, Probe, hold, prunable, prune, rounds

IMAGES = BATCHES[0][0]
TOKENS = dict(method="synflow", batches=None, example=torch.tensor([[1, 2]]))


def without_gradients(model: nn.Module, batch: Any) -> Tensor:
    with torch.no_grad():
        return F.cross_entropy(model(batch[0]), batch[1])


def never(model: nn.Module, batch: Any) -> Tensor:
    raise AssertionError("the model is read")


REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(("sparsity=.*fraction of weights to remove", dict(sparsity=s)) for s in (1.0, -0.1, torch.nan, torch.inf)),
    (r"did you mean 0\.995\?", dict(sparsity=99.5)),
    ("sparsity='0.9': it must be a number", dict(sparsity="0.9")),
    ("leaves none of the 114", dict(sparsity=0.9999)),
    ("hybrid needs data: pass batches", dict(batches=None)),
    ("there is no method 'forse'; did you mean 'force'", dict(method="forse")),
    (f"there is no method 'zzz'; choose one of {', '.join(METHODS)}$", dict(method="zzz")),
    (r"wrap your criterion in bb\.Method", dict(method=lambda probe: probe.weights)),
    ("neither a name nor", dict(method=None)),
    *((f"{m} is one round by definition, not 5", dict(method=m, rounds=5)) for m in ("snip-mb", "grasp", "erk")),
    ("rounds=0: it must be a whole number, at least 1", dict(rounds=0)),
    ("rounds=2.5: it must be a whole number", dict(rounds=2.5)),
    ("rounds=True: it must be a whole number", dict(rounds=True)),
    ("micro_batch=True: it must be a whole number of samples", dict(micro_batch=True)),
    ("batches_per_round=0", dict(batches_per_round=0)),
    ("at_least=-1", dict(at_least=-1)),
    ("at_least=10 asks for", dict(sparsity=0.9, at_least=10)),
    (
        "min_per_channel=28 is more than the 27 weights that a channel can keep; low",
        dict(sparsity=0.5, min_per_channel=28),
    ),
    ("min_per_channel=12 is more than the 11 weights", dict(sparsity=0.9, min_per_channel=12)),
    ("revive_until=1.5", dict(revive_until=1.5)),
    ("bn='train': choose 'batch'.*'eval'", dict(bn="train")),
    ("precision='fp16': choose one of fp32, tf32, bf16", dict(precision="fp16")),
    ("on_collapse='explode': choose 'warn', 'raise' or 'ignore'", dict(on_collapse="explode")),
    ("seed='1': it must be a whole number", dict(seed="1")),
    ("revive_until='1': it is a fraction of the rounds, from 0 to 1", dict(revive_until="1")),
    ("there is no schedule 'cosine'.*exponential, linear, one-shot, settle", dict(schedule="cosine")),
    *(
        ("the schedule .* must give 3 counts", dict(sparsity=0.9, rounds=3, schedule=lambda m, k, t, c=counts: c))
        for counts in ([114, 50], [50, 60, 11], [50, 30, 12], [200, 30, 11], [50, 30, 11, 11])
    ),
    ("capture=True records a CUDA graph, but the model is on cpu", dict(capture=True)),
    ("no prunable weight", dict(model=nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()))),
    ("no prunable weight", dict(model=nn.Embedding(3, 3))),
    ("no prunable weight", dict(exclude="*")),
    (r"scope='conv\*' matches no parameter; names look like '0\.weight'", dict(scope="conv*")),
    ("exclude='head' matches no parameter", dict(exclude=["0.*", "head"])),
    ("synflow needs a floating-point", dict(model=nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)), **TOKENS)),
    *(("or objective=", dict(batches=[batch])) for batch in (IMAGES, {"x": 1}, (1, 2, 3), (IMAGES,))),
    (r"pairs such as \[\(x, y\)\]", dict(batches=BATCHES[0])),
    ("batch 1 of round 1 has no samples", dict(batches=[(IMAGES[:0], BATCHES[0][1][:0])])),
    # losses
    (r"loss=CrossEntropyLoss is a class; .*CrossEntropyLoss\(\)", dict(loss=nn.CrossEntropyLoss)),
    ("loss='mse': choose one of cross-entropy, nll-on-logits", dict(loss="mse")),
    (r"scalar tensor, not \(8,\)", dict(loss=lambda output, y: F.cross_entropy(output, y, reduction="none"))),
    (r"not float; return it without \.item\(\)", dict(loss=lambda output, y: F.cross_entropy(output, y).item())),
    ("scalar tensor, not NoneType", dict(loss=lambda output, y: None, method="grasp")),
    ("does not depend on the weights", dict(loss=lambda output, y: F.cross_entropy(output.detach(), y))),
    ("does not depend on any prunable", dict(loss=lambda output, y: torch.tensor(1.0, requires_grad=True))),
    ("any prunable weight", dict(objective=lambda m, b: m[7].bias.sum(), method="grasp")),
    ("no_grad", dict(objective=without_gradients)),
    # criteria
    *(("dict from names to tensors", dict(method=Method(lambda _, s=s: s))) for s in (None, [], {"0.weight": [1.0]})),
    *(("must score every prunable", dict(method=Method(lambda _, s=s: s))) for s in ({}, {"0.weight": torch.ones(1)})),
]

UNIFORM = dict.fromkeys(weights_of(tiny()), 0.5)
CHANNELS = dict(unit="channel", sparsity=0.5, example=IMAGES)
EARLY: list[tuple[str, dict[str, Any]]] = [  # what is said before the model is read
    ("no law of densities 'erg'; did you mean 'erk'?", dict(densities="erg")),
    ("densities=0.5: choose uniform or erk, or pass masks or a dict", dict(densities=0.5)),
    ("must name every prunable layer", dict(densities={"0.weight": 0.5})),
    *(
        ("from 0 to 1; check 0.weight", dict(densities=UNIFORM | {"0.weight": share}))
        for share in (1.5, None, "half", torch.tensor(1.5))
    ),
    ("keep 57 of 114 weights, but the sparsity keeps 11; pass sparsity=0.5", dict(densities=UNIFORM)),
    ("min_per_channel=-1: it must be a whole number, at least 0", dict(min_per_channel=-1)),
    ("pattern='4:2': name N:M, such as 2:4, or block:RxC", dict(pattern="4:2")),
    ("name N:M", dict(pattern="block:2:4")),
    ("pattern=2: name N:M", dict(pattern=2)),
    ("7.weight; choose another, or in Python use exclude=", dict(pattern="2:3")),
    ("does not divide the 3 outputs and 1 inputs of 0.weight", dict(pattern="block:2x1")),
    ("does not divide the 3 outputs", dict(pattern="block:100x100", sparsity=0.5)),
    ("no layer has as many as 16 inputs", dict(pattern="2:16")),
    ("keeps at most 102 of 114 weights; use sparsity=0.105", dict(pattern="2:4", sparsity=0.1)),
    ("keeps at most 102 of 114 weights; use sparsity=0.105", dict(pattern="2:4", sparsity=0)),
    ("pattern= and densities= (erk has them) exclude each other", dict(pattern="2:4", densities="uniform")),
    ("pattern= and min_per_channel= exclude each other", dict(pattern="2:4", min_per_channel=2)),
    ("unit='chanel': choose weight or channel", dict(unit="chanel")),
    ("target='params': choose weights or flops", CHANNELS | dict(target="params")),
    ("target='flops' counts those of whole channels; add unit='channel'", dict(target="flops")),
    ("unit='channel' and densities= (erk has them) exclude each other", CHANNELS | dict(method="erk")),
    ("unit='channel' and min_per_channel= exclude each other", CHANNELS | dict(min_per_channel=2)),
    ("unit='channel' and pattern= exclude each other", CHANNELS | dict(pattern="2:4")),
    ("unit='channel' and at_least= exclude each other", CHANNELS | dict(at_least=1)),
    ("unit='channel' and revive_empty=False exclude each other", CHANNELS | dict(revive_empty=False)),
    ("keeps at least 21.93% of the weights of Sequential: one channel of", CHANNELS | dict(sparsity=0.9)),
    ("keeps at least 100.00% of the weights", CHANNELS | dict(sparsity=0.1, exclude="[07]*")),
    ("unit='channel' follows an input through the model; pass example=", CHANNELS | dict(example=None)),
]
REFUSED += [(re.escape(words), dict(method="force", objective=never) | options) for words, options in EARLY]


@pytest.mark.parametrize(("match", "options"), REFUSED, ids=range(len(REFUSED)))
def test_what_prune_refuses(match, options):
    options = dict(model=tiny(), batches=BATCHES) | options
    with Trace(options["model"]), pytest.raises(ValueError, match=match):
        prune(**options)


SPOILING = Method(lambda probe: {name: weight.zero_() for name, weight in probe.weights.items()})
MISTAKES: list[tuple[str, Callable[[nn.Module], object]]] = [
    ("criterion='saliency': it must be a function", lambda m: Method("saliency")),
    ("color='red': it must be six hexadecimal digits", lambda m: Method(print, color="red")),
    (r"takes a bb\.Probe", lambda m: next(rounds(m, "force", 3))),
    ("keep=0", lambda m: next(rounds(Probe(m, BATCHES), FORCE, 0))),
    ("keep=115", lambda m: next(rounds(Probe(m, BATCHES), FORCE, 115))),
    (r"pass result\.masks", lambda m: hold(m, prune(m, BATCHES, 0.5, "snip"), torch.optim.SGD(m.parameters()))),
    (r"pass result\.masks", lambda m: bb.save_masks("masks", bb.Masks())),
    ("must be an nn.Module, not a Masks", lambda m: bb.save_weights(bb.Masks(), m, "weights")),
    ("not the class Linear; make an object of it", lambda m: prune(nn.Linear, BATCHES, 0.5)),
    ("the scores of a are no tensors", lambda m: bb.keep_top({"a": numpy.ones(3)}, 1)),
    ("inference_mode", torch.inference_mode()(lambda m: prune(m, BATCHES, 0.5))),
    # the weights are looked at before a collapse
    ("weights were changed while it was pruned", lambda m: prune(m, BATCHES, 0.95, SPOILING, on_collapse="raise")),
]


@pytest.mark.parametrize(("match", "call"), MISTAKES, ids=range(len(MISTAKES)))
def test_likely_mistakes_get_a_sentence(match, call):
    with pytest.raises(ValueError, match=match):
        call(tiny())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("at", [0, 2])
def test_scores_that_are_not_finite_name_the_round_and_the_layer(value, at):
    def criterion(probe: Probe) -> dict[str, Tensor]:
        scores = METHODS["force"].criterion(probe)
        scores["7.weight"].view(-1)[0] *= value if probe.index == at else 1
        return scores

    model, steps = tiny(), []
    method = Method(criterion, rounds=3, revive_until=1.0)
    message = rf"round {at + 1}: the scores of 7\.weight are not finite"
    with Trace(model), pytest.raises(ArithmeticError, match=message):
        prune(model, BATCHES, 0.5, method, on_round=steps.append)
    assert len(steps) == at


@pytest.mark.parametrize("name", ["force", "grasp-mb", "iter-grasp", "snip-mb"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_losses_that_are_not_finite_name_the_round(name, value):
    steps, method = [], few(name, 3, 2)
    at = min(1, method.rounds - 1)
    with pytest.raises(ArithmeticError, match=rf"round {at + 1}: the loss.*0\.weight"):
        prune(tiny(), [BATCHES[0], (IMAGES * value, BATCHES[0][1])], 0.5, method, on_round=steps.append)
    assert len(steps) == at


def test_an_infinite_loss_with_finite_gradients_is_an_error_too():
    with pytest.raises(ArithmeticError, match="round 1: the loss"):
        prune(tiny(), BATCHES, 0.5, "snip", lambda output, y: F.cross_entropy(output, y) + torch.inf)


@pytest.mark.parametrize("method", ["magnitude", "synflow", "force"])
def test_weights_that_are_not_finite(method):
    model = tiny()
    model[7].weight.data[1, 2] = torch.nan
    with Trace(model), pytest.raises(ArithmeticError, match=r"round 1.*7\.weight"):
        prune(model, BATCHES, 0.5, method)


def weighted(tensor: Tensor) -> nn.Linear:
    linear = nn.Linear(4, 3)
    linear.weight = nn.Parameter(tensor, requires_grad=tensor.is_floating_point() and not tensor.is_quantized)
    return linear


def doubled(linear: nn.Linear) -> nn.Linear:
    parametrize.register_parametrization(linear, "weight", nn.Hardtanh())
    return linear


UNFIT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "parametrized": (lambda: doubled(nn.Linear(4, 3)), "remove that"),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), "remove that"),
    "pruned by torch": (lambda: torch_prune.l1_unstructured(nn.Linear(4, 3), "weight", 2), "remove that"),
    "meta": (lambda: nn.Linear(4, 3, device="meta"), "meta device"),
    "lazy": (lambda: nn.LazyLinear(3), "lazy"),
    "complex": (lambda: nn.Linear(4, 3, dtype=torch.complex64), "complex"),
    "integer": (lambda: weighted(torch.ones(3, 4, dtype=torch.int8)), "quantized"),
    "quantized": (lambda: weighted(torch.quantize_per_tensor(torch.ones(3, 4), 0.1, 0, torch.qint8)), "quantized"),
    "sparse": (lambda: weighted(torch.eye(3, 4).to_sparse()), "layout|plain"),
    "inference": (torch.inference_mode()(lambda: nn.Linear(4, 3)), "inference"),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("name", UNFIT)
def test_weights_that_cannot_be_pruned_are_named(name):
    make, match = UNFIT[name]
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(make()))
    for scope in (None, lambda n, p: True)[: 1 if match == "remove that" else 2]:  # else its parameters are chosen
        with pytest.raises(ValueError, match=rf"1\.0\.weight cannot be pruned: .*({match}).*exclude='1\.0\.weight'"):
            prunable(model, scope)
    assert list(prunable(model, exclude="1.0.*")) == ["0.weight"]
    assert list(prunable(model, exclude=lambda n, p: n.startswith("1") or p.dim() < 2)) == ["0.weight"]


def test_two_parameters_in_one_memory():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.data)
    with pytest.raises(ValueError, match=r"0\.weight and 1\.weight share memory"):
        prunable(model)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (dict(scope="*.bias"), ["1.bias", "3.bias", "4.bias", "7.bias"]),
        (dict(scope=["9.*", "0.*"]), ["0.weight", "9.weight"]),
        (dict(scope=lambda n, p: p.dim() == 2), ["7.weight", "9.weight"]),
        (dict(exclude=["0.*", "3.weight"]), ["7.weight", "9.weight"]),
    ],
    ids=["pattern", "patterns", "function", "exclude"],
)
def test_scope_and_exclude(options, expected):
    model = tiny()
    assert list(prunable(model, **options)) == expected
    masks = prune(model, BATCHES, 0.5, FORCE, **options, on_collapse="ignore").masks
    assert {n: m.shape for n, m in masks.items()} == {n: p.shape for n, p in prunable(model, **options).items()}
