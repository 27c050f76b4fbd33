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
        ("--engine-option memory=8e9", "the local engine has no options; leave out --engine-option"),
        ("--engine ray --device cuda:1", "--engine ray chooses the GPUs itself; use --device cuda instead of cuda:1"),
        ("--engine ray --device cuda --devices 0", "--devices names GPUs of this machine"),
        ("--engine ray", "--engine ray needs Ray: pip install 'barebones[ray]'"),
    ],
)
def test_mistakes_in_the_choice_of_an_engine(words, expected, mistake, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "barebones.lab.sweep.ray", raising=False)
    (tmp_path / "grid.toml").write_text(GRID)
    mistake(expected, "sweep", "grid.toml", "--device", "cpu", *words.split())
