"""The options of the command line: those of an experiment, generated from its fields, and those of a place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from ..lab.options import RunOptions

Runs = Annotated[Path, typer.Option(help="Folder that holds a folder for each run.", rich_help_panel="Where and how")]
Device = Annotated[
    str, typer.Option(help="cpu, cuda or cuda:N; auto takes a GPU if there is one.", rich_help_panel="Where and how")
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="Folder with the data set; else $BAREBONES_DATA or a cache.", rich_help_panel="Where and how"),
]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch the data set if it is not there.", rich_help_panel="Where and how")
]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Let torch compile the network; by default on a GPU from 100 epochs on.",
        rich_help_panel="Where and how",
    ),
]
Capture = Annotated[
    bool,
    typer.Option(
        "--capture/--no-capture",
        help="Replay training steps and pruning rounds as CUDA graphs (on a GPU).",
        rich_help_panel="Where and how",
    ),
]
SaveEvery = Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.", rich_help_panel="Where and how")]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Log for TensorBoard, too.", rich_help_panel="Where and how")
]
Source = Annotated[Path, typer.Argument(help="Folder of a finished run; or a mask file, for the untrained network.")]
SourceModel = Annotated[str | None, typer.Option("--model", help="Network, for a mask file that does not say.")]
SourceData = Annotated[str | None, typer.Option("--data", help="Data set, for a mask file that does not say.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and do nothing.")]
PLACE = {
    "runs": (Runs, Path("runs")),
    "device": (Device, "auto"),
    "data_root": (DataRoot, None),
    "download": (Download, False),
    "compiled": (Compile, None),
    "captured": (Capture, True),
    "save_every": (SaveEvery, 30.0),
    "tensorboard": (TensorBoard, False),
}
PANELS = {"Pruning": ("rounds", "pretrain"), "Training": ("epochs", "shrink")}  # the first and last option of each


def with_options(unset: bool = False, experiment: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: the options of an experiment, those of a place, and the command's own.

    With `unset` an option of the experiment that is not given is None, whatever its default.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        wanted = [p for p in own.values() if p.kind is not p.VAR_KEYWORD]
        if experiment:
            wanted = [*_experiment_options(unset), *wanted]
        for name, (kind, default) in PLACE.items():
            wanted.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
        wanted = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in wanted]
        command.__signature__ = inspect.Signature(wanted)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in wanted}
        return command

    return decorate


def _experiment_options(unset: bool) -> list[inspect.Parameter]:
    from ..lab.experiment import Experiment

    hints, found, panel = get_type_hints(Experiment), [], "Experiment"
    for option in fields(Experiment):
        if option.name == "mask":
            continue
        panel = next((title for title, names in PANELS.items() if option.name == names[0]), panel)
        kind, default = hints[option.name], option.default
        if kind is bool:
            flag = typer.Option(f"--{option.name}", help=option.metadata["help"], rich_help_panel=panel)
        else:
            own = {"precision": "bf16 on a GPU, else fp32", "scoring_precision": "fp32"}
            paper = own.get(option.name, "the paper's, or the method's")
            shown = "as in the mask" if unset else paper if default is None else default
            flag = typer.Option(
                help=option.metadata["help"], rich_help_panel=panel, show_default=str(shown),
                autocompletion=_completion(option.name),
            )  # fmt: skip
            kind = kind | None if unset else kind
            default = None if unset else default
        annotation = Annotated[kind, flag]  # type: ignore[valid-type]
        found.append(
            inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return found


def _completion(name: str) -> Callable[[str], list[str]] | None:
    """For the shell: the values of an option that has names for them."""
    from ..data import DATA
    from ..models import MODELS, SCHEMES
    from ..pruning.methods import METHODS
    from ..pruning.schedules import SCHEDULES

    known: dict[str, Iterable[str]] = {
        "model": MODELS,
        "data": DATA,
        "method": [*METHODS, "dense"],
        "schedule": SCHEDULES,
        "init": SCHEMES,
    }
    if name not in known:
        return None
    return lambda incomplete: [value for value in known[name] if value.startswith(incomplete)]


def parted(options: dict[str, Any]) -> tuple[dict[str, Any], RunOptions]:
    """The options of the experiment, and the place."""
    from ..lab.options import RunOptions

    place = {name: options.pop(name) for name in PLACE}
    place["device"] = known_device(place["device"])
    return options, RunOptions(**place)


def known_device(name: str) -> str:
    """The device of this name, if it is there; "auto" is a GPU where there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is unknown; choose cpu, cuda, cuda:N or auto")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    return name
