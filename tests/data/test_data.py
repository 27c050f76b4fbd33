"""Splits, augmentation and batches against plain references, and the image folders of Tiny-ImageNet and ImageNet."""

import hashlib
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from PIL import Image
from torch import Tensor

from barebones import data
from barebones.data import tiny_imagenet
from barebones.data.imagenet import center_crop, random_crop
from barebones.data.images import open_rgb, to_tensor
from barebones.data.split import Normalization, TensorSplit, cropped, held_out
from barebones.pruning.batches import Batches
from barebones.running import digest

FORKS = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # Python 3.12 warns about torch's forks
CPU = torch.device("cpu")
AS_BYTES = Normalization([0, 0, 0], [1 / 255] * 3, channels_last=True)  # the floats have the values of the bytes


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def split_of(count: int, normalization: Normalization = AS_BYTES) -> TensorSplit:
    return TensorSplit(noise(count, 3, 6, 6), torch.arange(count), normalization)


def joined(batches: Iterator[data.Batch]) -> data.Batch:
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


def equal(first: data.Batch, second: data.Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_augmentation_equals_a_plain_loop():
    images = noise(20, 3, 6, 6)
    draws = [noise(20, seed=seed).long() % limit for seed, limit in ((1, 5), (2, 5), (3, 2))]
    for image, crop, down, right, mirrored in zip(images, cropped(images, 2, *draws), *draws, strict=True):
        padded = torch.zeros(3, 10, 10, dtype=torch.uint8)
        padded[:, 2:8, 2:8] = image
        expected = padded[:, down : down + 6, right : right + 6]
        assert torch.equal(crop, expected.flip(2) if mirrored else expected)


def test_an_augmented_epoch_has_the_drawn_crop_of_each_image(monkeypatch):
    monkeypatch.setattr("barebones.data.split.BLOCK", 16)
    split = split_of(50)
    images, labels = joined(split.epoch(7, seed=3, number=2, shuffle=True, augment=True))
    assert images.is_contiguous(memory_format=torch.channels_last)
    draws = split.draws(digest.text("augment", 3, 2))
    assert draws.min(1).values.tolist() == [0, 0, 0]
    assert draws.max(1).values.tolist() == [8, 8, 1]
    torch.testing.assert_close(images, cropped(split.images, 4, *draws)[labels].float(), rtol=0, atol=1e-4)
    in_order, _ = joined(split.epoch(3, seed=3, number=2, augment=True))  # in other batches
    assert torch.equal(images, in_order[labels])


def test_an_epoch_depends_on_its_seed_and_number_only():
    keys = [(0, 0), (0, 1), (1, 0), (1, 1)]
    before = torch.get_rng_state()
    epochs = [joined(split_of(40).epoch(16, *key, shuffle=True, augment=True)) for key in keys * 2]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(equal, epochs[:4], epochs[4:]))
    assert all(sorted(labels.tolist()) == list(range(40)) for _, labels in epochs)
    assert len({tuple(labels.tolist()) for _, labels in epochs}) == 4
    assert len({tuple(images[labels.argsort()].flatten().tolist()) for images, labels in epochs}) == 4


def test_batch_sizes():
    split = split_of(10)
    assert [labels.tolist() for _, labels in split.epoch(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [len(labels) for _, labels in split.epoch(4, drop_last=True)] == [4, 4]
    for draw, message in [
        (lambda: split.epoch(0), "at least one image, not 0"),
        (lambda: split.epoch(11, drop_last=True), "a batch of 11 cannot be drawn from 10 images"),
        (lambda: iter(split.scoring(11)), "a batch of 11 cannot be drawn from 10 images"),
    ]:
        with pytest.raises(ValueError, match=message):
            draw()


@pytest.mark.parametrize("skip", [7, 20, 21, 50])
def test_skipping_batches_does_not_change_the_others(skip):
    batches, rest = (list(split_of(83).epoch(4, 3, 2, shuffle=True, augment=True, skip=s)) for s in (0, skip))
    assert len(rest) == max(0, 21 - skip)
    assert all(map(equal, rest, batches[skip:]))


def test_scoring_batches_are_new_in_each_pass_and_can_be_replayed():
    source = split_of(10).scoring(4, seed=1)
    assert len(source) == 2
    first, second, third, repeated = (joined(Batches(source, 0, CPU).in_round(index, 2)) for index in (0, 1, 2, 1))
    assert equal(second, repeated)
    for images, labels in (first, second, third):
        assert images.shape == (8, 3, 6, 6)
        assert len(set(labels.tolist())) == 8
    assert not any(equal(first, other) for other in (second, third, joined(Batches(source, 1, CPU).in_round(0, 2))))


def test_the_held_out_images_never_change():
    held = held_out(50_000)
    assert int(held.sum()) == 5_000
    text = ",".join(map(str, held.nonzero().flatten().tolist()))
    assert hashlib.sha256(text.encode()).hexdigest().startswith("e5282f42e9211fb5")


@pytest.mark.gpu
def test_a_gpu_gets_the_same_batches():
    splits = [split_of(40, Normalization([0.5] * 3, [0.2] * 3, device=device)) for device in ("cpu", "cuda")]
    expected, batches = (joined(split.epoch(16, 1, 2, shuffle=True, augment=True)) for split in splits)
    assert all(tensor.is_cuda for tensor in batches)
    torch.testing.assert_close([tensor.cpu() for tensor in batches], list(expected))


def test_an_unknown_name_suggests_the_closest():
    with pytest.raises(ValueError, match=r"no data set 'CIFAR-10'; did you mean 'cifar10'\? Choose one of cifar10,"):
        data.load("CIFAR-10")
    with pytest.raises(ValueError, match=r"choose one of cifar10, .*imagenet, digits, images:PATH for a folder"):
        data.load("zzz")


def test_digits():
    digits = data.load("digits", workers=0)
    assert digits.inputs == data.DATA["digits"].inputs
    assert digits.validation is not None
    assert (len(digits.train), len(digits.validation), len(digits.test)) == (1294, 144, 359)
    images, labels = joined(digits.test.epoch(100))
    assert equal((images, labels), joined(digits.test.epoch(100, augment=True)))  # digits are not augmented
    assert labels.bincount().tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]  # 20 % of each class
    text = bytes(labels.tolist()) + images.mul(0.3760 * 16).add(0.3057 * 16).round().byte().numpy().tobytes()
    assert hashlib.sha256(text).hexdigest().startswith("9be9db48f7a84658")
    train, _ = joined(digits.train.epoch(100))
    everything = torch.cat([train, joined(digits.validation.epoch(100))[0], images]).flatten(1)
    assert len(everything.unique(dim=0)) == 1797  # no image is in two splits
    assert abs(float(train.mean())) < 0.01
    assert abs(float(train.std()) - 1) < 0.01


def color(name: str) -> tuple[int, int, int]:
    number = int(name[1:])
    return (60 * number, 255 - 60 * number, 30)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three classes of one color each. One training image is gray; the six images of `val` have mixed classes."""
    for constant, value in dict(CLASSES=3, PER_CLASS=4, TEST_IMAGES=6).items():
        monkeypatch.setattr(tiny_imagenet, constant, value)
    folder = tmp_path / "tiny-imagenet-200"
    names = ["n03", "n01", "n02"]  # the official list is not sorted either
    test = {f"val_{n}.JPEG": name for n, name in enumerate(["n02", "n01", "n03", "n03", "n02", "n01"])}
    files = {f"train/{name}/images/{name}_{n}.JPEG": name for name in names for n in range(4)}
    for file, name in (files | {f"val/images/{file}": name for file, name in test.items()}).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        mode, pixel = ("L", 200) if "n02_3" in file else ("RGB", color(name))
        Image.new(mode, (64, 64), pixel).save(folder / file, quality=95)
    (folder / "wnids.txt").write_text("\n".join(names) + "\n")
    lines = [f"{file}\t{name}\t0\t0\t63\t63\n" for file, name in test.items()]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder


@pytest.mark.parametrize("where", ["folder", "root", "zip"])
def test_tiny_imagenet_has_the_labels_of_its_annotations(where, tiny, tmp_path, monkeypatch):
    root = tiny if where == "folder" else tmp_path
    if where == "zip":
        packed = Path(shutil.make_archive(str(tmp_path / "packed" / tiny.name), "zip", tmp_path, tiny.name))
        digest = hashlib.sha256(packed.read_bytes()).hexdigest()
        monkeypatch.setattr(tiny_imagenet, "ARCHIVE", replace(tiny_imagenet.ARCHIVE, sha256=digest))
        root = packed.parent
    loaded = data.load("tiny-imagenet", root, workers=2)
    assert (loaded.classes, loaded.shape, loaded.validation) == (3, (3, 64, 64), None)
    for split, labels in ((loaded.train, [0] * 4 + [1] * 4 + [2] * 4), (loaded.test, [1, 0, 2, 2, 1, 0])):
        assert isinstance(split, TensorSplit)
        assert split.labels.tolist() == labels
        expected = torch.tensor([color(f"n{label + 1}") for label in labels])
        if split is loaded.train:
            expected[7] = 200
        assert (split.images.int() - expected[:, :, None, None]).abs().max() <= 3


def shorten(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda f: (f / "val/val_annotations.txt").unlink(), FileNotFoundError, r"No such file .*val_annotations.txt"),
        (lambda f: shorten(f / "val/val_annotations.txt", 25), ValueError, r"annotations.txt is truncated .* 1 images"),
        (lambda f: shorten(f / "val/val_annotations.txt", 35), ValueError, r"annotations.txt is damaged: line 2 does"),
        (lambda f: (f / "val/images/val_4.JPEG").unlink(), FileNotFoundError, r"val_4.JPEG is missing"),
        (lambda f: (f / "train/n01/images/n01_2.JPEG").unlink(), ValueError, r"n01/images has 3 images, not 4"),
        (lambda f: shorten(f / "val/images/val_4.JPEG", 300), ValueError, r"val_4.JPEG cannot be read as an image"),
    ],
)
def test_tiny_imagenet_names_the_damaged_file(spoil, error, message, tiny):
    spoil(tiny)
    with pytest.raises(error, match=message):
        data.load("tiny-imagenet", tiny)


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """Two classes of noise, in several sizes and modes."""
    formats = [("RGB", 40, 30, "JPEG"), ("L", 30, 50, "JPEG"), ("CMYK", 25, 25, "JPEG"), ("RGBA", 31, 20, "PNG")]
    for seed, folder in enumerate(["train/n02", "train/n01", "val/n02", "val/n01"]):
        (tmp_path / folder).mkdir(parents=True)
        for index, (mode, width, height, kind) in enumerate(formats):
            pixels = noise(height, width, 3, seed=10 * seed + index).numpy().tobytes()
            image = Image.frombytes("RGB", (width, height), pixels)
            image.convert(mode).save(tmp_path / folder / f"{index}.{kind}", kind)
    (tmp_path / "train" / "n01" / ".hidden.JPEG").write_text("no image")
    (tmp_path / "train" / "n01" / "notes.txt").write_text("no image")
    return tmp_path


@FORKS
def test_imagenet_does_not_depend_on_the_number_of_workers(imagenet):
    alone, helped = (data.load("imagenet", imagenet, workers=workers) for workers in (0, 2))
    assert (alone.classes, alone.shape, alone.validation) == (2, (3, 224, 224), None)
    assert (len(alone.train), len(alone.test)) == (8, 8)
    before = torch.get_rng_state()
    epochs = [joined(loaded.train.epoch(3, 1, 2, shuffle=True, augment=True)) for loaded in (alone, helped)]
    assert torch.equal(torch.get_rng_state(), before)
    assert equal(*epochs)
    assert sorted(epochs[0][1].tolist()) == [0] * 4 + [1] * 4
    assert not equal(epochs[0], joined(alone.train.epoch(3, 1, 3, shuffle=True, augment=True)))
    images, _ = next(iter(alone.train.scoring(4)))
    assert images.shape == (4, 3, 224, 224)


def test_imagenet_is_tested_on_the_middle_of_each_image(imagenet):
    images, labels = joined(data.load("imagenet", imagenet, workers=0).test.epoch(3))
    assert labels.tolist() == [0] * 4 + [1] * 4
    with Image.open(imagenet / "val" / "n01" / "0.JPEG") as image:
        pixels = image.resize((341, 256), Image.Resampling.BILINEAR).crop((58, 16, 58 + 224, 16 + 224))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (to_tensor([pixels])[0] / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(images[0], expected, rtol=1e-5, atol=1e-5)


def test_a_random_crop_is_a_box_of_the_image():
    ramp = Image.new("RGB", (60, 40))
    ramp.putdata([(4 * x, 6 * y, 0) for y in range(40) for x in range(60)])
    mirrored, widths = 0, []
    for seed in range(300):
        pixels = to_tensor([random_crop(ramp, 16, Random(seed))])[0].float()
        across, down = pixels[0].mean(0), pixels[1].mean(1)
        if across[0] > across[-1]:
            across, mirrored = across.flip(0), mirrored + 1
        assert (down.diff() >= 0).all()
        width, height = ((line[-2] - line[1]) / 13 * 16 / step for line, step in ((across, 4), (down, 6)))
        assert 0.6 < width / height < 1.65
        assert 0.04 < width * height / (60 * 40) < 1.1
        widths.append(float(width))
    assert 110 < mirrored < 190
    assert min(widths) < 20
    assert max(widths) > 42


def test_the_crop_of_a_very_long_image_is_its_middle():
    line = Image.new("RGB", (400, 3), (0, 0, 0))
    line.paste((255, 255, 255), (198, 0, 202, 3))
    assert to_tensor([random_crop(line, 8, Random(0))]).min() == 255
    assert center_crop(line, 7).size == (7, 7)


def test_images_of_every_mode_become_rgb(tmp_path):
    transparent = Image.new("P", (4, 4), 1)
    transparent.putpalette([0, 0, 0, 10, 20, 30])
    transparent.save(tmp_path / "palette.png", transparency=bytes([0, 128]))
    Image.new("LA", (4, 4), (77, 0)).save(tmp_path / "gray.png")
    pixels = [open_rgb(tmp_path / f"{name}.png").getpixel((0, 0)) for name in ("palette", "gray")]
    assert pixels == [(10, 20, 30), (77, 77, 77)]


@FORKS
@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_named_in_one_sentence(workers, imagenet):
    shorten(imagenet / "val" / "n02" / "1.JPEG", 400)
    with pytest.raises(ValueError, match=r"^\S*n02/1.JPEG cannot be read as an image \(.*\)$"):
        list(data.load("imagenet", imagenet, workers=workers).test.epoch(3))


def test_where_imagenet_is_looked_for_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no ImageNet in .*; put the folders .* account"):
        data.load("imagenet", tmp_path, download=True)


def test_without_pillow_the_extra_is_named(tiny, imagenet, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    for name, root in (("tiny-imagenet", tiny), ("imagenet", imagenet)):
        with pytest.raises(ImportError, match=r"pip install 'barebones\[data\]'"):
            data.load(name, root)
