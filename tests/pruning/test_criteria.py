"""Every criterion against its equations, round by round, and the saliency of given masks."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import references
import torch
import torch.nn.functional as F
import zoo
from pruning_runs import BATCHES, KEEP, run, same, steps_of
from references import Trace, assert_top, equal, few, of_round, ones, pairs, tiny, weights_of
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import barebones as bb
from barebones import METHODS, Probe, prune, rounds
from barebones.masks import Masks, kept
from barebones.pruning import criteria, gradients

REFERENCES = {  # the scores of one round straight from the equations, by criterion
    criteria.saliency: references.snip,
    criteria.grasp: references.grasp,
    criteria.gradient_norm: references.gradient_norm,
    criteria.synflow: lambda model, masks, _: references.synflow(model, masks, BATCHES[0][0][:1]),
    criteria.magnitude: lambda model, *_: references.magnitude(model),
}
DETERMINED = [name for name, method in METHODS.items() if method.criterion in REFERENCES]


@pytest.mark.parametrize("name", DETERMINED)
def test_every_round_is_what_the_equations_say(name):
    model, method = tiny(), few(name)
    probe = Probe(model, BATCHES)
    before = ones(weights_of(model))
    for step in rounds(probe, method, KEEP):
        scores = REFERENCES[method.criterion](model, before, of_round(BATCHES, step.index, method.batches_per_round))
        with probe.at(before, step.index, step.keep, method.batches_per_round):
            own_scores = method.criterion(probe)
        largest = max(float(s.abs().max()) for s in scores.values())
        for layer, score in scores.items():
            torch.testing.assert_close(own_scores[layer].double(), score, rtol=1e-8, atol=1e-11 * largest)
        if not method.revives(step.index):
            scores = {layer: score.where(before[layer], -torch.inf) for layer, score in scores.items()}
        assert_top(step.masks, scores, step.keep)
        before = step.masks
    assert kept(before) == KEEP


class Twice(torch.autograd.Function):
    """Multiplies by two; some ways to write a backward pass cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient * 2


class IntoMemory(Twice):
    @staticmethod
    def backward(ctx, gradient):
        return torch.mul(gradient, 2, out=torch.empty_like(gradient))


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (F.hardsigmoid, "hardsigmoid_backward"),
        (lambda x: F.pdist(x).sum() + x, "_pdist_backward"),
        (Twice.apply, "once_differentiable"),
        (IntoMemory.apply, "out=..."),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_function_without_a_second_derivative_is_named(function, names, count):
    model = zoo.Net(lambda net, x: net.b(function(net.a(x))), a=nn.Linear(4, 5), b=nn.Linear(5, 3))
    data = [(torch.randn(6, 4), torch.arange(6) % 3)] * 2
    with Trace(model), pytest.raises(ValueError, match="needs second derivatives, and torch has none for") as caught:
        prune(model, data, 0.5, "grasp", batches_per_round=count)
    assert names in str(caught.value)
    assert str(caught.value).endswith("use a method that needs only first ones, such as snip or force")
    prune(model, data, 0.5, "snip", on_collapse="ignore")


def checkpointed(reentrant: bool | None, first: bool) -> nn.Module:
    """Return a network that runs one block, or also its first one, as a checkpoint; None: as plain calls."""

    def through(block: nn.Module, x: Tensor) -> Tensor:
        return block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant)

    torch.manual_seed(0)
    return zoo.Net(
        lambda net, x: net.c(through(net.b, through(net.a, x) if first else net.a(x))),
        a=nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3)),
        b=nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()),
        c=nn.Linear(8, 3),
    )


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", DETERMINED)
def test_checkpoints_do_not_change_the_scores(name, reentrant, first):
    """Without a gradient at its input, a reentrant checkpoint would silently have none inside either."""
    data = [(torch.randn(16, 4), torch.arange(16) % 3) for _ in range(2)]
    method = few(name)
    expected, masks = (
        prune(checkpointed(how, first), data, 0.5, method, batches_per_round=1, on_collapse="ignore").masks
        for how in (None, reentrant)
    )
    assert equal(masks, expected)


def test_negative_log_likelihood_of_raw_outputs_is_another_criterion():
    model, dense = tiny(), ones(weights_of(tiny()))
    (step,) = run("snip", loss="nll-on-logits")
    assert_top(step.masks, references.snip(model, dense, BATCHES[:1], loss=F.nll_loss), KEEP)
    assert not equal(step.masks, steps_of("snip")[-1].masks)
    assert same(run("snip", loss="cross-entropy"), steps_of("snip"))


@pytest.mark.parametrize("bn", ["batch", "eval"])
@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_batch_norm_decides_the_mask_and_its_statistics_stay(bn, training):
    model = tiny().train(training)
    with Trace(model):
        (step,) = run("snip", model=model, bn=bn)
    assert_top(step.masks, references.snip(model, ones(weights_of(model)), BATCHES[:1], bn=bn), KEEP)
    assert equal(step.masks, steps_of("snip")[0].masks) == (bn == "batch")


def test_the_temperature_is_the_same_for_a_loss_and_an_objective():
    steps = run("grasp", objective=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    assert equal(steps[-1].masks, steps_of("grasp")[-1].masks)


def test_random_masks_are_uniform_over_all_weights_and_follow_the_seed():
    model = nn.Sequential(nn.Linear(40, 50), nn.Linear(50, 20))
    x = torch.ones(1, 40)
    masks = {seed: prune(model, None, 0.5, "random", seed=seed, example=x).masks for seed in (0, 1)}
    repeated = prune(nn.Sequential(nn.Linear(40, 50), nn.Linear(50, 20)), None, 0.5, "random", example=x).masks
    assert equal(masks[0], repeated)  # whatever the weights
    assert 0.4 < float((masks[0]["0.weight"] == masks[1]["0.weight"]).double().mean()) < 0.6
    assert 900 < int(masks[0]["0.weight"].sum()) < 1100


def test_the_objective_and_the_loss_are_those_of_the_masks_a_round_begins_with():
    model = tiny()
    before = ones(weights_of(model))
    for step in steps_of("force"):
        batch = of_round(BATCHES, step.index, 1)
        assert step.saliency == pytest.approx(references.objective_value(model, before, batch), rel=1e-10)
        masked = {n: w * before[n] for n, w in weights_of(model).items()}
        assert step.loss == pytest.approx(references.loss_at(model, masked, batch, F.cross_entropy).item(), rel=1e-12)
        before = step.masks


@pytest.mark.parametrize("bn", ["batch", "eval"])
def test_a_channel_without_a_signal_gets_no_gradient_through_its_norm(bn):
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), zoo.Residual(*block), nn.Flatten(), nn.Linear(64, 3))
    masks = Masks({name: torch.ones(p.shape, dtype=torch.bool) for name, p in bb.prunable(model).items()})
    name = "1.block.0.weight"
    masks[name][:2] = False  # before a residual sum: nothing stops the gradient
    probe = Probe(model, [(torch.randn(8, 2, 4, 4), torch.arange(8) % 3)], bn=bn)
    with probe.at(masks, 0, 10):
        plain, signal = criteria.saliency(probe), criteria.signal_saliency(probe)
    assert plain[name][:2].abs().sum() > 0
    assert (signal[name][:2].abs().sum() == 0) == (bn == "batch")
    torch.testing.assert_close(signal[name][2:], plain[name][2:])
    for other in masks.keys() - {name}:
        torch.testing.assert_close(signal[other], plain[other])


def some_masks(seed: int = 0, density: float = 0.5) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(w.shape, generator=generator) < density for name, w in weights_of(tiny()).items()}


@pytest.mark.parametrize("over", ["kept", "all"])
def test_the_objective_is_equation_6(over):
    model = tiny()
    for masks in (ones(weights_of(model)), some_masks(), some_masks(1, 0.05), some_masks(density=0)):
        expected = references.objective_value(model, masks, BATCHES, over)
        with Trace(model):
            assert bb.saliency(model, masks, BATCHES, over=over) == pytest.approx(expected, rel=1e-10)


def test_the_count_of_batches():
    loader = DataLoader(TensorDataset(*BATCHES[0]), batch_size=4)
    for batches, count, read in [
        (BATCHES, 2, BATCHES[:2]),
        (lambda index: BATCHES[:2], 1, BATCHES[:2]),
        (loader, None, list(loader)),
    ]:
        expected = references.objective_value(tiny(), some_masks(), read)
        assert bb.saliency(tiny(), some_masks(), batches, count=count) == pytest.approx(expected, rel=1e-10)


def test_masks_of_some_layers_in_any_order_by_name():
    model, masks = tiny(), some_masks()
    assert bb.saliency(model, dict(reversed(masks.items())), BATCHES) == bb.saliency(model, masks, BATCHES)
    mask = masks["9.weight"]
    g = references.sensitivity(model, ones(weights_of(model)) | {"9.weight": mask}, BATCHES)["9.weight"]
    expected = pytest.approx(float(g[mask].abs().sum()), rel=1e-10)
    assert bb.saliency(model, {"9.weight": mask}, BATCHES) == expected
    model = nn.Sequential(nn.ModuleDict({"a[0]": nn.Linear(3, 2), "a0": nn.Linear(3, 2)}))  # names are no patterns
    objective = lambda m, batch: F.cross_entropy(m[0]["a[0]"](batch[0]) + m[0]["a0"](batch[0]), batch[1])
    batches, masks = [(torch.ones(2, 3), torch.tensor([0, 1]))], {"0.a[0].weight": torch.ones(2, 3) > 0}
    assert bb.saliency(model, masks, batches, objective=objective) >= 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(over="both"), "choose 'kept'"),
        (dict(count=0), r"count|at least one"),
        (dict(batches=[]), "batches is empty"),
        (dict(batches=iter(BATCHES)), "count="),
        (dict(masks={"nothing": torch.ones(1, dtype=torch.bool)}), "nothing"),
        (dict(masks={"9.weight": torch.ones(3, 3)}), r"9\.weight.*bool tensor"),
        (dict(masks={"9.weight": torch.ones(2, 3, dtype=torch.bool)}), r"9\.weight.* shape"),
    ],
)
def test_wrong_masks_and_options(options, match):
    with pytest.raises(ValueError, match=match):
        bb.saliency(tiny(), **dict(masks=some_masks(), batches=BATCHES) | options)


def test_agreement_is_the_share_that_both_keep():
    a = {"u": torch.tensor([True, True, False, False]), "v": torch.tensor([[True], [False]])}
    b = {"u": torch.tensor([True, False, True, False]), "v": torch.tensor([[True], [False]])}
    empty = {name: torch.zeros_like(m) for name, m in a.items()}
    assert bb.agreement(a, b).layers == {"u": 0.5, "v": 1.0}
    assert float(bb.agreement(a, b)) == float(bb.agreement(b, a)) == pytest.approx(2 / 3)
    assert [float(bb.agreement(*both)) for both in ((a, a), (empty, empty), (a, empty))] == [1.0, 1.0, 0.0]


class Recorded:
    """A stand-in for a CUDA graph: from the second call with a shape on, it returns one and the same memory."""

    def __init__(self, function: Callable[..., Any], eager: int = 1) -> None:
        self.function, self.results = function, {}

    def __call__(self, *tensors: Tensor) -> Any:
        key = tuple(t.shape for t in tensors)
        result = self.function(*[t.clone() for t in tensors])
        if key not in self.results:
            self.results[key] = None
            return result
        if self.results[key] is None:
            self.results[key] = tree_map(torch.clone, result)
        for old, new in zip(tree_leaves(self.results[key]), tree_leaves(result), strict=True):
            old.copy_(new)
        return self.results[key]


@pytest.mark.parametrize("name", ["force", "snip-mb", "iter-grasp", "grasp", "grasp-mb"])
def test_captured_gradients_are_the_plain_ones(name, monkeypatch):
    """Over several batches they are averaged."""
    monkeypatch.setattr(gradients, "Captured", Recorded)
    model = nn.Sequential(tiny(dtype=torch.float32).to(memory_format=torch.channels_last), nn.Dropout(0.1))
    data = pairs(3, dtype=torch.float32)
    data[2] = data[2][0][:6], data[2][1][:6]  # of two shapes: each gets a graph of its own
    probe = Probe(model, data)
    probe.capture = True  # the constructor refuses that on the CPU
    for a, b in zip(run(name, model=model, batches=data), rounds(probe, few(name), KEEP), strict=True):
        assert equal(a.masks, b.masks)
        assert (b.weights_digest, b.batches_digest) == (a.weights_digest, a.batches_digest)
        assert (b.saliency, b.loss) == pytest.approx((a.saliency, a.loss), rel=1e-5)


@pytest.mark.parametrize("capture", [False, True])
def test_graphs_and_copies_of_weights_are_freed_with_their_probe(capture, monkeypatch):
    """They hold memory, perhaps of the GPU, which must not wait for garbage collection; so may a loader's workers."""
    monkeypatch.setattr(gradients, "Captured", Recorded)
    probe = Probe(tiny(dtype=torch.float32), pairs(3, dtype=torch.float32))
    probe.capture = capture
    list(rounds(probe, few("force"), KEEP))
    graphs = [*probe._gradients._graphs.values(), probe._masking._put] if capture else []
    references = [*map(weakref.ref, [*graphs, probe._masking, probe])]
    gc.disable()
    try:
        del probe, graphs
        assert [reference() for reference in references] == [None] * (4 if capture else 2)
    finally:
        gc.enable()
