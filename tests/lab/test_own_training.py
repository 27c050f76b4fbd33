"""Training of the user's own: optimizers, schedules and label smoothing against torch's; resumed, in sweeps, shrunk."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from lab_runs import assert_same_run, interrupted
from rich.console import Console
from test_training import CPU, PLAN, STEPS, all_of, assert_same, data, half, network
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, OneCycleLR, SequentialLR

from barebones.lab.experiment import recipes
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.experiment.plan import LR_SCHEDULES, OPTIMIZERS, TrainingPlan
from barebones.lab.run.folder import finished
from barebones.lab.run.loading import experiment_for_mask
from barebones.lab.run.run import RunOptions, run
from barebones.lab.run.training import KEYS, Training
from barebones.lab.sweep.sweep import sweep
from barebones.pruning.methods import METHODS
from barebones.running import digest
from barebones.running.rng import reseed

EPOCHS, EACH = 6, 7  # epochs, and steps of each
PLANS = [  # every optimizer, and every schedule with and without a warm-up
    replace(PLAN, lr_schedule=schedule, warmup=warmup, optimizer=optimizer, lr=lr, label_smoothing=0.1)
    for optimizer, lr in (("sgd", 0.1), ("adamw", 0.01))
    for schedule, warmup in (("milestones", 1), ("cosine", 0), ("cosine", 2), ("one-cycle", 0), ("constant", 1))
]


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


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_training_has_the_bits_of_torchs_optimizers_and_masks_applied_by_hand(plan):
    sets, trained, model = data(), network(0.2), network(0.2)
    masks = half(model)
    steps = Training(trained, sets, plan, masks, seed=7).steps()
    if plan.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), 1.0, momentum=0.9, weight_decay=5e-4, fused=True)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), 1.0, weight_decay=5e-4, fused=True)

    def apply_masks() -> None:
        for name, mask in masks.items():
            model.get_parameter(name).data[~mask] = 0

    apply_masks()
    for number in range(plan.epochs):
        model.train()
        batches = sets.train.epoch(plan.batch_size, 7, number, shuffle=True, augment=True)
        for step, (images, labels) in enumerate(batches):
            reseed(CPU, digest.text(7, "train", number, step))
            optimizer.param_groups[0]["lr"] = plan.rate(number, step, STEPS)
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
            optimizer.step()
            apply_masks()
            next(steps)
            assert_same(dict(model.state_dict()), dict(trained.state_dict()))
        assert next(steps).lr == plan.rate(number, STEPS - 1, STEPS)


def remembered(training: Training) -> dict[str, torch.Tensor]:
    """All tensors that the future depends on: what an optimizer remembers of pruned weights has no effect."""
    return training.model.state_dict() | {
        f"{key} {name}": value if key == "step" else value * training.masks.get(name, True)
        for name, p in training.model.named_parameters()
        for key, value in training.optimizer.state[p].items()
    }


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_stopping_after_any_step_changes_nothing(plan, tmp_path):
    def fresh() -> Training:
        model = network(0.5)
        return Training(model, data(), plan, half(model), seed=3)

    uninterrupted = fresh()
    expected = all_of(uninterrupted)
    for stop in (0, 3, STEPS, STEPS + 1, 2 * STEPS + 1, 3 * (STEPS + 1)):
        first = fresh()
        steps = first.steps()
        for _ in range(stop):
            next(steps)
        first.save(tmp_path / "checkpoint")
        second = fresh()
        second.load(tmp_path / "checkpoint")
        assert_same(remembered(first), remembered(second))
        rest = all_of(second)
        assert rest == expected[len(expected) - len(rest) :]
        assert_same(remembered(uninterrupted), remembered(second))


def test_every_state_of_an_optimizer_is_saved():
    for name in OPTIMIZERS:
        training = Training(network(), data(), replace(PLAN, optimizer=name))
        next(training.steps())
        for state in training.optimizer.state.values():
            assert {key for key, value in state.items() if value is not None} == {*KEYS[name]}


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path):
    first = Training(network(), data(), replace(PLAN, optimizer="adamw"))
    next(first.steps())
    first.save(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"another network: exp_avg 0.weight .not in the model."):
        Training(network(), data(), PLAN).load(tmp_path / "checkpoint")


def test_label_smoothing_is_for_training_alone():
    plain, smooth = (Training(network(), data(), replace(PLAN, label_smoothing=s, lr=0.0, epochs=1)) for s in (0, 0.5))
    first, second = all_of(plain)[0], all_of(smooth)[0]
    assert first.loss != second.loss
    assert (first.test, first.validation, first.accuracy) == (second.test, second.validation, second.accuracy)


# Experiments


OWN = {"optimizer": "adamw", "lr_schedule": "one-cycle", "label_smoothing": 0.1}
SETTINGS = [OWN, {"lr_schedule": "cosine", "warmup": 1, "shrink": True}, {**OWN, "shrink": True, "pretrain": 1}]


def test_every_setting_changes_the_folder_of_a_run():
    plain = Experiment("vgg19", "cifar10", "force", 0.99).resolved("cuda")
    others = [replace(plain, optimizer="adamw"), *(replace(plain, lr_schedule=s) for s in LR_SCHEDULES)]
    others += [replace(plain, warmup=1), replace(plain, label_smoothing=0.1)]
    assert len({other.folder for other in others}) == len(others)


def test_adamw_has_defaults_of_its_own():
    assert (lambda e: (e.lr, e.weight_decay))(Experiment(optimizer="adamw").resolved()) == (1e-3, 0.01)
    assert (lambda e: (e.lr, e.weight_decay))(Experiment(optimizer="adamw", lr=0.5).resolved()) == (0.5, 0.01)
    assert Experiment().resolved().lr == 0.1


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_run_that_was_stopped_ends_the_same(settings, short, options, undisturbed):
    chosen = replace(short, epochs=3, **settings)
    if chosen.optimizer == "adamw":
        chosen = replace(chosen, lr=0.01)
    for stop in (6, 9, 2):
        interrupted(chosen, options, stop)
    run(chosen, options)
    folders = options.folder(chosen), undisturbed(chosen)
    if not chosen.shrink:
        assert_same_run(*folders)
    stopped, plain = (finished(folder) for folder in folders)  # the speed of a shrunk network is measured anew
    assert (stopped["weights"], stopped["test"]) == (plain["weights"], plain["test"])


def test_runs_of_a_sweep_end_the_same(short, tmp_path, undisturbed, forkserver):
    chosen = [replace(short, lr=0.01, **OWN), replace(short, lr_schedule="cosine", warmup=1)]
    options = RunOptions(tmp_path / "runs", save_every=0)
    assert sweep(chosen, options, jobs=1, console=Console(quiet=True)).done == 2
    for experiment in chosen:
        assert_same_run(options.folder(experiment), undisturbed(experiment))


def test_masks_of_a_file_train_with_the_defaults_of_another_optimizer(short, options):
    run(short, options, until="prune")
    mask = options.folder(short) / "mask.safetensors"
    assert experiment_for_mask(mask, {}, trust=True).lr == 0.1
    changed = experiment_for_mask(mask, {"optimizer": "adamw"}, trust=True).resolved()
    assert (changed.optimizer, changed.lr, changed.weight_decay) == ("adamw", 1e-3, 0.01)
    assert experiment_for_mask(mask, {"optimizer": "adamw", "lr": 0.02}, trust=True).lr == 0.02


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--optimizer adam", "there is no optimizer 'adam'; did you mean 'adamw'? Choose one of sgd, adamw"),
        ("--lr-schedule cosin", "there is no schedule of the learning rate 'cosin'; did you mean 'cosine'?"),
        ("--warmup -1", "warmup -1 must be at least 0"),
        ("--warmup 20", "warmup 20: the training has 20 epochs, and must be longer than its warm-up"),
        ("--warmup 3 --epochs 3", "warmup 3: the training has 3 epochs, and must be longer than its warm-up"),
        ("--warmup 1 --epochs 1", "warmup 1: the training has 1 epoch, and must be longer than its warm-up"),
        ("--label-smoothing 1", "label-smoothing 1.0 must be at least 0, and below 1"),
        ("--label-smoothing nan", "label-smoothing nan must be at least 0, and below 1"),
        ("--lr nan", "lr nan must be at least 0"),
        ("--optimizer adamw --momentum 1", "momentum 1.0 must be at least 0, and below 1"),
    ],
)
def test_wrong_settings_are_said_in_one_line(words, message, mistake):
    mistake(message, "run", "--data", "digits", "--model", "small-vgg", "--device", "cpu", *words.split())
    assert not Path("runs").exists()


# Grids


def test_a_grid_may_have_settings_that_some_of_its_methods_do_not_take():
    grid = {
        "model": "small-vgg",
        "data": "digits",
        "method": [*METHODS, "dense"],
        "rounds": [5, 10],
        "optimizer": ["sgd", "adamw"],
        "lr_schedule": ["milestones", "one-cycle"],
        "warmup": 1,
        "schedule": "linear",
        "revive_until": 0.5,
        "at_least": 1,
    }
    listed = [experiment.resolved() for experiment in recipes.crossed(grid)]
    several = sum(method.rounds > 1 for method in METHODS.values())
    assert len(listed) == 4 * (2 * several + len(METHODS) - several + 1)
    assert len({experiment.folder for experiment in listed}) == len(listed)
