"""The engine: the kernel of sparse layers, compiled for this machine once and kept in a cache.

It is one file of C++ without any header but the compiler's own, so that a build takes seconds and outlives updates
of torch and Python; ctypes calls it. Where there is no compiler, `engine` says why and layers compute densely.

Why C++: on two cores with AVX-512, the 1x1 convolutions of a ResNet-50 at 99.5 % take 4 to 160 microseconds, and 1.8 to
2.5 times as long in Numba (row by row, vectorized) and 2 to 11 times in torch's CSR product, each on one thread.
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

from .plan import Plan

SOURCE = Path(__file__).with_name("kernel.cpp")
COMPILERS = ("c++", "g++", "clang++")  # after $CXX, the first that there is
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-shared")
# What a compiler may not know is left out, best first: without -march=native the vectors are narrow, without -fopenmp
# there is one thread. libgomp is found under the name by which torch has loaded its own, so both share their threads.
ATTEMPTS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-fopenmp",), ("-march=native",), ())
SECONDS = 300  # that a build may take


class Unavailable(Exception):
    """Why there is no engine, in a sentence."""


@functools.cache
def engine() -> ctypes.CDLL | str:
    """The compiled kernel; or a sentence that says why there is none. The first call may take some seconds."""
    try:
        return _loaded(_built())
    except Unavailable as why:
        return str(why)


def folder() -> Path:
    """Where builds are kept: $BAREBONES_CACHE, or "barebones" in the user's folder of caches."""
    if own := os.environ.get("BAREBONES_CACHE"):
        return Path(own)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "barebones"


def _built() -> Path:
    """The library for this source, compiler and processor, built if it is not in the cache.

    Several processes may build it at the same time: each in a folder of its own, and the last to finish wins.
    """
    compiler = _compiler()
    key = sha256()
    for part in (SOURCE.read_bytes(), _said([compiler, "--version"]).encode(), _processor().encode()):
        key.update(sha256(part).digest())
    try:
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        library = place / f"sparse-{key.hexdigest()[:20]}.so"
        if library.exists():
            return library
        with tempfile.TemporaryDirectory(dir=place, prefix="building-") as own:
            fresh = Path(own) / library.name
            _compile(compiler, fresh)
            os.replace(fresh, library)
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody's home
        raise Unavailable(f"the sparse kernel cannot be kept in a cache: {error}; set BAREBONES_CACHE") from None
    return library


def _compiler() -> str:
    for name in filter(None, (os.environ.get("CXX"), *COMPILERS)):
        if found := shutil.which(name):
            return found
    raise Unavailable("there is no C++ compiler (g++ or clang++) to build the sparse kernel; install one or set CXX")


def _compile(compiler: str, target: Path) -> None:
    said = ""
    for attempt in ATTEMPTS:
        command = [compiler, *FLAGS, *attempt, str(SOURCE), "-o", str(target)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"the sparse kernel could not be compiled: {error}") from None
        if done.returncode == 0:
            return
        said = said or done.stderr
    lines = [line for line in said.splitlines() if "error" in line] or said.splitlines() or ["no word of why"]
    raise Unavailable(f"the sparse kernel could not be compiled by {compiler}: {lines[0].strip()}")


def _loaded(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        run, size = library.barebones_run, library.barebones_plan_size
    except (OSError, AttributeError) as error:
        raise Unavailable(f"the sparse kernel could not be loaded: {error}; remove the file to build it anew") from None
    size.restype = ctypes.c_int64
    assert size() == ctypes.sizeof(Plan), "kernel.cpp and plan.py describe the same structure"
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    run.restype = ctypes.c_int
    return library


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the C++ compiler does not run: {error}") from None


def _processor() -> str:
    """What a build for this machine depends on; a folder of caches may be shared by several."""
    known = f"{sys.platform} {platform.machine()} {platform.processor()}"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return known
    told = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return "\n".join([known, *sorted(told)])
