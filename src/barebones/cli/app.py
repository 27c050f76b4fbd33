"""The command line: which commands there are, and errors in one line."""

import ast
import os
import sys
from importlib import import_module
from importlib.resources import files
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from .. import messages
from ..running import interrupts
from ..version import __version__

EXPERIMENTS, RESULTS = "Experiments", "Results and deployment"  # panels of the help
COMMANDS = {  # the panel and the module of each command; the module is imported when the command is used
    "prune": (EXPERIMENTS, "experiments"),
    "train": (EXPERIMENTS, "experiments"),
    "run": (EXPERIMENTS, "experiments"),
    "sweep": (EXPERIMENTS, "experiments"),
    "inspect": (EXPERIMENTS, "experiments"),
    "figure": (EXPERIMENTS, "figures"),
    "report": (RESULTS, "figures"),
    "shrink": (RESULTS, "deployment"),
    "export": (RESULTS, "deployment"),
    "demo": (RESULTS, "experiments"),
}


class Plain:
    """A command whose help shows no type beside its flags, which take no value, and its arguments as NAME."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            elif parameter.param_type_name == "argument":
                parameter.metavar = parameter.name.upper()
        return parameters

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line without the braces around arguments that must be there."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]  # type: ignore[misc]


class Command(Plain, TyperCommand):
    """A command of the command line."""


class Later(Command):
    """A command that is known by its name and the first line of its help; its module is imported when it is used."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        assert self.name is not None
        if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE") != "1":
            raise ValueError(
                "barebones runs in one process, so start it without torchrun: a sweep gives each GPU runs of its own, "
                "and bb.prune and bb.hold work in your own loop over several GPUs"
            )
        context = loaded(self.name).make_context(info_name, args, parent, **extra)
        if not context.resilient_parsing:  # of the shell's completion, which needs torch as little as the help
            import_module("..lab.run.run", __package__)
        interrupts.started()
        return context


class Group(Plain, TyperGroup):
    """A command that has commands of its own."""


def loaded(name: str) -> Any:
    _, module = COMMANDS[name]
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    alone.command(name, cls=Command)(getattr(import_module(f".{module}", __package__), name))
    return typer.main.get_command(alone)


def first_line(name: str, module: str) -> str:
    """Return the first line of a command's help from the source of its module, which need not be imported for it."""
    source = files(__package__).joinpath(f"{module}.py").read_text(encoding="utf-8")
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    return (ast.get_docstring(functions[name]) or "").partition("\n")[0]


app = typer.Typer(
    name="barebones",
    cls=Group,
    help="Strip a neural network to its bare bones before training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for name, (panel, module) in COMMANDS.items():
    app.command(name, cls=Later, help=first_line(name, module), rich_help_panel=panel)(lambda: None)


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
        app()
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped")
        sys.exit(interrupts.INTERRUPTED)
    except (ValueError, ImportError, OSError, FloatingPointError, RuntimeError) as error:
        if "--debug" in sys.argv or (isinstance(error, RuntimeError) and not _out_of_memory(error)):
            raise
        sentence = escape(messages.printable(_sentence(error)))
        Console(stderr=True, soft_wrap=True, emoji=False).print("[red]error:[/red]", sentence, highlight=False)
        sys.exit(2)


def _sentence(error: BaseException) -> str:
    if _out_of_memory(error):
        return "the device has too little memory; use --micro-batch, a smaller --batch-size or another --device"
    return messages.first_line(error) if isinstance(error, OSError) else str(error)


def _out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError"  # of torch, which may not be imported yet
