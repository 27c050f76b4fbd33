"""Code by its name: the user's own (package.module:function, path/to/file.py:function), and optional packages."""

import importlib
import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Collection, Mapping
from functools import cache
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from .messages import did_you_mean, first_line, printable

SHORTHANDS = {"timm": ("network of timm", "NAME"), "images": ("folder of images", "PATH")}  # no modules


def is_code(name: str) -> bool:
    """Return whether a network, data set or recipe of this name is code that has to be imported and run.

    >>> is_code("vgg19"), is_code("timm:vit_tiny_patch16_224"), is_code("mynet.py:net"), is_code("package.nets:net")
    (False, False, True, True)
    """
    return ":" in name and name.partition(":")[0] not in SHORTHANDS


def sized(name: str) -> tuple[str, int | None]:
    """Return what "timm:NAME@SIZE" or "images:PATH@SIZE" names, and the size; None if it has none.

    >>> sized("images:pets@64"), sized("images:me@home")
    (('pets', 64), ('me@home', None))
    """
    prefix, _, rest = name.partition(":")
    found = re.fullmatch(r"(.+?)(?:@(\d+))?", rest)
    if found is None or (found[2] and not int(found[2])):
        kind, word = SHORTHANDS[prefix]
        raise ValueError(f"{name} names no {kind}; write {prefix}:{word}, or {prefix}:{word}@SIZE (in pixels)")
    return found[1], int(found[2]) if found[2] else None


def imported(source: str) -> ModuleType:
    """Import a module by its name, or a Python file by its path; each once in a process."""
    return _from_file(Path(source).resolve()) if source.endswith(".py") else importlib.import_module(source)


def optional(module: str, needed: str, extra: str) -> Any:
    """Import a module of a package that may be missing; the error says what it is needed for, and how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{needed}: pip install 'barebones[{extra}]'") from error


def _from_file(path: Path) -> ModuleType:
    """Import a file, and make its folder importable as for a script, so that it may import files beside it."""
    name = f"barebones_file_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for it there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def source_digest(name: str) -> str:
    """Return a digest of the file that "source:attribute" is in; empty if the module has none."""
    return _file_digest(imported(name.rpartition(":")[0]))


@cache  # what is edited after the import does not run
def _file_digest(module: ModuleType) -> str:
    path = Path(getattr(module, "__file__", None) or "")
    return sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def named(name: str, kind: str) -> Any:
    """Import and return what "source:attribute" names; `kind` is for errors."""
    source, _, attribute = name.rpartition(":")
    if source.endswith(".py") and not Path(source).is_file():
        raise ValueError(f"there is no file {source} for the {kind} {name}; check its path")
    try:
        module = imported(source)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        not_found = isinstance(error, ModuleNotFoundError) and f"{source}.".startswith(f"{error.name}.")
        hint = "; add its folder to PYTHONPATH, or name its file: path/to/file.py:function" if not_found else ""
        raise ValueError(f"the {kind} {name} cannot be imported ({type(error).__name__}: {error}){hint}") from error
    try:
        return attrgetter(attribute)(module)
    except AttributeError as error:
        raise ValueError(f"{source} has no {attribute!r}{did_you_mean(attribute, vars(module))}") from error


def made(name: str, kind: str, offered: Mapping[str, Any], returns: str) -> Any:
    """Call the function or class of that name and return what it makes.

    It gets the first of the offered arguments that it has a parameter for. If it has none of them, it is called without
    arguments, or with the first one if it needs exactly one.
    """
    from torch import nn

    factory = named(name, kind)
    if isinstance(factory, nn.Module) or not callable(factory):
        raise ValueError(f"{name} is of type {type(factory).__name__}; name a function or class that returns {returns}")
    signature = inspect.signature(factory)
    keywords = [word for word in offered if word in signature.parameters]
    first = next(iter(offered))
    for args, kwargs in [*(((), {word: offered[word]}) for word in keywords), ((), {}), ((offered[first],), {})]:
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            continue
        try:
            return factory(*args, **kwargs)
        except (Exception, SystemExit) as error:  # the user's factory, too
            raise ValueError(f"{name} raised {type(error).__name__}: {first_line(error)}") from error
    raise ValueError(f"{name}{signature} needs more arguments than {first}; name a factory that needs no others")


def check_trusted(
    code: str, source: Path | str, named: Collection[str | None] = (), trust: bool = False, option: str = "--model"
) -> None:
    """Raise a `ValueError` if a file names a network or data set that is code, unless it is in `named` or trusted.

    >>> check_trusted("helpers:net", "mask", named=["helpers:net"])
    >>> check_trusted("helpers:net", "mask")
    Traceback (most recent call last):
    ValueError: mask asks to import and run helpers:net; if you trust that code, pass --model helpers:net, or --trust
    to run whatever the file names
    """
    if is_code(code) and code not in named and not trust:
        shown = printable(code)
        cure = f"if you trust that code, pass {option} {shlex.quote(shown)}, or --trust to run whatever the file names"
        raise ValueError(f"{source} asks to import and run {shown}; {cure}")
