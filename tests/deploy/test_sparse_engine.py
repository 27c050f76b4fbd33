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


def compiler(folder: Path, script: str) -> str:
    """Write a compiler that is a shell script, in which $last is the file that it should write."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\nfor last; do true; done; {script}\n")
    path.chmod(0o755)
    return str(path)


def test_without_a_compiler_layers_stay_dense_and_say_why(fresh, monkeypatch):
    monkeypatch.setenv("PATH", str(fresh))
    monkeypatch.delenv("CXX", raising=False)
    [choice] = choices(sparsify_for_cpu(nn.Linear(4, 2), {"weight": torch.eye(2, 4) > 0}, torch.randn(1, 4)))
    assert choice.chosen == "dense"
    assert "no C++ compiler" in choice.reason


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'kernel.cpp:1: error: no such thing' >&2; exit 1", "error: no such thing"),
        ('[ "$last" = --version ] || echo nonsense > "$last"', "cannot be loaded"),
        ("echo this compiler is not run", "BAREBONES_CACHE"),
    ],
)
def test_a_failed_build_is_a_sentence(fresh, script: str, reason: str, monkeypatch):
    monkeypatch.setenv("CXX", compiler(fresh, script))
    if reason == "BAREBONES_CACHE":  # a cache folder that cannot be made
        monkeypatch.setenv("BAREBONES_CACHE", str(fresh / "compiler" / "cache"))
    sentence = load_kernel.__wrapped__()
    assert isinstance(sentence, str)
    assert reason in sentence


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other cache folders")
def test_the_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("BAREBONES_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder() == tmp_path / "caches" / "barebones"
    monkeypatch.setenv("BAREBONES_CACHE", str(tmp_path / "builds"))
    assert cache_folder() == tmp_path / "builds"


@pytest.mark.slow
@pytest.mark.skipif(isinstance(load_kernel(), str), reason=f"{load_kernel()}")
def test_two_builds_at_once_leave_one_library(fresh, monkeypatch):
    monkeypatch.setenv("CXX", compiler(fresh, f'sleep 0.3; cp "{load_kernel()._name}" "$last"'))  # builds overlap
    with ThreadPoolExecutor(2) as pool:
        kernels = [build.result() for build in [pool.submit(load_kernel.__wrapped__) for _ in range(2)]]
    assert not any(isinstance(kernel, str) for kernel in kernels)
    [library] = (fresh / "cache").iterdir()
    built = library.stat().st_mtime_ns
    assert not isinstance(load_kernel.__wrapped__(), str)
    assert library.stat().st_mtime_ns == built
