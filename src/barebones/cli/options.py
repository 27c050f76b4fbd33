"""The options of the command line: those of an experiment, made from its fields, and those of how to run it."""

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, get_type_hints

import typer

from ..imports import is_code
from ..lab.experiment.experiment import DENSE, Experiment
from ..lab.run.options import RunOptions
from ..names import TRACKERS
from ..running.devices import accelerator, check_here

Source = Annotated[Path, typer.Argument(help="Folder of a finished run; or a mask file, for the untrained network.")]
SourceModel = Annotated[
    str | None, typer.Option("--model", help="Network, if the mask file does not name it, or names code of your own.")
]
SourceData = Annotated[
    str | None, typer.Option("--data", help="Data set, if the mask file does not name it, or names code of your own.")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import and run code that the file names, such as package.module:factory.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Delete what an earlier run of this experiment has left, and run anew.")
]
Recommended = Annotated[
    bool,
    typer.Option(
        "--recommended",
        help="Set what we found best at 99.5 % and more, --method hybrid --evolve set --lr-schedule cosine --shrink, "
        "as far as you set nothing else.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Experiments to run at once.", show_default="one per CPU core; up to 4 on a GPU"),
]
EngineName = Annotated[
    str, typer.Option(help="What runs the experiments: local, processes of this machine; ray, a cluster.")
]
EngineOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-option", metavar="NAME=VALUE", help="Option of the engine, such as memory=8e9; repeat it for several."
    ),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Run failed experiments again.")]


_run_option = partial(typer.Option, rich_help_panel="Run options")  # they are not part of an experiment
RUN_OPTIONS = {  # for each field of `RunOptions` that can be set; types and defaults are those of the fields
    "runs": _run_option(help="Folder that contains one folder per run."),
    "device": _run_option(help="cpu, cuda, cuda:N, mps or xpu; auto is a GPU if there is one."),
    "data_root": _run_option(help="Folder with the data set.", show_default="$BAREBONES_DATA, or a cache folder"),
    "download": _run_option("--download", help="Download the data set if it is missing."),
    "compiled": _run_option(
        "--compile/--no-compile", help="Compile the network with torch.compile.",
        show_default="on a GPU, from 100 epochs on",
    ),
    "captured": _run_option(
        "--capture/--no-capture", help="On a GPU, run training steps and the gradients of pruning as CUDA graphs."
    ),
    "micro_batch": _run_option(
        min=1, help="Images that go through the network at once, which bounds the memory; the gradients are the same.",
        show_default="whole batches",
    ),
    "save_every": _run_option(min=0, help="Seconds between checkpoints."),
    "on_collapse": _run_option(
        help="What to do if no signal passes from input to output after pruning: "
        "warn, and train; raise, and stop; or skip the training, and test."
    ),
    "track": _run_option(
        metavar="NAME",
        help=f"Also send the metrics to a tracker: {', '.join(TRACKERS)}; repeat the option for several.",
    ),
}  # fmt: skip


def with_options(unset: bool = False, experiment: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of an experiment, its own, and those of `RunOptions`.

    With `unset`, options of the experiment that the user does not name are None, whatever their default.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        options = _experiment_options(unset) if experiment else []
        options += [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        for name, option in RUN_OPTIONS.items():
            default = "auto" if name == "device" else getattr(RunOptions, name)
            options.append(_parameter(name, Annotated[get_type_hints(RunOptions)[name], option], default))
        options = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in options]
        command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in options}
        return command

    return decorate


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _experiment_options(unset: bool) -> list[inspect.Parameter]:
    types, options = get_type_hints(Experiment), []
    for field in fields(Experiment):
        if field.name == "mask":
            continue
        kind, default = types[field.name], field.default
        help, panel = field.metadata["help"], field.metadata["panel"]
        if kind is bool:
            name = field.name.replace("_", "-")
            option = typer.Option(f"--{name}/--no-{name}", help=help, rich_help_panel=panel)
        else:
            shown = field.metadata["shown"] if default is None else True
            option = typer.Option(
                help=help, rich_help_panel=panel, show_default="as in the mask file" if unset else shown,
                autocompletion=completion(field.metadata["known"]),
            )  # fmt: skip
        kind, default = (kind | None, None) if unset else (kind, default)
        options.append(_parameter(field.name, Annotated[kind, option], default))
    return options


def completion(known: Iterable[str]) -> Callable[[str], list[str]] | None:
    return (lambda incomplete: [name for name in known if name.startswith(incomplete)]) if known else None


def split(options: dict[str, Any], overwrite: bool = False, here: bool = True) -> tuple[dict[str, Any], RunOptions]:
    """Split the options of a command into an experiment's and run options; `here`: this machine needs the device."""
    from ..lab.run.tracking import check

    run_options = {name: options.pop(name) for name in RUN_OPTIONS}
    run_options["device"] = check_device(run_options["device"], here)
    for name in run_options["track"] or ():
        check(name)
    if options.get("method") == DENSE and options["sparsity"] not in (None, 0, Experiment.sparsity):
        raise ValueError("method dense prunes nothing, so it takes no --sparsity; leave it out")
    import_from_working_folder(options.get("method"))
    return options, RunOptions(**run_options, overwrite=overwrite)


def check_device(name: str, here: bool = True) -> str:
    """Return the name of a device that must be available `here`; "auto" becomes the accelerator if there is one."""
    import torch

    if name == "auto":
        return accelerator()
    try:
        torch.device(name)
    except RuntimeError:
        raise ValueError(f"device {name!r} is unknown; choose auto, cpu, cuda, cuda:N, mps or xpu") from None
    if here:
        check_here(name)
    return name


def engine_options(given: Iterable[str]) -> dict[str, Any]:
    """Return the options of an engine by their names. Numbers, true, false and lists are written as in JSON.

    >>> engine_options(["accelerator_type=L4", "memory=8e9"])
    {'accelerator_type': 'L4', 'memory': 8000000000.0}
    """
    values: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier() and value):
            raise ValueError(f"--engine-option {text}: write a name, =, and a value, such as memory=8e9")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def check_output(path: Path) -> None:
    """Check that a file can be written here, before the work begins."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a {'folder' if path.is_dir() else 'device'}; name a file")
    if not (folder := path.resolve().parent).is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} into; create it first")
    try:
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"{path} cannot be written into {folder} ({error.strerror}); name another file") from None


def check_folder(path: Path) -> None:
    if file := next((each for each in (path, *path.parents) if each.exists() and not each.is_dir()), None):
        raise ValueError(f"{file} is not a folder; name a folder to write into")


def import_from_working_folder(*names: str | None, trust: bool = False) -> None:
    """Let code of the user be imported from the working folder, as `python -m` does, if one of the names is code.

    Otherwise, in the folder of a stranger, any import could find a file of his.
    """
    if trust or any(is_code(name) for name in names if name):
        sys.path.insert(0, os.getcwd())
