"""The options of `sweep` that choose an engine: mistakes are one line each."""

import sys

import pytest

GRID = """
model = "small-vgg"
data = "digits"
method = "random"
epochs = 0
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--engine rai", "there is no engine 'rai'; did you mean 'ray'?"),
        ("--engine ray --engine-option address", "--engine-option address: write a name, =, and a value"),
        ("--engine-option partition=gpu", "the local engine has no options; leave out --engine-option"),
        ("--engine ray --device cuda:1", "--engine ray chooses the GPUs itself; use --device cuda instead of cuda:1"),
        ("--engine slurm --device cuda --devices 0", "--devices names GPUs of this machine"),
        ("--engine ray", "--engine ray needs Ray: pip install 'barebones[ray]'"),
        ("--engine slurm", "--engine slurm needs submitit: pip install 'barebones[slurm]'"),
    ],
)
def test_mistakes_in_the_choice_of_an_engine(words, expected, mistake, tmp_path, monkeypatch):
    for package, name in (("ray", "ray"), ("submitit", "slurm")):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, f"barebones.lab.sweep.engines.{name}", raising=False)
    (tmp_path / "grid.toml").write_text(GRID)
    mistake(expected, "sweep", "grid.toml", "--device", "cpu", *words.split())
