"""Hub folders: a sparse network as the files that the Hugging Face Hub expects, complete or not there at all."""

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ..files.container import atomically
from ..files.masks import save_masks
from ..masks import kept, size
from ..messages import shortened
from ..scope import masked_copy, matched

CONFIG, WEIGHTS, MASKS, CARD = "config.json", "model.safetensors", "masks.safetensors", "README.md"
FILES = (CONFIG, WEIGHTS, MASKS, CARD)
PLAIN_CARD = """---
library_name: pytorch
tags: [pruning, sparse]
---
# {architecture}, {kept:,} of {prunable:,} prunable weights

The pruned weights are zeros. To load the network, and to train it without filling them:

```python
from safetensors.torch import load_file
import barebones as bb

model.load_state_dict(load_file("model.safetensors"))  # your {architecture}
bb.hold(model, bb.load_masks("masks.safetensors", model), optimizer)
```
"""


def to_hub_folder(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    folder: str | os.PathLike[str],
    config: Mapping[str, Any] | None = None,
    card: str | None = None,
    *,
    replace: bool = False,
    **about: Any,
) -> None:
    """Write config.json, model.safetensors (pruned weights are zeros), masks.safetensors and README.md into a folder.

    `config` takes values that JSON can represent, `card` is the text of README.md, and `about` is stored with the masks
    (see `save_masks`). The files are written beside the folder and moved there at the end. A folder that is not empty
    is an error, unless `replace` allows it and it is an earlier export: files of these names and no others.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     to_hub_folder(nn.Linear(2, 2), {"weight": torch.eye(2) > 0}, f"{folder}/hub")
    ...     sorted(os.listdir(f"{folder}/hub"))
    ['README.md', 'config.json', 'masks.safetensors', 'model.safetensors']
    """
    matched(model, masks)  # whether they fit, before anything else is looked at
    check_hub_folder(folder, replace)
    target = Path(os.path.realpath(folder))
    counts = {"architecture": type(model).__name__, "prunable": size(masks), "kept": kept(masks)}
    config = counts if config is None else config
    card = PLAIN_CARD.format(**counts) if card is None else card
    state = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)  # tied ones too: each under its name
        for name, tensor in masked_copy(model, masks).state_dict().items()
    }
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    temporary.mkdir()
    try:
        save_masks(masks, temporary / MASKS, **about)
        for name, content in {
            CONFIG: (json.dumps(config, indent=2) + "\n").encode(),
            WEIGHTS: save(state, {"format": "pt"}),
            CARD: card.encode(),
        }.items():
            with atomically(temporary / name) as file:
                file.write(content)
        _put(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_hub_folder(folder: str | os.PathLike[str], replace: bool = False) -> None:
    """Raise a `ValueError` if `to_hub_folder` cannot write this folder."""
    path = Path(os.path.realpath(folder))
    if path.exists() and not path.is_dir():
        raise ValueError(f"{folder} is a file; name a folder")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} into; create it first")
    inside = sorted(os.listdir(path)) if path.exists() else []
    if inside and not replace:
        raise ValueError(f"{folder} is not empty; name another folder, or allow --replace (in Python, replace=True)")
    if others := [name for name in inside if name not in FILES]:
        raise ValueError(f"{folder} also holds {shortened(others)}, which would be lost; name another folder")
    if inside and (MASKS not in inside or not all((path / name).is_file() for name in inside)):
        raise ValueError(f"{folder} is no earlier export, and its files would be lost; name another folder")


def _put(new: Path, target: Path) -> None:
    """Move a folder to its place; what is there goes only once the new one has its name."""
    if not target.exists():
        os.rename(new, target)
        return
    old = new.with_suffix(".old.tmp")
    os.rename(target, old)
    try:
        os.rename(new, target)
    except BaseException:
        os.rename(old, target)
        raise
    shutil.rmtree(old)
