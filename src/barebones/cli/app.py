"""The command line: one subcommand each, its options taken from the dataclasses that the Python side uses."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from .options import DryRun, Source, SourceData, SourceModel, known_device, parted, with_options

if TYPE_CHECKING:
    from torch import nn

    from ..lab.experiment import Experiment
    from ..lab.options import RunOptions
    from ..masks import Masks

app = typer.Typer(
    name="barebones",
    help="Strip a neural network to its bare bones before training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
bench = typer.Typer(help="Measure speed and memory on this machine, as ratios within one run.", no_args_is_help=True)
app.add_typer(bench, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        from ..version import __version__

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


@app.command(rich_help_panel="Experiments")
@with_options()
def prune(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the mask file here.")] = None,
    dry_run: DryRun = False,
    **options: Any,
) -> None:
    """Find the masks of a network before training, and account for what they keep.

    barebones prune --data digits --model small-vgg --sparsity 0.99 -o mask.safetensors
    """
    from ..files.container import atomically
    from ..lab.experiment import DENSE, Experiment
    from ..lab.folder import MASK
    from ..lab.show import kept

    chosen, place = parted(options)
    given = Experiment(**chosen)
    if given.method == DENSE:
        raise ValueError("method dense prunes nothing; choose another, or use barebones train")
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} to write {out.name} into; make it first")
    if out is not None and out.is_dir():
        raise ValueError(f"{out} is a folder; name a file to write the masks to")
    about = _perform(given, place, dry_run, until="prune")
    if about is not None:
        path = place.folder(given.resolved(place.device)) / MASK
        if out is not None:
            with atomically(out) as file:
                file.write(path.read_bytes())
        for sentence in kept(about["account"] | {"collapsed": about["collapsed"]}):
            _print(sentence)
        _print(f"The masks are in {out or path}")


@app.command(rich_help_panel="Experiments")
@with_options(unset=True)
def train(
    mask: Annotated[
        Path | None, typer.Option(help="Mask file to hold through training; without one, the dense network is trained.")
    ] = None,
    dry_run: DryRun = False,
    **options: Any,
) -> None:
    """Train a network under the masks of a file, from the weights they were found for.

    barebones train --mask mask.safetensors
    """
    from ..lab.experiment import DENSE, Experiment

    chosen, place = parted(options)
    said = {name: value for name, value in chosen.items() if value is not None and value is not False}
    if "method" in said:
        raise ValueError("train does not prune, so --method means nothing here; use barebones run")
    if mask is None:
        if "sparsity" in said:
            raise ValueError("without --mask the dense network is trained: leave out --sparsity, or use barebones run")
        given = Experiment(**said, method=DENSE)
    else:
        given, place = _for_mask(mask, said), replace(place, mask=mask)
    _conclude(given, place, dry_run)


def _for_mask(path: Path, said: dict[str, Any]) -> Experiment:
    """The experiment that trains the masks of a file: that which made them, with what was said changed."""
    from ..files.masks import content as content_of
    from ..files.masks import load_masks
    from ..lab.experiment import FILE, Experiment

    masks, about = load_masks(path)
    base = about.get("experiment") or {}
    if not base and not {"model", "data"} <= said.keys():
        raise ValueError(f"{path} does not say what it was made for; name --model and --data")
    maker = Experiment.from_dict(base)
    pruned = {"rounds", "batches", "schedule", "revive_until", "at_least", "scoring_precision"}
    if wrong := sorted((pruned | {"loss", "pretrain", "rewind", "sparsity"}) & said.keys()):
        raise ValueError(f"the masks are found already, so --{', --'.join(wrong).replace('_', '-')} means nothing here")
    if maker.pretrain:
        raise ValueError(f"{path} was found after pretraining; barebones run repeats that and goes on to train")
    content: dict[str, Any] = {
        "method": FILE,
        "mask": content_of(masks),
        "sparsity": float(about["sparsity"]),
    }
    return Experiment.from_dict(maker.to_dict() | dict.fromkeys(pruned) | content | said)


@app.command(rich_help_panel="Experiments")
@with_options()
def run(dry_run: DryRun = False, **options: Any) -> None:
    """Prune, train and test: one experiment from start to end.

    What is finished is not done again: the same command continues a run that was stopped or killed.

    barebones run --data digits --model small-vgg --method force --sparsity 0.99
    """
    from ..lab.experiment import Experiment

    chosen, place = parted(options)
    _conclude(Experiment(**chosen), place, dry_run)


def _conclude(given: Experiment, place: RunOptions, dry_run: bool) -> None:
    from ..lab.show import summary

    result = _perform(given, place, dry_run)
    if result is not None:
        for sentence in summary(result, place.folder(given.resolved(place.device))):
            _print(sentence)


def _perform(given: Experiment, place: RunOptions, dry_run: bool, until: str = "train") -> dict[str, Any] | None:
    """Run an experiment here, watched; or only say what it would be."""
    from ..lab import run as lab
    from ..lab.show import plan, watching

    if ":" in given.model:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: a network of your own is most often beside you
    experiment = given.resolved(place.device)
    folder = place.folder(experiment)
    if dry_run:
        _explain(given, experiment, place, plan(experiment, given))
        return None
    console = Console(stderr=True)
    hint = f"stopped, and saved in {folder}; the same command goes on from there"
    with _stoppable(hint) as stopping, watching(console) as report:
        return lab.result_of(lab.run(experiment, place, report, stopping, until))


def _explain(given: Experiment, experiment: Experiment, place: RunOptions, table: Any) -> None:
    """What a run would do, without reading data or writing anything."""
    from ..data import DATA
    from ..lab.folder import progress
    from ..models import build
    from ..scope import prunable

    _console().print(table)
    weights = sum(p.numel() for p in prunable(build(experiment.model, *DATA[experiment.data].dimensions)).values())
    left = round((1 - experiment.sparsity) * weights)
    if left == 0:
        raise ValueError(f"sparsity {experiment.sparsity} leaves none of the {weights:,} prunable weights; lower it")
    _print(f"{experiment.model} has {weights:,} prunable weights; {left:,} would be left.")
    if experiment.rounds is not None:
        _print(f"Pruning: {experiment.rounds} rounds of {experiment.batches} batches of {experiment.batch} images.")
    small = ", without the channels that carry no signal (needs Torch-Pruning)" if experiment.shrink else ""
    _print(f"Training: {experiment.epochs} epochs on {place.device}{small}.")
    folder = place.folder(experiment)
    _print(f"The run's folder is {folder}: {progress(folder)}.")


@app.command(rich_help_panel="Experiments")
@with_options(experiment=False)
def sweep(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A name (smoke, cifar10, early-pruning), file.py:function, module:function, or a .toml or .json grid."
        ),
    ],
    jobs: Annotated[int | None, typer.Option(min=1, help="Experiments at once; by default as many as fit.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run those that failed again.")] = False,
    dry_run: DryRun = False,
    **options: Any,
) -> None:
    """Run many experiments, several at once, and write one table of all results.

    Finished ones are skipped, so the same command continues a sweep. The exit code is 1 if any experiment failed.

    barebones sweep smoke
    """
    from ..lab.folder import progress
    from ..lab.recipes import experiments
    from ..lab.sweep import sweep as perform

    _, place = parted(options)
    sys.path.insert(0, os.getcwd())
    listed = [experiment.resolved(place.device) for experiment in experiments(recipe)]
    if dry_run:
        for experiment in dict.fromkeys(listed):
            _print(f"{experiment.folder}: {progress(place.folder(experiment))}")
        _print(f"{len(set(listed))} experiments in {place.runs}")
        return
    with _stoppable("") as stopping:
        outcome = perform(listed, place, jobs=jobs, retry_failed=retry_failed, console=_console(), stopping=stopping)
        if stopping():
            raise typer.Exit(stopping.code)
    if outcome.failed:
        raise typer.Exit(1)


@app.command(rich_help_panel="Experiments")
@with_options(experiment=False)
def figure(
    name: Annotated[str | None, typer.Argument(help="A figure; --list names them. all: every one.")] = None,
    every: Annotated[bool, typer.Option("--list", help="Name all figures, with what they show and cost.")] = False,
    scale: Annotated[
        str | None, typer.Option(help="smoke (digits), short or paper (the full protocol).", show_default="smoke")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Only draw what is in this folder: runs, or NAME.csv.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for NAME.png, NAME.svg, NAME.csv.")] = Path(
        "figures"
    ),
    jobs: Annotated[int | None, typer.Option(min=1, help="Experiments at once; by default as many as fit.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run those that failed again.")] = False,
    **options: Any,
) -> None:
    """Draw a figure of the paper: run what is missing, write the picture and the numbers behind it.

    barebones figure layers
    """
    from ..paper.figures import FIGURES, Work, listed, named
    from ..paper.figures import figure as drawn

    if every:
        _console().print(listed())
        return
    if name is None:
        raise ValueError("which figure? barebones figure --list names all")
    wanted = list(FIGURES) if name == "all" else [name]
    named(wanted[0])
    _, place = parted(options)
    with _stoppable("stopped; the same command goes on from what is finished") as stopping:
        work = Work(place, _console(), jobs, retry_failed, stopping)
        for each in wanted:
            try:
                for path in drawn(each, scale, out, work, source):
                    _print(str(path))
            except (ValueError, OSError) as error:
                if len(wanted) == 1:
                    raise
                _print(f"{each}: {error}")
                work.failed.append(each)
    if work.failed:
        _print(f"not drawn, or not complete: {', '.join(work.failed)}")
        raise typer.Exit(1)


@app.command("inspect", rich_help_panel="Experiments")
def inspect_(
    path: Annotated[Path, typer.Argument(help="A mask file, or the folder of a run.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for other programs.")] = False,
) -> None:
    """Print what is in a mask file, or how far a run is and what came of it."""
    from ..lab.folder import EXPERIMENT, finished, progress, recorded
    from ..lab.show import mask_file, summary

    if not path.exists():
        raise ValueError(f"there is no {path}")
    if path.is_dir():
        record = path / EXPERIMENT
        if not record.exists():
            raise ValueError(f"{path} is not the folder of a run: it has no {EXPERIMENT}")
        result = finished(path)
        found: dict[str, Any] = {
            "experiment": recorded(record),
            "state": progress(path),
            "result": result,
        }
        if as_json:
            typer.echo(json.dumps(found, indent=2))
            return
        for name, value in found["experiment"].items():
            _print(f"{name:18} {value}")
        _print(f"State: {found['state']}.")
        for sentence in summary(result, path) if result else ():
            _print(sentence)
        return
    header, layers, plain = mask_file(path)
    if as_json:
        typer.echo(json.dumps(plain, indent=2))
        return
    _console().print(header, layers)


@app.command(rich_help_panel="Look and measure")
def report(
    runs: Annotated[Path, typer.Argument(help="Folder that holds the run folders, or one of them.")] = Path("runs"),
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write the page into.")] = Path("report.html"),
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Without the effective weights of each layer, which cost a second for each mask."),
    ] = False,
) -> None:
    """Write one page about all runs: tables, charts, layers, comparisons. It needs nothing but a browser.

    barebones report runs -o report.html
    """
    from rich.progress import Progress

    from ..lab.report import write

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading runs")
        found = write(runs, out, not quick, lambda done, all: bar.update(task, completed=done, total=all))["runs"]
    states = [run["status"] for run in found]
    parts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    for run in found:
        for problem in run["problems"]:
            _print(f"{run['folder']} cannot be read in full: {problem}")
    _print(f"{len(found)} runs ({parts}) are in {out}; open it in a browser.")


def _stored(source: Path, model: str | None, data: str | None) -> tuple[Experiment, nn.Module, Masks]:
    """What a run's folder or a mask file stands for: the experiment, the network on the CPU, the masks."""
    from ..files.masks import load_masks
    from ..lab import stored

    if not source.exists():
        raise ValueError(f"there is no {source}")
    sys.path.insert(0, os.getcwd())  # as for `run`: a network of your own is most often beside you
    if source.is_dir():
        if model or data:
            raise ValueError("the run says what it was made of; --model and --data are for mask files")
        return stored.trained(source)
    experiment = _for_mask(source, {name: value for name, value in (("model", model), ("data", data)) if value})
    network = stored.initial(experiment)
    return experiment, network, load_masks(source, network)[0]


@app.command(rich_help_panel="Look and measure")
def shrink(
    source: Source,
    multiple_of: Annotated[int, typer.Option(min=1, help="Keep idle channels up to a multiple of this.")] = 1,
    before_training: Annotated[
        bool, typer.Option("--before-training", help="Take shifts of channels without input for pruned, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it for programs.")] = False,
    model: SourceModel = None,
    data: SourceData = None,
) -> None:
    """Show what is left of a network without the channels that carry no signal; run and export take --shrink.

    barebones shrink mask.safetensors
    """
    from ..accounting import account
    from ..deploy.shrink import shrink as shrunk
    from ..lab import stored

    experiment, network, masks = _stored(source, model, data)
    example = stored.example(experiment)
    small = shrunk(network, masks, example, multiple_of=multiple_of, before_training=before_training)
    dense, left = account(network, masks, example[:1]).flops_dense, account(small.module, {}, example[:1]).flops_dense
    if as_json:
        typer.echo(json.dumps(small.plan.to_dict() | {"flops": [dense, left]}, indent=2))
        return
    _console().print(small.plan)
    if dense:
        _print(f"FLOPs of an image: {dense:,} dense, {left:,} shrunk ({(left or 0) / dense:.1%}).")


@app.command(rich_help_panel="Look and measure")
def export(
    source: Source,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: NAME.onnx, NAME.pt2 or NAME.safetensors.")],
    kind: Annotated[
        str | None, typer.Option("--format", help="onnx, torch or sparse.", show_default="by the name of the file")
    ] = None,
    shrink: Annotated[bool, typer.Option("--shrink", help="Cut the removed channels out first.")] = False,
    fold: Annotated[bool, typer.Option(help="Fold batch-norm into the layer before it (onnx and torch).")] = True,
    model: SourceModel = None,
    data: SourceData = None,
) -> None:
    """Write a sparse network for others: as ONNX, as a program of torch.export, or as a compact file of its weights.

    barebones export runs/RUN -o network.onnx
    """
    from ..deploy.export import to_onnx, to_program, to_sparse
    from ..files.weights import dense_bytes
    from ..lab import stored

    formats = {"onnx": ".onnx", "torch": ".pt2", "sparse": ".safetensors"}
    named = kind or {suffix: name for name, suffix in formats.items()}.get(out.suffix.lower())
    if named not in formats:
        what = f"format {kind!r} is unknown" if kind else f"the name {out.name} does not tell the format"
        raise ValueError(
            f"{what}; use --format {', '.join(formats)}, or a name that ends in {', '.join(formats.values())}"
        )
    if shrink and named == "sparse":
        raise ValueError(
            "a compact file holds weights alone, for the network that everybody knows; --shrink is for .onnx and .pt2 "
            "files, which bring their own"
        )
    if out.is_dir() or not out.parent.is_dir():
        raise ValueError(f"{out} is a folder; name a file" if out.is_dir() else f"there is no folder {out.parent}")
    experiment, network, masks = _stored(source, model, data)
    example, dense = stored.example(experiment), dense_bytes(network)
    if shrink:
        from ..deploy.shrink import shrink as shrunk

        small = shrunk(network, masks, example)
        network, masks = small.module, small.masks
    if named == "sparse":
        done = to_sparse(network, masks, out, experiment=experiment.to_dict())
    else:
        done = (to_onnx if named == "onnx" else to_program)(network, masks, example, out, fold=fold)
    smaller = f"{dense / done.bytes:.3g} times smaller than" if done.bytes < dense else "no smaller than"
    _print(f"{out}: {done.bytes:,} bytes, {smaller} the dense checkpoint ({dense:,}).")
    checked = {"onnx": "In onnxruntime", "torch": "Loaded again"}.get(named)
    far = f"its outputs differ by {done.difference:.2g} of the largest at most."
    _print(f"{checked}, {far}" if checked else "Loaded again, it is the same bit for bit.")
    if not source.is_dir():
        _print("This is the network before training; name the folder of a run for a trained one.")


@app.command(rich_help_panel="Look and measure")
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="How often to repeat each run, with other numbers.")] = 3,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of training; the default fits two minutes.")] = None,
) -> None:
    """Prune two small networks to the bone, train what is left, and compare the methods on handwritten digits."""
    from ..lab.demo import run

    run(Console(), seeds=seeds, epochs=epochs)


@bench.command("speed")
def bench_speed(
    mask: Source,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Batch sizes; name several times.", show_default="1 and 64")
    ] = None,
    train_batch: Annotated[int, typer.Option(min=0, help="Batch size of the training step; 0 for none.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Times each side is measured at least; the median counts.")] = 5,
    device: Annotated[str, typer.Option(help="Where to run: cpu or cuda.")] = "cpu",
    precision: Annotated[str, typer.Option(help="Of the training step: fp32, tf32 or bf16.")] = "fp32",
    model: SourceModel = None,
    data: SourceData = None,
) -> None:
    """Whether pruning pays on this machine: dense, masked, shrunk and sparse side by side, time and memory.

    barebones bench speed mask.safetensors
    """
    from ..deploy.advice import advise
    from ..lab import stored

    if precision not in ("fp32", "tf32", "bf16"):
        raise ValueError(f"precision {precision!r} is unknown; choose fp32, tf32 or bf16")
    place = known_device(device)
    experiment, network, masks = _stored(mask, model, data)
    advise(
        Console(), network, masks, stored.example(experiment), batches=batch or [1, 64], train_batch=train_batch,
        repeats=repeats, device=place, precision=precision,
    )  # fmt: skip


class _Stopping:
    """Whether a signal has asked to stop, and the exit code that tells so."""

    def __init__(self) -> None:
        self.code = 0

    def __call__(self) -> bool:
        return self.code != 0

    def ask(self, number: int, frame: object) -> None:
        """Take a signal: the first asks to stop, the second stops."""
        if self.code:
            raise KeyboardInterrupt
        self.code = 128 + number
        os.write(2, b"stopping as soon as this is saved; again to stop at once\n")  # rich may be what was interrupted


@contextmanager
def _stoppable(hint: str) -> Iterator[_Stopping]:
    """Ctrl-C and SIGTERM ask to stop, and what stops says how to go on."""
    from ..lab.run import Stopped

    stopping = _Stopping()
    before = {number: signal.signal(number, stopping.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    except Stopped:
        Console(stderr=True, soft_wrap=True).print(hint, highlight=False, markup=False)
        raise typer.Exit(stopping.code) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _console() -> Console:
    return Console()


def _print(text: str) -> None:
    Console(soft_wrap=True).print(text, highlight=False, markup=False)


def main() -> None:
    """Run the command line; what the user did wrong is one line and exit code 2, not a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped")
        sys.exit(130)
    except (ValueError, ImportError, OSError, FloatingPointError, RuntimeError) as error:
        full = type(error).__name__ == "OutOfMemoryError"
        if "--debug" in sys.argv or (isinstance(error, RuntimeError) and not full):
            raise
        if full:
            error = ValueError("the device has too little memory for this; use a smaller --batch or another --device")
        Console(stderr=True, soft_wrap=True).print("[red]error:[/red]", _in_words(error), highlight=False, markup=True)
        sys.exit(2)


def _in_words(error: BaseException) -> str:
    from rich.markup import escape

    if isinstance(error, OSError) and error.strerror:
        return escape(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
    return escape(str(error))
