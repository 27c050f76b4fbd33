"""Mutations of our files, made at random: bytes, headers and data change, and the checksum is computed again."""

import json
import math
import random
import re
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

NUMBERS = [0, -1, 1, 2, 255, 65535, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64, 10**30, 10**400, 0.5, -0.0, 1e308, 1e999]
TEXTS = ["", "0", "x", "é", "\n", "\r", "\x00", "\x1b[2J", "\ud800", "[/]", "=1", "bits", "gaps8", "gaps16"]
TYPES = ["F32", "BF16", "U8", "I64", "F8_E4M3", "BOOL", "C64"]
LISTS = [[], [0], [1], [-1], [2**31], [2**40, 2**40], [2**62, 2, 0], [None], ["x"], [[]]]
LARGE = [10**4, 15_000]  # not too large to be read
TABLES = [{}, {"": None}, {"x": {"x": []}}, {"shape": [2**40], "encoding": "gaps8", "kept": 0}]
ODD: list[Any] = [None, True, False, -1e999, float("nan"), *NUMBERS, *TEXTS, *TYPES, *LISTS, *TABLES]
SEAL = re.compile(rb'"sha256":"[0-9a-f]{64}"')


def mutated(blob: bytes, draw: random.Random) -> bytes:
    """Return the file with one to three changes, sealed again with the right checksum."""
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        blob = draw.choice([change_about, change_shape, change_header, change_bytes, change_data])(blob, draw)
    return sealed(consistent(blob) if draw.random() < 0.5 else blob)


def split(blob: bytes) -> tuple[bytes, bytes]:
    """Return the header and the data of a safetensors file; a damaged length is taken for what is there."""
    end = 8 + int.from_bytes(blob[:8], "little")
    return blob[8:end], blob[end:]


def joined(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def sealed(blob: bytes) -> bytes:
    """Compute the checksum again, as somebody who changes a file on purpose would."""
    start, (header, data) = blob[:8], split(blob)
    blank = SEAL.sub(b'"sha256":"' + b"0" * 64 + b'"', header, count=1)
    checksum = sha256(start + blank + data).hexdigest().encode()
    return start + SEAL.sub(b'"sha256":"' + checksum + b'"', header, count=1) + data


def change_header(blob: bytes, draw: random.Random) -> bytes:
    """Change a value of safetensors' own header: names, types, shapes, offsets, the metadata."""
    header, data = split(blob)
    try:
        content = json.loads(header)
    except ValueError:
        return change_bytes(blob, draw)
    return joined(_json(changed(content, draw)), data)


def change_about(blob: bytes, draw: random.Random) -> bytes:
    """Change a value of our own header."""
    header, data = split(blob)
    try:
        content = json.loads(header)
        content["__metadata__"]["about"] = _json(changed(json.loads(content["__metadata__"]["about"]), draw)).decode()
    except (ValueError, KeyError, TypeError):
        return change_bytes(blob, draw)
    return joined(_json(content), data)


def change_shape(blob: bytes, draw: random.Random) -> bytes:
    """Declare another shape for a mask, mostly a large one."""
    header, data = split(blob)
    try:
        content = json.loads(header)
        about = json.loads(content["__metadata__"]["about"])
        entry = draw.choice(list(about["layout"].values()))
        entry["shape"] = draw.choice([LARGE, *LISTS]) if draw.random() < 0.3 else [2 ** draw.randrange(12, 50)]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return change_bytes(blob, draw)
    content["__metadata__"]["about"] = _json(about).decode()
    return joined(_json(content), data)


def consistent(blob: bytes) -> bytes:
    """Compute the counts and the fingerprint of a header again from its shapes, as far as they make sense."""
    header, data = split(blob)
    try:
        content = json.loads(header)
        about = json.loads(content["__metadata__"]["about"])
        entries = about["layout"]
        about["prunable"] = sum(math.prod(map(int, entry["shape"])) for entry in entries.values())
        about["kept"] = sum(entry["kept"] for entry in entries.values())
        about["sparsity"] = 1 - about["kept"] / max(about["prunable"], 1)
        shapes = {name: entry["shape"] for name, entry in entries.items()}
        shapes |= {n.removeprefix("whole "): e["shape"] for n, e in content.items() if n.startswith("whole ")}
        shapes |= {name: shapes[first] for name, first in about.get("tied", {}).items()}
        text = json.dumps(shapes, sort_keys=True, separators=(",", ":"))
        about["fingerprint"] = sha256(text.encode()).hexdigest()
        if isinstance(about.get("account"), dict):
            about["account"] |= {name: about[name] for name in ("prunable", "kept", "sparsity")}
            about["account"] |= {"effective": 0, "effective_sparsity": 1.0}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return blob
    content["__metadata__"]["about"] = _json(about).decode()
    return joined(_json(content), data)


def change_bytes(blob: bytes, draw: random.Random) -> bytes:
    """Change, remove, insert or double some bytes anywhere."""
    at, length = draw.randrange(len(blob) + 1), draw.choice([1, 1, 2, 8, 100])
    new = draw.choice([draw.randbytes(length), b"", blob[at : at + length] * 2, bytes(length), b"\xff" * length])
    return blob[:at] + new + blob[at + length :]


def change_data(blob: bytes, draw: random.Random) -> bytes:
    """Change bytes of the data alone, so that the header stays as it is."""
    header, data = split(blob)
    changes = bytearray(data)
    for _ in range(draw.choice([1, 1, 3])):
        if changes:
            changes[draw.randrange(len(changes))] = draw.choice([0, 1, 254, 255, draw.randrange(256)])
    return joined(header, bytes(changes))


def changed(content: Any, draw: random.Random) -> Any:
    """Return the JSON value with one value in it replaced, removed, added, doubled or exchanged."""
    content = deepcopy(content)
    parents = [node for node in _nodes(content) if isinstance(node, dict | list) and node]
    if not parents:
        return draw.choice(ODD)
    parent = draw.choice(parents)
    keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    key, other, way = draw.choice(keys), draw.choice(keys), draw.randrange(6)
    if way == 0:
        del parent[key]
    elif way == 1 and isinstance(parent, dict):
        parent[draw.choice(["x", "tied", "sparsity", "weight", *map(str, keys)])] = deepcopy(draw.choice(ODD))
    elif way == 2:
        parent[key], parent[other] = parent[other], parent[key]
    elif way == 3 and type(parent[key]) in (int, float):
        try:
            parent[key] = draw.choice(
                [parent[key] + 1, parent[key] - 1, 2 * parent[key], -parent[key], str(parent[key])]
            )
        except OverflowError:
            parent[key] = 0
    else:
        parent[key] = deepcopy(draw.choice(ODD))
    return content


def _nodes(content: Any) -> list[Any]:
    children = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return [content, *(node for child in children for node in _nodes(child))]


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def peak_memory() -> int | None:
    """Return the most bytes that this process has held since `forget_peak`; None where the system does not say."""
    try:
        return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]
    except (OSError, TypeError):
        return None


def forget_peak() -> int | None:
    """Begin to measure the peak again, and return the bytes that the process holds now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return peak_memory()
