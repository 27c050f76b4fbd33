"""Fixtures for the tests of small and fast networks."""

import pytest
import torch


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Start every test from the same random numbers."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def onnx_packages() -> None:
    """Skip a test if one of the packages for ONNX is missing."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"needs {name}: pip install 'barebones[export]'")
