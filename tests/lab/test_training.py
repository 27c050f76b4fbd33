"""Training: the loop against its equations, masks held after every step, and resuming after any step bit for bit."""

import copy
import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, OneCycleLR, SequentialLR

from barebones.data import Data, Normalization, TensorSplit
from barebones.files import container as files
from barebones.files.masks import save_masks
from barebones.gpu.graphs import Captured
from barebones.lab.experiment.plan import LR_SCHEDULES, OPTIMIZERS, TrainingPlan
from barebones.lab.run import training as lab
from barebones.lab.run.loading import experiment_for_mask
from barebones.lab.run.run import run
from barebones.lab.run.training import Accuracy, Best, Epoch, Training, evaluate
from barebones.running import digest
from barebones.running.rng import forked, reseed
from barebones.training import ham, sam

PLAN = TrainingPlan(epochs=3, batch_size=8, lr=0.1, weight_decay=5e-4, milestones=(1 / 3, 2 / 3))
MOVING = [replace(PLAN, evolve="rigl", ablate=0.5, sam=0.5), replace(PLAN, evolve="set", optimizer="adamw", lr=0.01)]
STEPS = 5  # of an epoch: 37 images, 8 at a time
PLANS = [  # every optimizer, and every schedule with and without a warm-up
    PLAN,
    *(
        replace(PLAN, lr_schedule=schedule, warmup=warmup, optimizer=optimizer, lr=0.05, label_smoothing=0.1)
        for optimizer in OPTIMIZERS
        for schedule, warmup in (("milestones", 1), ("cosine", 0), ("cosine", 2), ("one-cycle", 0), ("constant", 1))
    ),
    *(replace(PLAN, optimizer=optimizer, ham=True, sam=0.5) for optimizer in OPTIMIZERS),
]
CPU = torch.device("cpu")


def split(count: int, seed: int, classes: int = 10) -> TensorSplit:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    labels = torch.randint(classes, (count,), generator=generator)
    return TensorSplit(images, labels, Normalization([0.5], [0.5]), pad=1, flip=True)


def data(train: int = 37, validation: int = 11, classes: int = 10) -> Data:
    held_out = split(validation, 2, classes) if validation else None
    return Data("noise", classes, (1, 4, 4), split(train, 1, classes), held_out, split(13, 3, classes))


def network(dropout: float = 0.0, classes: int = 10, width: int = 4) -> nn.Module:
    with forked(CPU, seed=0):
        return nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(dropout),
            nn.Flatten(), nn.Linear(16 * width, classes),
        )  # fmt: skip


def half(model: nn.Module) -> dict[str, Tensor]:
    """Masks that prune about half of the weights."""
    generator = torch.Generator().manual_seed(5)
    weights = {name: model.get_parameter(name) for name in ("0.weight", "5.weight")}
    return {name: torch.rand(weight.shape, generator=generator) < 0.5 for name, weight in weights.items()}


def state(training: Training) -> dict[str, Tensor]:
    """All tensors that the future depends on: what an optimizer remembers of pruned weights has no effect."""
    remembered = {
        f"{key} {name}": value if key == "step" else value * training.masks.get(name, True)
        for name, p in training.model.named_parameters()
        for key, value in training.optimizer.state.get(p, {}).items()
        if value is not None
    }
    return {k: v.detach().clone() for k, v in (training.model.state_dict() | remembered).items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if a[name].dtype != b[name].dtype or not torch.equal(a[name], b[name])]
    assert not different


def timeless(epoch: Epoch | None) -> Epoch | None:
    return epoch and replace(epoch, seconds=0.0, images_per_second=0.0)


def all_of(training: Training) -> list[Epoch]:
    return [timeless(epoch) for epoch in training.steps() if epoch is not None]


EPOCHS, EACH = 6, 7  # epochs, and steps of each


def reference(schedule: str, warmup: int) -> list[float]:
    """The learning rates of torch's own schedulers."""
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    total, warm = EPOCHS * EACH, warmup * EACH
    if schedule == "one-cycle":
        share = warmup / EPOCHS or 0.3
        scheduler = OneCycleLR(sgd, 0.4, total, pct_start=share, cycle_momentum=False)
    else:
        rest = CosineAnnealingLR(sgd, total - warm) if schedule == "cosine" else ConstantLR(sgd, 1.0, 1)
        rising = LinearLR(sgd, 1 / warm, 1.0, warm - 1) if warm else None
        scheduler = SequentialLR(sgd, [rising, rest], [warm]) if rising else rest
    rates = []
    for _ in range(total):
        rates.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step()
    return rates


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch's SequentialLR warns about itself
@pytest.mark.parametrize("warmup", [0, 1, 2])
@pytest.mark.parametrize("schedule", ["cosine", "one-cycle", "constant"])
def test_the_rates_are_those_of_torch(schedule, warmup):
    plan = TrainingPlan(EPOCHS, 8, 0.4, 0.0, lr_schedule=schedule, warmup=warmup)
    rates = [plan.rate(epoch, step, EACH) for epoch in range(EPOCHS) for step in range(EACH)]
    assert rates == pytest.approx(reference(schedule, warmup), rel=1e-9, abs=1e-12)


def test_a_warm_up_comes_before_the_milestones():
    plan = TrainingPlan(4, 8, 0.8, 0.0, milestones=(1 / 2, 3 / 4), warmup=1)
    rates = [plan.rate(epoch, step, 4) for epoch in range(4) for step in range(4)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8] + [0.8] * 4 + [0.08] * 4 + [0.008] * 4)


@pytest.mark.parametrize("schedule", LR_SCHEDULES)
@pytest.mark.parametrize(("epochs", "steps"), [(1, 1), (1, 2), (1, 3), (2, 1), (3, 2)])
def test_the_shortest_trainings_have_rates(schedule, epochs, steps):
    plan = TrainingPlan(epochs, 8, 0.1, 0.0, milestones=(0.5,), lr_schedule=schedule)
    rates = [plan.rate(epoch, step, steps) for epoch in range(epochs) for step in range(steps)]
    assert all(0 <= rate <= 0.1 for rate in rates)
    assert sum(rates) > 0


@pytest.mark.parametrize(("plan", "pruned"), [(PLAN, False), *((plan, True) for plan in PLANS)], ids=str)
def test_training_has_the_bits_of_torchs_optimizers_and_masks_applied_by_hand(plan, pruned):
    sets, trained, model = data(), network(0.2), network(0.2)
    masks = half(model) if pruned else {}
    steps = Training(trained, sets, plan, masks, seed=7).steps()
    if plan.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), 1.0, momentum=0.9, weight_decay=5e-4, fused=True)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), 1.0, weight_decay=5e-4, fused=True)

    perturbed = sam(optimizer, plan.sam).perturbed if plan.sam else nullcontext
    if plan.ham:
        ham(optimizer)

    def apply_masks() -> None:
        for name, mask in masks.items():
            p = model.get_parameter(name)
            for tensor in (p.data, optimizer.state.get(p, {}).get("previous_gradient", torch.zeros_like(p))):
                tensor[~mask] = 0

    apply_masks()
    for number in range(plan.epochs):
        model.train()
        total, hits = 0.0, 0
        batches = sets.train.epoch(plan.batch_size, 7, number, shuffle=True, augment=True)
        for step, (images, labels) in enumerate(batches):
            reseed(CPU, digest.text(7, "train", number, step))
            optimizer.param_groups[0]["lr"] = plan.rate(number, step, STEPS)
            optimizer.zero_grad()
            with perturbed():
                output = model(images)
                loss = F.cross_entropy(output, labels, label_smoothing=plan.label_smoothing)
                loss.backward()
            optimizer.step()
            apply_masks()
            total, hits = total + loss.item() * len(labels), hits + int((output.argmax(1) == labels).sum())
            assert next(steps) is None
            assert_same(dict(model.state_dict()), dict(trained.state_dict()))
        epoch = next(steps)
        assert (epoch.index, epoch.lr) == (number, plan.rate(number, STEPS - 1, STEPS))
        assert (epoch.accuracy, epoch.loss) == (hits / 37, pytest.approx(total / 37, rel=1e-5))
    with pytest.raises(StopIteration):
        next(steps)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_masks_are_held_after_every_step_in_every_precision(precision):
    model = network(dropout=0.2)
    masks = half(model)
    training = Training(model, data(), PLAN, masks, precision=precision)
    for _ in training.steps():
        for name, mask in masks.items():
            assert not model.get_parameter(name)[~mask].any()
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert math.isfinite(training.last.test.loss)
    exact = all_of(Training(network(dropout=0.2), data(), PLAN, masks))[-1].loss
    assert (training.last.loss == exact) == (precision in ("fp32", "tf32"))  # TF32 is for GPUs
    assert training.last.loss == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize(
    ("plan", "precision"), [*((plan, "fp32") for plan in (*PLANS, *MOVING)), (PLAN, "bf16"), (PLAN, "fp16")], ids=str
)
def test_stopping_after_any_step_changes_nothing(plan, precision, tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "MOVES", 5)  # so that masks move every third step

    def fresh() -> Training:
        model = network(0.5)
        return Training(model, data(), plan, half(model) if precision == "fp32" else None, seed=3, precision=precision)

    uninterrupted = fresh()
    expected = all_of(uninterrupted)
    for stop in (0, 3, STEPS, STEPS + 1, 2 * STEPS + 1, 3 * (STEPS + 1)):  # yields: five steps and an epoch, and again
        first, second, epochs = fresh(), fresh(), []
        steps = first.steps()
        for _ in range(stop):
            if (epoch := next(steps)) is not None:
                epochs.append(timeless(epoch))
        first.save(tmp_path / "checkpoint")
        torch.rand(3)  # the global generator must not matter
        second.load(tmp_path / "checkpoint")
        assert_same(state(first), state(second))
        assert (second.seconds > 0) == (first.step > 0)  # of this epoch
        assert (second.epoch, second.step, second.last) == (first.epoch, first.step, first.last)
        assert epochs + all_of(second) == expected
        assert_same(state(uninterrupted), state(second))
        assert (second.best, second.scaler.state_dict()) == (uninterrupted.best, uninterrupted.scaler.state_dict())


@pytest.mark.parametrize("plan", MOVING)
def test_rigl_moves_masks_by_the_gradients_of_plain_steps_in_the_memory_that_a_captured_step_reads(plan, monkeypatch):
    class Recorded(Captured):
        def __call__(self, *tensors):
            assert plan.evolve == "set" or not training.evolution.moves(training.evolution.step + 1)
            used.append([bits.data_ptr() for bits in training.held._bits.values()])
            return self.function(*tensors)

    used: list[list[int]] = []
    monkeypatch.setattr(lab, "Captured", Recorded)
    monkeypatch.setattr(lab, "MOVES", 5)  # every third step
    model = network()
    masks = half(model)
    training = Training(model, data(), plan, masks)
    training._learn = Recorded(training._learn_from)
    steps = training.steps()
    for number in range(10):
        before = training.masks
        while next(steps) is not None:  # an epoch
            pass
        assert all(torch.equal(before[name], mask) for name, mask in training.masks.items()) == (number % 3 < 2)
        assert_same(training.masks, training.held.state_dict())
    count = 10 if plan.evolve == "set" else 7
    assert used == count * [used[0]] != count * [[]]
    assert not any(torch.equal(training.masks[name], mask) for name, mask in masks.items())


def test_a_checkpoint_holds_kept_weights_and_their_momentum_only(tmp_path):
    sizes = {}
    for density in (1.0, 0.01):
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 1000), nn.ReLU(), nn.Linear(1000, 10))
        masks = {f"{at}.weight": torch.rand(model[at].weight.shape) < density for at in (1, 3)}
        training = Training(model, data(), PLAN, masks)
        next(training.steps())
        training.save(tmp_path / "checkpoint")
        sizes[density] = (tmp_path / "checkpoint").stat().st_size
    stored, _ = files.read(tmp_path / "checkpoint", "barebones-checkpoint", 2)
    kept = int(masks["1.weight"].count_nonzero())
    assert stored["weight 1.weight"].shape == stored["momentum 1.weight"].shape == (kept,)
    assert sizes[1.0] > 2 * 4 * 26_000  # bytes of weights and momentum
    assert sizes[0.01] < sizes[1.0] / 10


UNTRACKED = nn.BatchNorm2d(4, track_running_stats=False)
BOTTOM_UP = {name: mask.flip(0) for name, mask in half(network()).items()}
OTHERS: dict[str, tuple] = {  # a network, its masks, and its optimizer
    "wider": (network(width=5), {}, "sgd"),
    "nested": (nn.Sequential(network(), nn.Linear(10, 10)), {}, "sgd"),
    "no bias": (nn.Sequential(*network()[:5], nn.Linear(64, 10, bias=False)), {}, "sgd"),
    "one layer more": (nn.Sequential(*network(), nn.BatchNorm1d(10)), {}, "sgd"),
    "fewer buffers": (nn.Sequential(network()[0], UNTRACKED, *network()[2:]), {}, "sgd"),
    "another optimizer": (network(), {}, "adamw"),
    "other masks": (network(), BOTTOM_UP, "sgd"),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_another_network_is_refused_and_changes_nothing(other, swapped, tmp_path):
    own = network(), half(network()) if other == "other masks" else {}, "sgd"
    saved, loaded = (
        Training(copy.deepcopy(model), data(), replace(PLAN, optimizer=optimizer), masks)
        for model, masks, optimizer in ((OTHERS[other], own) if swapped else (own, OTHERS[other]))
    )
    next(saved.steps())
    saved.save(tmp_path / "checkpoint")
    before = state(loaded)
    with pytest.raises(ValueError, match=other if other == "other masks" else "is a checkpoint of another network"):
        loaded.load(tmp_path / "checkpoint")
    assert_same(before, state(loaded))


@pytest.mark.parametrize("classes", [10, 99, 100])
def test_evaluating_equals_counting_by_hand_with_top_5_from_100_classes(classes):
    model, sets = network(0.5, classes), data(classes=classes)
    model[1].running_mean.uniform_(-1, 1)
    buffers = copy.deepcopy(dict(model.named_buffers()))
    result = evaluate(model, sets.test, 4, "fp32", classes)
    assert_same(buffers, dict(model.named_buffers()))
    assert all(p.grad is None for p in model.parameters())

    model.eval()
    first, five, loss = 0, 0, 0.0
    for images, labels in sets.test.epoch(1):
        output = model(images)[0].double().tolist()
        label = int(labels)
        rank = sum(value > output[label] for value in output)
        first, five = first + (rank < 1), five + (rank < 5)
        loss += math.log(sum(map(math.exp, output))) - output[label]
    assert result.top1 == first / 13
    assert result.top5 == (five / 13 if classes >= 100 else None)
    assert result.loss == pytest.approx(loss / 13, rel=1e-5)


def test_the_best_epoch_is_the_first_of_equals_and_its_test_accuracy_is_kept(monkeypatch):
    sets = data()
    validation = [0.3, 0.5, 0.4, 0.5, 0.2]
    tests = iter([0.31, 0.51, 0.21])  # asked for only after epochs 0, 1 (each the best so far) and 4 (the last)
    plan = replace(PLAN, epochs=5)
    training = Training(network(), sets, plan)

    def measured(split):
        return Accuracy(validation[training.epoch] if split is sets.validation else next(tests), None, 1.0)

    monkeypatch.setattr(training, "evaluate", measured)
    epochs = all_of(training)
    assert [epoch.test and epoch.test.top1 for epoch in epochs] == [0.31, 0.51, None, None, 0.21]
    assert [epoch.validation.top1 for epoch in epochs] == validation
    assert training.best == Best(epoch=1, validation=0.5, test=0.51)


def test_where_nothing_is_held_out_every_epoch_is_tested_and_none_is_best():
    training = Training(network(), data(validation=0), PLAN)
    epochs = all_of(training)
    assert all(epoch.validation is None and epoch.test is not None for epoch in epochs)
    assert training.best is None


@pytest.mark.parametrize(
    ("train", "lr", "match"),
    [(37, 1e30, "epoch 1: the training loss is not finite"), (8, 1e38, "epoch 1: the network's outputs after it")],
    ids=["loss", "last step of an epoch"],
)
def test_numbers_that_are_not_finite_end_the_training(train, lr, match):
    training = Training(network(), data(train=train), replace(PLAN, lr=lr, epochs=1))
    with pytest.raises(FloatingPointError, match=f"{match}.*; lower the learning rate, add a warm-up, or train"):
        all_of(training)


def test_a_last_batch_of_a_single_image_is_passed_over():
    training = Training(network(), data(train=17), replace(PLAN, epochs=1))
    steps = training.steps()
    for _ in range(2):
        next(steps)
    before, tally = state(training), training.tally.tolist()
    next(steps)  # the third, of one image
    assert_same(before, state(training))
    epoch = next(steps)
    assert (tally[2], epoch.loss, epoch.accuracy) == (16, tally[0] / 16, tally[1] / 16)


@pytest.mark.parametrize("about", [{"pattern": "2:4"}, {"unit": "channel"}])
def test_masks_of_a_file_with_a_pattern_or_of_whole_channels_do_not_move(about, tmp_path):
    still = {"model": "small-vgg", "data": "digits"}
    save_masks({"a": torch.eye(4) > 0}, tmp_path / "mask", **about)
    assert experiment_for_mask(tmp_path / "mask", still).evolve is None
    with pytest.raises(ValueError, match=r"mask have a pattern or whole channels, .* --evolve"):
        experiment_for_mask(tmp_path / "mask", still | {"evolve": "rigl"})
    save_masks({"a": torch.eye(4) > 0}, tmp_path / "mask", pattern=None, unit="weight")
    assert experiment_for_mask(tmp_path / "mask", still | {"evolve": "rigl"}).evolve == "rigl"


def test_masks_of_a_file_train_with_the_defaults_of_another_optimizer(short, options):
    run(short, options, until="prune")
    mask = options.folder(short) / "mask.safetensors"
    assert experiment_for_mask(mask, {}, trust=True).lr == 0.1
    changed = experiment_for_mask(mask, {"optimizer": "adamw"}, trust=True).resolved()
    assert (changed.optimizer, changed.lr, changed.weight_decay) == ("adamw", 1e-3, 0.01)
    assert experiment_for_mask(mask, {"optimizer": "adamw", "lr": 0.02}, trust=True).lr == 0.02
