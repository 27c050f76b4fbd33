"""Files appear whole or not at all, and whatever is damaged or foreign is refused with a sentence."""

import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from barebones.files import container as files

TENSORS = {"é.weight": torch.arange(5, dtype=torch.uint8), "empty": torch.zeros(0, 2), "scalar": torch.tensor(1.5)}
ABOUT = {"seed": 0, "text": 'a "quote" – and ü', "list": [1, None, 0.1], "sha256": "0" * 64}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    files.write(tmp_path / "x", TENSORS, "kind", 1, ABOUT)
    return tmp_path / "x"


def test_round_trip(path: Path) -> None:
    tensors, about = files.read(path, "kind", 2)  # a newer version reads it, too
    assert about == ABOUT
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[n], t) and tensors[n].dtype == t.dtype for n, t in TENSORS.items())
    assert os.listdir(path.parent) == ["x"]
    with safe_open(path, "pt") as file:
        assert file.metadata()["format"] == "kind"
        assert json.loads(file.metadata()["about"]) == ABOUT
        assert torch.equal(file.get_tensor("é.weight"), TENSORS["é.weight"])  # any reader of safetensors can
    content = path.read_bytes()
    files.write(path, {name: TENSORS[name] for name in reversed(TENSORS)}, "kind", 1, ABOUT)
    assert path.read_bytes() == content


def test_every_flipped_bit_is_found(path: Path) -> None:
    content = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for bit in range(8 * len(content)):
            os.pwrite(file.fileno(), bytes([content[bit // 8] ^ 1 << bit % 8]), bit // 8)
            with pytest.raises(ValueError, match="x is"):
                files.read(path, "kind", 1)
            os.pwrite(file.fileno(), content[bit // 8 : bit // 8 + 1], bit // 8)
    files.read(path, "kind", 1)


def test_every_truncation_and_extension_is_found(path: Path) -> None:
    content = path.read_bytes()
    for part in [*(content[:length] for length in range(len(content))), content + b"\0", content + content]:
        path.write_bytes(part)
        with pytest.raises(ValueError, match=r"x is (empty|not a safetensors file|truncated)"):
            files.read(path, "kind", 1)


FOREIGN = {
    "empty": (lambda p: p.write_bytes(b""), "x is empty"),
    "pickle": (lambda p: torch.save({"w": torch.ones(2)}, p), "not a safetensors file"),
    "state dict": (lambda p: save_file({"w": torch.ones(2)}, p), "not a kind file .its format is None"),
    "another of ours": (lambda p: files.write(p, TENSORS, "other", 1, {}), "its format is 'other'"),
    "newer": (lambda p: files.write(p, TENSORS, "kind", 2, {}), "version 2, .* up to version 1; upgrade to barebones"),
    "no checksum": (lambda p: save_file({}, p, {"format": "kind", "version": "1"}), "checksum"),
    "odd metadata": (lambda p: p.write_bytes(b"\x12" + bytes(7) + b'{"__metadata__":5}'), "header is damaged"),
    "deep": (lambda p: p.write_bytes((1 << 20).to_bytes(8, "little") + b'{"":' * (1 << 18)), "header is damaged"),
    "folder": (lambda p: (p.unlink(), p.mkdir()), "x is a folder"),
}


@pytest.mark.parametrize(("make", "message"), FOREIGN.values(), ids=FOREIGN)
def test_foreign_files_are_refused(make: Callable[[Path], object], message: str, path: Path) -> None:
    make(path)
    with pytest.raises(ValueError, match=message) as caught:
        files.read(path, "kind", 1)
    assert str(path) in str(caught.value)
    with pytest.raises(FileNotFoundError):
        files.read(path.parent / "nowhere", "kind", 1)


@pytest.mark.parametrize("value", [torch.ones(1), {1, 2}, float("nan"), [float("inf")], object()])
def test_what_json_cannot_hold_is_named(path: Path, value: object) -> None:
    content = path.read_bytes()
    with pytest.raises(ValueError, match=r"bad=.*cannot be stored"):
        files.write(path, {}, "kind", 1, {"good": 1, "bad": value})
    assert path.read_bytes() == content


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, "fsync", "replace"])
def test_an_interrupted_write_leaves_no_trace(path: Path, error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    content = path.read_bytes()
    if isinstance(error, str):
        monkeypatch.setattr(os, error, Mock(side_effect=OSError(28, "No space left on device")))
    for name in ("x", "new"):
        with (  # noqa: PT012
            pytest.raises(OSError if isinstance(error, str) else error, match=r"No space|half"),
            files.atomically(path.parent / name) as file,
        ):
            file.write(b"half")
            if not isinstance(error, str):
                raise error("half")
    assert os.listdir(path.parent) == ["x"]
    assert path.read_bytes() == content


def test_places_that_cannot_be_written(path: Path) -> None:
    nowhere = path.parent / "nowhere" / "x"
    errors = {nowhere: FileNotFoundError, path / "x": NotADirectoryError, path.parent: ValueError}
    for where, error in {**errors, Path(os.devnull): ValueError}.items():
        with pytest.raises(error) as caught, files.atomically(where):
            pass
        assert str(where) in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="cannot write into"), files.atomically(tmp_path / "x"):
        pass
    tmp_path.chmod(0o700)


@pytest.mark.skipif(os.name != "posix", reason="links and modes")
def test_links_stay_and_modes_are_the_usual_ones(path: Path) -> None:
    link = path.parent / "link"
    link.symlink_to("x")
    (usual := path.parent / "usual").touch()
    with files.atomically(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_concurrent_writers_and_readers_see_whole_files(path: Path) -> None:
    def attempt(seed: int) -> None:
        for turn in range(15):
            files.write(path, {"w": torch.full((1000 * seed,), turn)}, "kind", 1, {"seed": seed})
            tensors, about = files.read(path, "kind", 1)
            assert tensors["w"].numel() == 1000 * about["seed"]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(attempt, range(1, 5)))  # an error in a thread is raised here
    assert os.listdir(path.parent) == ["x"]
