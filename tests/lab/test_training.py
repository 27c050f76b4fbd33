"""Training: the loop against its equations, masks held after every step, and resuming after any step bit for bit."""

import copy
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from barebones.data import Data, TensorSplit
from barebones.data.normalization import Normalization
from barebones.lab.protocols import PROTOCOLS
from barebones.lab.training import Accuracy, Best, Epoch, Training, TrainingPlan, evaluate
from barebones.running import digest
from barebones.running.rng import forked, reseed

PLAN = TrainingPlan(epochs=3, batch=8, lr=0.1, weight_decay=5e-4, milestones=(1 / 3, 2 / 3))
STEPS = 5  # of an epoch: 37 images, 8 at a time
CPU = torch.device("cpu")


def split(count: int, seed: int, classes: int = 10) -> TensorSplit:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    labels = torch.randint(classes, (count,), generator=generator)
    return TensorSplit(images, labels, Normalization([0.5], [0.5]), pad=1, flip=True)


def data(train: int = 37, validation: int = 11, classes: int = 10) -> Data:
    held_out = split(validation, 2, classes) if validation else None
    return Data("noise", classes, 4, 1, split(train, 1, classes), held_out, split(13, 3, classes))


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
        f"momentum {name}": training.optimizer.state[p]["momentum_buffer"]
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


@given(
    epochs=st.integers(1, 500),
    lr=st.floats(1e-4, 10),
    milestones=st.lists(st.floats(0.01, 0.99), max_size=4).map(sorted).map(tuple),
)
def test_the_learning_rate_never_grows_and_passes_every_milestone(epochs, lr, milestones):
    plan = TrainingPlan(epochs, 128, lr, 0.0, milestones)
    rates = [plan.rate(epoch) for epoch in range(epochs)]
    assert rates[0] == lr
    assert all(later <= earlier for earlier, later in pairwise(rates))
    if all(round(at * epochs) < epochs for at in milestones) and epochs > 1:
        assert rates[-1] == lr / 10 ** len(milestones)


@pytest.mark.parametrize("pruned", [False, True])
def test_training_is_the_plain_loop_of_the_equations(pruned):
    sets, plan, seed = data(), replace(PLAN, epochs=2), 7
    trained, model = network(), network()
    masks = half(model) if pruned else None
    training = Training(trained, sets, plan, masks, seed=seed)
    if masks is not None:
        for name, mask in masks.items():
            model.get_parameter(name).data[~mask] = 0
    velocity: dict[str, Tensor] = {}
    steps = training.steps()
    for number in range(plan.epochs):
        lr = (0.1, 0.001)[number]
        model.train()
        total, hits = 0.0, 0
        for images, labels in sets.train.epoch(plan.batch, seed, number, shuffle=True, augment=True):
            output = model(images)
            loss = -torch.log_softmax(output, 1)[torch.arange(len(labels)), labels].mean()
            model.zero_grad()
            loss.backward()
            for name, p in model.named_parameters():
                gradient = p.grad + plan.weight_decay * p.detach()
                velocity[name] = 0.9 * velocity[name] + gradient if name in velocity else gradient
                p.data -= lr * velocity[name]
                if masks is not None and name in masks:
                    p.data[~masks[name]] = 0
            total += loss.item() * len(labels)
            hits += int((output.argmax(1) == labels).sum())
            assert next(steps) is None
            for (name, p), (_, q) in zip(model.named_parameters(), trained.named_parameters(), strict=True):
                torch.testing.assert_close(q, p, rtol=2e-5, atol=2e-6, msg=name)
        epoch = next(steps)
        assert epoch.index == number
        assert epoch.lr == lr
        assert epoch.loss == pytest.approx(total / len(sets.train), rel=1e-5)
        assert epoch.accuracy == hits / len(sets.train)
    with pytest.raises(StopIteration):
        next(steps)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_training_has_the_bits_of_torchs_sgd_and_masks_applied_by_hand(dropout):
    sets, seed = data(), 7
    trained, model = network(dropout), network(dropout)
    masks = half(model)
    training = Training(trained, sets, PLAN, masks, seed=seed)
    for name, mask in masks.items():
        model.get_parameter(name).data[~mask] = 0
    sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, fused=True)
    steps = training.steps()
    for number in range(PLAN.epochs):
        sgd.param_groups[0]["lr"] = (0.1, 0.1 / 10, 0.1 / 100)[number]
        model.train()
        batches = sets.train.epoch(PLAN.batch, seed, number, shuffle=True, augment=True)
        for step, (images, labels) in enumerate(batches):
            reseed(CPU, digest.text(seed, "train", number, step))
            sgd.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            sgd.step()
            for name, mask in masks.items():
                model.get_parameter(name).data[~mask] = 0
            next(steps)
            assert_same(dict(model.state_dict()), dict(trained.state_dict()))
        assert next(steps).index == number
        assert_same(dict(model.state_dict()), dict(trained.state_dict()))


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


def test_lower_precision_computes_other_numbers_near_the_same():
    found = {}
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        training = Training(network(), data(), replace(PLAN, epochs=1), precision=precision)
        found[precision] = all_of(training)[0].loss
    assert found["tf32"] == found["fp32"]  # of which only a GPU makes a difference
    for precision in ("bf16", "fp16"):
        assert found[precision] != found["fp32"]
        assert found[precision] == pytest.approx(found["fp32"], rel=0.05)


@pytest.mark.parametrize(
    ("dropout", "precision", "pruned"), [(0.0, "fp32", True), (0.5, "fp32", True), (0.5, "bf16", False)]
)
@pytest.mark.parametrize("stop", [0, 1, 3, STEPS, STEPS + 1, STEPS + 3, 2 * STEPS + 1, 3 * STEPS + 2, 3 * (STEPS + 1)])
def test_stopping_after_any_step_changes_nothing(stop, dropout, precision, pruned, tmp_path):
    def fresh() -> Training:
        model = network(dropout)
        return Training(model, data(), PLAN, half(model) if pruned else None, seed=3, precision=precision)

    whole = fresh()
    expected = all_of(whole)

    first, found = fresh(), []
    steps = first.steps()
    for _ in range(stop):  # yields of all kinds: five steps and an epoch, again and again
        if (epoch := next(steps)) is not None:
            found.append(timeless(epoch))
    first.save(tmp_path / "checkpoint")
    torch.rand(3)  # the global generator must not matter
    second = fresh()
    second.load(tmp_path / "checkpoint")
    assert_same(state(first), state(second))
    assert (second.epoch, second.step, second.best, second.last) == (first.epoch, first.step, first.best, first.last)
    found += all_of(second)

    assert found == expected
    assert_same(state(whole), state(second))
    assert second.best == whole.best
    assert timeless(second.last) == expected[-1]


def test_stopping_after_every_step_changes_nothing(tmp_path):
    whole = Training(network(0.5), data(), PLAN, precision="fp16")
    expected, found = all_of(whole), []
    for _ in range(PLAN.epochs * (STEPS + 1)):
        training = Training(network(0.5), data(), PLAN, precision="fp16")
        if (tmp_path / "checkpoint").exists():
            training.load(tmp_path / "checkpoint")
        found.append(timeless(next(training.steps())))
        training.save(tmp_path / "checkpoint")
    assert [epoch for epoch in found if epoch] == expected
    assert_same(state(whole), state(training))
    assert training.scaler.state_dict() == whole.scaler.state_dict()
    assert training.best == whole.best


def test_saving_changes_nothing_and_equal_states_make_equal_files(tmp_path):
    plain, saved = (Training(network(0.5), data(), PLAN) for _ in range(2))
    expected = all_of(plain)
    found = []
    for epoch in saved.steps():
        saved.save(tmp_path / "checkpoint")
        found += [timeless(epoch)] if epoch else []
    assert found == expected
    assert_same(state(plain), state(saved))
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_loading_into_a_training_that_has_gone_on_takes_it_all_back(tmp_path):
    training = Training(network(), data(), PLAN)
    training.save(tmp_path / "begin")
    expected, end = all_of(training), state(training)
    training.load(tmp_path / "begin")
    assert all_of(training) == expected
    assert_same(state(training), end)


@pytest.mark.parametrize(
    "other",
    [
        network(width=5),
        network(classes=11),
        nn.Sequential(network(), nn.Linear(10, 10)),
        network()[:2],
        nn.Sequential(*network()[:5], nn.Linear(64, 10, bias=False)),  # the checkpoint has a bias more
        nn.Sequential(*network(), nn.BatchNorm1d(10)),
        nn.Sequential(network()[0], nn.BatchNorm2d(4, track_running_stats=False), *network()[2:]),  # fewer buffers
    ],
    ids=["wider", "more classes", "nested", "fewer layers", "no bias", "one layer more", "no statistics"],
)
def test_a_checkpoint_of_another_network_is_refused_and_changes_nothing(other, tmp_path):
    made = Training(network(), data(), PLAN)
    next(made.steps())
    made.save(tmp_path / "checkpoint")
    training = Training(other, data(), PLAN)
    before = state(training)
    with pytest.raises(ValueError, match="is a checkpoint of another network"):
        training.load(tmp_path / "checkpoint")
    assert_same(before, state(training))


def test_a_checkpoint_with_fewer_buffers_is_refused(tmp_path):
    other = nn.Sequential(network()[0], nn.BatchNorm2d(4, track_running_stats=False), *network()[2:])
    Training(other, data(), PLAN).save(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="is a checkpoint of another network"):
        Training(network(), data(), PLAN).load(tmp_path / "checkpoint")


@pytest.mark.parametrize("classes", [10, 99, 100, 150])
def test_evaluating_equals_counting_by_hand_with_top_5_from_100_classes(classes):
    model, sets = network(0.5, classes), data(classes=classes)
    model[1].running_mean.uniform_(-1, 1)
    buffers = copy.deepcopy(dict(model.named_buffers()))
    found = evaluate(model, sets.test, 4, "fp32", classes)
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
    assert found.top1 == first / 13
    assert found.top5 == (five / 13 if classes >= 100 else None)
    assert found.loss == pytest.approx(loss / 13, rel=1e-5)


def test_what_an_epoch_reports_is_what_evaluating_says():
    training = Training(network(), data(), PLAN)
    for epoch in training.steps():
        if epoch is not None:
            assert epoch.validation == evaluate(training.model, training.data.validation, 32, "fp32", 10)
            if epoch.test is not None:
                assert epoch.test.top1 == evaluate(training.model, training.data.test, 32, "fp32", 10).top1
    assert epoch.test is not None
    assert training.last == epoch


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
    [(37, 1e30, "epoch 0: the training loss is not finite"), (8, 1e38, "epoch 0: the network's outputs after it")],
    ids=["loss", "last step of an epoch"],
)
def test_numbers_that_are_not_finite_end_the_training(train, lr, match):
    training = Training(network(), data(train=train), replace(PLAN, lr=lr, epochs=1))
    with pytest.raises(FloatingPointError, match=f"{match}.*lower the learning rate"):
        all_of(training)


def test_a_last_batch_of_a_single_image_is_passed_over():
    sets = data(train=17)
    training = Training(network(), sets, replace(PLAN, epochs=1), seed=4)
    steps, seen = training.steps(), []
    for _ in range(2):
        next(steps)
    before = state(training)
    next(steps)  # the third, of one image
    assert_same(before, state(training))
    epoch = next(steps)
    assert isinstance(epoch, Epoch)

    other = Training(network(), sets, replace(PLAN, epochs=1), seed=4)
    for images, labels in sets.train.epoch(8, 4, 0, shuffle=True, augment=True):
        seen.append(len(labels))
        if len(labels) > 1:
            other._learn_from(images, labels)
    assert seen == [8, 8, 1]
    loss, hits, count = other.tally.tolist()
    assert count == 16
    assert (epoch.loss, epoch.accuracy) == (loss / 16, hits / 16)


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
