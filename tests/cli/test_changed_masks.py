"""Commands answer mask files that were changed on purpose, checksums included, with one line at most."""

import random
from pathlib import Path

import pytest
import torch
from fuzzing import cases
from mutations import mutated

import barebones as bb
from barebones.files import container
from barebones.files.masks import KIND, NUMBERS, VERSION
from barebones.lab.experiment.experiment import Experiment
from barebones.lab.run import loading

SMALL = Experiment("small-vgg", "digits", "snip", 0.9, epochs=1, batch_size=256).resolved()


@pytest.fixture
def mask(command) -> Path:
    """Return a mask file as a run writes it."""
    model = loading.initial(SMALL)
    result = bb.prune(model, None, 0.9, "magnitude", on_collapse="ignore")
    numbers = bb.account(model, result.masks, torch.zeros(1, 1, 8, 8))
    account = {name: getattr(numbers, "total" if name == "prunable" else name) for name in NUMBERS}
    about = {"account": account | {"not_followed": None}, "collapsed": [], "seconds": 0.5}
    about |= {"experiment": SMALL.to_dict()}
    bb.save_masks(result.masks, "mask", **result.about | about)
    return Path("mask")


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


@pytest.mark.parametrize("words", ["inspect mask", "inspect mask --json", "train --mask mask --dry-run --device cpu"])
def test_a_changed_mask_file_is_shown_or_refused_in_one_line(words, mask, command):
    assert command(*words.split()).code == 0
    original, draw = mask.read_bytes(), random.Random(1)
    for number in range(cases(40)):
        mask.write_bytes(blob := mutated(original, draw))
        done = command(*words.split())  # what is no mistake of the user is raised here
        assert done.code in (0, 2), f"case {number}: {done}, {blob!r}"
        assert "\x1b" not in done.out + done.err
        if done.code:
            assert done.err.startswith("error: "), f"case {number}: {done}"
            assert done.err.count("\n") == 1, f"case {number}: {done}"
