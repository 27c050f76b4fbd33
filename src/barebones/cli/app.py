"""The command line: which commands there are, and errors in one line."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from ..running import interrupts
from ..version import __version__
from ..words import printable
from . import deployment, experiments, figures


class Plain:
    """A command whose help shows no type beside its flags, which take no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments."""
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Command(Plain, TyperCommand):
    """A command of the command line."""


class Group(Plain, TyperGroup):
    """A command that has commands of its own."""


app = typer.Typer(
    name="barebones",
    cls=Group,
    help="Strip a neural network to its bare bones before training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
bench = typer.Typer(cls=Group, help="Measure speed and memory on this machine.", no_args_is_help=True)

for command in (
    experiments.prune,
    experiments.train,
    experiments.run,
    experiments.sweep,
    experiments.inspect,
    figures.figure,
):
    app.command(cls=Command, rich_help_panel="Experiments")(command)
for command in (figures.report, deployment.shrink, deployment.export, experiments.demo):
    app.command(cls=Command, rich_help_panel="Results and deployment")(command)
app.add_typer(bench, name="bench", rich_help_panel="Results and deployment")
bench.command(cls=Command)(deployment.speed)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"barebones {__version__}")
        raise typer.Exit


@app.callback()
def global_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Declare the options that stand before the command; `main` itself looks for --debug."""


def main() -> None:
    """Run the command line; print a mistake of the user as one line, without a traceback, and exit with code 2."""
    try:
        interrupts.started()
        app()
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped")
        sys.exit(interrupts.INTERRUPTED)
    except (ValueError, ImportError, OSError, FloatingPointError, torch.OutOfMemoryError) as error:
        if "--debug" in sys.argv:
            raise
        Console(stderr=True, soft_wrap=True).print(
            "[red]error:[/red]", escape(printable(_sentence(error))), highlight=False
        )
        sys.exit(2)


def _sentence(error: BaseException) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "the device has too little memory for this; use a smaller --batch or another --device"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)
