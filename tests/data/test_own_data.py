"""Data of the user's own: what a factory may return, what it may not, and that its items are read repeatably."""

import random
import re

import numpy as np
import pytest
import torch
from PIL import Image
from references import Items, Trace
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset

from barebones import data
from barebones.data import custom

FORKS = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # Python 3.12 warns about torch's forks
GENERATOR = torch.Generator().manual_seed(0)
PIXELS = torch.randint(256, (40, 3, 6, 5), generator=GENERATOR, dtype=torch.uint8)
FLOATS = torch.randn(40, 7, generator=GENERATOR)
TARGETS = torch.arange(40) % 4
GOOD, IMAGES = (FLOATS, TARGETS), (PIXELS, TARGETS)


def items(*values):
    return Items(len(values), values.__getitem__)


def drawn(index: int) -> tuple[Tensor, int]:
    """Return an item that all random generators have a part in."""
    return torch.tensor([random.random(), np.random.rand(), float(torch.rand(())), index]), index % 4


@pytest.fixture
def loaded(monkeypatch):
    """Return a function that loads data as if a factory had returned it."""

    def load(returned, **options):
        monkeypatch.setattr(custom, "made", lambda *words: returned)
        return data.load("mine:data", **options)

    return load


def everything(split: data.Split, batch: int = 7, **options) -> tuple[Tensor, Tensor]:
    inputs, labels = zip(*split.epoch(batch, **options), strict=True)
    return torch.cat(inputs), torch.cat(labels)


@pytest.mark.parametrize(
    "given",
    [
        list(GOOD),
        (FLOATS.numpy(), TARGETS.numpy()),
        (FLOATS.double(), TARGETS.to(torch.uint8)),
        TensorDataset(*GOOD),
        items(*((values.tolist(), int(target)) for values, target in zip(*GOOD, strict=True))),
    ],
    ids=["lists", "arrays", "double", "Dataset", "Dataset of numbers"],
)
def test_floats_are_used_as_they_are(given, loaded):
    read = loaded((given, given))
    assert read.inputs == data.Inputs(4, (7,))
    assert read.validation is None
    inputs, labels = everything(read.test)
    assert torch.equal(inputs, FLOATS)
    assert torch.equal(labels, TARGETS)
    augmented = everything(read.train, augment=True)[0]
    assert torch.equal(augmented, inputs)


@pytest.mark.parametrize("as_dataset", [False, True])
@pytest.mark.parametrize("given", [{}, {"mean": [0.1, 0.2, 0.3], "std": (1, 2, 3)}])
def test_bytes_are_normalized_by_the_training_images(as_dataset, given, loaded):
    parts = {"train": (PIXELS, TARGETS), "test": (PIXELS[:9], TARGETS[:9]), "validation": (PIXELS[:3], TARGETS[:3])}
    read = loaded({**{k: TensorDataset(*v) if as_dataset else v for k, v in parts.items()}, **given})
    assert read.inputs == data.Inputs(4, (3, 6, 5))
    scaled = PIXELS.double() / 255
    mean, std = scaled.mean((0, 2, 3)), scaled.std((0, 2, 3), correction=0)
    if given:
        mean, std = (torch.tensor(given[name], dtype=torch.float64) for name in ("mean", "std"))
    expected = ((scaled - mean.view(3, 1, 1)) / std.view(3, 1, 1)).float()
    torch.testing.assert_close(everything(read.train)[0], expected)
    torch.testing.assert_close(everything(read.test)[0], expected[:9])
    torch.testing.assert_close(everything(read.validation)[0], expected[:3])


def test_grey_images_get_a_channel_and_a_constant_one_stays_finite(loaded):
    flat = torch.full((40, 6, 5), 9, dtype=torch.uint8)
    read = loaded(((flat, TARGETS), (PIXELS[:, 0], TARGETS)))
    assert read.shape == (1, 6, 5)
    assert everything(read.train)[0].unique().tolist() == [0.0]
    assert everything(read.test)[0].isfinite().all()


def test_words_stay_integers(loaded):
    words = torch.randint(100, (40, 12), generator=GENERATOR, dtype=torch.int32)
    read = loaded(((words, TARGETS), TensorDataset(words, TARGETS)))
    assert read.inputs == data.Inputs(4, (12,), "int64")
    assert torch.equal(everything(read.test)[0], words.long())
    assert not read.inputs.example(3).any()


@FORKS
def test_random_items_depend_on_the_epoch_and_the_index_only(loaded):
    parts = {"train": Items(40, drawn), "test": Items(40, drawn), "classes": 4}
    read = loaded(parts)
    epochs = [everything(read.train, 7, seed=1, number=n, augment=True, shuffle=True) for n in (0, 1, 0)]
    torch.rand(5), random.random(), np.random.rand()
    rest = everything(read.train, 7, seed=1, number=0, augment=True, shuffle=True, skip=3)[0]
    assert torch.equal(rest, epochs[0][0][21:])
    assert torch.equal(epochs[0][0], epochs[2][0])
    assert not torch.equal(epochs[0][0].sort(0).values[:, :3], epochs[1][0].sort(0).values[:, :3])
    assert torch.equal(everything(read.test)[0], everything(read.test, 3)[0])
    with_workers = loaded(parts | {"workers": 2})
    assert torch.equal(everything(with_workers.train, 7, seed=1, number=0, augment=True, shuffle=True)[0], epochs[0][0])
    with Trace(nn.Identity()):
        everything(read.train, augment=True)


def test_the_digest_tells_whether_the_data_has_changed(loaded):
    changed = FLOATS.clone()
    changed[39, 6] += 1e-6
    sets = [GOOD, (changed, TARGETS), (FLOATS, TARGETS.flip(0)), (FLOATS[:39], TARGETS[:39])]
    digests = [loaded((each, GOOD)).digest for each in [*sets, *(TensorDataset(*each) for each in sets)]]
    digests += [loaded((GOOD, sets[1])).digest, loaded({"train": GOOD, "test": GOOD, "validation": GOOD}).digest]
    assert len({*digests}) == len(digests)
    assert loaded((GOOD, GOOD)).digest == digests[0]
    assert not data.load("digits").digest


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(())


WRONG = {
    "returned NoneType; a factory must return (train, test), each": None,
    "returned 2 values": GOOD,
    "returned no test data": {"train": GOOD},
    "a dict with 'tset'; did you mean 'test'?": {"train": GOOD, "tset": GOOD},
    "the test of mine:data is of type tuple; return a Dataset": (GOOD, (FLOATS, None)),
    "the train of mine:data is of type Numbers; return a Dataset with a length": (Numbers(), GOOD),
    "the test of mine:data is empty": (GOOD, items()),
    "needs one whole number, that of its class, for each input": (GOOD, (FLOATS[:3], TARGETS)),
    "and targets of 40 float32": (GOOD, (FLOATS, TARGETS.float())),
    "has inputs of 6 float32, but those of train are 7 float32": (GOOD, (FLOATS[:, :6], TARGETS)),
    "has the target 4; classes are numbered from 0 to 3": (GOOD, (FLOATS, TARGETS + 1)),
    "has the target -1; classes": (GOOD, (FLOATS, TARGETS - 1)),
    "bytes of shape 7; images are channels": ((FLOATS.byte(), TARGETS), GOOD),
    "has complex inputs": ((FLOATS + 0j, TARGETS), GOOD),
    "has 1 classes; it needs two or more": ((FLOATS, TARGETS * 0), GOOD),
    "has 'ten' classes": {"train": GOOD, "test": GOOD, "classes": "ten"},
    "mean and std, which are for bytes": {"train": GOOD, "test": GOOD, "mean": [1], "std": [1]},
    "mean and std of mine:data need": {"train": IMAGES, "test": IMAGES, "mean": "abc", "std": 1},
    "returned one of mean and std; give both or neither": {"train": IMAGES, "test": IMAGES, "mean": 1},
    "workers of mine:data is '2'; it must be a number of processes": {"train": GOOD, "test": GOOD, "workers": "2"},
    "std of mine:data need one number for each of 3": {"train": IMAGES, "test": IMAGES, "mean": 1, "std": [1]},
    "item 0 of the train of mine:data is of type Tensor; it must be a pair": {"train": FLOATS, "test": GOOD},
    "item 1 of the train of mine:data raised KeyError: 1": (Items(3, {0: (FLOATS[0], 1)}.__getitem__), GOOD),
    "of type Image, which is no tensor; add a transform": (items((Image.new("L", (1, 1)), 0)), GOOD),
    "item 0 of the train of mine:data has inputs of 1×7 and targets of 1 float32": (items((FLOATS[0], 0.5)), GOOD),
    "item 0 of the train of mine:data has 'cat' of type str, which is no tensor": (items((FLOATS[0], "cat")), GOOD),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_a_factory_may_not_return(message, loaded):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        loaded(WRONG[message])
    assert "\n" not in str(error.value)


def test_items_are_checked_as_they_are_read(loaded):
    good = (FLOATS[0], 1)
    for wrong, message in {
        (FLOATS[0, :6], 1): "item 1 of the test of mine:data has inputs of 6 float32, but those of train are 7",
        (FLOATS[0], 2): "item 1 of the test of mine:data has the target 2; classes are numbered from 0 to 1",
    }.items():
        with pytest.raises(ValueError, match=message):
            list(loaded({"train": items(good, good), "test": items(good, wrong), "classes": 2}).test.epoch(2))


def test_a_factory_in_a_file_or_a_module_gets_the_root_if_it_asks_for_it(tmp_path, monkeypatch):
    path = tmp_path / "data_of_mine.py"
    path.write_text(
        "import torch\n"
        "def plain(): return rooted('.')\n"
        "def rooted(root):\n"
        "    assert str(root) == ('.' if root == '.' else 'there')\n"
        "    return (torch.eye(4), torch.arange(4)), (torch.eye(4), torch.arange(4))\n"
        "def needy(a, b): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in (f"{path}:plain", "data_of_mine:plain", f"{path}:rooted"):
        assert data.load(name, root="there").classes == 4
    with pytest.raises(ValueError, match=r"needy\(a, b\) needs more arguments than root"):
        data.load(f"{path}:needy")
    with pytest.raises(ValueError, match=r"there is no file no.py for the data set no.py:plain; check its path"):
        data.load("no.py:plain")
