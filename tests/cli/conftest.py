"""Fixtures for the tests of the command line: networks of the user's own."""

from pathlib import Path

import pytest

NETWORK = """
from torch import nn

def tiny():
    return nn.Sequential(nn.Conv2d(1, 6, 3, 2, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
                         nn.Linear(54, 10))

def mlp(inputs=64, classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 12), nn.ReLU(), nn.Linear(12, classes))

def for_larger_images():
    return mlp(inputs=3072)

def for_fewer_classes():
    return mlp(classes=3)
"""


@pytest.fixture
def tiny(command, tmp_path) -> Path:
    """Write networks of the user's own into the working folder of `command`, and return that folder."""
    (tmp_path / "nets_for_cli.py").write_text(NETWORK)
    return tmp_path
