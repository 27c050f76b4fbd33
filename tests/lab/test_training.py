"""Training: the loop against its equations, masks held after every step, and resuming after any step bit for bit."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from barebones.data import Data, Normalization, TensorSplit
from barebones.files import container as files
from barebones.lab.experiment.plan import TrainingPlan
from barebones.lab.experiment.protocols import PROTOCOLS
from barebones.lab.run.training import Accuracy, Best, Epoch, Training, evaluate
from barebones.running import digest
from barebones.running.rng import forked, reseed

PLAN = TrainingPlan(epochs=3, batch_size=8, lr=0.1, weight_decay=5e-4, milestones=(1 / 3, 2 / 3))
STEPS = 5  # of an epoch: 37 images, 8 at a time
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
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Flatten(),
            nn.Linear(16 * width, classes),
        )


def half(model: nn.Module) -> dict[str, Tensor]:
    """Masks that prune about half of the weights."""
    generator = torch.Generator().manual_seed(5)
    return {name: torch.rand(model.get_parameter(name).shape, generator=generator) < 0.5 for name in MASKED}


MASKED = ("0.weight", "5.weight")


def state(training: Training) -> dict[str, Tensor]:
    """All tensors that the future depends on."""
    momentum = {
        f"momentum {name}": training.optimizer.state[p]["momentum_buffer"] * training.masks.get(name, True)
        for name, p in training.model.named_parameters()
        if "momentum_buffer" in training.optimizer.state.get(p, {})
    }
    return {k: v.detach().clone() for k, v in (training.model.state_dict() | momentum).items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if a[name].dtype != b[name].dtype or not torch.equal(a[name], b[name])]
    assert not different


def timeless(epoch: Epoch | None) -> Epoch | None:
    return epoch and replace(epoch, seconds=0.0, images_per_second=0.0)


def all_of(training: Training) -> list[Epoch]:
    return [timeless(epoch) for epoch in training.steps() if epoch is not None]


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        (1, [0.1]),
        (2, [0.1, 0.001]),
        (3, [0.1, 0.01, 0.001]),
        (7, [0.1] * 3 + [0.01] * 2 + [0.001] * 2),
        (35, [0.1] * 15 + [0.01] * 10 + [0.001] * 10),
    ],
)
def test_milestones_scale_with_the_epochs(epochs, expected):
    plan = TrainingPlan(epochs, 128, 0.1, 5e-4, PROTOCOLS["cifar10"].milestones)
    assert [plan.rate(epoch) for epoch in range(epochs)] == pytest.approx(expected)


@pytest.mark.parametrize(("dropout", "pruned"), [(0.0, True), (0.5, True), (0.5, False)])
def test_training_has_the_bits_of_torchs_sgd_and_masks_applied_by_hand(dropout, pruned):
    sets, seed = data(), 7
    trained, model = network(dropout), network(dropout)
    masks = half(model) if pruned else {}
    steps = Training(trained, sets, PLAN, masks, seed=seed).steps()
    sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, fused=True)

    def apply_masks() -> None:
        for name, mask in masks.items():
            model.get_parameter(name).data[~mask] = 0

    apply_masks()
    for number in range(PLAN.epochs):
        rate = sgd.param_groups[0]["lr"] = (0.1, 0.1 / 10, 0.1 / 100)[number]
        model.train()
        total, hits = 0.0, 0
        batches = sets.train.epoch(PLAN.batch_size, seed, number, shuffle=True, augment=True)
        for step, (images, labels) in enumerate(batches):
            reseed(CPU, digest.text(seed, "train", number, step))
            sgd.zero_grad()
            output = model(images)
            loss = F.cross_entropy(output, labels)
            loss.backward()
            sgd.step()
            apply_masks()
            total, hits = total + loss.item() * len(labels), hits + int((output.argmax(1) == labels).sum())
            assert next(steps) is None
            assert_same(dict(model.state_dict()), dict(trained.state_dict()))
        epoch = next(steps)
        assert (epoch.index, epoch.lr, epoch.accuracy) == (number, rate, hits / len(sets.train))
        assert epoch.loss == pytest.approx(total / len(sets.train), rel=1e-5)
    with pytest.raises(StopIteration):
        next(steps)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_masks_are_held_after_every_step_in_every_precision(precision):
    model = network(dropout=0.2)
    before, masks = copy.deepcopy(model.state_dict()), half(model)
    training = Training(model, data(), PLAN, masks, precision=precision)
    count = 0
    for epoch in training.steps():
        count += epoch is None
        for name, mask in masks.items():
            assert not model.get_parameter(name)[~mask].any()
    assert count == PLAN.epochs * STEPS
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in model.parameters())
    assert all(not torch.equal(before[name][mask], model.get_parameter(name)[mask]) for name, mask in masks.items())
    assert 0 <= training.last.test.top1 <= 1
    assert math.isfinite(training.last.test.loss)
    exact = all_of(Training(network(dropout=0.2), data(), PLAN, masks))[-1].loss
    assert (training.last.loss == exact) == (precision in ("fp32", "tf32"))  # TF32 is for GPUs
    assert training.last.loss == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize(
    ("dropout", "precision", "pruned"),
    [(0.0, "fp32", True), (0.5, "fp32", True), (0.5, "bf16", False), (0.5, "fp16", False)],
)
@pytest.mark.parametrize("stop", [0, 3, STEPS, STEPS + 1, 2 * STEPS + 1, 3 * (STEPS + 1)])
def test_stopping_after_any_step_changes_nothing(stop, dropout, precision, pruned, tmp_path):
    def fresh() -> Training:
        model = network(dropout)
        return Training(model, data(), PLAN, half(model) if pruned else None, seed=3, precision=precision)

    uninterrupted = fresh()
    expected = all_of(uninterrupted)

    first, epochs = fresh(), []
    steps = first.steps()
    for _ in range(stop):  # yields of all kinds: five steps and an epoch, again and again
        if (epoch := next(steps)) is not None:
            epochs.append(timeless(epoch))
    first.save(tmp_path / "checkpoint")
    torch.rand(3)  # the global generator must not matter
    second = fresh()
    second.load(tmp_path / "checkpoint")
    assert_same(state(first), state(second))
    assert (second.epoch, second.step, second.best, second.last) == (first.epoch, first.step, first.best, first.last)
    epochs += all_of(second)

    assert epochs == expected
    assert_same(state(uninterrupted), state(second))
    assert (second.best, second.scaler.state_dict()) == (uninterrupted.best, uninterrupted.scaler.state_dict())
    assert timeless(second.last) == expected[-1]


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


def test_a_checkpoint_under_other_masks_is_refused(tmp_path):
    model = network()
    masks = half(model)
    Training(model, data(), PLAN, masks).save(tmp_path / "checkpoint")
    other = network()
    loaded = Training(other, data(), PLAN, {name: mask.flip(0) for name, mask in masks.items()})
    before = state(loaded)
    with pytest.raises(ValueError, match="under other masks"):
        loaded.load(tmp_path / "checkpoint")
    assert_same(before, state(loaded))


OTHERS = {
    "wider": network(width=5),
    "nested": nn.Sequential(network(), nn.Linear(10, 10)),
    "no bias": nn.Sequential(*network()[:5], nn.Linear(64, 10, bias=False)),
    "one layer more": nn.Sequential(*network(), nn.BatchNorm1d(10)),
    "fewer buffers": nn.Sequential(network()[0], nn.BatchNorm2d(4, track_running_stats=False), *network()[2:]),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_another_network_is_refused_and_changes_nothing(other, swapped, tmp_path):
    saved, loaded = (Training(copy.deepcopy(model), data(), PLAN) for model in (network(), OTHERS[other]))
    if swapped:
        saved, loaded = loaded, saved
    saved.save(tmp_path / "checkpoint")
    before = state(loaded)
    with pytest.raises(ValueError, match="is a checkpoint of another network"):
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
@pytest.mark.parametrize(
    ("precision", "warmup", "remedy"),
    [("fp32", 0, ", or add a warm-up"), ("bf16", 0, ", add a warm-up, or use fp32"), ("fp32", 1, "")],
)
def test_numbers_that_are_not_finite_end_the_training(train, lr, match, precision, warmup, remedy):
    plan = replace(PLAN, lr=(1 + warmup) ** 5 * lr, epochs=1, warmup=warmup)
    training = Training(network(), data(train=train), plan, precision=precision)
    with pytest.raises(FloatingPointError, match=f"{match}.*; lower the learning rate{remedy}$"):
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


def test_an_interrupted_epoch_has_a_time_and_a_pace(tmp_path):
    first = Training(network(), data(), PLAN)
    steps = first.steps()
    next(steps)
    first.save(tmp_path / "checkpoint")
    second = Training(network(), data(), PLAN)
    second.load(tmp_path / "checkpoint")
    assert second.seconds > 0
    epoch = next(epoch for epoch in second.steps() if epoch is not None)
    assert epoch.seconds >= second.seconds
    assert epoch.images_per_second == pytest.approx(37 / epoch.seconds)
