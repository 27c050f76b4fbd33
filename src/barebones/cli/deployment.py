"""Commands for small and fast networks: shrink, export, bench speed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from torch import nn

from ..accounting import account
from ..deploy.advice import advise
from ..deploy.export import format_for, to_sparse
from ..deploy.hub import CARD, FILES, check_hub_folder, to_hub_folder
from ..deploy.shrink import shrink as shrink_network
from ..files.masks import load_masks
from ..files.weights import dense_bytes
from ..lab.experiment.experiment import Experiment
from ..lab.figures import card
from ..lab.run import loading
from ..lab.run.folder import MASK, finished
from ..masks import Masks
from .options import Source, SourceData, SourceModel, Trust, check_device, check_output, import_from_working_folder
from .output import say

PRECISIONS = ("fp32", "tf32", "bf16")  # of a training step that is measured


def shrink(
    source: Source,
    multiple_of: Annotated[
        int, typer.Option(min=1, help="Round the channels that stay up to a multiple of this number.")
    ] = 1,
    before_training: Annotated[
        bool,
        typer.Option(
            "--before-training", help="Treat the biases and batch-norm shifts of channels without input as pruned, too."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
    model: SourceModel = None,
    data: SourceData = None,
    trust: Trust = False,
) -> None:
    """Show how small a network becomes without the channels that carry no signal.

    It writes nothing: `run --shrink` trains the small network, and `export --shrink` writes it to a file.

    Example: barebones shrink mask.safetensors
    """
    experiment, network, masks = _load(source, model, data, trust)
    example = loading.example(experiment, source)
    small = shrink_network(network, masks, example, multiple_of=multiple_of, before_training=before_training)
    dense, shrunk = account(network, masks, example[:1]).flops_dense, account(small.module, {}, example[:1]).flops_dense
    if as_json:
        typer.echo(json.dumps(small.plan.to_dict() | {"flops": [dense, shrunk]}, indent=2))
        return
    Console().print(small.plan)
    if dense:
        say(f"FLOPs of an image: {dense:,} dense, {shrunk:,} shrunk ({(shrunk or 0) / dense:.1%}).")


def export(
    source: Source,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write: NAME.onnx, NAME.pt2 or NAME.safetensors.")
    ] = None,
    hub_folder: Annotated[
        Path | None,
        typer.Option("--to-hub-folder", help="Folder to write for the Hugging Face Hub, with a model card."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the files of an earlier export in the hub folder.")
    ] = False,
    format: Annotated[
        str | None, typer.Option(help="onnx, torch or sparse.", show_default="from the file's name")
    ] = None,
    shrink: Annotated[bool, typer.Option("--shrink", help="Remove the channels that carry no signal first.")] = False,
    fold: Annotated[bool, typer.Option(help="Fold batch-norm into the layer before it (onnx and torch).")] = True,
    model: SourceModel = None,
    data: SourceData = None,
    trust: Trust = False,
) -> None:
    """Write a sparse network to a file: as ONNX, as a torch.export program, or as a compact file of its weights.

    `--to-hub-folder` writes a folder with plain weights, masks and a model card instead, ready to be uploaded.

    Example: barebones export runs/RUN -o network.onnx
    """
    if hub_folder is not None:
        if out is not None or format is not None or shrink:
            raise ValueError(
                "--to-hub-folder writes the network in a format of its own; leave out --out, --format, --shrink"
            )
        _to_hub_folder(source, hub_folder, replace, model, data, trust)
        return
    if out is None:
        raise ValueError("name the file to write with -o FILE, or a folder for the Hub with --to-hub-folder DIR")
    if replace:
        raise ValueError("--replace is for --to-hub-folder; a file is always replaced")
    chosen = format_for(out, format)
    if shrink and not chosen.write:
        raise ValueError(
            "a compact file holds only weights, which must fit the original network; "
            "use --shrink with .onnx and .pt2 files, which contain the network itself"
        )
    check_output(out)
    experiment, network, masks = _load(source, model, data, trust)
    example, dense = loading.example(experiment, source), dense_bytes(network)
    if shrink:
        small = shrink_network(network, masks, example)
        network, masks = small.module, small.masks
    if chosen.write:
        written = chosen.write(network, masks, example, out, fold=fold)
    else:
        written = to_sparse(network, masks, out, experiment=experiment.to_dict())
    smaller = f"{dense / written.bytes:.3g} times smaller than" if written.bytes < dense else "no smaller than"
    say(f"{out}: {written.bytes:,} bytes, {smaller} the dense checkpoint ({dense:,}).")
    largest_difference = f"the largest difference of the outputs is {written.difference:.2g} times the largest output"
    say(f"{chosen.checked}, {largest_difference if chosen.write else 'it is the same bit for bit'}.")
    if not source.is_dir():
        say("This is the network before training; name the folder of a run for a trained one.")


def _to_hub_folder(source: Path, folder: Path, replace: bool, model: str | None, data: str | None, trust: bool) -> None:
    check_hub_folder(folder, replace)
    experiment, network, masks = _load(source, model, data, trust)
    about = load_masks(source / MASK if source.is_dir() else source)[1]
    result = finished(source) if source.is_dir() else None
    inputs = loading.inputs_of(experiment, source, [data], trust)
    counts = card.counted(network, masks, inputs.example(1))
    text = card.card(experiment, counts, inputs, result, about.get("experiment"))
    config = card.config(experiment, network, counts, inputs)
    about = {name: value for name, value in about.items() if name not in ("run", "metrics")}  # those of this machine
    to_hub_folder(network, masks, folder, config, text, replace=replace, **about)
    say(f"{folder} holds {', '.join(FILES)}; read and complete {CARD}, for example with a license.")
    name = experiment.folder.rpartition("-")[0]
    say(f"To upload it: hf upload YOUR-NAME/{shlex.quote(name)} {shlex.quote(str(folder))}")


def speed(
    mask: Source,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Batch size; repeat the option for several.", show_default="1 and 64"),
    ] = None,
    train_batch: Annotated[
        int, typer.Option(min=0, help="Batch size of the training step; 0 measures no training.")
    ] = 32,
    repeats: Annotated[
        int, typer.Option(min=1, help="Least number of measurements of each variant; the median is shown.")
    ] = 5,
    device: Annotated[str, typer.Option(help="Where to run: cpu or cuda.")] = "cpu",
    precision: Annotated[str, typer.Option(help=f"Precision of the training step: {', '.join(PRECISIONS)}.")] = "fp32",
    model: SourceModel = None,
    data: SourceData = None,
    trust: Trust = False,
) -> None:
    """Measure whether pruning makes the network faster on this machine.

    It compares the time and memory of the dense, the masked, the shrunk and the sparse network.

    Example: barebones bench speed mask.safetensors
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is unknown; choose fp32, tf32 or bf16")
    device = check_device(device)
    experiment, network, masks = _load(mask, model, data, trust)
    advise(
        Console(), network, masks, loading.example(experiment, mask), batches=batch or [1, 64], train_batch=train_batch,
        repeats=repeats, device=device, precision=precision,
    )  # fmt: skip


def _load(source: Path, model: str | None, data: str | None, trust: bool) -> tuple[Experiment, nn.Module, Masks]:
    import_from_working_folder(model, data, trust=trust)
    return loading.load(source, model, data, trust)
