"""The model of docs/scale.md: its arithmetic, its properties, the stored measurements, and the numbers of the page."""

import itertools
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
import typer
from torch.utils.flop_counter import FlopCounterMode

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import scale
import scale_cases
from scale_model import COLLECTIVES, LAYER_COLLECTIVES, Case, Run, fitted, makespan

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
FREE = {"operation": 1e-15, "launch": 0.0, "weight": 1e-10, "layer": 1e-6, "byte": 0.0, "message": 0.0}  # of a link


def draw(numbers: random.Random, count: int, gain: float = 1.0) -> list[Run]:
    times = [(numbers.choice([0.5, 1.0, 2.5]), numbers.uniform(0.5, 9.0)) for _ in range(count)]
    return [Run(*each, scale.gained(gain, 4)) for each in times]


def stepped(runs: list[Run], devices: int, lanes: int, ahead: int) -> float:
    """The seconds of a sweep on a common clock that advances all devices to the next end of anything."""
    queue = [[run.setup, run.train, run.gain] for run in runs]
    places = [{"lane": [], "ready": [], "helper": []} for _ in range(devices)]
    now = 0.0
    while True:
        for place in places:
            place["lane"] = [run for run in place["lane"] if run[0] + run[1] > 1e-9]
            place["ready"] += [run for run in place["helper"] if run[0] <= 1e-9]
            place["helper"] = [run for run in place["helper"] if run[0] > 1e-9]
        changed = True
        while changed:
            changed = False
            for place in sorted(places, key=lambda place: len(place["lane"])):
                prepared = place["ready"] or next((other["ready"] for other in places if other["ready"]), [])
                if prepared and len(place["lane"]) < lanes:
                    place["lane"].append(prepared.pop(0))
                elif queue and len(place["lane"]) < lanes and not (ahead and place["lane"]):
                    place["lane"].append(queue.pop(0))
                elif queue and not place["helper"] and len(place["ready"]) < ahead:
                    place["helper"].append(queue.pop(0))
                else:
                    continue
                changed = True
                break
        going = [(run, len(p["lane"] + p["helper"])) for p in places for run in p["lane"] + p["helper"]]
        if not going:
            return now
        step = min((run[0] if run[0] > 1e-9 else run[1]) * beside / run[2](beside) for run, beside in going)
        for run, beside in going:
            run[0 if run[0] > 1e-9 else 1] -= step * run[2](beside) / beside
        now += step


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_sweep_on_one_device_is_that_of_a_common_clock(ahead):
    numbers = random.Random(0)
    for _ in range(50):
        runs, lanes = draw(numbers, numbers.randint(1, 9), gain=numbers.uniform(1, 2)), numbers.randint(1, 4)
        assert makespan(runs, 1, lanes, 3.0, ahead) == pytest.approx(3.0 + stepped(runs, 1, lanes, ahead))


def test_a_sweep_on_several_devices_is_that_of_a_common_clock():
    numbers = random.Random(1)
    for _ in range(50):
        runs = draw(numbers, numbers.randint(1, 20), gain=numbers.uniform(1, 2))
        devices, lanes = numbers.randint(2, 4), numbers.randint(1, 4)
        assert makespan(runs, devices, lanes) == pytest.approx(stepped(runs, devices, lanes, 0))


def test_a_device_loses_no_work_and_does_none_twice():
    numbers = random.Random(2)
    for lanes, ahead in itertools.product((1, 2, 4), (0, 1, 4)):
        runs = draw(numbers, 12)
        work = sum(run.setup + run.train for run in runs)
        assert makespan(runs, 1, lanes, ahead=ahead) == pytest.approx(work)


def test_more_devices_are_never_slower_and_never_faster_than_their_number():
    numbers = random.Random(3)
    for _ in range(50):
        runs = draw(numbers, 15)
        seconds = [makespan(runs, devices, 1) for devices in range(1, 17)]
        assert seconds == sorted(seconds, reverse=True)
        work, longest = seconds[0], max(run.setup + run.train for run in runs)
        assert all(s >= max(work / devices, longest) - 1e-6 for devices, s in enumerate(seconds, 1))
        assert seconds[-1] == pytest.approx(longest)


def test_the_paper_s_grid_gains_from_each_gpu():
    runs = [scale.as_run(experiment) for experiment in scale.grid()]
    longest = sorted(runs, key=lambda run: -run.setup - run.train)
    hours = [makespan(longest, gpus, 4, ahead=4) for gpus in (1, 8, 64)]
    assert hours == sorted(hours, reverse=True)


def test_the_work_of_a_case_is_that_of_its_network():
    case = Case(width=128, depth=3, tokens=64, length=32, vocabulary=96)
    model = scale_cases.LanguageModel(case.width, case.depth, case.vocabulary)
    prunable = [p for name, p in model.named_parameters() if p.dim() == 2 and name != "embedding.weight"]
    assert sum(p.numel() for p in prunable) == case.weights
    tokens = torch.randint(case.vocabulary, (case.tokens // case.length, case.length))
    with FlopCounterMode(display=False) as counter:
        scale_cases.loss(model, tokens).backward()
    counts = counter.get_flop_counts()["Global"]
    products = sum(flops for op, flops in counts.items() if "mm" in str(op) and "bmm" not in str(op))
    attention = 6 * case.depth * case.length * case.width * case.tokens
    assert case.flops - attention == pytest.approx(products, rel=0.02)


def test_with_more_devices_each_has_less_work_and_memory():
    cost = {"selection": 20.0, "activation": 30.0, "gathered": 14.0, "logit": 10.0, "process": 0.0}
    tokens = 1 << 19
    for (width, depth), gpus in itertools.product(scale.SIZES.values(), (1, 8, 64)):
        few = Case(width, depth, 1024, gpus, passes=tokens // 1024 // gpus)
        many = replace(
            few, devices=2 * gpus, passes=max(few.passes // 2, 1), tokens=few.tokens // (1 + (few.passes < 2))
        )
        assert many.memory(cost) < few.memory(cost)
        assert many.seconds(FREE) < few.seconds(FREE)
        assert many.own * many.devices == few.own * few.devices == few.weights
        assert many.flops * many.passes * many.devices == few.flops * few.passes * few.devices


def test_one_device_sends_nothing():
    parts = Case(2048, 20, 1024).parts({**FREE, "byte": 1.0, "message": 1.0})
    assert parts["link"] == parts["messages"] == 0


def test_the_fit_finds_the_constants_that_made_the_numbers():
    true = {"operation": 2e-15, "launch": 0.0, "weight": 9e-11, "layer": 4e-4, "byte": 1e-11, "message": 3e-5}
    cases = [Case(*each) for each in itertools.product((512, 1024, 2048), (6, 24), (1024, 8192), (1, 4))]
    cost = fitted(Case.seconds, {case: case.seconds(true) for case in cases}, {n: 1.7 * v for n, v in true.items()})
    assert {name: pytest.approx(value, rel=0.05) for name, value in true.items()} == cost


def test_the_fit_finds_a_cost_that_the_guess_of_another_hides():
    true, known = {"operation": 2.2e-15, "launch": 5e-3}, {**FREE, "layer": 0.0, "weight": 0.0}
    cases = [Case(1024, 24, 2048), Case(2048, 20, 2048), Case(2048, 20, 8192)]
    found = {case: case.seconds({**known, **true}) for case in cases}
    cost = fitted(lambda case, cost: case.seconds({**known, **cost}), found, {"operation": 1e-15, "launch": 1e-3})
    assert {name: pytest.approx(value, rel=0.01) for name, value in true.items()} == cost


def test_the_measured_cases_are_predicted_within_a_fifth():
    checks = list(scale.checks())
    assert len(checks) > 20
    assert not [name for name, found, predicted, _ in checks if abs(predicted / found - 1) > 0.2]


def test_each_size_on_the_gpu_is_predicted_from_the_others_within_a_fifth():
    cases = scale.prunings("gpu", fit=True) | scale.prunings("gpu", fit=False)
    wrong = {"rounds": list[float](), "memory": list[float]()}
    for width in {case.width for case in cases}:
        cost = scale.costs_of("gpu", {case: row for case, row in cases.items() if case.width != width})
        left_out = [(case, row) for case, row in cases.items() if case.width == width]
        wrong["rounds"] += [abs(case.seconds(cost) / row.seconds - 1) for case, row in left_out]
        wrong["memory"] += [abs(case.memory(cost) / row.bytes - 1) for case, row in left_out]
    rounds, memory = (max(each) for each in wrong.values())
    assert len(wrong["rounds"]) == 9
    assert max(rounds, memory) < 0.2
    assert f"rounds are within {scale.percent(rounds)} and the memory within {scale.percent(memory)}" in PAGE


def test_no_case_that_checks_the_constants_has_fitted_them():
    for device in ("cpu", "gpu"):
        fits, checks = (scale.prunings(device, fit=fit).keys() for fit in (True, False))
        assert fits
        assert checks
        assert not fits & checks


def test_the_page_has_the_tables():
    for lines in (scale.constants_table(), scale.checks_table(), scale.pruning_table(), scale.grid_table()):
        assert "\n".join(lines) in PAGE


def needed(size: str) -> int:
    """The least GPUs that prune a network."""
    cases = (Case(*scale.SIZES[size], scale.SHORTEST, gpus, passes=2) for gpus in itertools.count(1))
    return next(case.devices for case in cases if case.memory(scale.costs("gpu")) <= scale.CAPACITY)


def test_the_sentences_of_the_page_have_the_numbers_of_the_model():
    selection = scale.costs("gpu")["selection"]
    plans = [(scale.planned(size, gpus), gpus) for size, gpus in itertools.product(scale.SIZES, scale.GPUS)]
    rounds = [case.parts(scale.gpu_costs(gpus)) for case, gpus in plans if case is not None]
    most = {part: scale.percent(max(each[part] / sum(each.values()) for each in rounds)) for part in rounds[0]}
    sources = [figure.source for figure in scale.FIGURES.values() if isinstance(figure.source, scale.Runs)]
    runs = [scale.as_run(experiment) for experiment in scale.grid()]
    train, setup, longest = sum(r.train for r in runs), sum(r.setup for r in runs), max(r.train for r in runs)
    rows = {path: scale.measured("gpu", path) for path in ("plain", "sharded")}
    large = [row for row in rows["sharded"] if row["weights"] > 1e9]
    beside = median((row["seconds"] - sum(row["rounds_seconds"])) / row["weights"] for row in large)
    plain, sharded = (
        min(row["seconds"] for row in rows[path] if (row["width"], row["tokens"]) == (2048, 8192)) for path in rows
    )
    small = [row["rounds_seconds"][1:] for row in rows["sharded"] if (row["width"], row["tokens"]) == (768, 8192)]
    for sentence in (
        "took {} in the first measurement and {} in the second".format(*(scale.span(min(each)) for each in small)),
        f"What comes before and after the rounds adds {1e9 * beside:.1f} s for each 10⁹ own weights",
        f"took {plain:.2f} s in all, and sharded {sharded:.2f} s",
        f"A round reads {scale.ROUND_TOKENS:,} tokens, in texts of {Case(64, 1, 1).length:,}",
        f"passes of at most {scale.LONGEST:,} tokens",
        f"passes of {scale.SHORTEST:,} tokens",
        f"(NVIDIA H200, {scale.CAPACITY / 0.9 / 2**30:.0f} GiB)",
        "{1} layers of width {0:,}, {3} of width {2:,} and {5} of width {4:,}".format(*sum(scale.SIZES.values(), ())),
        f"takes {selection:.1f} bytes for each weight",
        f"one GPU prunes up to {scale.CAPACITY / selection / 1e9:.1f} B weights",
        f"10 B weights need {needed('10 B')} GPUs, and 100 B need {needed('100 B')}",
        f"take at most {most['selection']} of a round",
        f"fewer than {scale.costs('gpu')['layer'] / scale.costs('gpu')['weight'] / 1e6:.0f} M weights of each layer",
        f"Messages take at most {most['messages']}",
        f"list {sum(len(set(source.experiments('paper'))) for source in sources):,} runs. {len(runs):,} of them",
        f"train for {train / 3600:,.0f} h and be set up in {setup / 3600:,.0f} h",
        f"trains for {longest / 3600:,.0f} h if it is alone",
        f"{COLLECTIVES} for each selection, and {LAYER_COLLECTIVES} for each layer and pass",
        f"{scale.LINKS['within a node'] / 1e9:.0f} GB/s within a node of {scale.NODE}",
        f"{scale.LINKS['between nodes'] / 1e9:.0f} GB/s between nodes",
        f"takes {scale.span(scale.LATENCY)} for each doubling",
        f"{scale.costs('gpu')['gathered']:.0f} bytes for each weight of a layer",
        f"takes {300 * scale.PASS['first']:.1f} s for 300 passes of VGG-19, or {300 * scale.PASS['second']:.1f} s with",
        f"Compiling takes {scale.COMPILING:.0f} s",
    ):
        assert sentence in PAGE


def test_the_times_from_other_pages_are_theirs():
    lab = (ROOT / "benchmarks" / "lab.md").read_text(encoding="utf-8")
    for row, place in (("| epoch, alone |", 0), ("| epoch, four side by side, per network |", 1)):
        line = next(line for line in lab.splitlines() if line.startswith(row))
        assert all(f"| {epochs[place]:.2f} s |" in line for epochs in scale.EPOCHS.values())
    assert "| VGG-19, 300 rounds | 3.5 | 4.6 |" in lab
    assert "Compiling ResNet-50 took 54 s" in lab
    records = [json.loads(path.read_text()) for path in (ROOT / "results").glob("cifar10-vgg19-grasp-mb-*/result.json")]
    assert f"{min(record['seconds']['prune'] for record in records):.1f}" == "31.3"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads the memory of a process from /proc")
def test_the_cases_are_measured(capsys):
    scale_cases.main(device="cpu", seconds=600, repeats=1, only="", small=True)
    _, pruning, sweep = map(json.loads, capsys.readouterr().out.splitlines())
    assert pruning["weights"] == 98304
    assert pruning["kept"] == 983
    assert [run["kind"] for run in sweep["runs"]] == ["snip", "snip"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(only="foo"), "--only foo matches no case on the cpu; choose sharded or sweep"),
        (dict(device="cuda"), "there is no CUDA device on this machine; choose cpu"),
    ],
)
def test_what_cannot_be_measured_is_said(settings, message, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(typer.BadParameter, match=message):
        scale_cases.main(**dict(device="cpu", seconds=600, repeats=1, only="", small=True) | settings)
    assert not capsys.readouterr().out
