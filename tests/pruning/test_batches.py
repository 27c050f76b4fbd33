"""What a round reads: the same for the same seed, the same when asked again, and in micro-batches, too."""

import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy
import numpy.random
import pytest
import torch
import torch.nn.functional as F
import zoo
from pruning_runs import BATCHES, FORCE, run, same, without_norms
from references import Items, Trace, equal, few, pairs, tiny
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import barebones as bb
from barebones import METHODS, Method, Probe, rounds
from barebones.pruning.batches import Batches

DATA = TensorDataset(torch.cat([x for x, _ in BATCHES]), torch.cat([y for _, y in BATCHES]))
GRASP = replace(METHODS["grasp-mb"], rounds=2, batches_per_round=2)  # it reads the batches of a round twice


def noisy(index: int) -> tuple[Tensor, Tensor]:
    """Draw from torch's, Python's and NumPy's generators for a sample."""
    x, y = DATA[index]
    return x + torch.rand(()) + random.random() + numpy.random.rand(), y


NOISY = Items(len(DATA), noisy)


class Drawing(Sequence):
    """A sequence of batches that are random."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = BATCHES[index]
        return x + torch.randn(x.shape), y


def shuffling(data: Dataset = DATA, **options: Any) -> DataLoader:
    return DataLoader(data, batch_size=16, shuffle=True, **options)


SOURCES = {
    "shuffling": shuffling,
    "own generator": lambda: shuffling(generator=torch.Generator().manual_seed(5)),
    "noisy": lambda: shuffling(NOISY),
    "list": lambda: list(BATCHES),
    "random sequence": Drawing,
    "callable": lambda: lambda index: BATCHES[index : index + 2],
    "noisy callable": lambda: lambda index: [(x + torch.rand(()), y) for x, y in BATCHES[index : index + 2]],
}


@pytest.mark.parametrize("method", [FORCE, GRASP], ids=["force", "grasp"])
@pytest.mark.parametrize("name", SOURCES)
def test_the_seed_decides_the_batches_whatever_the_caller_drew(name, method):
    """Of a new source, of one that was used before, and of a run that is resumed."""
    source = SOURCES[name]()
    generator = getattr(source, "generator", None)
    torch.manual_seed(1)
    with Trace(tiny(), [generator] if generator else []) as trace:
        steps = run(method, model=trace.model, batches=source)
    torch.manual_seed(2)
    assert same(steps, run(method, batches=source))
    for step in steps[:-1]:
        assert same(run(method, batches=SOURCES[name](), after=step), steps[step.index + 1 :])
    other = run(method, batches=SOURCES[name](), seed=1)
    assert (steps[0].batches_digest == other[0].batches_digest) == (name in ("list", "callable", "own generator"))


def test_worker_processes():
    loader = shuffling(NOISY, num_workers=1)
    assert same(*(run(batches=loader, changes=dict(rounds=2)) for _ in range(2)))


def test_a_loader_goes_on_from_round_to_round_and_begins_again_when_it_ends():
    """40 samples in batches of 16: passes of three."""
    loader = DataLoader(DATA, batch_size=16)
    values = []
    objective = lambda m, batch: (values.append(batch[0]), F.cross_entropy(m(batch[0]), batch[1]))[1]
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double()
    run(model=model, batches=loader, objective=objective, changes=dict(batches_per_round=2))
    assert all(torch.equal(a, b) for a, b in zip(values, [*(x for x, _ in loader)] * 3, strict=False))
    assert len(values) == 8


def test_a_new_pass_is_shuffled_anew():
    stream = Batches(DataLoader(torch.arange(12), batch_size=4, shuffle=True), 0, torch.device("cpu"))
    passes = [torch.cat(list(stream.in_round(index, 3))).tolist() for index in (0, 1, 2, 0, 2, 1, 1)]
    assert all(sorted(numbers) == list(range(12)) for numbers in passes)
    assert passes[0] != passes[1] != passes[2]
    assert passes[3:] == [passes[index] for index in (0, 2, 1, 1)]


def test_a_callable_is_asked_for_each_round_and_may_return_any_number_of_batches():
    indices = []
    steps = run(batches=lambda index: (indices.append(index), iter(BATCHES[index : index + 2]))[1])
    assert indices == [0, 1, 2, 3]
    assert equal(steps[0].masks, run(changes=dict(batches_per_round=2))[0].masks)


FIRST_USE = """
import numpy as np, torch
from torch import nn
from barebones import Probe

class Source:
    def __iter__(self):
        yield torch.full((2, 3), float(np.random.rand())), torch.tensor([0, 1])

print(len({int(Probe(nn.Linear(3, 2), Source()).digest_of(0, 1)) for _ in range(3)}))
"""


def test_numpys_generator_is_seeded_also_the_first_time_that_it_is_used():
    """numpy imports its generators only when they are first asked for: here, within the first batch."""
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True)
    assert done.stdout.strip() == "1", done.stdout + done.stderr[-2000:]


class Fickle:
    """Other batches in each pass."""

    passes = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        return iter([(x + self.passes, y) for x, y in BATCHES])


EMPTY = r"batches is empty|returned no batch"


@pytest.mark.parametrize(
    ("batches", "method", "match"),
    [
        (iter(BATCHES), FORCE, "one-shot iterator cannot"),
        (Fickle(), GRASP, "second reading of the batches returned other values"),
        *((empty, FORCE, EMPTY) for empty in ([], (), lambda index: [], DataLoader(DATA[:0][0]))),
        *((wrong, FORCE, "batches") for wrong in (3, object(), NOISY)),  # a data set has items, but no batches
        (lambda index: None, FORCE, r"batches\(0\) must return"),
        (None, FORCE, "needs data"),
        (None, few("synflow"), "example="),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_so(batches: Any, method: Method, match: str):
    with pytest.raises(ValueError, match=match):
        run(method, batches=batches)


def seen(model: nn.Module) -> list[int]:
    """Return a list that gets the size of every batch that the model sees."""
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    return sizes


@pytest.mark.parametrize("name", ["force", "snip-mb", "grasp", "grasp-mb"])
@pytest.mark.parametrize("micro", [1, 3, 8, 20])
def test_micro_batches_give_the_scores_of_whole_batches(name, micro):
    method, model = few(name, 1, 3), without_norms()
    expected, sizes = Probe(without_norms(), pairs(3)), seen(model)
    probe = Probe(model, pairs(3), micro_batch=micro)
    found = []
    for each in (expected, probe):
        with each.at(None, 0, 20, method.batches_per_round):
            found.append(method.criterion(each))
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(probe.saliency, expected.saliency)
    torch.testing.assert_close(probe.loss_value, expected.loss_value)
    assert max(sizes) == min(micro, 8)


def test_rounds_resume_with_another_micro_batch():
    steps = list(rounds(Probe(without_norms(), pairs(4), micro_batch=3), few("force"), 20))
    again = list(rounds(Probe(without_norms(), pairs(4), micro_batch=5), few("force"), 20, after=steps[1]))
    assert [equal(a.masks, b.masks) for a, b in zip(steps[2:], again, strict=True)] == [True, True]


def test_batches_of_other_forms_are_split():
    expected = bb.prune(without_norms(), pairs(2), 0.5, "snip", on_collapse="ignore").masks
    forms = [
        ([{"x": x, "y": [y], "kind": "digits"} for x, y in pairs(2)],
         dict(objective=lambda model, batch: F.cross_entropy(model(batch["x"]), batch["y"][0]))),
        ([(x, {"label": y}) for x, y in pairs(2)], dict(loss=lambda out, y: F.cross_entropy(out, y["label"]))),
    ]  # fmt: skip
    for batches, options in forms:
        model = without_norms()
        sizes = seen(model)
        found = bb.prune(model, batches, 0.5, "snip", **options, micro_batch=3, on_collapse="ignore")
        assert equal(found.masks, expected)
        assert max(sizes) == 3


NO_SCALAR = nn.CrossEntropyLoss(reduction="none")
UNTRACKED = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten()).double()
UNEVEN = *pairs(1)[0], torch.ones(2)
AVERAGED = nn.Sequential(without_norms(), zoo.Net(lambda _, x: x.mean(0)))  # without samples


@pytest.mark.parametrize(
    ("model", "options", "match"),
    [
        (tiny(), {}, r'batch-norms need the statistics of the whole \(1, 4\); use bn="eval"'),
        (tiny(), dict(micro_batch=1), "batch-norms need the statistics"),  # torch itself refuses a single sample
        (UNTRACKED, dict(bn="eval"), r"batch-norms need the statistics of the whole \(1\)"),
        (AVERAGED, dict(loss=lambda output, _: output.sum()), r"split into samples.*objective="),
        (without_norms(), dict(batches=[UNEVEN], objective=lambda m, b: m(b[0])), "cannot be split into"),
        *((without_norms(), dict(micro_batch=wrong), r"micro_batch=.*at least 1") for wrong in (0, -1, 2.5)),
        *((without_norms(), dict(batches=[(*pairs(1)[0], 1)], micro_batch=m), "a batch is a pair") for m in (None, 3)),
        *((without_norms(), dict(loss=NO_SCALAR, micro_batch=m), "a scalar tensor") for m in (None, 3)),
    ],
)
def test_what_cannot_be_split_is_refused(model, options, match):
    options = dict(batches=pairs(1), micro_batch=4) | options
    with pytest.raises(ValueError, match=match):
        bb.prune(model, sparsity=0.5, method="snip", **options)


def test_batch_norms_with_running_statistics_or_whole_batches_are_no_obstacle():
    whole = bb.prune(tiny(), pairs(1), 0.5, "snip", bn="eval", on_collapse="ignore").masks
    assert equal(bb.prune(tiny(), pairs(1), 0.5, "snip", bn="eval", micro_batch=3, on_collapse="ignore").masks, whole)
    assert bb.prune(tiny(), pairs(1), 0.5, "snip", micro_batch=8, on_collapse="ignore").masks


CLASSES = torch.tensor([1.0, 5, 9]).double()
NO_MEANS = [
    nn.CrossEntropyLoss(reduction="sum"),
    nn.CrossEntropyLoss(CLASSES),
    nn.CrossEntropyLoss(CLASSES, label_smoothing=0.1),
    nn.CrossEntropyLoss(ignore_index=2),
    partial(F.cross_entropy, weight=CLASSES),
    partial(F.nll_loss, ignore_index=1),
    lambda output, target: F.cross_entropy(output, target, reduction="none").square().mean().sqrt(),
    lambda output, target: F.cross_entropy(output, target.where(target < 2, -100)),
    lambda output, target: F.cross_entropy(output - output.mean(0), target),
]
MEANS = [
    nn.CrossEntropyLoss(label_smoothing=0.1),
    nn.MultiMarginLoss(weight=CLASSES),
    lambda output, target: nn.BCEWithLogitsLoss(CLASSES)(output, F.one_hot(target, 3).double()),
    lambda output, target: F.cross_entropy(output, F.one_hot(target, 3).double(), CLASSES),
    lambda output, target: F.cross_entropy(output.mul_(2), target),
    F.cross_entropy,
    "nll-on-logits",
]


@pytest.mark.parametrize("number", range(len(NO_MEANS) + len(MEANS)))
@pytest.mark.parametrize("seed", range(4))
def test_parts_of_a_batch_lead_to_the_masks_of_the_whole_or_are_refused(number, seed):
    """The last layer may be close to zero: the losses of all samples are then equal, but not their gradients."""
    loss, model, batches = [*NO_MEANS, *MEANS][number], without_norms(), pairs(2, seed)
    model[-1].weight.data.mul_(1e-9 if seed % 2 else 1)
    batches = [(batches[0][0], torch.zeros_like(batches[0][1])), (batches[1][0], batches[1][1].sort().values)]
    options = dict(loss=loss, batches_per_round=2, on_collapse="ignore")
    whole = bb.prune(model, batches, 0.5, "snip-mb", **options).masks
    refused = []
    try:
        found = bb.prune(model, batches, 0.5, "snip-mb", micro_batch=3 + seed // 2, **options).masks
    except ValueError as error:
        refused = [error]
    assert "the loss is no mean over the samples" in str(refused) or float(bb.agreement(found, whole)) == 1
    assert not refused or number < len(NO_MEANS)


def test_a_loss_in_low_precision_is_a_mean_although_it_is_rounded():
    model, batches = without_norms().to(torch.bfloat16), [(images.bfloat16(), labels) for images, labels in pairs(40)]
    for batch in batches:
        bb.prune(model, [batch], 0.5, "snip", micro_batch=3, on_collapse="ignore")
