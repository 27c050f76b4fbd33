"""Experiments: the paper's numbers, records that come back as they went, and names that depend on everything."""

import json
import re
from dataclasses import fields, replace

import pytest
import torch

from barebones.data import DATA
from barebones.files.masks import save_masks
from barebones.lab.experiment.experiment import DENSE, FILE, OPTIONAL, Experiment, folder_of
from barebones.lab.experiment.protocols import PROTOCOLS, protocol
from barebones.models import NORM_SCALES, SCHEMES
from barebones.pruning.densities import layer_counts
from barebones.pruning.gradients import LOSSES
from barebones.pruning.methods import METHODS, Method
from barebones.pruning.schedules import SCHEDULES

PAPER = {  # data set: T, B, epochs, batch, weight decay; epochs from which on the rate is a tenth, and a hundredth
    "cifar10": (300, 1, 350, 128, 5e-4, 150, 250),
    "cifar100": (60, 10, 350, 128, 5e-4, 150, 250),
    "tiny-imagenet": (60, 20, 300, 128, 5e-4, 150, 225),
    "imagenet": (60, 40, 90, 256, 1e-4, 30, 60),
}
ONE_ROUND = ("snip", "snip-mb", "grasp", "grasp-mb", "magnitude", "random", "erk")
ITERATIVE = ("force", "force-signal", "iter-snip", "hybrid", "grasp-taylor", "iter-grasp")


@pytest.mark.parametrize("data", PAPER)
def test_training_is_the_papers(data):
    _, _, epochs, batch, decay, tenth, hundredth = PAPER[data]
    for method in (*METHODS, DENSE):
        plan = Experiment("vgg19", data, method).resolved().plan()
        assert (plan.epochs, plan.batch_size, plan.weight_decay) == (epochs, batch, decay)
        assert (plan.lr, plan.momentum) == (0.1, 0.9)
        rates = [plan.rate(epoch) for epoch in (0, tenth - 1, tenth, hundredth - 1, hundredth, epochs - 1)]
        assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


@pytest.mark.parametrize("data", PAPER)
def test_every_method_sees_as_much_data_as_the_paper_says(data):
    rounds, batches, *_ = PAPER[data]
    expected = dict.fromkeys(ITERATIVE, (rounds, batches))
    expected |= {"snip": (1, 1), "grasp": (1, 1), "snip-mb": (1, rounds * batches), "grasp-mb": (1, rounds * batches)}
    expected |= {"synflow": (100, 1), "magnitude": (1, 1), "random": (1, 1), "erk": (1, 1)}
    assert expected.keys() == METHODS.keys()
    for method, (t, b) in expected.items():
        resolved = Experiment("resnet50", data, method).resolved()
        assert (method, resolved.rounds, resolved.batches_per_round) == (method, t, b)
        row = resolved.pruning()
        assert (method, row.rounds, row.batches_per_round) == (method, t, b)
        assert row.criterion is METHODS[method].criterion
        assert row.revive_until == {"force": 1.0, "force-signal": 1.0, "hybrid": 0.9}.get(method, 0.0)
        assert resolved.schedule == "exponential"
    said = Experiment("vgg19", data, "force", rounds=20, schedule="linear", revive_until=0.5, at_least=2).resolved()
    row = said.pruning()
    assert (said.batches_per_round, row.rounds, row.revive_until, row.at_least) == (batches, 20, 0.5, 2)
    assert row.schedule is SCHEDULES["linear"]
    assert Experiment("vgg19", data, "snip-mb", batches_per_round=5).resolved().batches_per_round == 5


@pytest.mark.parametrize("data", DATA)
def test_some_networks_have_settings_of_their_own(data):
    assert protocol(data, "vgg19") == PROTOCOLS[data]
    assert Experiment("mobilenet-v2", data).resolved().weight_decay == 4e-5
    assert Experiment("mobilenet-v2", data, weight_decay=1e-3).resolved().weight_decay == 1e-3
    for model, scale in {"resnet50": "uniform", "mobilenet-v2": "uniform", "vgg19": "ones", "resnet18": "ones"}.items():
        assert Experiment(model, data).resolved().norm_scale == scale
        assert Experiment(model, data, optimizer="adamw").resolved().norm_scale == scale
    assert Experiment("resnet50", data, norm_scale="ones").resolved().norm_scale == "ones"


def test_the_device_chooses_the_precision_of_training_and_scores_are_exact():
    cpu, gpu = Experiment().resolved("cpu"), Experiment().resolved("cuda:1")
    assert (cpu.precision, gpu.precision) == ("fp32", "bf16")
    assert (cpu.scoring_precision, gpu.scoring_precision) == ("fp32", "fp32")
    assert Experiment(precision="fp32").resolved("cuda").precision == "fp32"
    assert Experiment(scoring_precision="bf16").resolved("cuda").scoring_precision == "bf16"


def test_dense_prunes_nothing():
    resolved = Experiment("vgg19", method=DENSE).resolved()
    assert resolved.sparsity == 0
    assert (resolved.rounds, resolved.batches_per_round, resolved.schedule) == (None, None, None)
    wrong = dict(rounds=3, batches_per_round=2, pretrain=1, schedule="linear", at_least=1, shrink=True)
    wrong |= dict(revive_empty=False, scoring_bn="eval", scoring_precision="bf16", loss="nll-on-logits")
    wrong |= dict(ablate=0.3, evolve="set", control="shuffle")
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"dense prunes nothing, so it takes no {name.replace('_', '-')}"):
            Experiment("vgg19", method=DENSE, **{name: value}).resolved()


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"data": "cifar1"}, "there is no data set 'cifar1'; did you mean 'cifar10"),
        ({"method": "forse"}, "there is no method 'forse'; did you mean 'force'"),
        ({"scoring_precision": "fp16"}, "there is no scoring precision 'fp16'"),
        ({"sparsity": 99}, r"sparsity 99 is not a fraction .*from 0 to below 1; did you mean 0\.99\?"),
        ({"sparsity": 1.0}, "not a fraction of weights to remove"),
        ({"sparsity": float("nan")}, "not a fraction of weights to remove"),
        ({"rounds": 0}, "rounds 0 must be at least 1"),
        ({"batch_size": 1}, "batch-size 1 must be at least 2"),
        ({"lr": -0.1}, "lr -0.1 must be at least 0$"),
        ({"lr": float("nan")}, "lr nan must be"),
        ({"weight_decay": float("inf")}, "weight-decay inf must be at least 0, and below inf"),
        ({"optimizer": "adam"}, "there is no optimizer 'adam'; did you mean 'adamw'. Choose one of sgd, adamw"),
        ({"optimizer": "adamw", "momentum": 1.0}, "momentum 1"),
        ({"lr_schedule": "cosin"}, "there is no schedule of the learning rate 'cosin'; did you mean 'cosine'"),
        ({"warmup": 1, "epochs": 1}, "warmup 1: the training has 1 epoch, and must be longer than its warm-up"),
        ({"label_smoothing": 1.0}, "label-smoothing 1"),
        ({"sam": -0.1}, "sam -0.1 must be at least 0"),
        ({"precision": "fp16", "ham": True}, "and fp16 scales them; choose another"),
        ({"precision": "fp16", "sam": 1}, "and fp16 scales them; choose another"),
        ({"evolve": "rigl", "pattern": "2:4"}, "evolve moves single weights, so it takes no pattern; leave one of"),
        ({"evolve": "set", "unit": "channel"}, "evolve moves single weights, so it takes no unit channel; leave one"),
        ({"ablate": 0.3}, "ablate empties channels when masks move; add --evolve rigl, or leave it out"),
        ({"evolve": "rigl", "ablate": 1}, "ablate 1 must be at least 0, and below 1"),
        ({"evolve": "rigI"}, "no evolution 'rigI'; did you mean 'rigl'"),
        ({"method": FILE}, "name it with barebones train --mask FILE"),
        ({"rewind": True}, "rewind returns to the weights before --pretrain"),
        ({"scoring_init": "xavir"}, "no initialization 'xavir'; did you mean 'xavier'"),
        ({"scoring_init": "xavier", "pretrain": 1}, "scoring-init and pretrain both change the weights; leave one of"),
        ({"scoring_init": "xavier", "control": "reinitialize"}, "scoring-init and control reinitialize both change"),
        ({"at_least": -1}, "at.least"),
        ({"densities": "erg"}, "no law of densities 'erg'; did you mean 'erk'"),
        ({"pattern": "2:4", "min_per_channel": 2}, "pattern= and min_per_channel= exclude each other"),
        ({"unit": "channels"}, "there is no unit 'channels'; did you mean 'channel'"),
        ({"target": "flops"}, "target='flops' counts those of whole channels; add unit='channel'"),
        ({"unit": "channel", "control": "shuffle"}, "control shuffle moves single weights, so it takes no unit chan"),
        ({"pattern": "2:4", "control": "invert"}, "control invert moves single weights, so it takes no pattern; leav"),
        ({"revive_until": 1.5}, "revive.until"),
        ({"sparsty": 0.5}, "an experiment has no 'sparsty'; did you mean 'sparsity'"),
        ({"rounds": "5"}, "rounds '5' is not a whole number"),
        ({"rounds": True}, "rounds True is not a whole number"),
        ({"sparsity": "0.9"}, "sparsity '0.9' is not a number"),
        ({"model": 3}, "model 3 is not a text"),
        ({"rewind": 1}, "rewind 1 is not true or false"),
        ({"method": "snip", "revive_empty": False}, "no-revive-empty has no effect: snip lets no weight return"),
        ({"revive_empty": False, "revive_until": 0.0}, "no-revive-empty has no effect"),
        ({"method": "synflow", "scoring_bn": "eval"}, "scoring-bn has no effect: synflow scores without data"),
        *(({"method": name, "rounds": 5}, f"{name} is one round by definition, not 5") for name in ONE_ROUND),
    ],
)
def test_what_is_wrong_gets_a_sentence(values, match):
    with pytest.raises(ValueError, match=match) as caught:
        Experiment.from_dict(values).resolved()
    assert "\n" not in str(caught.value)


def test_every_field_changes_the_id_and_comes_back_from_its_record():
    base = Experiment("vgg19", pretrain=1).resolved()
    others = dict(
        model="vgg16", data="cifar100", method="iter-snip", sparsity=0.5, seed=1, rounds=2, batches_per_round=2,
        schedule="linear", revive_until=0.5, revive_empty=False, at_least=1, densities="erk", min_per_channel=2,
        pattern="2:4", unit="channel", target="flops", scope="all", loss="nll-on-logits", init="xavier",
        norm_scale="uniform", scoring_init="xavier", scoring_bn="eval", scoring_precision="bf16", pretrain=2,
        rewind=True, mask="0", control="shuffle", epochs=1, batch_size=2, lr=1.0, momentum=0.0, weight_decay=0.0,
        optimizer="adamw", lr_schedule="cosine", warmup=1, label_smoothing=0.1, ham=True, sam=0.05, evolve="set",
        ablate=0.3, precision="tf32", shrink=True,
    )  # fmt: skip
    assert list(others) == [f.name for f in fields(Experiment)]
    experiments = [base, *(replace(base, **{name: value}) for name, value in others.items())]
    assert len({each.id for each in experiments}) == len({each.folder for each in experiments}) == len(experiments)
    for each in experiments:
        record = json.loads(json.dumps(dict(reversed(each.to_dict().items())), allow_nan=False))
        loaded = Experiment.from_dict(record)
        assert (loaded, loaded.id, loaded.folder) == (each, each.id, each.folder)


def test_whole_numbers_and_floats_are_the_same_experiment():
    assert Experiment(evolve="none") == Experiment()
    integers, floats = Experiment(lr=1, weight_decay=0, sparsity=0), Experiment(lr=1.0, weight_decay=0.0, sparsity=0.0)
    assert (integers, integers.folder) == (floats, floats.folder)


def test_the_id_of_a_known_experiment_does_not_change_by_accident():
    # a change here makes every run that anybody has started before begin anew
    known = Experiment("vgg19").resolved()
    assert known.folder == folder_of(known.to_dict()) == "cifar10-vgg19-force-99-s0-c03ff69cdd"


def test_an_optional_setting_is_part_of_the_name_unless_it_has_its_default(monkeypatch):
    settings = Experiment("vgg19").resolved().to_dict()
    monkeypatch.setitem(OPTIONAL, "later", 0.0)
    assert folder_of(settings | {"later": 0.0}) == folder_of(settings | {"later": 0}) == folder_of(settings)
    assert len({folder_of(settings | {"later": value}) for value in (0.0, 0.5, 1.0, None)}) == 4


def test_densities_of_a_file_become_part_of_the_experiment(tmp_path):
    masks = {"a": torch.rand(7, 3) < 0.3, "b": torch.rand(50, 2) < 0.5}
    save_masks(masks, tmp_path / "m.safetensors")
    resolved = Experiment("vgg19", densities=str(tmp_path / "m.safetensors")).resolved()
    (tmp_path / "m.safetensors").unlink()
    assert resolved == resolved.resolved() == Experiment.from_dict(resolved.to_dict())
    keep = sum(int(mask.sum()) for mask in masks.values())
    shapes = {name: mask.shape for name, mask in masks.items()}
    (counts,) = layer_counts(resolved.pruning().densities, shapes, [keep])
    assert counts == {name: int(mask.sum()) for name, mask in masks.items()}


def test_folders_are_readable_and_safe():
    assert Experiment("vgg19", "cifar10", "force", 0.995, 2).folder.startswith("cifar10-vgg19-force-99.5-s2-")
    assert Experiment("vgg19", method=DENSE).resolved().folder.startswith("cifar10-vgg19-dense-s0-")
    assert re.fullmatch(r"\w[\w.-]+", Experiment("../my.networks:Tiny net").folder)
    deep = f"{'d' * 200}/{'e' * 200}/"
    long, other = (Experiment(f"{deep}mynet.py:mlp", f"{place}mydata.py:blobs").folder for place in (deep, "x" + deep))
    assert long != other
    assert len(long) < 255  # more than the system takes


def mine(probe):
    return {name: weight.square() for name, weight in probe.weights.items()}


@pytest.mark.parametrize(
    ("row", "rounds", "batches"),
    [
        (Method(mine), 1, 1),
        (Method(mine, batches_per_round=5), 1, 600),
        (Method(mine, rounds=3), 60, 10),
        (Method(mine, rounds=3, protocol_rounds=False), 3, 1),
        (Method(mine, batches_per_round=5, protocol_rounds=False), 1, 5),
        (Method(mine, schedule=lambda total, keep, rounds: [total, keep]), 1, 1),
    ],
)
def test_a_method_that_was_registered_at_run_time_reads_its_row(row, rounds, batches, monkeypatch):
    monkeypatch.setitem(METHODS, "mine", row)
    resolved = Experiment("vgg19", "cifar100", "mine").resolved()
    assert (resolved.rounds, resolved.batches_per_round) == (rounds, batches)
    assert resolved.resolved() == resolved
    assert resolved.pruning() == replace(row, rounds=rounds, batches_per_round=batches)
    record = resolved.to_dict()
    monkeypatch.delitem(METHODS, "mine")
    assert Experiment.from_dict(record) == resolved  # readable where the method is not known
    with pytest.raises(ValueError, match="there is no method 'mine'"):
        resolved.pruning()


TABLES = {"norm_scale": NORM_SCALES, "init": SCHEMES, "scoring_init": SCHEMES, "loss": LOSSES, "schedule": SCHEDULES}


@pytest.mark.parametrize("field", TABLES)
def test_a_row_that_a_recipe_adds_is_known(field, monkeypatch):
    with pytest.raises(ValueError, match="'mine'"):
        Experiment(**{field: "mine"})
    monkeypatch.setitem(TABLES[field], "mine", next(iter(TABLES[field].values())))
    assert getattr(Experiment(**{field: "mine"}).resolved(), field) == "mine"
