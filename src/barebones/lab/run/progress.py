"""Text about a run for the user: its settings, its progress, its result; and the content of a mask file."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from ...files.masks import load_masks
from ...masks import kept as weights_kept
from ...messages import Dotted, counted, printable
from ...pruning.methods import METHODS
from ...scope import prunable
from ..experiment.experiment import FINDING, Experiment
from . import connectivity
from .folder import finished, progress, recorded
from .heartbeat import heartbeat
from .metrics import COUNTED, Line
from .network import built, check_micro_batch, check_pruning, data_of, known_inputs
from .options import RunOptions

PREPARING = "reading the data and building the network"


@contextmanager
def watching(console: Console) -> Iterator[Callable[[Line], None]]:
    """Yield a function that shows lines of a run: as a progress bar on a terminal, otherwise as lines of text."""
    latest: list[Line] = []
    with heartbeat(console, lambda: _place(latest[-1]) if latest else PREPARING) as say:

        def write(line: Line) -> None:
            if line.get("resumed") is False:
                say(f"{_place(line, part=False)} begins")
            elif _worth_a_line(line):
                say(f"{_place(line)}, {note(line)}")

        with _bar(console) if console.is_terminal else nullcontext(write) as show:

            def watch(line: Line) -> None:
                if "warning" in line:
                    say(f"warning: {line['warning']}")
                    return
                if line.get("resumed"):
                    say(_place(line, part=False).replace(": ", ": resuming at "))
                latest[:] = [line]
                show(line)

            yield watch


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[Line], None]]:
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # of the line, which the numbers may not break
    note_column, stage = TextColumn("{task.fields[note]}", table_column=rest), ""
    columns = (TextColumn("{task.description}"), BarColumn(20), TimeRemainingColumn(), note_column)
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        bar = progress.add_task(PREPARING, total=None, note="")

        def show(line: Line) -> None:
            nonlocal stage
            unit = COUNTED[line["stage"]]
            if line["stage"] != stage:
                stage = line["stage"]
                progress.reset(bar, total=line[unit + "s"], note="")
            progress.update(bar, description=_place(line, False), completed=line[unit] - 1 + line.get("part", 1.0))
            if "part" not in line:
                progress.update(bar, note=note(line))

        yield show


def _worth_a_line(line: Line) -> bool:
    """Return whether to print a line where there are no bars: every epoch, and every tenth of the rounds."""
    unit = COUNTED[line["stage"]]
    number, total = line[unit], line[unit + "s"]
    return "part" not in line and (unit == "epoch" or number == total or number % max(1, total // 10) == 0)


def _place(line: Line, part: bool = True) -> str:
    """Return where a run is, such as 'train: epoch 3 of 40, 25% of it'."""
    unit = COUNTED[line["stage"]]
    within = f", {line['part']:.0%} of it" if part and "part" in line else ""
    return f"{line['stage']}: {unit} {line[unit]} of {line[unit + 's']}{within}"


def note(line: Line) -> str:
    if line["stage"] == "prune":
        saliency = line["saliency"]
        known = "" if saliency is None or saliency != saliency else f", saliency {saliency:.4g}"
        return f"{line['keep']:,} weights left, {line['recovered']:,} recovered{known}"
    parts = [f"loss {line['loss']:.4f}", f"accuracy {line['accuracy']:.2%}"]
    parts += [f"{split} {line[split]['top1']:.2%}" for split in ("validation", "test") if line[split] is not None]
    return ", ".join([*parts, f"lr {line['lr']:g}", f"{line['images_per_second']:,.0f} images/s"])


def dry_run(requested: Experiment, options: RunOptions, given: Collection[str] | None = None) -> Iterator[Table | str]:
    """Yield what a run would do; `given` are the settings that the user names, beside those of a mask file."""
    experiment = requested.resolved(options.device)
    inputs = known_inputs(experiment) or data_of(experiment, options).inputs
    network = built(experiment.model, inputs)
    check_pruning(network, experiment, inputs.example(1))
    check_micro_batch(network, experiment, options, "train")
    yield settings(experiment, requested, given)
    weights = sum(p.numel() for p in prunable(network, experiment.scope).values())
    keep = weights_kept(load_masks(options.mask)) if options.mask else round((1 - experiment.sparsity) * weights)
    left = f"{keep:,}"
    if experiment.unit == "channel" or (experiment.pattern or "").startswith("block:"):  # the nearest that is possible
        left = "about " + (f"{1 - experiment.sparsity:.3%} of the FLOPs" if experiment.target == "flops" else left)
    yield f"{experiment.model} has {weights:,} prunable weights; {left} would be left."
    if experiment.rounds is not None:
        number = counted(experiment.batches_per_round or 1, "batch", "es")
        batches = f"each with {number} of {experiment.batch_size} images"
        data = batches if METHODS[experiment.method].needs_data else "without data"
        yield f"Pruning: {counted(experiment.rounds, 'round')}, {data}."
    how = ", with masks that move" * bool(experiment.evolve)
    how += ", without the channels that carry no signal" * experiment.shrink
    yield f"Training: {counted(experiment.epochs or 0, 'epoch')} on {options.device}{how}."
    folder = options.folder(experiment)
    yield f"The run's folder is {folder}: {progress(folder)}."


def settings(experiment: Experiment, requested: Experiment, given: Collection[str] | None = None) -> Table:
    """Show every setting of an experiment, and where its value comes from."""
    table = Table("setting", "value", "from", title="experiment", title_justify="left")
    for option in fields(experiment):
        value, requested_value = getattr(experiment, option.name), getattr(requested, option.name)
        unknown = experiment.mask is not None and option.name in FINDING  # the masks were found before
        if value is not None and not unknown:
            table.add_row(option.name, _plain(str(value)), _source(option, value, requested_value, given))
    return table


def _source(option: Field[Any], value: Any, requested: Any, given: Collection[str] | None) -> str:
    """Say where a value comes from; nothing about one that is always the same unless it is set."""
    if value != requested:
        rule = (option.metadata["shown"] or "the method").removeprefix("set by ")
        return rule if rule != value else ""
    if given is not None:
        return "you" if option.name in given else "the mask file"
    return "" if value == option.default else "you"


def run_folder(folder: Path) -> dict[str, Any]:
    return {"experiment": recorded(folder)[0], "state": progress(folder), "result": finished(folder)}


def summary(result: dict[str, Any], folder: Path, before: bool = False) -> Iterator[str]:
    """Yield the result of a run in sentences; `before` says that it had ended before this command began."""
    if before:
        when = result.get("made", {}).get("finished")
        yield f"This run was finished before{f', on {when}' if when else ''}; --overwrite runs it anew."
    test, best, seconds = result["test"], result["best_validation"], result["seconds"]
    five = f", {test['top5']:.2%} top-5" if test["top5"] is not None else ""
    yield f"Test accuracy {connectivity.when_tested(result)}: {test['top1']:.2%}{five}."
    if best is not None:
        at_best = f"{best['validation']:.2%} after epoch {best['epoch']}; test accuracy there: {best['test']:.2%}"
        yield f"Best validation accuracy {at_best}."
    yield from kept(result, connectivity.untrained(result))
    if small := result["shrunk"]:
        before, after = small["parameters"]
        yield f"Shrunk from {before:,} to {after:,} parameters, and to {small['flops']:.1%} of the dense FLOPs."
    if not result["found_for_these_weights"]:
        yield "These masks were found for other initial weights than those of this run."
    yield f"Pruning took {seconds['prune']:.1f} s, training {seconds['train']:.1f} s. Everything is in {folder}"


def kept(about: dict[str, Any], skipped: bool = False) -> Iterator[str]:
    """Yield what the masks of a run keep, in sentences."""
    effective = about.get("effective_sparsity")
    known = "" if effective is None else f"; effective sparsity {effective:.3%}"
    left = f"{about['kept']:,} of {about['prunable']:,} prunable weights are left"
    yield f"{left}: sparsity {about['sparsity']:.3%}{known}."
    for sentence, _ in connectivity.findings(about, skipped):
        yield sentence


def mask_file(path: Path) -> tuple[Text, Table, Table, dict[str, Any]]:
    """Return what a mask file contains: a sentence, tables of its layers and how it was made, and plain values."""
    masks = load_masks(path)
    layers: dict[str, dict[str, Any]] = {
        name: {"shape": list(m.shape), "total": m.numel(), "kept": int(m.count_nonzero())} for name, m in masks.items()
    }
    kept, total = (sum(layer[name] for layer in layers.values()) for name in ("kept", "total"))
    sentence = f"{path}: {kept:,} of {total:,} weights kept ({_share(kept, total)})"
    header = Table("how it was made", Column("", overflow="fold"))
    for name, value in masks.about.items():
        if name == "experiment":
            with suppress(ValueError):  # of another version
                value = Experiment.from_dict(value).folder
        if isinstance(value, dict):
            inner = {key.replace("flops_", "FLOPs per image, "): each for key, each in value.items()}
            value = ", ".join(f"{key} {_short(each)}" for key, each in inner.items() if each is not None)
        header.add_row(_plain(name), "none" if value in ([], None) else _plain(_short(value)))
    table = Table()
    for name in ("layer", "shape", "weights", "kept", "share"):
        table.add_column(name, justify="left" if name == "layer" else "right", overflow="fold")
    for name, layer in layers.items():
        shape = "×".join(map(str, layer["shape"]))
        share, style = _share(layer["kept"], layer["total"]), "red" if layer["kept"] == 0 else None
        table.add_row(Dotted(printable(name)), shape, f"{layer['total']:,}", f"{layer['kept']:,}", share, style=style)
    return Text(printable(sentence)), table, header, {"about": masks.about, "layers": layers}


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.3g} %"


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _plain(text: str) -> str:
    """Return a text of a file for rich, which takes it for no markup, and the terminal for no command."""
    return escape(printable(text))
