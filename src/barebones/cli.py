"""The command line: `barebones demo`, `barebones bench core`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(
    name="barebones",
    help="Strip a neural network to its bare bones before training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure speed and memory on this machine, as ratios within one run.", no_args_is_help=True)
app.add_typer(bench, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        from .version import __version__

        typer.echo(f"barebones {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Options that stand before the command; `main` looks for --debug itself."""


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="How often to repeat each run, with other numbers.")] = 3,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of training; the default fits two minutes.")] = None,
) -> None:
    """Prune two small networks to the bone, train what is left, and compare the methods on handwritten digits."""
    from .lab.demo import run

    run(Console(), seeds=seeds, epochs=epochs)


@bench.command("core")
def bench_core(
    model: Annotated[str, typer.Option(help="A network for 32x32 images, such as resnet18 or vgg19.")] = "resnet18",
    rounds: Annotated[int, typer.Option(min=1, help="Pruning rounds, and bare passes beside them.")] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="Times each side is measured; the median counts.")] = 3,
    batch: Annotated[int, typer.Option(min=2, help="Images in a batch.")] = 128,
    scores: Annotated[int, typer.Option(min=1000, help="Scores to select from.")] = 100_000_000,
    device: Annotated[str, typer.Option(help="Where to run: cpu or cuda.")] = "cpu",
) -> None:
    """Pruning against bare gradients, its memory, and selection against a sorted topk."""
    from .bench.core import run

    run(Console(), model=model, rounds=rounds, repeats=repeats, batch=batch, scores=scores, device=device)


@bench.command("lab")
def bench_lab(
    model: Annotated[list[str] | None, typer.Option(help="Networks for 32x32 images; name several times.")] = None,
    device: Annotated[str, typer.Option(help="Where to run: cpu or cuda.")] = "cuda",
    images: Annotated[int, typer.Option(min=256, help="Images in an epoch.")] = 45_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of FORCE.")] = 300,
    repeats: Annotated[int, typer.Option(min=1, help="Times each side is measured; the median counts.")] = 3,
    lanes: Annotated[int, typer.Option(min=1, help="Networks trained side by side.")] = 4,
    precision: Annotated[str, typer.Option(help="Of the products: fp32, tf32 or bf16.")] = "bf16",
    compiled: Annotated[bool, typer.Option("--compile", help="Let torch compile the networks.")] = False,
) -> None:
    """The training step with masks and without, an epoch, and FORCE against the gradients it needs."""
    from .bench.lab import run

    run(Console(), model or ["resnet50", "vgg19"], device, images, rounds, repeats, lanes, precision, compiled)


def main() -> None:
    """Run the command line; what the user did wrong is one line and exit code 2, not a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped")
        sys.exit(130)
    except (ValueError, ImportError, OSError, FloatingPointError) as error:
        if "--debug" in sys.argv:
            raise
        Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {error}", highlight=False)
        sys.exit(2)
