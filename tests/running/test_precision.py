"""Torch's switches are as a precision needs them, and as they were afterwards."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from barebones.pruning.prune import prune
from barebones.running import precision
from barebones.running.outputs import outputs
from barebones.running.precision import AUTOCAST, autocast, computing

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@pytest.fixture(autouse=True)
def onednn():
    """Put the switch of oneDNN back, also if a test fails."""
    assert torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.enabled = True


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("name", AUTOCAST)
def test_onednn_is_as_it_was(name):
    """Torch turns it off at the first product, where the CPU cannot compute in bf16 or fp16."""
    inputs, weight = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    with computing(CPU, name):
        with autocast(name, CPU):
            returned = F.linear(inputs, weight)
        returned.sum().backward()
    assert torch.backends.mkldnn.enabled
    outputs(nn.Linear(64, 64).to(AUTOCAST[name]), inputs.to(AUTOCAST[name]))
    assert torch.backends.mkldnn.enabled


def test_pruning_leaves_onednn_as_it_was():
    prune(nn.Linear(64, 64), [(torch.randn(64, 64), torch.arange(64))], 0.5, "snip", precision="bf16")
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize("name", ["fp32", "tf32", *AUTOCAST])
@pytest.mark.parametrize("supported", [False, True])
def test_onednn_is_off_from_the_beginning_where_the_cpu_cannot_compute(name, supported, monkeypatch):
    monkeypatch.setattr(precision, "_in_onednn", lambda name: supported)
    with computing(CPU, name):
        assert torch.backends.mkldnn.enabled == (supported or name not in AUTOCAST)
    assert torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # by the user
    with computing(CPU, name):
        assert not torch.backends.mkldnn.enabled
    assert not torch.backends.mkldnn.enabled
