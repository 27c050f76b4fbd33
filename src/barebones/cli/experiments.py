"""Commands for experiments: prune, train, run, sweep, inspect, demo."""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..imports import check_trusted
from ..lab.experiment.experiment import DENSE, Experiment
from ..lab.experiment.protocols import RECOMMENDED
from ..lab.experiment.recipes import EPOCHS, RECIPES
from ..lab.experiment.recipes import experiments as from_recipe
from ..lab.run.options import SKIP, RunOptions
from ..messages import counted
from ..names import NONE
from . import options as cli
from .terminal import say, stoppable


@cli.with_options()
def prune(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the mask file here.")] = None,
    overwrite: cli.Overwrite = False,
    dry_run: cli.DryRun = False,
    **options: Any,
) -> None:
    """Prune a network before training: find its masks, and print what they keep.

    Example: barebones prune --data digits --model small-vgg --sparsity 0.99 -o mask.safetensors
    """
    from ..files.container import atomically
    from ..lab.run import folder, progress

    settings, run_options = cli.split(options, overwrite)
    requested = Experiment(**settings)
    if requested.method == DENSE:
        raise ValueError("method dense prunes nothing; choose another, or use barebones run")
    if run_options.on_collapse == SKIP:
        raise ValueError("barebones prune trains nothing, so it cannot skip training; use --on-collapse warn or raise")
    if out is not None:
        cli.check_output(out)
    path = run_options.folder(requested.resolved(run_options.device)) / folder.MASK
    before = path.exists() and not overwrite
    about = _perform(requested, run_options, dry_run, until="prune")
    if about is None:
        return
    if before:
        say("These masks were found before; --overwrite finds them anew.")
    if out is not None:
        with atomically(out) as file:
            file.write(path.read_bytes())
    for sentence in progress.kept(about):
        say(sentence)
    say(f"The masks are in {out or path}")


@cli.with_options(unset=True)
def train(
    mask: Annotated[
        Path | None, typer.Option(help="Mask file whose pruned weights stay zero; train needs one.")
    ] = None,
    trust: cli.Trust = False,
    overwrite: cli.Overwrite = False,
    dry_run: cli.DryRun = False,
    **options: Any,
) -> None:
    """Train a network under the masks of a file, from the initial weights that the masks were found for.

    Example: barebones train --mask mask.safetensors
    """
    from ..lab.run.loading import experiment_for_mask

    settings, run_options = cli.split(options, overwrite)
    settings = {name: value for name, value in settings.items() if value is not None}
    if "method" in settings:
        raise ValueError("train does not prune, so --method has no effect; use barebones run")
    if mask is None:
        raise ValueError("name a mask file with --mask; barebones run --method dense trains the dense network")
    if not mask.exists():
        raise ValueError(f"there is no file {mask}; name a mask file, as barebones prune -o writes it")
    experiment = experiment_for_mask(mask, settings, trust)
    check_trusted(experiment.data, mask, [settings.get("data")], trust, "--data")
    _conclude(experiment, replace(run_options, mask=mask), dry_run, settings)


@cli.with_options()
def run(
    context: typer.Context,
    recommended: cli.Recommended = False,
    overwrite: cli.Overwrite = False,
    dry_run: cli.DryRun = False,
    **options: Any,
) -> None:
    """Prune, train and test a network: one experiment from start to end.

    Finished stages are skipped, so the same command resumes a run that was stopped or killed.

    Example: barebones run --data digits --model small-vgg --method force --sparsity 0.99
    """
    if recommended:
        grouped = "pattern" if options["pattern"] else options["unit"] == "channel" and "unit channel"
        if wrong := "method dense" if options["method"] == DENSE else options["evolve"] != NONE and grouped:
            raise ValueError(f"--recommended moves single weights, so it takes no {wrong}; leave one of them out")
        sources = {name: context.get_parameter_source(name) for name in RECOMMENDED}
        options |= {n: RECOMMENDED[n] for n, source in sources.items() if source and source.name == "DEFAULT"}
    settings, run_options = cli.split(options, overwrite)
    _conclude(Experiment(**settings), run_options, dry_run)


def _conclude(
    requested: Experiment, run_options: RunOptions, dry_run: bool, given: Collection[str] | None = None
) -> None:
    from ..lab.run.folder import RESULT
    from ..lab.run.progress import summary

    folder = run_options.folder(requested.resolved(run_options.device))
    before = (folder / RESULT).exists() and not run_options.overwrite
    result = _perform(requested, run_options, dry_run, given=given)
    if result is not None:
        for sentence in summary(result, folder, before):
            say(sentence)


def _perform(
    requested: Experiment,
    run_options: RunOptions,
    dry_run: bool,
    until: str = "train",
    given: Collection[str] | None = None,
) -> dict[str, Any] | None:
    """Run an experiment and show its progress; in a dry run only print what it would do, and return None."""
    from ..lab.run import network, progress
    from ..lab.run.run import run as run_experiment

    cli.import_from_working_folder(requested.model, requested.data)
    if sentence := network.resized(requested):
        say(sentence)
    if dry_run:
        console = Console(soft_wrap=True, emoji=False)
        for part in progress.dry_run(requested, run_options, given):
            console.print(part, highlight=False, markup=False)
        return None
    experiment = requested.resolved(run_options.device)
    hint = f"stopped and saved in {run_options.folder(experiment)}; the same command resumes from there"
    with stoppable(hint) as stopping, progress.watching(Console(stderr=True, emoji=False)) as report:
        return run_experiment(experiment, run_options, report, stopping, until)


def _numbers(text: str | None) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise ValueError(f"--devices {text}: give numbers of GPUs with commas between them, such as 0,2") from None


@cli.with_options(experiment=False)
def sweep(
    recipe: Annotated[
        str,
        typer.Argument(
            help=f"A recipe: {', '.join(RECIPES)}; file.py:function, package.module:function; a .toml or .json grid.",
            autocompletion=cli.completion(RECIPES),
        ),
    ],
    model: Annotated[
        list[str] | None, typer.Option(help="Network of your own that a grid may name; repeat the option for several.")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Data set of your own that a grid may name; repeat the option for several.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Method of your own that a grid may name; repeat the option for several.")
    ] = None,
    trust: cli.Trust = False,
    jobs: cli.Jobs = None,
    devices: Annotated[
        str | None, typer.Option(help="With --device cuda: the numbers of the GPUs to use, such as 0,2. Default: all.")
    ] = None,
    engine: cli.EngineName = "local",
    engine_option: cli.EngineOptions = None,
    retry_failed: cli.RetryFailed = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Stop after so many minutes, with checkpoints saved; the same command resumes.", show_default="none"
        ),
    ] = None,
    dry_run: cli.DryRun = False,
    **options: Any,
) -> None:
    """Run many experiments, several at once, and write one table of all results.

    Finished experiments are skipped, so the same command resumes a sweep. Sweeps that share a folder
    of runs share the work. The exit code is 1 if an experiment failed, or is not finished at the --time-limit.

    Example: barebones sweep smoke
    """
    from ..lab.run.folder import progress
    from ..lab.run.network import check_each
    from ..lab.sweep import sweep as sweeping

    _, run_options = cli.split(options, here=engine == sweeping.LOCAL)
    if recipe == "smoke":
        run_options = run_options.for_smoke()
    named = [*(model or ()), *(data or ()), *(method or ())]
    cli.import_from_working_folder(recipe, *named, trust=trust)
    listed = from_recipe(recipe, named, trust)
    experiments = dict.fromkeys(experiment.resolved(run_options.device) for experiment in listed)
    if dry_run:
        check_each(experiments)
        for experiment in experiments:
            try:
                say(f"{experiment.folder}: {progress(run_options.folder(experiment))}")
            except (ValueError, OSError) as error:  # a damaged file of one run does not hide the others
                say(f"{experiment.folder}: {error}")
        say(f"{counted(len(experiments), 'experiment')} in {run_options.runs}")
        return
    with stoppable("") as stopping:
        outcome = sweeping.sweep(
            list(experiments), run_options,
            jobs=jobs, devices=_numbers(devices), retry_failed=retry_failed, time_limit=time_limit, engine=engine,
            engine_options=cli.engine_options(engine_option or ()), console=Console(emoji=False), stopping=stopping,
        )  # fmt: skip
        if stopping():
            raise typer.Exit(stopping.code)
    if outcome.failed or outcome.stopped or not outcome.tables:
        raise typer.Exit(1)


def inspect(
    path: Annotated[Path, typer.Argument(help="A mask file, or the folder of a run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
) -> None:
    """Print what a mask file contains, or the settings, progress and result of a run."""
    from ..lab.run.progress import mask_file, run_folder, summary

    if not path.exists():
        raise ValueError(f"there is no file or folder {path}; name a run's folder or a mask file")
    *tables, content = (run_folder(path),) if path.is_dir() else mask_file(path)
    if as_json:
        typer.echo(json.dumps(content, indent=2))
        return
    if tables:
        Console(emoji=False).print(*tables, sep="\n")
        return
    for name, value in content["experiment"].items():
        say(f"{name:18} {value}")
    say(f"State: {content['state']}.")
    for sentence in summary(content["result"], path) if content["result"] else ():
        say(sentence)


def demo(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method, each with another seed.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of training.")] = EPOCHS,
    out: Annotated[Path, typer.Option("--out", "-o", help="Picture to draw; it needs matplotlib.")] = Path("demo.png"),
) -> None:
    """Prune a small network to the bone, train what is left, and compare the methods on handwritten digits."""
    from ..lab.figures import demo as lab_demo

    cli.check_output(out)
    with stoppable("") as stopping:
        lab_demo.demo(Console(emoji=False), seeds, epochs, stopping, out)
        if stopping():
            raise typer.Exit(stopping.code)
