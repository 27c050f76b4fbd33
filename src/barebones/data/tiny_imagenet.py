"""Tiny-ImageNet from the official folder: 200 classes, 100,000 training and 10,000 test images of 64x64 pixels."""

from pathlib import Path

import torch

from .dataset import Data, Request, in_memory
from .download import Archive, located
from .images import decoded, require_pillow

ARCHIVE = Archive(
    title="Tiny-ImageNet",
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    sha256="6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
    folder="tiny-imagenet-200",
)
SIZE = 64
CLASSES, PER_CLASS, TEST_IMAGES = 200, 500, 10_000  # PER_CLASS counts training images
MEAN, STD = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)


def load(request: Request) -> Data:
    """Load the data set: `train` for training and `val` for testing. Classes are numbered in the sorted order of names.

    All images are decoded into memory at once, which takes about 20 seconds of one processor and 1.4 GB.
    """
    require_pillow()
    folder = located(ARCHIVE, request.root, request.download, files=("wnids.txt",))
    classes = _classes(folder / "wnids.txt")
    files = {"train": _train(folder / "train", classes), "test": _test(folder / "val", classes)}
    parts = {
        part: (decoded(paths, (SIZE, SIZE), request.workers), torch.tensor(labels))
        for part, (paths, labels) in files.items()
    }
    return in_memory("tiny-imagenet", CLASSES, parts, request.normalization(MEAN, STD))


def _classes(path: Path) -> dict[str, int]:
    names = sorted(set(path.read_text("utf-8", "replace").split()))
    if len(names) != CLASSES:
        raise ValueError(f"{path} is damaged: it names {len(names)} classes, not {CLASSES}")
    return {name: index for index, name in enumerate(names)}


def _train(folder: Path, classes: dict[str, int]) -> tuple[list[Path], list[int]]:
    paths: list[Path] = []
    for name in classes:
        images = sorted((place := folder / name / "images").glob("*.JPEG"))
        if len(images) != PER_CLASS:
            raise ValueError(f"{place} has {len(images)} images, not {PER_CLASS}; unpack {ARCHIVE.name} again")
        paths += images
    return paths, [label for label in classes.values() for _ in range(PER_CLASS)]


def _test(folder: Path, classes: dict[str, int]) -> tuple[list[Path], list[int]]:
    """List the images of `val`. They are all in one folder; the annotations give their classes."""
    annotations = folder / "val_annotations.txt"
    labels: dict[str, int] = {}
    for number, line in enumerate(annotations.read_text("utf-8", "replace").splitlines(), 1):
        name, _, rest = line.partition("\t")
        label = classes.get(rest.partition("\t")[0])
        if label is None or Path(name).name != name:
            raise ValueError(f"{annotations} is damaged: line {number} does not name an image and one of the classes")
        labels[name] = label
    if len(labels) != TEST_IMAGES:
        raise ValueError(f"{annotations} is truncated or damaged: it names {len(labels)} images, not {TEST_IMAGES}")
    return [folder / "images" / name for name in labels], list(labels.values())
