"""The engine of sparse layers: the kernel is built once, and a build that fails is a sentence."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from barebones.deploy.sparse import choices, load_kernel, sparsify_for_cpu
from barebones.deploy.sparse import layer as layers
from barebones.deploy.sparse.engine import cache_folder


@pytest.fixture
def fresh(tmp_path, monkeypatch) -> Path:
    """Use an empty cache folder and an engine that is not loaded yet."""
    monkeypatch.setenv("BAREBONES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(layers, "load_kernel", load_kernel.__wrapped__)
    return tmp_path


def test_without_a_compiler_layers_stay_dense_and_say_why(fresh, monkeypatch):
    monkeypatch.setenv("PATH", str(fresh))
    monkeypatch.delenv("CXX", raising=False)
    x = torch.randn(1, 4)
    sparse = sparsify_for_cpu(nn.Linear(4, 2), {"weight": torch.eye(2, 4) > 0}, x)
    [choice] = choices(sparse)
    assert choice.chosen == "dense"
    assert "no C++ compiler" in choice.reason


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'kernel.cpp:1: error: no such thing' >&2; exit 1", "error: no such thing"),
        ('for last; do true; done; [ "$last" = --version ] || echo nonsense > "$last"', "cannot be loaded"),
    ],
)
def test_a_failed_build_is_a_sentence(fresh, script: str, reason: str, monkeypatch):
    compiler = fresh / "compiler"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    sentence = load_kernel.__wrapped__()
    assert isinstance(sentence, str)
    assert reason in sentence


def test_a_cache_that_cannot_be_written_is_a_sentence(fresh, monkeypatch):
    (fresh / "file").touch()
    monkeypatch.setenv("BAREBONES_CACHE", str(fresh / "file" / "cache"))
    reason = load_kernel.__wrapped__()
    assert isinstance(reason, str)
    assert "BAREBONES_CACHE" in reason or "no C++ compiler" in reason


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other cache folders")
def test_the_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("BAREBONES_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "barebones"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder() == tmp_path / "caches" / "barebones"
    monkeypatch.setenv("BAREBONES_CACHE", str(tmp_path / "builds"))
    assert cache_folder() == tmp_path / "builds"


@pytest.mark.skipif(isinstance(load_kernel(), str), reason=f"{load_kernel()}")
def test_two_builds_at_once_leave_one_library(fresh, monkeypatch):
    compiler = fresh / "compiler"  # slow enough that both builds overlap
    compiler.write_text(f'#!/bin/sh\nfor last; do true; done; sleep 0.3; cp "{load_kernel()._name}" "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with ThreadPoolExecutor(2) as pool:
        kernels = [build.result() for build in [pool.submit(load_kernel.__wrapped__) for _ in range(2)]]
    assert not any(isinstance(kernel, str) for kernel in kernels)
    [library] = (fresh / "cache").iterdir()
    built = library.stat().st_mtime_ns
    assert not isinstance(load_kernel.__wrapped__(), str)
    assert library.stat().st_mtime_ns == built
