"""The engine: the kernel of sparse layers, compiled for this machine once and kept in the cache folder.

The kernel is one C++ file that includes only the compiler's own headers. So a build takes seconds, and it still works
after an update of torch or Python; ctypes calls it. If there is no compiler, `load_kernel` says so and layers compute
densely.

Why C++: on two cores with AVX-512, the 1x1 convolutions of a ResNet-50 at 99.5 % take 4 to 160 microseconds. On one
thread each, Numba (row by row, vectorized) takes 1.8 to 2.5 times as long, and torch's CSR product 2 to 11 times.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

from platformdirs import user_cache_path

from .plan import KernelArguments

SOURCE = Path(__file__).with_name("kernel.cpp")
COMPILERS = ("c++", "g++", "clang++")  # tried in this order, after $CXX
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared")
# Options that a compiler may not know, best first: without -march=native the vectors are narrow, without -fopenmp there
# is one thread. torch has already loaded libgomp under the same name, so the kernel and torch share one thread pool.
ATTEMPTS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-fopenmp",), ("-march=native",), ())
SECONDS = 300  # time limit of a build


class Unavailable(Exception):
    """The kernel cannot be built or loaded; the message says why."""


@functools.cache
def load_kernel() -> ctypes.CDLL | str:
    """Return the compiled kernel, or a sentence that says why there is none. The first call may take a few seconds."""
    try:
        return _loaded(_built())
    except Unavailable as error:
        return str(error)


def cache_folder() -> Path:
    """Return the folder that keeps builds: $BAREBONES_CACHE, or else "barebones" in the user's cache folder."""
    return Path(os.environ.get("BAREBONES_CACHE") or user_cache_path("barebones"))


def _built() -> Path:
    """Return the library for this source, compiler and processor; build it if it is not in the cache folder.

    Several processes may build it at the same time. Each builds in its own temporary folder, and the last one wins.
    """
    compiler = _compiler()
    key = sha256()
    for content in (SOURCE.read_bytes(), _run(compiler, "--version").stdout.encode(), _processor().encode()):
        key.update(sha256(content).digest())
    try:
        cache = cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
        library = cache / f"sparse-{key.hexdigest()[:20]}.so"
        if library.exists():
            return library
        with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as build:
            built = Path(build) / library.name
            _compile(compiler, built)
            os.replace(built, library)
    except OSError as error:
        raise Unavailable(f"the sparse kernel cannot be stored in the cache: {error}; set BAREBONES_CACHE") from None
    return library


def _compiler() -> str:
    for name in filter(None, (os.environ.get("CXX"), *COMPILERS)):
        if path := shutil.which(name):
            return path
    raise Unavailable("there is no C++ compiler (g++ or clang++) to build the sparse kernel; install one or set CXX")


def _compile(compiler: str, target: Path) -> None:
    errors = ""
    for options in ATTEMPTS:
        done = _run(compiler, *FLAGS, *options, str(SOURCE), "-o", str(target))
        if done.returncode == 0:
            return
        errors = errors or done.stderr
    lines = [line for line in errors.splitlines() if "error" in line] or errors.splitlines() or ["no reason given"]
    raise Unavailable(f"the sparse kernel could not be compiled by {compiler}: {lines[0].strip()}")


def _loaded(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        run, size = library.barebones_run, library.barebones_arguments_size
    except (OSError, AttributeError) as error:
        raise Unavailable(f"the sparse kernel cannot be loaded: {error}; delete the file to rebuild it") from None
    size.restype = ctypes.c_int64
    assert size() == ctypes.sizeof(KernelArguments), "kernel.cpp and plan.py must describe the same structure"
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    run.restype = ctypes.c_int
    return library


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the C++ compiler does not run: {error}") from None


def _processor() -> str:
    """Describe the processor that a build is for, because several machines may share one cache folder."""
    system = f"{sys.platform} {platform.machine()} {platform.processor()}"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return system
    features = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return "\n".join([system, *sorted(features)])
