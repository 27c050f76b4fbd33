"""Bad input gets an error that says what to do, before a mask leaves and without a trace."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import Trace, pairs, tiny
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import prune as torch_prune

from barebones import METHODS, Method, Probe, agreement, hold, prunable, prune, rounds

BATCHES = pairs(2)
FORCE = replace(METHODS["force"], rounds=3)


def refused(match: str, *args: Any, model: nn.Module | None = None, **options: Any) -> None:
    """`prune` raises a `ValueError` that matches, and leaves the model alone."""
    model = model or tiny()
    trace = Trace(model)
    with pytest.raises(ValueError, match=match):
        prune(model, *(args or (BATCHES,)), **options)
    trace.check()


@pytest.mark.parametrize(
    ("sparsity", "match"),
    [
        *((sparsity, "sparsity=.*fraction of weights to remove") for sparsity in (1.0, -0.1, 2, torch.nan, torch.inf)),
        (90, r"did you mean 0\.9\?"),
        (99.5, r"did you mean 0\.995\?"),
        (100, "fraction of weights to remove"),
        (0.9999, "leaves none of the 114"),
    ],
)
def test_sparsity_is_a_fraction(sparsity, match):
    refused(match, sparsity=sparsity)


@pytest.mark.parametrize(
    ("name", "nearest"), [("forse", "force"), ("FORCE", "force"), ("iter_snip", "iter-snip"), ("sinflow", "synflow")]
)
def test_method_names(name, nearest):
    refused(f"there is no method '{name}'; did you mean '{nearest}'", method=name)


def test_method_names_are_listed():
    with pytest.raises(ValueError, match="there is no method 'zzz'") as caught:
        prune(tiny(), BATCHES, method="zzz")
    assert all(name in str(caught.value) for name in METHODS)


def test_no_prunable_layer():
    refused("no prunable weight", model=nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()))
    refused("no prunable weight", model=nn.Embedding(3, 3))
    refused("no prunable weight", scope=lambda name, weight: False)
    refused("no prunable weight", exclude="*")


@pytest.mark.parametrize("rounds", [0, -1])
@pytest.mark.parametrize("method", ["force", "snip"])
def test_rounds_below_one(rounds, method):
    refused(f"rounds={rounds}|not {rounds}", method=method, rounds=rounds)
    with pytest.raises(ValueError, match="at least one round"):
        Method(METHODS["force"].criterion, rounds=rounds)


@pytest.mark.parametrize("method", ["snip", "snip-mb", "grasp", "random", "magnitude", "erk"])
def test_one_round_methods_have_one_round(method):
    refused(f"{method} is one round by definition, not 5", method=method, rounds=5)
    prune(tiny(), BATCHES, 0.5, method, rounds=1, batches_per_round=1)


@pytest.mark.parametrize(
    ("option", "value", "match"),
    [
        ("bn", "train", "bn='train': choose 'batch'.*'eval'"),
        ("precision", "fp16", "precision='fp16': choose one of fp32, tf32, bf16"),
        ("on_collapse", "explode", "on_collapse='explode': choose 'warn', 'raise' or 'ignore'"),
        ("on_collapse", "", "choose 'warn', 'raise' or 'ignore'"),
        ("schedule", "cosine", "there is no schedule 'cosine'.*exponential, linear, one-shot, settle"),
        ("loss", "mse", "loss='mse': choose one of cross-entropy, nll-on-logits"),
        ("revive_until", 1.5, "revive_until=1.5"),
        ("revive_until", -0.1, "revive_until=-0.1"),
        ("batches_per_round", 0, "batches=0"),
        ("at_least", -1, "at_least=-1"),
        ("capture", True, "capture=True records a CUDA graph, but the model is on cpu"),
    ],
)
def test_options_out_of_range(option, value, match):
    refused(match, **{option: value})


def test_a_criterion_is_a_function():
    with pytest.raises(ValueError, match="criterion='saliency': it must be a function"):
        Method("saliency")


def test_synflow_needs_an_input_of_ones():
    model, tokens = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)), torch.tensor([[1, 2]])
    with pytest.raises(ValueError, match="synflow needs a floating-point input"):
        prune(model, None, 0.5, "synflow", example=tokens)


def test_a_floor_that_does_not_fit():
    refused("at_least=10 asks for", sparsity=0.9, at_least=10)


@pytest.mark.parametrize("counts", [[114, 50], [50, 60, 11], [50, 30, 12], [200, 30, 11], [50, 30, 11, 11]], ids=str)
def test_a_schedule_must_fit(counts):
    refused("the schedule .* must give 3 counts", sparsity=0.9, rounds=3, schedule=lambda m, k, t: counts)


@pytest.mark.parametrize("keep", [0, -1, 115])
@pytest.mark.parametrize("name", ["force", "random"])
def test_a_count_out_of_range(keep, name):
    with pytest.raises(ValueError, match=f"keep={keep}"):
        next(rounds(Probe(tiny(), BATCHES), METHODS[name], keep))


# Losses.


@pytest.mark.parametrize("method", ["force", "grasp"])
@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (lambda output, y: F.cross_entropy(output, y, reduction="none"), r"scalar tensor, not \(8,\)"),
        (lambda output, y: F.cross_entropy(output, y).item(), "scalar tensor, not float"),
        (lambda output, y: None, "scalar tensor, not NoneType"),
        (lambda output, y: F.cross_entropy(output.detach(), y), "does not depend on the weights"),
        (lambda output, y: torch.tensor(1.0, requires_grad=True), "does not depend on any prunable weight"),
    ],
    ids=["vector", "number", "none", "detached", "constant"],
)
def test_losses_that_are_no_losses(method, loss, match):
    refused(match, BATCHES, 0.5, method, loss)


def test_a_loss_of_the_biases_alone():
    refused("any prunable weight", objective=lambda m, b: m[7].bias.sum())


def test_a_loss_without_gradients():
    def objective(model: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            return F.cross_entropy(model(batch[0]), batch[1])

    refused("no_grad", objective=objective)


def test_a_loss_of_one_element_is_a_scalar():
    prune(tiny(), BATCHES, 0.5, "snip", lambda output, y: F.cross_entropy(output, y).view(1, 1), on_collapse="ignore")


@pytest.mark.parametrize(
    "batch", [torch.ones(8, 1, 6, 6), {"x": 1}, (1, 2, 3), (BATCHES[0][0],)], ids=["x", "dict", "3", "1"]
)
def test_batches_that_are_no_pairs(batch):
    refused("pass objective=", [batch])


@pytest.mark.parametrize("batches", [[], (), iter([])], ids=["list", "tuple", "iterator"])
def test_empty_batches(batches):
    refused("batches is empty", batches)


def test_no_batches():
    refused("needs data", None)


def test_inference_mode():
    model = tiny()
    with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode"):
        prune(model, BATCHES, 0.5)


# Numbers that are not finite.


def poisoned(layer: int, value: float, at: int) -> Method:
    def criterion(probe: Probe) -> dict[str, Tensor]:
        scores = METHODS["force"].criterion(probe)
        if probe.index == at:
            list(scores.values())[layer].view(-1)[0] = value
        return scores

    return Method(criterion, rounds=3, revive_until=1.0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_scores_that_are_not_finite_name_the_round_and_the_layer(value, at):
    model = tiny()
    trace = Trace(model)
    left = []
    with pytest.raises(ArithmeticError, match=rf"round {at}: the scores of 7\.weight are not finite"):
        prune(model, BATCHES, 0.5, poisoned(2, value, at), on_round=left.append)
    assert len(left) == at
    trace.check()


@pytest.mark.parametrize("method", ["force", "grasp", "grasp-mb", "iter-grasp", "snip-mb"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_losses_that_are_not_finite_name_the_round(method, value):
    model = tiny()
    left = []
    batches = [BATCHES[0], (BATCHES[1][0] * value, BATCHES[1][1])]
    row = METHODS[method]
    at = 1 if row.rounds > 1 else 0
    with pytest.raises(ArithmeticError, match=rf"round {at}: the loss.*0\.weight"):
        prune(
            model,
            batches,
            0.5,
            replace(row, rounds=min(row.rounds, 3), batches=min(row.batches, 2) if at else 2),
            on_round=left.append,
        )
    assert len(left) == at


def test_an_infinite_loss_with_finite_gradients_is_an_error_too():
    with pytest.raises(ArithmeticError, match="round 0: the loss"):
        prune(tiny(), BATCHES, 0.5, "snip", lambda output, y: F.cross_entropy(output, y) + torch.inf)


@pytest.mark.parametrize("method", ["magnitude", "synflow", "force"])
def test_weights_that_are_not_finite(method):
    model = tiny()
    with torch.no_grad():
        model[7].weight[1, 2] = torch.nan
    trace = Trace(model)
    with pytest.raises(ArithmeticError, match=r"round 0.*7\.weight"):
        prune(model, BATCHES, 0.5, method)
    trace.check()


# Weights that cannot be pruned.


def parametrized(change: Callable[[nn.Module], object]) -> Callable[[nn.Linear], nn.Linear]:
    def apply(linear: nn.Linear) -> nn.Linear:
        change(linear)
        return linear

    return apply


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def weighted(parameter: nn.Parameter) -> Callable[[nn.Linear], nn.Linear]:
    return parametrized(lambda linear: setattr(linear, "weight", parameter))


UNFIT = {
    "parametrized": (
        parametrized(lambda m: parametrize.register_parametrization(m, "weight", Doubled())),
        "remove that",
    ),
    "weight norm": (parametrized(parametrizations.weight_norm), "remove that"),
    "spectral norm": (parametrized(parametrizations.spectral_norm), "remove that"),
    "pruned by torch": (parametrized(lambda m: torch_prune.l1_unstructured(m, "weight", 2)), "remove that"),
    "meta": (lambda m: m.to("meta"), "meta device"),
    "lazy": (lambda m: nn.LazyLinear(3), "lazy"),
    "complex": (lambda m: m.to(torch.complex64), "complex"),
    "integer": (weighted(nn.Parameter(torch.ones(3, 4, dtype=torch.int8), requires_grad=False)), "quantized"),
    "sparse": (weighted(nn.Parameter(torch.eye(3, 4).to_sparse())), "layout|plain"),
}


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("name", UNFIT)
def test_weights_that_cannot_be_pruned_are_named(name):
    change, match = UNFIT[name]
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(change(nn.Linear(4, 3))))
    for scope in (None, lambda n, p: True):
        if scope and name in ("parametrized", "weight norm", "spectral norm", "pruned by torch"):
            continue  # then the parameters it is computed from are chosen
        with pytest.raises(ValueError, match=rf"1\.0\.weight cannot be pruned: .*{match}.*exclude='1\.0\.weight'"):
            prunable(model, scope)
        with pytest.raises(ValueError, match=r"1\.0\.weight"):
            prune(model, [(torch.ones(2, 4), torch.tensor([0, 1]))], 0.5)
    assert list(prunable(model, exclude="1.0.*")) == ["0.weight"]
    assert list(prunable(model, exclude=lambda n, p: n.startswith("1"))) == ["0.weight"]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_weight_is_named():
    quantized = torch.quantize_per_tensor(torch.ones(3, 4), 0.1, 0, torch.qint8)
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].weight = nn.Parameter(quantized, requires_grad=False)
    with pytest.raises(ValueError, match=r"0\.weight cannot be pruned: it is quantized"):
        prunable(model)


def test_weights_made_under_inference_mode_are_named():
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"0\.weight cannot be pruned: .*inference"):
        prunable(model)


def test_a_predicate_of_the_shape_meets_computed_weights_too():
    """What it is asked about must be a tensor, also where the weight is computed from others."""
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 2)), nn.Linear(2, 2))
    assert list(prunable(model, exclude=lambda n, p: n.startswith("0") or p.dim() < 2)) == ["1.weight"]


def test_two_parameters_in_one_memory():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.data)
    with pytest.raises(ValueError, match=r"0\.weight and 1\.weight share memory"):
        prunable(model)


def test_patterns_that_match_nothing():
    refused(r"scope='conv\*' matches no parameter; names look like '0\.weight'", scope="conv*")
    refused(r"exclude='head' matches no parameter", exclude=["0.*", "head"])


def test_scope_and_exclude():
    model = tiny()
    assert list(prunable(model, "*.bias")) == ["1.bias", "3.bias", "4.bias", "7.bias"]
    assert list(prunable(model, ["9.*", "0.*"])) == ["0.weight", "9.weight"]
    assert list(prunable(model, lambda n, p: p.dim() == 2)) == ["7.weight", "9.weight"]
    assert list(prunable(model, exclude=["0.*", "3.weight"])) == ["7.weight", "9.weight"]
    result = prune(model, BATCHES, 0.5, "force", rounds=2, scope="*.bias", on_collapse="ignore")
    assert {n: m.shape for n, m in result.masks.items()} == {n: p.shape for n, p in prunable(model, "*.bias").items()}


def test_weights_changed_between_rounds():
    model = tiny()
    steps = rounds(Probe(model, BATCHES), FORCE, 20)
    next(steps)
    with torch.no_grad():
        model[7].weight.mul_(2)
    with pytest.raises(ValueError, match="changed between two rounds"):
        next(steps)


def test_changed_weights_are_told_before_a_collapse():
    def spoil(probe):
        return {name: weight.zero_() for name, weight in probe.weights.items()}

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    batches = [(torch.randn(8, 4), torch.randint(2, (8,)))]
    with pytest.raises(ValueError, match="weights were changed"):
        prune(model, batches, 0.95, Method(spoil), on_collapse="raise")


@pytest.mark.parametrize("returned", [None, [], {"weight": [1.0]}], ids=["none", "a list", "lists"])
def test_criteria_that_return_something_else(returned):
    with pytest.raises(ValueError, match="dict from names to tensors"):
        prune(nn.Linear(4, 2), [(torch.randn(8, 4), torch.randint(2, (8,)))], 0.5, Method(lambda probe: returned))


def test_a_criterion_that_changes_the_weights_is_found_out():
    with pytest.raises(ValueError, match="weights were changed while it was pruned"):
        prune(tiny(), BATCHES, 0.5, Method(lambda p: {n: w.abs_() for n, w in p.weights.items()}))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda m: prune(m, BATCHES, 0.5, lambda probe: probe.weights), r"wrap your criterion in bb\.Method"),
        (lambda m: prune(m, BATCHES, 0.5, None), "neither a name nor"),
        (lambda m: prune(m, BATCHES, 0.5, "force", rounds=2.5), "rounds=2.5: it must be a whole number"),
        (lambda m: next(rounds(m, "force", 3)), r"takes a bb\.Probe"),
        (lambda m: hold(m, prune(m, BATCHES, 0.5, "snip"), torch.optim.SGD(m.parameters())), r"pass result\.masks"),
        (lambda m: agreement(prune(m, BATCHES, 0.5, "snip"), {}), r"pass result\.masks"),
        (lambda m: prune(m, lambda index: None, 0.5, "snip"), r"batches\(0\) must return"),
    ],
    ids=["a function", "None", "half a round", "a model", "hold a result", "agreement of results", "no batches"],
)
def test_likely_mistakes_get_a_sentence(call, match):
    with pytest.raises(ValueError, match=match):
        call(tiny())
