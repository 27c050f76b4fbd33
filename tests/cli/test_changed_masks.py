"""Commands show what odd mask files say, or answer with one line."""

from pathlib import Path

import pytest
import torch

import barebones as bb
from barebones.files import container
from barebones.files.masks import KIND, VERSION
from barebones.lab.experiment.experiment import Experiment

SMALL = Experiment("small-vgg", "digits", "snip", 0.9, epochs=1, batch_size=256).resolved()


@pytest.mark.parametrize("text", ["[/]", "[red]", "a\x1b[2Jb\rc", "\n", "\x07"])
def test_no_text_of_a_file_controls_the_terminal(text, command):
    experiment = SMALL.to_dict() | {"model": f"x{text}"}
    bb.save_masks({text: torch.eye(2) > 0}, "mask", **{text: text, "note": {text: text}, "experiment": experiment})
    for words in ("inspect mask", "train --mask mask --dry-run", "train --mask mask --device cpu", "shrink mask"):
        done = command(*words.split())
        assert done.code == (0 if words == "inspect mask" else 2)
        assert (done.out + done.err).replace("\n", "").isprintable()
        assert done.err.count("\n") == (done.code > 0)
    assert "\x1b" not in command("inspect", "mask").out


def test_masks_of_a_run_without_an_account_are_shown(command):
    words = ["prune", "--model", "small-vgg", "--data", "digits", "--method", "magnitude", "--sparsity", "0.5"]
    assert command(*words).code == 0
    (path,) = Path("runs").glob("*/mask.safetensors")
    tensors, about = container.read(path, KIND, VERSION)
    container.write(path, tensors, KIND, VERSION, {k: v for k, v in about.items() if k not in ("account", "collapsed")})
    done = command(*words)
    assert done.code == 0
    assert "prunable weights are left: sparsity 50.000%." in done.out
