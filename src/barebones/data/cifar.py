"""CIFAR-10 and CIFAR-100 from the official binary files: 50,000 training and 10,000 test images of 32x32 pixels."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from .dataset import Data, Request, in_memory
from .download import Archive, located
from .split import held_out

SIZE, PIXELS = 32, 3 * 32 * 32  # a record has one byte per label, then the red, green and blue planes


@dataclass(frozen=True)
class Layout:
    """The published form of CIFAR-10 or CIFAR-100."""

    archive: Archive
    classes: int
    labels: int  # label bytes before the pixels; the last one is used (the first of CIFAR-100 is the superclass)
    train: dict[str, str]  # the SHA-256 of each file
    test: dict[str, str]
    mean: tuple[float, float, float]  # over the pixels of all training images
    std: tuple[float, float, float]


LAYOUTS = {
    "cifar10": Layout(
        archive=Archive(
            title="CIFAR-10",
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            folder="cifar-10-batches-bin",
        ),
        classes=10,
        labels=1,
        train={
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        },
        test={"test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"},
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    "cifar100": Layout(
        archive=Archive(
            title="CIFAR-100",
            url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            folder="cifar-100-binary",
        ),
        classes=100,
        labels=2,
        train={"train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"},
        test={"test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"},
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
}


def load(name: str, request: Request) -> Data:
    """Load the data set; the same 10 % of its training images are always held out for validation."""
    layout = LAYOUTS[name]
    folder = located(layout.archive, request.root, request.download, (*layout.train, *layout.test))
    images, labels = _read(folder, layout.train, layout)
    held = held_out(len(images))
    parts = {
        "train": (images[~held], labels[~held]),
        "validation": (images[held], labels[held]),
        "test": _read(folder, layout.test, layout),
    }
    return in_memory(name, layout.classes, parts, request.normalization(layout.mean, layout.std))


def _read(folder: Path, files: dict[str, str], layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the images and labels of some files; raise an error that names the first that is not the published one."""
    parts = []
    for name, digest in files.items():
        content = bytearray((folder / name).read_bytes())
        if sha256(content).hexdigest() != digest:
            problem = f"{folder / name} is damaged or truncated: its SHA-256 is not that of the official file"
            raise ValueError(f"{problem}; unpack {layout.archive.name} again")
        parts.append(torch.frombuffer(content, dtype=torch.uint8).view(-1, layout.labels + PIXELS))
    records = torch.cat(parts)
    return records[:, layout.labels :].reshape(-1, 3, SIZE, SIZE), records[:, layout.labels - 1].long()
