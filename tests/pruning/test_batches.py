"""What a round reads: the same for the same seed, the same when asked again, and nothing of the caller's used up."""

import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy
import numpy.random
import pytest
import torch
import torch.nn.functional as F
from pruning_runs import BATCHES, FORCE, run, same
from references import Trace, equal, few, tiny
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from barebones import METHODS, Method
from barebones.pruning.batches import Batches

DATA = TensorDataset(torch.cat([x for x, _ in BATCHES]), torch.cat([y for _, y in BATCHES]))
GRASP = replace(METHODS["grasp-mb"], rounds=2, batches_per_round=2)  # it reads the batches of a round twice


class Noisy(Dataset):
    """Draws from torch's, Python's and NumPy's generators for every sample."""

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = DATA[index]
        return x + torch.rand(()) + random.random() + numpy.random.rand(), y


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
    "noisy": lambda: shuffling(Noisy()),
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
    loader = shuffling(Noisy(), num_workers=1)
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
        *((wrong, FORCE, "batches") for wrong in (3, object(), Noisy())),  # a data set has items, but no batches
        (lambda index: None, FORCE, r"batches\(0\) must return"),
        (None, FORCE, "needs data"),
        (None, few("synflow"), "example="),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_so(batches: Any, method: Method, match: str):
    with pytest.raises(ValueError, match=match):
        run(method, batches=batches)
