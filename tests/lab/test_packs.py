"""Packs: runs go and come back bit for bit in every stage, and an archive that somebody changed writes nothing."""

import gzip
import io
import json
import shutil
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest
from lab_runs import assert_same_run

from barebones.lab.records.packs import CONTENTS, FILES, pack, unpack
from barebones.lab.run.folder import Busy, progress
from barebones.lab.run.loading import Experiment, recorded
from barebones.lab.run.lock import is_lease, leased
from barebones.lab.run.run import RunOptions, result_of, run


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not is_lease(path.name)}


@pytest.mark.parametrize("stage", ["pretrain", "prune", "train", "done"])
def test_a_run_comes_back_as_it_went_in_every_stage(stage, staged, tmp_path):
    folder = staged()[stage]
    packed = pack(folder.parent, tmp_path / "pack.tar")
    unpacked = unpack(tmp_path / "pack.tar", tmp_path / "runs")
    assert packed == unpacked
    assert (packed.runs, packed.finished) == ([folder.name], int(stage == "done"))
    assert files(tmp_path / "runs" / folder.name) == files(folder)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.name]


@pytest.mark.parametrize("stage", ["pretrain", "prune", "train"])
def test_a_carried_run_is_continued_to_the_same_end(stage, staged, tmp_path):
    folders = staged()
    pack(folders[stage], tmp_path / "pack.tar")
    unpack(tmp_path / "pack.tar", tmp_path / "runs")
    experiment = Experiment.from_dict(recorded(folders[stage])[0])
    result_of(run(experiment, RunOptions(tmp_path / "runs", save_every=0)))
    assert_same_run(folders["done"], tmp_path / "runs" / experiment.folder)


def test_equal_runs_give_equal_packs(staged, tmp_path):
    folder = staged()["train"]
    for name in ("a", "b"):
        pack(folder.parent, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").stat().st_size < sum(map(len, files(folder).values())) + 20_000


def test_what_is_further_stays_or_replaces(staged, tmp_path):
    folders, runs = staged(), tmp_path / "runs"
    for stage in ("prune", "done"):
        pack(folders[stage], tmp_path / stage)
    name = folders["done"].name
    assert unpack(tmp_path / "prune", runs).runs == [name]
    assert progress(runs / name) != "finished"
    assert (unpack(tmp_path / "prune", runs).runs, unpack(tmp_path / "prune", runs).here) == ([], [name])
    assert unpack(tmp_path / "done", runs).runs == [name]
    assert files(runs / name) == files(folders["done"])
    assert unpack(tmp_path / "prune", runs).here == [name]
    assert progress(runs / name) == "finished"


def test_a_run_in_use_is_neither_packed_nor_replaced(staged, tmp_path):
    folders = staged()
    there = Path(shutil.copytree(folders["train"], tmp_path / "runs" / folders["train"].name))
    pack(folders["done"], tmp_path / "done")
    with leased(there):
        for action in (lambda: pack(there, tmp_path / "pack.tar"), lambda: unpack(tmp_path / "done", there.parent)):
            with pytest.raises(Busy, match="another process"):
                action()
    assert not (tmp_path / "pack.tar").exists()
    assert files(there) == files(folders["train"])


@pytest.mark.parametrize("name", ["experiment.json", "metrics.jsonl", "mask.safetensors", "checkpoint.safetensors"])
def test_a_damaged_run_is_not_packed(name, staged, tmp_path):
    folder = Path(shutil.copytree(staged()["train"], tmp_path / "runs" / staged()["train"].name))
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is .*damaged"):
        pack(folder.parent, tmp_path / "pack.tar")
    assert not (tmp_path / "pack.tar").exists()


def test_other_files_stay_where_they_are(staged, tmp_path):
    folder = Path(shutil.copytree(staged()["train"], tmp_path / "runs" / staged()["train"].name))
    (folder / "notes.txt").write_text("mine")
    (folder / "tensorboard").mkdir()
    pack(folder.parent, tmp_path / "pack.tar")
    with tarfile.open(tmp_path / "pack.tar") as archive:
        assert {Path(name).name for name in archive.getnames()} <= {CONTENTS, *FILES}


# Archives that `pack` did not write


@pytest.fixture
def members(staged, tmp_path) -> dict[str, bytes]:
    """The content of a pack, by the names of its members."""
    pack(staged()["train"], tmp_path / "right.tar")
    with tarfile.open(tmp_path / "right.tar") as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def written(
    path: Path, members: dict[str, bytes], *others: tuple[tarfile.TarInfo, bytes], listed: bool = False
) -> Path:
    """Write an archive; with `listed`, its list of contents names the other members, too."""
    members, more = dict(members), list(others)
    if listed:
        contents = json.loads(members[CONTENTS])
        for info, content in more:
            contents["files"][info.name] = {"bytes": info.size, "sha256": sha256(content).hexdigest()}
        members[CONTENTS] = json.dumps(contents).encode()
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info, content in more:
            archive.addfile(info, io.BytesIO(content))
    return path


def member(name: str, content: bytes = b"evil", kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = len(content) if kind == tarfile.REGTYPE else 0
    return info, content if kind == tarfile.REGTYPE else b""


RUN = "digits-nets_for_runs-tiny-force-60-s0-0123456789"
HOSTILE = {
    "above": member("../evil"),
    "far above": member(f"{RUN}/../../evil"),
    "absolute": member("/evil-of-a-pack"),
    "in no run": member("evil"),
    "another file": member(f"{RUN}/evil.py"),
    "hidden": member(f".{RUN}/result.json"),
    "deeper": member(f"{RUN}/tensorboard/result.json"),
    "a lease": member(f"{RUN}/lease-1"),
    "backslash": member(f"..\\{RUN}/result.json"),
    "a symbolic link": member(f"{RUN}/result.json", kind=tarfile.SYMTYPE, link="/etc/passwd"),
    "a hard link": member(f"{RUN}/result.json", kind=tarfile.LNKTYPE, link="/etc/passwd"),
    "a device": member(f"{RUN}/result.json", kind=tarfile.CHRTYPE),
    "a pipe": member(f"{RUN}/result.json", kind=tarfile.FIFOTYPE),
    "a folder": member(f"{RUN}/result.json", kind=tarfile.DIRTYPE),
}


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_archive_writes_nothing(hostile, listed, members, tmp_path):
    path = written(tmp_path / "pack.tar", members, HOSTILE[hostile], listed=listed)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="is not a pack that barebones wrote, or it is damaged"):
        unpack(path, tmp_path / "runs")
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/evil-of-a-pack").exists()


def changed(members: dict[str, bytes], **changes) -> dict[str, bytes]:
    return members | {CONTENTS: json.dumps(json.loads(members[CONTENTS]) | changes).encode()}


def sized(members: dict[str, bytes], size: int) -> dict[str, bytes]:
    contents = json.loads(members[CONTENTS])
    contents["files"][list(members)[1]]["bytes"] = size
    return members | {CONTENTS: json.dumps(contents).encode()}


DAMAGED = {
    "no list of contents": (lambda m: dict(list(m.items())[1:]), "does not begin with its list of contents"),
    "the list is not first": (lambda m: dict(reversed(m.items())), "does not begin with its list of contents"),
    "the list is no JSON": (lambda m: m | {CONTENTS: b"{"}, "damaged"),
    "the list is a list": (lambda m: m | {CONTENTS: b"[]"}, "damaged"),
    "the list is deep": (lambda m: m | {CONTENTS: b"[" * 100_000}, "damaged"),
    "another format": (lambda m: changed(m, format="other"), "its format is 'other'"),
    "a newer version": (lambda m: changed(m, version=2), "a newer version of barebones wrote it"),
    "wrong entries": (lambda m: changed(m, files={f"{RUN}/result.json": 3}), "damaged"),
    "a huge size": (lambda m: sized(m, 2**60), "is not a plain file of the size"),
    "a lost file": (lambda m: dict(list(m.items())[:-1]), "has lost 1 of its"),
    "a changed file": (lambda m: m | {list(m)[-1]: m[list(m)[-1]][:-1] + b" "}, "has changed since it was packed"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_archive_writes_nothing(damage, members, tmp_path):
    change, match = DAMAGED[damage]
    path = written(tmp_path / "pack.tar", change(members))
    with pytest.raises(ValueError, match=match):
        unpack(path, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_size_beyond_the_archive_is_refused_before_anything_is_read(members, tmp_path):
    info = tarfile.TarInfo(f"{RUN}/result.json")
    info.size = 2**50
    contents = json.loads(members[CONTENTS])
    contents["files"] = {info.name: {"bytes": info.size, "sha256": "0" * 64}}
    path = written(tmp_path / "pack.tar", {CONTENTS: json.dumps(contents).encode()})
    whole = path.read_bytes().rstrip(b"\0")
    path.write_bytes(whole + bytes(-len(whole) % 512) + info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(ValueError, match=r"truncated inside|damaged"):
        unpack(path, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_sparse_member_is_refused(members, tmp_path):
    info, content = member(f"{RUN}/result.json", b"1\n0\n1\n" + b" " * 506 + b"x")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(2**50)}
    path = written(tmp_path / "pack.tar", members, (info, content), listed=True)
    with pytest.raises(ValueError, match="damaged"):
        unpack(path, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("cut", [100, 700, 5000, -3000])
def test_a_truncated_archive_writes_nothing(cut, members, tmp_path):
    path = written(tmp_path / "pack.tar", members)
    path.write_bytes(path.read_bytes().rstrip(b"\0")[:cut])
    with pytest.raises(ValueError, match="damaged"):
        unpack(path, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_compressed_archive_is_refused(members, tmp_path):
    path = written(tmp_path / "pack.tar", members)
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ValueError, match="damaged"):
        unpack(path, tmp_path / "runs")


def test_the_files_of_a_run_under_another_name_are_refused(members, tmp_path):
    name = list(members)[1].partition("/")[0]
    other = {key.replace(name, RUN): value.replace(name.encode(), RUN.encode()) if key == CONTENTS else value
             for key, value in members.items()}  # fmt: skip
    with pytest.raises(ValueError, match="holds another run"):
        unpack(written(tmp_path / "pack.tar", other), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_what_is_missing_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="there is no run in"):
        pack(tmp_path, tmp_path / "pack.tar")
    with pytest.raises(ValueError, match="there is no file"):
        unpack(tmp_path / "pack.tar", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
