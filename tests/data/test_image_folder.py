"""Folders of images of the user's own: sizes, classes, what is wrong with them, and that changes are noticed."""

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from barebones import data
from barebones.data import images as image_files
from barebones.lab.experiment.experiment import Experiment

COLORS = {"cat": (200, 10, 10), "dog": (10, 10, 200)}


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Images of 20 x 16 pixels: each of one color, with a mark in its first pixel."""
    for part, count in (("train", 6), ("test", 2)):
        for name, color in COLORS.items():
            (tmp_path / "pets" / part / name).mkdir(parents=True)
            for number in range(count):
                image = Image.new("RGB", (20, 16), color)
                image.putpixel((0, 0), (number, 0, 0))
                image.save(tmp_path / "pets" / part / name / f"{number}.png")
    (tmp_path / "pets" / "train" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "pets" / "train" / ".hidden").mkdir()
    return tmp_path / "pets"


def pixels(split) -> torch.Tensor:
    images = torch.cat([images for images, _ in split.epoch(5)])
    return (images * split.normalization.std + split.normalization.mean).round().byte()


def test_images_keep_their_pixels_and_classes_are_sorted(pets):
    loaded = data.load(f"images:{pets}")
    assert loaded.inputs == data.Inputs(2, (3, 16, 20))
    assert (len(loaded.train), len(loaded.test), loaded.validation) == (12, 4, None)
    assert torch.cat([labels for _, labels in loaded.train.epoch(5)]).tolist() == [0] * 6 + [1] * 6
    read = pixels(loaded.train)
    assert read[:, 0, 0, 0].tolist() == [*range(6)] * 2
    assert read[0, :, 5, 5].tolist() == [200, 10, 10]
    augmented = next(loaded.train.epoch(12, augment=True))[0]
    assert not torch.equal(augmented, next(loaded.train.epoch(12))[0])
    assert loaded.train.pad == 2
    values = torch.cat([images for images, _ in loaded.train.epoch(5)]).double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(values.mean(1), torch.zeros(3).double(), rtol=0, atol=1e-5)
    torch.testing.assert_close(values.std(1, correction=0), torch.ones(3).double(), rtol=0, atol=1e-5)


def test_with_a_size_images_of_any_size_and_mode_are_resized(pets):
    Image.new("L", (7, 9), 90).save(pets / "train" / "cat" / "gray.png")
    Image.new("RGBA", (40, 12), (1, 2, 3, 128)).save(pets / "test" / "dog" / "wide.webp", lossless=True)
    loaded = data.load(f"images:{pets}@8")
    assert loaded.shape == (3, 8, 8)
    assert pixels(loaded.train)[6, :, 4, 4].tolist() == [90] * 3
    assert pixels(loaded.train)[0, :, 4, 4].tolist() == [200, 10, 10]


def test_a_folder_for_validation_is_used(pets):
    (pets / "test").rename(pets / "validation")
    for name in COLORS:
        (pets / "test" / name).mkdir(parents=True)
        Image.new("RGB", (20, 16)).save(pets / "test" / name / "a.png")
    assert len(data.load(f"images:{pets}").validation) == 4


WRONG = {
    "test is missing; create it, with one folder of images per class": lambda at: (at / "test").rename(at / "rest"),
    "must have folders of the same names, but only one has cat": lambda at: (at / "test/cat").rename(at / "test/cow"),
    "has one class, cat": lambda at: [shutil.rmtree(at / part / "dog") for part in ("train", "test")],
    "1.png cannot be read as an image": lambda at: (at / "train/dog/1.png").write_bytes(b"not an image"),
    "odd.png is 5 x 6 pixels, not 20 x 16; to resize all images, name a size, for example images:": (
        lambda at: Image.new("RGB", (5, 6)).save(at / "test/dog/odd.png")
    ),
    "cat contains no images": lambda at: [image.unlink() for image in (at / "test/cat").iterdir()],
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_with_a_folder_is_said(message, pets):
    WRONG[message](pets)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        data.load(f"images:{pets}")
    assert "\n" not in str(error.value)


def test_other_mistakes(pets, monkeypatch):
    for name, message in {
        "images:": "names no folder of images; write images:PATH",
        "images:nowhere": "there is no folder nowhere; name one with the folders train and test",
    }.items():
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            data.load(name)
    with pytest.raises(ValueError, match="names no folder"):
        Experiment(data="images:")
    monkeypatch.setattr(image_files, "MOST", 1000)
    with pytest.raises(ValueError, match="has 16 images of 20 x 16 pixels, which need 0 GB of memory; name a smaller"):
        data.load(f"images:{pets}")


def test_another_image_is_other_data(pets):  # with which no run goes on, see tests/lab/test_own_runs.py
    digests = [data.load(f"images:{pets}").digest for _ in range(2)]
    Image.new("RGB", (20, 16), (0, 255, 0)).save(pets / "test" / "dog" / "0.png")
    assert digests[0] == digests[1] != data.load(f"images:{pets}").digest
