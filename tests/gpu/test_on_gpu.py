"""On a GPU: nothing waits for the device, counts are exact, no trace is left, and masks agree with the CPU's."""

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import references
import torch
from torch import nn

import barebones as bb
from barebones.data import Data, Normalization, TensorSplit
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.experiment.plan import TrainingPlan
from barebones.lab.run.run import RunOptions, Stopped, run
from barebones.lab.run.training import Training
from barebones.masks import kept
from barebones.pruning.selection import top_masks
from barebones.running import digest

pytestmark = pytest.mark.gpu


def network(bias: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1, bias=bias), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=bias), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


def batches(count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(32, 3, 16, 16, generator=generator), torch.randint(10, (32,), generator=generator))
        for _ in range(count)
    ]


@contextmanager
def without_waiting() -> Iterator[None]:
    """Raise an error if the host waits for the GPU."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("levels", [5, 1 << 20])
@pytest.mark.parametrize("share", [0.001, 0.3, 0.6, 0.95])
def test_selection_equals_the_hosts_and_does_not_wait(levels, share):
    generator = torch.Generator().manual_seed(2)
    sizes = {"a": 50_000, "b": 1, "c": 30_011}
    scores = {name: torch.randint(levels, (size,), generator=generator).float() for name, size in sizes.items()}
    prefer = {name: torch.rand(s.shape, generator=generator) < 0.5 for name, s in scores.items()}
    keep = round(share * sum(s.numel() for s in scores.values()))
    on_gpu = [{name: t.cuda() for name, t in tensors.items()} for tensors in (scores, prefer)]
    with without_waiting():
        masks = top_masks(on_gpu[0], keep, prefer=on_gpu[1])
    expected = bb.keep_top(scores, keep, prefer=prefer)
    assert kept(masks) == keep
    assert all(torch.equal(masks[name].cpu(), expected[name]) for name in expected)


@pytest.mark.parametrize("share", [1e-6, 0.005, 0.5, 0.999])
@pytest.mark.parametrize("kind", ["products", "zeros", "few values", "negative", "double"])
def test_many_scores_lead_to_the_masks_of_the_host(kind, share):
    generator = torch.Generator("cuda").manual_seed(3)
    n = (1 << 21) + 12345
    normal = torch.randn(n, generator=generator, device="cuda") * torch.randn(n, generator=generator, device="cuda")
    drawn = torch.rand(n, generator=generator, device="cuda")
    scores = {
        "products": normal.abs(),
        "zeros": normal.abs() * (drawn < 0.02),
        "few values": (drawn * 5).floor(),
        "negative": normal - 10,
        "double": normal.double().abs() + 1e-12 * drawn.double(),
    }[kind]
    prefer, allowed = torch.rand(n, generator=generator, device="cuda") < 0.5, drawn < 0.7
    wanted = max(1, round(share * n))
    for keep, options in ((wanted, {"prefer": prefer}), (min(wanted, int(allowed.sum())), {"among": allowed})):
        masks = bb.keep_top({"w": scores}, keep, **{name: {"w": mask} for name, mask in options.items()})
        expected = bb.keep_top({"w": scores.cpu()}, keep, **{name: {"w": m.cpu()} for name, m in options.items()})
        assert torch.equal(masks["w"].cpu(), expected["w"])


@pytest.mark.parametrize("method", list(bb.METHODS))
def test_every_method_keeps_its_count_and_leaves_no_trace(method):
    model = network().cuda()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.cuda.get_rng_state(), torch.get_rng_state()
    result = bb.prune(model, batches(), sparsity=0.9, method=method, seed=3, on_collapse="ignore")
    total = sum(p.numel() for p in bb.prunable(model).values())
    assert kept(result.masks) == round(0.1 * total)
    assert all(mask.is_cuda for mask in result.masks.values())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(
        torch.equal(a, b) for a, b in zip(random, (torch.cuda.get_rng_state(), torch.get_rng_state()), strict=True)
    )


@pytest.mark.parametrize("method", ["snip", "magnitude", "iter-grasp"])
def test_one_round_agrees_with_the_cpu(method):
    model = network().eval()  # without dropout, which draws other numbers on a GPU
    options = {"sparsity": 0.9, "method": method, "on_collapse": "ignore"}
    if method == "iter-grasp":
        options["rounds"] = 1
    on_cpu = bb.prune(model, batches(), **options).masks
    on_gpu = bb.prune(model.cuda(), batches(), **options).masks
    assert float(bb.agreement(on_cpu, {name: mask.cpu() for name, mask in on_gpu.items()})) > 0.99


def test_a_digest_is_the_same_on_both_devices():
    for shape, dtype in [((3, 5), torch.float32), ((200_001,), torch.bfloat16), ((1 << 18, 3), torch.float32)]:
        tensor = torch.randn(shape).to(dtype)
        assert int(digest.of_tensors([tensor])) == int(digest.of_tensors([tensor.cuda()]))


@pytest.mark.parametrize("bias", [False, True])
def test_a_captured_gradient_gives_the_masks_of_an_eager_one(bias):
    """Round by round from the captured run's own masks; a whole trajectory is chaotic."""
    model, data = network(bias).cuda(), batches()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    method = replace(bb.METHODS["force"], rounds=8)
    keep = 400
    captured = list(bb.rounds(bb.Probe(model, data, capture=True), method, keep))
    for before, after in itertools.pairwise(captured):
        eager = next(bb.rounds(bb.Probe(model, data), method, keep, after=before))
        assert kept(after.masks) == after.keep
        assert float(bb.agreement(after.masks, eager.masks)) > 0.99
        assert after.saliency == pytest.approx(eager.saliency, rel=1e-3)
        assert after.loss == pytest.approx(eager.loss, rel=1e-3)
        host = [{name: m.cpu() for name, m in r.masks.items()} for r in (before, after)]
        counted = after.pruned, after.recovered, after.recovered_empty, after.record.layers
        assert counted == references.changes(*host)
    on_paths = bb.effective(model, captured[-1].masks, data[0][0].cuda())
    assert kept(on_paths) >= 0.8 * keep  # biases of empty channels would fill those with weights that lead nowhere
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def without_norms() -> nn.Module:
    return nn.Sequential(*(layer for layer in network() if not isinstance(layer, nn.BatchNorm2d | nn.Dropout))).cuda()


@pytest.mark.parametrize("capture", [False, True])
def test_micro_batches_give_the_masks_of_whole_batches(capture):
    # at 0.8 no signal reaches some of the outputs, and prune warns
    whole = bb.prune(without_norms(), batches(), 0.5, "snip").masks
    parts = bb.prune(without_norms(), batches(), 0.5, "snip", capture=capture, micro_batch=5).masks
    assert kept(parts) == kept(whole)
    assert sum(int((parts[name] & mask).sum()) for name, mask in whole.items()) >= 0.99 * kept(whole)


@pytest.mark.parametrize("captured", [False, True])
def test_micro_batches_train_as_whole_batches_do(captured):
    data, plan = small_data(), TrainingPlan(epochs=3, batch_size=32, lr=0.05, weight_decay=5e-4)
    ends = []
    for micro in (None, 12):
        training = Training(without_norms(), data, plan, captured=captured, micro_batch=micro)
        ends.append([e.loss for e in training.steps() if e is not None])
    assert ends[0] == pytest.approx(ends[1], rel=0.05)


def test_weights_changed_between_captured_rounds_are_noticed():
    model = network().cuda()
    probe = bb.Probe(model, [tuple(t.cuda() for t in b) for b in batches()], capture=True)
    steps = bb.rounds(probe, replace(bb.METHODS["force"], rounds=6), keep=100)
    for _ in range(4):
        next(steps)
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(ValueError, match="weights were changed"):
        list(steps)


def test_pruning_does_not_wait_for_the_device():
    """Once the rounds are captured, up to the last one, nothing waits for the device."""
    model, data = network().cuda(), [(x.cuda(), y.cuda()) for x, y in batches()]
    steps = bb.rounds(bb.Probe(model, data, capture=True), replace(bb.METHODS["force"], rounds=9), keep=400)
    for _ in range(5):
        next(steps)
    with without_waiting():
        for _ in range(3):
            next(steps)
    assert kept(next(steps).masks) == 400


def test_scores_that_are_not_finite_are_found_when_the_numbers_are_read():
    model = network().cuda()
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = torch.nan
    first = next(bb.rounds(bb.Probe(model, batches()), replace(bb.METHODS["force"], rounds=3), keep=400))
    with pytest.raises(FloatingPointError, match="round 1"):
        first.record
    with pytest.raises(FloatingPointError, match="round 1"):
        bb.prune(model, batches(), 0.9, "force", rounds=3)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_held_weights_are_cleared_with_one_launch(layout, dtype):
    model = network().to("cuda", dtype, memory_format=layout)
    masks = {name: torch.rand(p.shape, device="cuda") < 0.3 for name, p in bb.prunable(model).items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    handle = bb.hold(model, masks, optimizer)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(torch.nan)
    before = {name: p.clone() for name, p in model.named_parameters()}
    handle._clear_weights(optimizer)
    for name, p in model.named_parameters():
        expected = torch.where(masks[name], before[name], 0.0) if name in masks else before[name]
        assert torch.equal(p.isnan(), expected.isnan())
        assert not (p[~p.isnan()]).any()
    model.to(memory_format=torch.channels_last)  # this moves the weights to other addresses
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1.0)
    handle._clear_weights(optimizer)
    bb.audit(model, masks)
    masks = {name: torch.rand(m.shape, device="cuda") < 0.3 for name, m in masks.items()}
    handle.load_state_dict(masks)
    with torch.no_grad():
        for p in model.to(memory_format=torch.contiguous_format).parameters():
            p.fill_(1.0)
    handle._clear_weights(optimizer)
    assert all(torch.equal(model.get_parameter(name) != 0, mask) for name, mask in masks.items())
    held = [model.get_parameter(name) for name in masks]
    others = [torch.ones_like(p) for p in held]  # such as gradients, in the layout of their weights
    handle.clear(held, others)
    assert all(torch.equal(t != 0, mask) for t, mask in zip(others, masks.values(), strict=True))


def small_data(device="cuda"):
    generator = torch.Generator().manual_seed(3)
    normalization = Normalization([0.5] * 3, [0.25] * 3, device=device)

    def part(size):
        labels = torch.randint(10, (size,), generator=generator)
        pixels = (labels.view(-1, 1, 1, 1) * 25 + torch.randint(6, (size, 3, 16, 16), generator=generator)).byte()
        return TensorSplit(pixels, labels, normalization)

    return Data("bands", 10, (3, 16, 16), part(300), part(40), part(80))


THIN = {"ham": True, "sam": 0.05, "evolve": "rigl"}
SET = THIN | {"evolve": "set"}


@pytest.mark.parametrize(
    ("precision", "changes"), [*((p, {}) for p in ("fp32", "tf32", "bf16", "fp16")), ("fp32", THIN), ("bf16", SET)]
)
def test_a_captured_step_trains_as_a_plain_one(precision, changes, monkeypatch):
    monkeypatch.setattr("barebones.lab.run.training.MOVES", 5)  # every eighth step, so that steps between are captured
    data, plan = small_data(), TrainingPlan(4, 32, lr=0.05, weight_decay=5e-4, milestones=(0.5,), **changes)
    ends = []
    for captured in (False, True):
        model = network().cuda()
        model[7] = nn.Identity()  # dropout: a graph draws its numbers elsewhere
        masks = bb.prune(model, data.train.scoring(32), 0.5, "snip").masks
        training = Training(model, data, plan, masks, precision=precision, captured=captured)
        ends.append([e for e in training.steps() if e is not None])
        bb.audit(model, training.masks)
    plain, graph = ends
    assert [e.lr for e in graph] == [0.05, 0.05, 0.005, 0.005]
    for a, b in zip(plain, graph, strict=True):
        assert b.loss == pytest.approx(a.loss, rel=0.2, abs=0.02)
    assert graph[-1].loss < 0.8 * graph[0].loss


def test_masks_move_as_on_the_host_and_without_waiting():
    ends = []
    for device in ("cpu", "cuda"):
        model = network().to(device)
        held = bb.hold(model, bb.prune(network(), batches(), 0.5, "snip").masks, torch.optim.SGD(model.parameters()))
        for p in model.parameters():
            p.grad = torch.linspace(-1, 2, p.numel(), device="cpu").view(p.shape).to(device)
        evolution = bb.evolve(held, 8, every=1)
        with without_waiting():
            evolution.advance()
        ends.append({name: mask.cpu() for name, mask in held.state_dict().items()})
    assert all(torch.equal(mask, ends[1][name]) for name, mask in ends[0].items())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_captured_training_of_ones_own_trains_as_a_plain_one_and_resumes(optimizer, precision, tmp_path):
    plan = TrainingPlan(
        epochs=4, batch_size=32, lr=0.05 if optimizer == "sgd" else 0.005, weight_decay=5e-4, optimizer=optimizer,
        lr_schedule="cosine", warmup=1, label_smoothing=0.1,
    )  # fmt: skip
    data, ends = small_data(), []

    def start(captured: bool) -> Training:
        model = network().cuda()
        model[7] = nn.Identity()  # dropout: a graph draws its numbers elsewhere
        return Training(model, data, plan, precision=precision, captured=captured)

    for captured in (False, True):
        training = start(captured)
        ends.append([e for e in training.steps() if e is not None])
        rate = training.optimizer.param_groups[0]["lr"]
        assert float(rate) == pytest.approx(plan.rate(3, 9, 10), rel=1e-5)
    first = start(True)
    steps = first.steps()
    for _ in range(15):
        next(steps)
    first.save(tmp_path / "checkpoint")
    second = start(True)
    second.load(tmp_path / "checkpoint")
    for p, q in zip(first.model.parameters(), second.model.parameters(), strict=True):
        kept, loaded = first.optimizer.state[p], second.optimizer.state[q]
        assert all(torch.equal(kept[key], loaded[key]) for key in kept if kept[key] is not None)
    ends.append(ends[1][:1] + [e for e in second.steps() if e is not None])
    for a, b, c in zip(*ends, strict=True):
        assert a.lr == b.lr == c.lr
        assert b.loss == pytest.approx(a.loss, rel=0.2, abs=0.05)
        assert c.loss == pytest.approx(a.loss, rel=0.2, abs=0.05)
    assert ends[1][-1].loss < 0.9 * ends[1][0].loss


def test_a_network_shrinks_on_the_device():
    model = network().cuda()
    generator = torch.Generator().manual_seed(0)
    masks = {n: (torch.rand(p.shape, generator=generator) < 0.1).cuda() for n, p in bb.prunable(model).items()}
    images = batches(1)[0][0].cuda()
    small = bb.shrink(model, masks, images, multiple_of=8)
    assert all(p.is_cuda for p in small.module.parameters())
    assert all(mask.is_cuda for mask in small.masks.values())
    with torch.no_grad():
        expected, got = (net.double().eval()(images.double()) for net in (small.expand(), small.module))
    torch.testing.assert_close(got, expected)
    assert small.plan.parameters[1] < small.plan.parameters[0]


@pytest.mark.parametrize("after", [3, 7])
def test_a_pruning_that_was_stopped_ends_with_the_same_masks(after, tmp_path):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    experiment = Experiment("small-resnet", "digits", "force", 0.95, rounds=12, epochs=1).resolved("cuda")
    whole, stopped = (RunOptions(tmp_path / name, device="cuda", save_every=0) for name in ("whole", "stopped"))
    run(experiment, whole, until="prune")
    counter = itertools.count()
    with pytest.raises(Stopped):
        run(experiment, stopped, stopping=lambda: next(counter) >= after, until="prune")
    run(experiment, stopped, until="prune")
    one, other = (bb.load_masks(p.folder(experiment) / "mask.safetensors") for p in (whole, stopped))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_training_takes_the_fastest_algorithms_and_pruning_does_not(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    experiment = Experiment("small-vgg", "digits", "snip", 0.9, epochs=1).resolved("cuda")
    run(experiment, RunOptions(tmp_path, device="cuda"), until="prune")
    assert not torch.backends.cudnn.benchmark
    Training(network().cuda(), small_data(), TrainingPlan(epochs=1, batch_size=32, lr=0.05, weight_decay=0))
    assert torch.backends.cudnn.benchmark
