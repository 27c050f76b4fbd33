"""CIFAR from small files in the official format, and the download and unpacking of archives."""

import hashlib
import shutil
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from barebones import data
from barebones.data import cifar, download
from barebones.data.split import TensorSplit, held_out

RECORDS = 20  # per file


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve `tmp_path` on this machine, and yield the address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None: ...

        def do_GET(self) -> None:
            stalled.wait(10 * ("stalled" in self.path))
            super().do_GET()

    stalled = threading.Event()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as http:
        monkeypatch.setattr(http, "handle_error", Mock())  # a client that goes away
        thread = threading.Thread(target=partial(http.serve_forever, poll_interval=0.01))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        stalled.set()
        http.shutdown()
        thread.join()


class Published:
    """Small files in the official format in `folder`, the same as an archive on a server, and their content."""

    def __init__(self, name: str, root: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        layout = cifar.LAYOUTS[name]
        self.name, self.folder = name, root / layout.archive.folder
        self.folder.mkdir()
        files, images, labels = {}, [], []
        for seed, file in enumerate([*layout.train, *layout.test]):
            generator = torch.Generator().manual_seed(seed)
            pixels = torch.randint(256, (RECORDS, cifar.PIXELS), generator=generator, dtype=torch.uint8)
            label = torch.randint(layout.classes, (RECORDS, 1), generator=generator, dtype=torch.uint8)
            superclass = torch.full((RECORDS, layout.labels - 1), 19, dtype=torch.uint8)
            content = torch.cat([superclass, label, pixels], 1).numpy().tobytes()
            (self.folder / file).write_bytes(content)
            files[file] = hashlib.sha256(content).hexdigest()
            images.append(pixels.view(-1, 3, 32, 32))
            labels.append(label.flatten().long())
        self.images, self.labels = torch.cat(images), torch.cat(labels)
        self.archive = root / "packed" / layout.archive.name
        self.archive.parent.mkdir()
        with tarfile.open(self.archive, "w:gz") as tar:
            tar.add(self.folder, self.folder.name)
        digest = hashlib.sha256(self.archive.read_bytes()).hexdigest()
        archive = replace(layout.archive, url=f"{address}/packed/{layout.archive.name}", sha256=digest)
        train, test = ({file: files[file] for file in part} for part in (layout.train, layout.test))
        layout = replace(layout, archive=archive, train=train, test=test)
        monkeypatch.setitem(cifar.LAYOUTS, name, layout)

    def load(self, root: Path | None = None, **options: Any) -> data.Data:
        return data.load(self.name, root or self.folder, **options)

    def is_test_of(self, loaded: data.Data) -> bool:
        return same(loaded.test, self.images[-RECORDS:], self.labels[-RECORDS:])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def same(split: data.Split | None, images: torch.Tensor, labels: torch.Tensor) -> bool:
    assert isinstance(split, TensorSplit)
    return torch.equal(split.images, images) and torch.equal(split.labels, labels)


@pytest.fixture
def cifar10(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Published:
    return Published("cifar10", tmp_path, server, monkeypatch)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_files_are_read_to_the_byte(name, tmp_path, monkeypatch):
    published = Published(name, tmp_path, "http://nowhere", monkeypatch)
    loaded = published.load()
    count = len(published.labels) - RECORDS
    held = held_out(count)
    images, labels = published.images[:count], published.labels[:count]
    assert loaded.inputs == data.DATA[name].inputs
    assert same(loaded.train, images[~held], labels[~held])
    assert same(loaded.validation, images[held], labels[held])
    assert int(held.sum()) == count // 10
    assert published.is_test_of(loaded)


def test_the_folder_is_found(cifar10, tmp_path, monkeypatch):
    assert cifar10.is_test_of(cifar10.load(tmp_path))  # as a folder in the root
    cache = cifar10.folder.rename(tmp_path / "barebones")
    assert cifar10.is_test_of(cifar10.load(cache))  # as the root itself
    assert cifar10.is_test_of(cifar10.load(cifar10.archive.parent))  # as an archive in the root
    assert names(cifar10.archive.parent) == ["cifar-10-batches-bin", "cifar-10-binary.tar.gz"]
    monkeypatch.setenv("BAREBONES_DATA", str(cache))
    assert cifar10.is_test_of(data.load("cifar10"))
    monkeypatch.delenv("BAREBONES_DATA")
    monkeypatch.setattr(data, "user_cache_path", lambda name: tmp_path / name)
    assert cifar10.is_test_of(data.load("cifar10"))
    with pytest.raises(FileNotFoundError, match=r"no CIFAR-10 in .*empty; put the folder .*, or allow the download"):
        cifar10.load(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_a_damaged_file_is_named(cifar10):
    path = cifar10.folder / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"data_batch_3.bin is damaged or truncated: its SHA-256 is not that"):
        cifar10.load()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"No such file .*data_batch_3.bin"):
        cifar10.load()


def test_an_archive_is_downloaded_and_unpacked(cifar10, tmp_path, capfd):
    root = tmp_path / "deep" / "root"
    assert cifar10.is_test_of(cifar10.load(root, download=True))
    assert names(root) == ["cifar-10-batches-bin", "cifar-10-binary.tar.gz"]
    cifar10.archive.unlink()
    cifar10.load(root, download=True)  # what is there is not downloaded again
    assert capfd.readouterr() == ("", "")


FAILED = r"could not be downloaded \(.*{}.*\); download http.* put it into .*root$"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(sha256="0" * 64), ValueError, r"tar.gz was damaged on its way or is not the published file"),
        (dict(url="{}/x.tar.gz"), ConnectionError, FAILED.format(404)),
        (dict(url="http://127.0.0.1:1/x.tar.gz"), ConnectionError, FAILED.format("refused")),
        (dict(url="{}/stalled.tar.gz"), ConnectionError, FAILED.format("timed out")),
        ({}, KeyboardInterrupt, "^$"),
    ],
)
def test_a_failed_download_leaves_nothing(change, error, message, cifar10, server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "STALLED", 0.3)
    if error is KeyboardInterrupt:
        monkeypatch.setattr(torch.hub, "tqdm", Mock(side_effect=KeyboardInterrupt))
    change = {field: value.format(server) for field, value in change.items()}
    layout = cifar.LAYOUTS["cifar10"]
    monkeypatch.setitem(cifar.LAYOUTS, "cifar10", replace(layout, archive=replace(layout.archive, **change)))
    with pytest.raises(error, match=message) as caught:
        cifar10.load(tmp_path / "root", download=True)
    assert getattr(caught.value.__context__, "closed", True)  # an answer with an error, such as 404
    assert not names(tmp_path / "root")


def test_a_damaged_archive_is_not_unpacked(cifar10):
    content = bytearray(cifar10.archive.read_bytes())
    content[1000] ^= 1
    cifar10.archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"packed/cifar-10-binary.tar.gz is damaged or not the published file"):
        cifar10.load(cifar10.archive.parent)
    assert len(names(cifar10.archive.parent)) == 1


def test_a_folder_that_another_process_unpacked_is_used(cifar10, monkeypatch):
    def unpack(path: Path, folder: str, filter: str) -> None:
        for place in (path.parent, Path(folder)):
            shutil.copytree(cifar10.folder, place / cifar10.folder.name)

    monkeypatch.setattr(shutil, "unpack_archive", unpack)
    assert cifar10.is_test_of(cifar10.load(cifar10.archive.parent))
