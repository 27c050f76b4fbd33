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
import references
import torch
import torch.nn.functional as F
from references import Trace, assert_top, equal, ones, pairs, tiny, weights_of
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from barebones import METHODS, Method, Probe, Round, prune, rounds
from barebones.pruning.batches import Batches

BATCHES = pairs(5)
DATA = TensorDataset(torch.cat([x for x, _ in BATCHES]), torch.cat([y for _, y in BATCHES]))
FORCE = replace(METHODS["force"], rounds=4)


class Noisy(Dataset):
    """Draws from torch's, Python's and NumPy's generators for every sample."""

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = DATA[index]
        return x + torch.rand(()) + random.random() + numpy.random.rand(), y


def masks_of(source: Any, seed: int = 0, method: Method = FORCE, after: Round | None = None) -> list[Round]:
    return list(rounds(Probe(tiny(), source, seed=seed), method, 20, after))


def same(a: list[Round], b: list[Round]) -> bool:
    return len(a) == len(b) and all(
        equal(x.masks, y.masks) and x.batches_digest == y.batches_digest for x, y in zip(a, b, strict=True)
    )


def loaders() -> dict[str, Any]:
    return {
        "shuffling": lambda: DataLoader(DATA, batch_size=16, shuffle=True),
        "own generator": lambda: DataLoader(
            DATA, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(5)
        ),
        "noisy": lambda: DataLoader(Noisy(), batch_size=16, shuffle=True),
        "list": lambda: list(BATCHES),
        "callable": lambda: lambda index: BATCHES[index : index + 1],
        "noisy callable": lambda: lambda index: [(x + torch.rand(()), y) for x, y in BATCHES[index : index + 1]],
    }


@pytest.mark.parametrize("name", loaders())
class TestEverySource:
    def test_same_seed_same_batches_whatever_the_caller_drew(self, name):
        make = loaders()[name]
        torch.manual_seed(1)
        first = masks_of(make())
        torch.manual_seed(2)
        assert same(first, masks_of(make()))

    def test_used_again_gives_the_same(self, name):
        source = loaders()[name]()
        assert same(masks_of(source), masks_of(source))

    def test_leaves_the_generators_alone(self, name):
        source = loaders()[name]()
        generator = getattr(source, "generator", None)
        trace = Trace(tiny(), [generator] if generator else [])
        for _ in rounds(Probe(trace.model, source), FORCE, 20):
            trace.check()
        trace.check()

    def test_resumes_from_every_round(self, name):
        all_steps = masks_of(loaders()[name]())
        for step in all_steps[:-1]:
            assert same(masks_of(loaders()[name](), after=step), all_steps[step.index + 1 :])

    def test_is_replayed_for_several_batches_of_grasp(self, name):
        """g and then H g read the same batches, or it would be an error."""
        method = Method(METHODS["grasp-mb"].criterion, rounds=2, batches=2)
        first = masks_of(loaders()[name](), method=method)
        assert same(first, masks_of(loaders()[name](), method=method))
        assert same(first[1:], masks_of(loaders()[name](), method=method, after=first[0]))


@pytest.mark.parametrize("name", ["shuffling", "noisy", "noisy callable"])
def test_another_seed_gives_other_batches(name):
    make = loaders()[name]
    assert masks_of(make(), seed=0)[0].batches_digest != masks_of(make(), seed=1)[0].batches_digest


def test_a_loader_goes_on_from_round_to_round_and_begins_again_when_it_ends():
    """40 samples in batches of 16: passes of three."""
    loader = DataLoader(DATA, batch_size=16)
    seen = []
    objective = lambda m, batch: (seen.append(batch[0]), F.cross_entropy(m(batch[0]), batch[1]))[1]
    method = replace(FORCE, batches=2)
    list(rounds(Probe(tiny(), loader, objective=objective), method, 20))
    expected = [x for x, _ in loader] * 3
    assert len(seen) == 8
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=False))


def test_a_new_pass_is_shuffled_anew():
    stream = Batches(DataLoader(torch.arange(12), batch_size=4, shuffle=True), 0, torch.device("cpu"))
    passes = [torch.cat(list(stream.of(index, 3))) for index in range(3)]
    assert all(p.sort().values.tolist() == list(range(12)) for p in passes)
    assert passes[0].tolist() != passes[1].tolist() != passes[2].tolist()
    again = [torch.cat(list(stream.of(index, 3))) for index in (0, 2, 1, 1)]
    assert [a.tolist() for a in again] == [passes[i].tolist() for i in (0, 2, 1, 1)]


def test_the_masks_follow_the_batches_of_the_round():
    method = replace(METHODS["snip-mb"], batches=3)
    step = masks_of(DataLoader(DATA, batch_size=8), method=method)[0]
    assert_top(step.masks, references.snip(tiny(), ones(weights_of(tiny())), BATCHES[:3]), 20)


def test_a_callable_is_asked_for_each_round():
    asked = []

    def batches(index: int) -> Iterator[tuple[Tensor, Tensor]]:
        asked.append(index)
        return iter(BATCHES[index : index + 2])

    steps = masks_of(batches)
    assert asked == [0, 1, 2, 3]
    assert_top(steps[0].masks, references.snip(tiny(), ones(weights_of(tiny())), BATCHES[:2]), steps[0].keep)


def test_a_sequence_that_draws_is_seeded_too():
    class Drawing(Sequence):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            x, y = BATCHES[index]
            return x + torch.randn(x.shape), y

    torch.manual_seed(1)
    model = tiny()
    trace = Trace(model)
    first = prune(model, Drawing(), 0.8, FORCE, on_collapse="ignore")
    trace.check()
    torch.manual_seed(2)
    assert equal(first.masks, prune(tiny(), Drawing(), 0.8, FORCE, on_collapse="ignore").masks)


FIRST_USE = """
import numpy as np, torch
from torch import nn
from barebones import Probe

class Source:
    def __iter__(self):
        yield torch.full((2, 3), float(np.random.rand())), torch.tensor([0, 1])

print(len({int(Probe(nn.Linear(3, 2), Source()).digest_of(0, 1)) for _ in range(3)}))
"""


@pytest.mark.slow
def test_numpys_generator_is_seeded_also_the_first_time_that_it_is_used():
    """numpy imports its generators only when they are first asked for: here, within the first batch."""
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True)
    assert done.stdout.strip() == "1", done.stdout + done.stderr[-2000:]


def test_worker_processes():
    loader = lambda workers: DataLoader(Noisy() if workers else DATA, batch_size=16, shuffle=True, num_workers=workers)
    method = replace(FORCE, rounds=2)
    first = masks_of(loader(1), method=method)
    assert same(first, masks_of(loader(1), method=method))


def test_a_one_shot_iterator_serves_as_long_as_it_lasts():
    assert same(masks_of(iter(BATCHES)), masks_of(BATCHES))
    all_steps = masks_of(BATCHES)
    assert same(masks_of(iter(BATCHES), after=all_steps[1]), all_steps[2:])
    with pytest.raises(ValueError, match=r"ran out after 3.*one-shot"):
        masks_of(iter(BATCHES[:3]))
    with pytest.raises(ValueError, match="one-shot iterator cannot"):
        masks_of(iter(BATCHES), method=replace(METHODS["grasp-mb"], batches=2))


def test_a_short_list_is_read_over_and_over():
    assert same(masks_of(BATCHES[:2]), masks_of([*BATCHES[:2], *BATCHES[:2]]))


@pytest.mark.parametrize(
    "empty",
    [[], (), iter(()), DataLoader(TensorDataset(torch.zeros(0, 1, 6, 6)), batch_size=4), lambda index: []],
    ids=["list", "tuple", "iterator", "loader", "callable"],
)
def test_nothing_to_read_is_an_error(empty):
    with pytest.raises(ValueError, match=r"batches is empty|returned no batch"):
        masks_of(empty)


def test_no_batches_are_an_error_only_where_they_are_needed():
    with pytest.raises(ValueError, match="needs data"):
        prune(tiny(), None, 0.5, "force")
    for name in ("random", "erk", "magnitude"):
        with pytest.warns(UserWarning, match="was not checked: there is no example= input"):
            prune(tiny(), None, 0.5, name)
        prune(tiny(), None, 0.5, name, example=BATCHES[0][0])
    with pytest.raises(ValueError, match="example="):
        prune(tiny(), None, 0.5, "synflow")
    prune(tiny(), None, 0.5, "synflow", example=BATCHES[0][0])


def test_what_cannot_be_read_is_an_error_that_says_so():
    for wrong in (3, DATA[0][0].dim(), object()):
        with pytest.raises(ValueError, match="batches"):
            masks_of(wrong)


def test_a_dataset_instead_of_batches_is_an_error_that_says_so():
    """It has items, but no batches; it is neither iterable nor callable."""
    with pytest.raises(ValueError, match="batches"):
        masks_of(Noisy())


def test_a_source_that_is_different_each_time_is_found_out():
    class Fickle:
        passes = 0

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            self.passes += 1
            return iter([(x + self.passes, y) for x, y in BATCHES])

    with pytest.raises(ValueError, match="others when read a second time"):
        masks_of(Fickle(), method=replace(METHODS["grasp-mb"], batches=2))
    fickle = Fickle()
    first = masks_of(fickle)[0]
    with pytest.raises(ValueError, match="other batches"):
        masks_of(fickle, after=first)


def test_batches_of_any_form_reach_the_objective():
    from typing import NamedTuple

    class Pair(NamedTuple):
        x: Tensor
        y: Tensor

    forms = {
        "dict": [{"x": x, "more": {"y": y}, "id": "a"} for x, y in BATCHES],
        "named": [Pair(x, y) for x, y in BATCHES],
        "nested": [[[x], (y, None)] for x, y in BATCHES],
    }
    objectives = {
        "dict": lambda m, b: F.cross_entropy(m(b["x"]), b["more"]["y"]),
        "named": lambda m, b: F.cross_entropy(m(b.x), b.y),
        "nested": lambda m, b: F.cross_entropy(m(b[0][0]), b[1][0]),
    }
    expected = masks_of(BATCHES)
    for name, form in forms.items():
        steps = list(rounds(Probe(tiny(), form, objective=objectives[name]), FORCE, 20))
        assert all(equal(a.masks, b.masks) for a, b in zip(steps, expected, strict=True))
