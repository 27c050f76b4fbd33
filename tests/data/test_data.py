"""Data: each official format from small files written here, augmentation against a plain reference, and every fault."""

import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from barebones import data
from barebones.data import cifar, download, tiny_imagenet
from barebones.data.images import centre_crop, open_rgb, random_crop, to_tensor
from barebones.data.normalization import Normalization
from barebones.data.split import derived_seed, held_out
from barebones.data.tensors import TensorSplit, cropped
from barebones.pruning.batches import Batches

FORKS = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # from Python 3.12 on; torch's to solve
AS_BYTES = Normalization([0, 0, 0], [1 / 255] * 3)  # floats that are the bytes


def images_of(count: int, size: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 3, size, size), generator=generator, dtype=torch.uint8)


def part_of(count: int, **options: Any) -> TensorSplit:
    return TensorSplit(images_of(count), torch.arange(count), AS_BYTES, **options)


def joined(batches: Iterator[data.Batch]) -> data.Batch:
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


def equal(one: data.Batch, other: data.Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# Parts


def test_augmentation_equals_a_plain_loop() -> None:
    images, pad = images_of(20), 2
    generator = torch.Generator().manual_seed(1)
    down, right = torch.randint(2 * pad + 1, (2, 20), generator=generator)
    mirrored = torch.randint(2, (20,), generator=generator)
    found = cropped(images, pad, down, right, mirrored)
    for n in range(20):
        for c in range(3):
            plane = [[0] * 10, [0] * 10] + [[0, 0, *row, 0, 0] for row in images[n, c].tolist()] + [[0] * 10, [0] * 10]
            rows = plane[down[n] : down[n] + 6]
            cut = [row[right[n] : right[n] + 6] for row in rows]
            assert found[n, c].tolist() == ([row[::-1] for row in cut] if mirrored[n] else cut)


def test_an_augmented_epoch_is_the_drawn_crop_of_each_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barebones.data.tensors.BLOCK", 16)
    part = part_of(50)
    images, labels = joined(part.epoch(7, seed=3, number=2, shuffle=True, augment=True))
    draws = part.draws(derived_seed("augment", 3, 2))
    assert draws.min(1).values.tolist() == [0, 0, 0]
    assert draws.max(1).values.tolist() == [8, 8, 1]
    expected = cropped(part.images, 4, *draws)[labels]
    torch.testing.assert_close(images, expected.float(), rtol=0, atol=1e-4)


def test_every_epoch_depends_on_seed_and_number_alone() -> None:
    part = part_of(40)
    before = torch.get_rng_state()
    epochs = {
        (seed, number): joined(part.epoch(16, seed, number, shuffle=True, augment=True))
        for seed in (0, 1)
        for number in (0, 1)
    }
    torch.manual_seed(99)
    after = torch.get_rng_state()
    for (seed, number), epoch in epochs.items():
        assert equal(epoch, joined(part.epoch(16, seed, number, shuffle=True, augment=True)))
        assert sorted(epoch[1].tolist()) == list(range(40))
    assert torch.equal(torch.get_rng_state(), after)
    torch.set_rng_state(before)
    assert len({tuple(labels.tolist()) for _, labels in epochs.values()}) == 4
    assert len({tuple(images[labels.argsort()].flatten().tolist()) for images, labels in epochs.values()}) == 4


def test_an_image_is_augmented_alike_whatever_batch_it_falls_into() -> None:
    part = part_of(40)
    images, labels = joined(part.epoch(16, 5, 6, shuffle=True, augment=True))
    in_order, _ = joined(part.epoch(3, 5, 6, augment=True))
    assert torch.equal(images, in_order[labels])


def test_batches_are_cut_as_asked() -> None:
    part = part_of(10)
    assert [len(labels) for _, labels in part.epoch(4)] == [4, 4, 2]
    assert [len(labels) for _, labels in part.epoch(4, drop_last=True)] == [4, 4]
    assert torch.equal(joined(part.epoch(4))[1], torch.arange(10))
    with pytest.raises(ValueError, match="at least one image, not 0"):
        part.epoch(0)
    with pytest.raises(ValueError, match="a batch of 11 is larger than the split of 10 images"):
        part.epoch(11, drop_last=True)
    with pytest.raises(ValueError, match="a batch of 11 cannot be drawn from 10 images"):
        part.scoring(11)


def test_normalization_and_layout() -> None:
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    pixels = images_of(5)
    plain = Normalization(mean, std)(pixels)
    expected = (pixels / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(plain, expected)
    last = TensorSplit(pixels, torch.zeros(5), Normalization(mean, std, channels_last=True))
    [(images, labels)] = last.epoch(5)
    assert torch.equal(images, plain)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64


def test_scoring_batches_shuffle_anew_each_pass_and_replay() -> None:
    source = part_of(10).scoring(4, seed=1)
    assert len(source) == 2

    def stream(seed: int, rounds: list[int]) -> list[data.Batch]:
        batches = Batches(source, seed, torch.device("cpu"))
        return [batch for index in rounds for batch in batches.of(index, 2)]

    found = stream(0, [0, 1, 2, 1])
    assert all(images.shape == (4, 3, 6, 6) for images, _ in found)
    assert not equal(found[0], found[2])
    assert all(equal(a, b) for a, b in zip(found[2:4], found[6:8], strict=True))
    assert all(equal(a, b) for a, b in zip(found[2:4], stream(0, [1]), strict=True))
    assert not equal(found[0], stream(1, [0])[0])
    for first, second in zip(found[::2], found[1::2], strict=True):
        assert len({*first[1].tolist(), *second[1].tolist()}) == 8


def test_the_held_out_images_never_change() -> None:
    held = held_out(50_000)
    assert int(held.sum()) == 5_000
    text = ",".join(map(str, held.nonzero().flatten().tolist()))
    assert hashlib.sha256(text.encode()).hexdigest().startswith("e5282f42e9211fb5")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gets_the_same_batches() -> None:
    there = TensorSplit(images_of(40), torch.arange(40), Normalization([0.5] * 3, [0.2] * 3, device="cuda"))
    here = TensorSplit(images_of(40), torch.arange(40), Normalization([0.5] * 3, [0.2] * 3))
    options: dict[str, Any] = dict(batch=16, seed=1, number=2, shuffle=True, augment=True)
    images, labels = joined(there.epoch(**options))
    assert images.is_cuda
    assert labels.is_cuda
    expected = joined(here.epoch(**options))
    torch.testing.assert_close(images.cpu(), expected[0])
    assert torch.equal(labels.cpu(), expected[1])


# Names


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no data set 'CIFAR-10'; did you mean 'cifar10'\? Choose one of cifar10,"):
        data.load("CIFAR-10")
    with pytest.raises(ValueError, match=r"choose one of cifar10, cifar100, tiny-imagenet, imagenet, digits$"):
        data.load("zzz")


def test_digits_are_the_split_of_the_demo() -> None:
    found = data.load("digits", workers=0)
    demo = data.digits()
    assert (found.name, found.classes, found.size, found.channels) == ("digits", 10, 8, 1)
    assert found.validation is not None
    assert (len(found.train), len(found.validation), len(found.test)) == (1294, 144, 359)
    images, labels = joined(found.test.epoch(100, augment=True))
    torch.testing.assert_close(images, demo.test_images, rtol=0, atol=1e-3)
    assert torch.equal(labels, demo.test_labels)
    train, _ = joined(found.train.epoch(100))
    assert abs(float(train.mean())) < 0.01
    assert abs(float(train.std()) - 1) < 0.01


# CIFAR


class Cifar:
    """The official files in small, the same as an archive, and what is in them: training files first, then the test."""

    def __init__(self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        layout = cifar.LAYOUTS[name]
        self.name, self.folder = name, folder / layout.archive.folder
        self.folder.mkdir(parents=True)
        self.labels: list[int] = []
        self.pixels: list[Tensor] = []
        groups = []
        for group in (layout.train, layout.test):
            files = []
            for file in group:
                content = self.content(len(files) + 10 * len(groups), layout)
                (self.folder / file.name).write_bytes(content)
                files.append(cifar.File(file.name, 20, hashlib.sha256(content).hexdigest()))
            groups.append(tuple(files))
        self.archive = archived(self.folder, layout.archive.name)
        monkeypatch.setitem(
            cifar.LAYOUTS,
            name,
            replace(layout, archive=described(layout.archive, self.archive), train=groups[0], test=groups[1]),
        )

    def content(self, seed: int, layout: cifar.Layout) -> bytes:
        pixels = images_of(20, 32, seed)
        records = b""
        for number, image in enumerate(pixels):
            label = (number * 7 + seed) % layout.classes
            self.labels.append(label)
            records += bytes([19] * (layout.labels - 1) + [label]) + bytes(image.flatten().tolist())
        self.pixels += pixels
        return records

    def load(self, root: Path | None = None, **options: Any) -> data.Data:
        return data.load(self.name, root or self.folder, **options)


def archived(folder: Path, name: str) -> Path:
    path = folder.parent / "packed" / name
    path.parent.mkdir()
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as file:
            for member in sorted(folder.rglob("*")):
                file.write(member, member.relative_to(folder.parent))
    else:
        with tarfile.open(path, "w:gz") as tar:
            tar.add(folder, folder.name)
    return path


def described(archive: download.Archive, path: Path) -> download.Archive:
    """The archive as if this file was what is published."""
    content = path.read_bytes()
    checksum = f"md5:{hashlib.md5(content).hexdigest()}"
    return replace(archive, url=path.as_uri(), size=len(content), checksum=checksum)


@pytest.fixture(params=["cifar10", "cifar100"])
def either(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cifar:
    return Cifar(request.param, tmp_path, monkeypatch)


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cifar:
    return Cifar("cifar10", tmp_path, monkeypatch)


def bytes_of(part: data.Split | None) -> data.Batch:
    assert isinstance(part, TensorSplit)
    return part.images, part.labels


def test_cifar_is_read_to_the_byte(either: Cifar) -> None:
    found = either.load()
    train = len(either.labels) - 20
    held = held_out(train)
    assert (found.classes, found.size, found.channels) == (int(either.name[5:]), 32, 3)
    pixels, labels = torch.stack(either.pixels), torch.tensor(either.labels)
    assert equal(bytes_of(found.train), (pixels[:train][~held], labels[:train][~held]))
    assert equal(bytes_of(found.validation), (pixels[:train][held], labels[:train][held]))
    assert equal(bytes_of(found.test), (pixels[train:], labels[train:]))
    assert len(bytes_of(found.validation)[0]) == train // 10


def test_cifar_is_found_where_it_lies(cifar10: Cifar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = cifar10.load()
    renamed = tmp_path / "renamed"
    cifar10.folder.rename(renamed)
    for root in (renamed, cifar10.archive.parent):
        assert equal(bytes_of(cifar10.load(root).test), bytes_of(inside.test))
    assert sorted(p.name for p in cifar10.archive.parent.iterdir()) == [
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
    ]
    monkeypatch.setenv("BAREBONES_DATA", str(cifar10.archive.parent))
    assert equal(bytes_of(data.load("cifar10").test), bytes_of(inside.test))


def test_cifar_names_the_file_at_fault(cifar10: Cifar) -> None:
    path = cifar10.folder / "data_batch_3.bin"
    whole = path.read_bytes()
    faults: list[tuple[bytes, str]] = [
        (whole[:-1], r"data_batch_3.bin is truncated: it has 61,459 bytes, and 20 records of CIFAR-10 have 61,460"),
        (b"", r"data_batch_3.bin is truncated: it has 0 bytes"),
        (whole + b"x", r"data_batch_3.bin is damaged: it has 61,461 bytes"),
        (
            whole[:3073] + b"\x0a" + whole[3074:],
            r"data_batch_3.bin is damaged: record 1 has label 10, and .* 10 classes",
        ),
        (whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], r"data_batch_3.bin is damaged: its SHA-256 is not that"),
    ]
    for content, message in faults:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            cifar10.load()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3.bin is missing; unpack cifar-10-binary.tar.gz again"):
        cifar10.load()


def test_nothing_there_says_what_to_put_where(cifar10: Cifar, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no CIFAR-10 in .*empty: put the folder .*, or ask for the download"):
        cifar10.load(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


# Downloads


def test_a_download_is_checked_and_unpacked(cifar10: Cifar, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "deep" / "root"
    found = cifar10.load(root, download=True)
    assert equal(bytes_of(found.test), bytes_of(cifar10.load().test))
    assert sorted(p.name for p in root.iterdir()) == ["cifar-10-batches-bin", "cifar-10-binary.tar.gz"]
    cifar10.archive.unlink()
    cifar10.load(root, download=True)  # what is there is not fetched again
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(checksum="md5:" + "0" * 32), ValueError, r"tar.gz is damaged or not the published file: its md5 is"),
        (dict(checksum="sha256:" + "0" * 64), ValueError, r"is damaged or not the published file: its sha256 is"),
        (dict(checksum=""), ValueError, r"CIFAR-10 has no checksum to check file:.* so it is not fetched"),
        (dict(checksum="crc32:00000000"), ValueError, r"has no checksum"),
        (dict(checksum="md5:0"), ValueError, r"has no checksum"),
        (dict(size=10_000_000), ValueError, r"tar.gz is truncated: [\d,]+ bytes instead of 10,000,000; fetch it again"),
        (dict(size=10), ValueError, r"tar.gz is not the published file: [\d,]+ bytes instead of 10"),
        (dict(size=2**62), OSError, r"cannot write into .*root \(CIFAR-10 needs 4,611,686,018,427,387,904 bytes, and"),
        (
            dict(url="file:///nowhere/x.tar.gz"),
            ConnectionError,
            r"CIFAR-10 could not be downloaded \(.*\): fetch file:///nowhere/x.tar.gz by hand and put it into .*root$",
        ),
        (
            dict(url="http://127.0.0.1:1/x.tar.gz"),
            ConnectionError,
            r"could not be downloaded \(.*\): fetch http://127.0.0.1:1/x.tar.gz by hand and put it into .*root$",
        ),
    ],
)
def test_a_bad_download_is_refused_and_leaves_nothing(
    change: dict[str, Any], error: type[Exception], message: str, cifar10: Cifar, tmp_path: Path
) -> None:
    archive = replace(cifar.LAYOUTS["cifar10"].archive, **change)
    root = tmp_path / "root"
    with pytest.raises(error, match=message):
        download.located(archive, root, True, ("test_batch.bin",))
    assert not root.exists() or not list(root.iterdir())


def test_a_damaged_archive_is_not_unpacked(cifar10: Cifar) -> None:
    content = bytearray(cifar10.archive.read_bytes())
    content[1000] ^= 1
    cifar10.archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"packed/cifar-10-binary.tar.gz is damaged or not the published file"):
        cifar10.load(cifar10.archive.parent)
    assert len(list(cifar10.archive.parent.iterdir())) == 1


def test_an_unwritable_folder_is_one_sentence(cifar10: Cifar, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write into .*file/root \(Not a directory\)"):
        cifar10.load(tmp_path / "file" / "root", download=True)


def traversing_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("inner/good", "x")
        file.writestr("../escaped", "x")


def traversing_tar(path: Path, **member: Any) -> None:
    info = tarfile.TarInfo("../escaped")
    for key, value in member.items():
        setattr(info, key, value)
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(info, io.BytesIO(b""))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (traversing_zip, r"is refused: ../escaped in it points outside of its folder"),
        (traversing_tar, r"is refused: '../escaped' would be extracted to .* outside"),
        (
            lambda path: traversing_tar(path, name="inner", type=tarfile.SYMTYPE, linkname="/"),
            r"is refused: .* absolute",
        ),
        (lambda path: path.write_bytes(b"not an archive"), r"cannot be unpacked"),
        (lambda path: traversing_tar(path, name="other"), r"does not hold the folder inner"),
    ],
)
def test_an_archive_cannot_write_outside(write: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    path = root / "archive"
    write(path)
    content = path.read_bytes()
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    archive = download.Archive("Test", path.as_uri(), len(content), checksum, "inner")
    with pytest.raises(ValueError, match=message):
        download.unpack(path, archive)
    assert [p.name for p in tmp_path.rglob("*")] == ["root", "archive"]


# Tiny-ImageNet


WNIDS = ["n03", "n01", "n02"]  # the official list is not sorted either


def colour(name: str) -> tuple[int, int, int]:
    number = int(name[1:])
    return (60 * number, 255 - 60 * number, 30)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three classes, each of one colour; one training image is grey; six images in `val`, its classes mixed."""
    for constant, value in dict(CLASSES=3, PER_CLASS=4, TEST_IMAGES=6, CHUNK=5).items():
        monkeypatch.setattr(tiny_imagenet, constant, value)
    folder = tmp_path / "tiny-imagenet-200"
    for name in WNIDS:
        (folder / "train" / name / "images").mkdir(parents=True)
        for number in range(4):
            image = Image.new("RGB", (64, 64), colour(name))
            if (name, number) == ("n02", 3):
                image = Image.new("L", (64, 64), 200)
            image.save(folder / "train" / name / "images" / f"{name}_{number}.JPEG", quality=95)
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (folder / "val" / "images").mkdir(parents=True)
    lines = []
    for number, name in enumerate(["n02", "n01", "n03", "n03", "n02", "n01"]):
        Image.new("RGB", (64, 64), colour(name)).save(folder / "val" / "images" / f"val_{number}.JPEG", quality=95)
        lines.append(f"val_{number}.JPEG\t{name}\t0\t0\t63\t63\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder


def test_tiny_imagenet_is_labelled_by_its_annotations(tiny: Path) -> None:
    for root in (tiny, tiny.parent):
        found = data.load("tiny-imagenet", root, workers=2)
        assert (found.classes, found.size, found.channels, found.validation) == (3, 64, 3, None)
        for part, labels in ((found.train, [0] * 4 + [1] * 4 + [2] * 4), (found.test, [1, 0, 2, 2, 1, 0])):
            images, found_labels = bytes_of(part)
            assert found_labels.tolist() == labels
            for index, (image, label) in enumerate(zip(images, labels, strict=True)):
                grey = part is found.train and index == 7
                expected = (200, 200, 200) if grey else colour(f"n{label + 1}")
                assert (image.flatten(1).int() - torch.tensor(expected)[:, None]).abs().max() <= 3


def test_tiny_imagenet_is_unpacked_from_its_zip(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = archived(tiny, tiny_imagenet.ARCHIVE.name)
    monkeypatch.setattr(tiny_imagenet, "ARCHIVE", described(tiny_imagenet.ARCHIVE, packed))
    assert equal(
        bytes_of(data.load("tiny-imagenet", packed.parent).test), bytes_of(data.load("tiny-imagenet", tiny).test)
    )


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda f: (f / "val/val_annotations.txt").unlink(), FileNotFoundError, r"val_annotations.txt is missing"),
        (lambda f: shorten(f / "val/val_annotations.txt", 25), ValueError, r"annotations.txt is truncated .* 1 images"),
        (lambda f: shorten(f / "val/val_annotations.txt", 35), ValueError, r"annotations.txt is damaged: line 2 does"),
        (lambda f: (f / "wnids.txt").write_text("n01\nn02\n"), ValueError, r"wnids.txt is damaged: it names 2 classes"),
        (lambda f: (f / "wnids.txt").write_bytes(b"\xff\xff"), ValueError, r"wnids.txt is damaged: it is not text"),
        (lambda f: (f / "val/images/val_4.JPEG").unlink(), FileNotFoundError, r"val_4.JPEG is missing"),
        (lambda f: (f / "train/n01/images/n01_2.JPEG").unlink(), ValueError, r"n01/images has 3 images, not 4"),
        (lambda f: (f / "train/n01").rename(f / "gone"), FileNotFoundError, r"train/n01/images is missing"),
        (lambda f: shorten(f / "val/images/val_4.JPEG", 300), ValueError, r"val_4.JPEG cannot be read as an image"),
        (
            lambda f: Image.new("L", (64, 32)).save(f / "val/images/val_4.JPEG"),
            ValueError,
            r"val_4.JPEG is 64 x 32 pixels, not 64 x 64",
        ),
    ],
)
def test_tiny_imagenet_names_the_file_at_fault(
    spoil: Callable[[Path], object], error: type[Exception], message: str, tiny: Path
) -> None:
    spoil(tiny)
    with pytest.raises(error, match=message):
        data.load("tiny-imagenet", tiny)


def shorten(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


# ImageNet


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    """Two classes of noise, of several sizes and modes."""
    shapes = [("RGB", (40, 30), "JPEG"), ("L", (30, 50), "JPEG"), ("CMYK", (25, 25), "JPEG"), ("RGBA", (31, 20), "PNG")]
    for number, part in enumerate(["train", "val"]):
        for label, name in enumerate(["n02", "n01"]):
            (tmp_path / part / name).mkdir(parents=True)
            for index, (mode, size, kind) in enumerate(shapes):
                seed = number + 2 * label + 4 * index
                noise = torch.randint(256, (3, size[1], size[0]), generator=torch.Generator().manual_seed(seed))
                image = Image.frombytes("RGB", size, bytes(noise.permute(1, 2, 0).flatten().tolist()))
                image.convert(mode).save(tmp_path / part / name / f"{index}.{kind}", kind)
    (tmp_path / "train" / "n01" / ".hidden.JPEG").write_text("no image")
    (tmp_path / "train" / "n01" / "notes.txt").write_text("no image")
    return tmp_path


@FORKS
def test_imagenet_is_the_same_with_any_number_of_workers(imagenet: Path) -> None:
    alone, helped = (data.load("imagenet", imagenet, workers=workers) for workers in (0, 2))
    assert (alone.classes, alone.size, alone.channels, alone.validation) == (2, 224, 3, None)
    assert (len(alone.train), len(alone.test)) == (8, 8)
    before = torch.get_rng_state()
    epochs = [joined(d.train.epoch(3, 1, 2, shuffle=True, augment=True)) for d in (alone, helped)]
    assert torch.equal(torch.get_rng_state(), before)
    assert equal(*epochs)
    assert sorted(epochs[0][1].tolist()) == [0] * 4 + [1] * 4
    assert not equal(epochs[0], joined(alone.train.epoch(3, 1, 3, shuffle=True, augment=True)))
    images, _ = next(iter(alone.train.scoring(4)))
    assert images.shape == (4, 3, 224, 224)


def test_imagenet_is_tested_on_the_middle_of_each_image(imagenet: Path) -> None:
    images, labels = joined(data.load("imagenet", imagenet, workers=0).test.epoch(3))
    assert labels.tolist() == [0] * 4 + [1] * 4
    with Image.open(imagenet / "val" / "n01" / "0.JPEG") as image:
        pixels = image.resize((341, 256), Image.Resampling.BILINEAR).crop((58, 16, 58 + 224, 16 + 224))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (to_tensor([pixels])[0] / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(images[0], expected, rtol=1e-5, atol=1e-5)


def test_a_random_crop_is_a_box_of_the_image() -> None:
    size = (60, 40)
    ramp = Image.new("RGB", size)
    ramp.putdata([(4 * x, 6 * y, 0) for y in range(size[1]) for x in range(size[0])])
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


def test_a_crop_of_a_very_long_image_is_its_middle() -> None:
    line = Image.new("RGB", (400, 3), (0, 0, 0))
    line.paste((255, 255, 255), (198, 0, 202, 3))
    assert to_tensor([random_crop(line, 8, Random(0))]).min() == 255
    assert centre_crop(line, 7).size == (7, 7)


def test_every_mode_becomes_rgb(tmp_path: Path) -> None:
    see_through = Image.new("P", (4, 4), 1)
    see_through.putpalette([0, 0, 0, 10, 20, 30])
    see_through.save(tmp_path / "palette.png", transparency=bytes([0, 128]))
    assert open_rgb(tmp_path / "palette.png").getpixel((0, 0)) == (10, 20, 30)
    Image.new("LA", (4, 4), (77, 0)).save(tmp_path / "grey.png")
    assert open_rgb(tmp_path / "grey.png").getpixel((0, 0)) == (77, 77, 77)


@FORKS
@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_image_is_one_sentence_that_names_it(workers: int, imagenet: Path) -> None:
    shorten(imagenet / "val" / "n02" / "1.JPEG", 400)
    with pytest.raises(ValueError, match=r"^\S*n02/1.JPEG cannot be read as an image \(.*\)$"):
        list(data.load("imagenet", imagenet, workers=workers).test.epoch(3))


def test_imagenet_names_the_folder_at_fault(imagenet: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no ImageNet in .*nowhere; put the folders train and val .* account"):
        data.load("imagenet", imagenet / "nowhere", download=True)
    (imagenet / "train" / "n00").mkdir()
    with pytest.raises(ValueError, match=r"must have folders of the same names, but only one has n00"):
        data.load("imagenet", imagenet)
    (imagenet / "val" / "n00").mkdir()
    with pytest.raises(ValueError, match=r"train/n00 contains no images"):
        data.load("imagenet", imagenet)
    (imagenet / "val").rename(imagenet / "sorted")
    with pytest.raises(FileNotFoundError, match=r"val is missing"):
        data.load("imagenet", imagenet)
    (imagenet / "val").mkdir()
    with pytest.raises(ValueError, match=r"val contains no folders; put each image into a folder of its class"):
        data.load("imagenet", imagenet)


def test_without_pillow_the_extra_is_named(tiny: Path, imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    for name, root in (("tiny-imagenet", tiny), ("imagenet", imagenet)):
        with pytest.raises(ImportError, match=r"pip install 'barebones\[data\]'"):
            data.load(name, root)


def test_the_shapes_are_those_of_the_data():
    digits = data.load("digits")
    assert data.DATA["digits"].dimensions == (digits.classes, digits.size, digits.channels)
    assert {name: data.DATA[name].classes for name in cifar.LAYOUTS} == {"cifar10": 10, "cifar100": 100}


@pytest.mark.parametrize("skip", [0, 1, 7, 20, 21, 50])
def test_skipped_batches_are_left_out_and_the_others_are_the_same(skip):
    part = data.load("digits").train
    every = list(part.epoch(64, seed=3, number=2, shuffle=True, augment=True))
    rest = list(part.epoch(64, seed=3, number=2, shuffle=True, augment=True, skip=skip))
    assert len(rest) == max(0, len(every) - skip)
    for (images, labels), (expected, theirs) in zip(rest, every[skip:], strict=True):
        assert torch.equal(images, expected)
        assert torch.equal(labels, theirs)
