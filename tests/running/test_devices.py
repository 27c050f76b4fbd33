"""Other devices than the CPU and NVIDIA's: none is here, so stand-ins take their place. And the switch of oneDNN."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import barebones as bb
from barebones.running import devices, precision
from barebones.running.precision import AUTOCAST, computing

ONLY_ON_THE_CPU = {"random", "erk"}  # they draw float64 numbers there, whatever the device


class WithoutFloat64(TorchDispatchMode):
    """Makes a tensor of float64 an error, as on MPS."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        assert all(getattr(leaf, "dtype", None) != torch.float64 for leaf in tree_leaves(result)), func
        return result


@pytest.mark.parametrize("method", sorted(set(bb.METHODS) - ONLY_ON_THE_CPU))
def test_a_device_without_float64_prunes(method, monkeypatch):
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", {"cpu"})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    batches = [(torch.randn(9, 6), torch.arange(9) % 3) for _ in range(2)]
    with WithoutFloat64():
        masks = bb.prune(model, batches, 0.5, bb.METHODS[method], rounds=2, on_collapse="ignore").masks
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with bb.hold(model, masks, optimizer):
            model(batches[0][0]).sum().backward()
            optimizer.step()
        bb.account(model, masks, batches[0][0])
    bb.audit(model, masks)


@pytest.mark.parametrize(
    ("here", "count", "name", "problem"),
    [
        ("mps", 1, "mps:0", None),
        ("xpu", 2, "xpu:1", None),
        ("xpu", 2, "xpu:2", "there is no device xpu:2 here; use --device xpu"),
        ("mps", 1, "cuda", "there is no device cuda here; use --device mps"),
        (None, 0, "mps", "there is no device mps here; use --device cpu"),
        (None, 0, "cpu", None),
    ],
)
def test_a_device_must_be_here(here, count, name, problem, monkeypatch):
    found = here and torch.device(here)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: found)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    assert devices.accelerator() == (here or "cpu")
    if problem is None:
        devices.check_here(name)
    else:
        with pytest.raises(ValueError, match=problem):
            devices.check_here(name)


@pytest.fixture
def onednn():
    """Put the switch of oneDNN back, also if a test fails."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    assert torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.enabled = True


def test_pruning_leaves_onednn_as_it_was(onednn):
    bb.prune(nn.Linear(64, 64), [(torch.randn(64, 64), torch.arange(64))], 0.5, "snip", precision="bf16")
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize("name", ["fp32", "tf32", *AUTOCAST])
@pytest.mark.parametrize("supported", [False, True])
def test_onednn_is_off_from_the_beginning_where_the_cpu_cannot_compute(name, supported, onednn, monkeypatch):
    monkeypatch.setattr(precision, "_in_onednn", lambda name: supported)
    with computing(torch.device("cpu"), name):
        assert torch.backends.mkldnn.enabled == (supported or name not in AUTOCAST)
    assert torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # by the user
    with computing(torch.device("cpu"), name):
        assert not torch.backends.mkldnn.enabled
    assert not torch.backends.mkldnn.enabled
