"""Commands for small and fast networks: shrink, export."""

import json
import shlex
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from torch import nn

from ..accounting import account
from ..data import Data, Split
from ..deploy.export import Exported, format_for, session, to_onnx, to_program
from ..deploy.hub import CARD, FILES, check_hub_folder, to_hub_folder
from ..deploy.shrink import shrink as shrink_network
from ..files.masks import load_masks
from ..files.weights import dense_bytes, save_weights
from ..imports import check_trusted
from ..lab.experiment.experiment import Experiment
from ..lab.figures import card
from ..lab.run import loading
from ..lab.run.folder import MASK, WEIGHTS, finished
from ..lab.run.network import data_of
from ..lab.run.options import RunOptions
from ..lab.run.shrunk import counted
from ..masks import Masks
from .options import RUN_OPTIONS, Source, SourceData, SourceModel, Trust, check_output, import_from_working_folder
from .terminal import say

OTHER = """warning: these masks were found for other weights, but the network here has its initial ones.
For weights of your own, call bb.shrink or bb.to_onnx in Python."""
BATCH, CALIBRATION = 64, 8  # images that are read at once; batches of training images that find the ranges of int8


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
    Console(emoji=False).print(small.plan)
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
    int8: Annotated[
        bool, typer.Option("--int8", help="Compute in 8-bit integers (onnx), and compare the test accuracy.")
    ] = False,
    data_root: Annotated[Path | None, RUN_OPTIONS["data_root"]] = None,
    download: Annotated[bool, RUN_OPTIONS["download"]] = False,
    model: SourceModel = None,
    data: SourceData = None,
    trust: Trust = False,
) -> None:
    """Write a sparse network to a file: as ONNX, as a torch.export program, or as a compact file of its weights.

    `--to-hub-folder` writes a folder with plain weights, masks and a model card instead, ready to be uploaded.

    Example: barebones export runs/RUN -o network.onnx
    """
    if hub_folder is not None:
        if out is not None or format is not None or shrink or int8:
            raise ValueError("--to-hub-folder has its own format; leave out --out, --format, --shrink and --int8")
        _to_hub_folder(source, hub_folder, replace, model, data, trust)
        return
    if out is None:
        raise ValueError("name the file to write with -o FILE, or a folder for the Hub with --to-hub-folder DIR")
    if out.exists() and any(path.exists() and out.samefile(path) for path in (source, source / MASK, source / WEIGHTS)):
        raise ValueError(f"{out} is what would be exported; name another file to write")
    if replace:
        raise ValueError("--replace is for --to-hub-folder; a file is always replaced")
    chosen = format_for(out, format)
    if shrink and chosen == "sparse":
        raise ValueError("a compact file holds no network, only its weights; use --shrink with .onnx and .pt2 files")
    if int8 and chosen != "onnx":
        raise ValueError("--int8 is for ONNX files; name the file NAME.onnx, or leave out --int8")
    if int8 and source.is_file():
        raise ValueError("--int8 needs a trained network, and a mask file has none; name the folder of a finished run")
    check_output(out)
    experiment, network, masks = _load(source, model, data, trust)
    example, dense = loading.example(experiment, source), dense_bytes(network)
    if int8:
        check_trusted(experiment.data, source, [data], trust, "--data")
        images = data_of(experiment, RunOptions(data_root=data_root, download=download))
    if shrink:
        small = shrink_network(network, masks, example)
        network, masks = small.module, small.masks
    if int8:
        exported = _to_int8(network, masks, images, out)
    elif chosen == "sparse":
        save_weights(network, masks, out, experiment=experiment.to_dict())
    else:
        exported = (to_onnx if chosen == "onnx" else to_program)(network, masks, example, out)
    written = out.stat().st_size
    smaller = f"{dense / written:.3g} times smaller than" if dense > 1.01 * written else f"{written / dense:.1%} of"
    say(f"{out}: {written:,} bytes, {smaller} the dense checkpoint ({dense:,}).")
    if chosen != "sparse":
        checked = "In onnxruntime" if chosen == "onnx" else "Loaded again"
        say(f"{checked}, the largest difference of the outputs is {exported.difference:.2g} times the largest output.")
    if not source.is_dir():
        say("This is the network before training; name the folder of a run for a trained one.")


def _to_int8(network: nn.Module, masks: Masks, data: Data, out: Path) -> Exported:
    """Write the network in int8, and say what it costs in accuracy, both in onnxruntime."""
    batches = list(islice(data.train.epoch(BATCH, shuffle=True), CALIBRATION))
    with TemporaryDirectory() as folder:
        to_onnx(network, masks, batches[0][0], plain := Path(folder, "network.onnx"))
        before = _accuracy(plain, data.test)
    written = to_onnx(network, masks, batches[0][0], out, int8=batches)
    say(f"Test accuracy in onnxruntime: {before:.2%} in float32, {_accuracy(out, data.test):.2%} in int8.")
    return written


def _accuracy(path: Path, split: Split) -> float:
    run = session(path.read_bytes())
    right = sum(int((run(images)[0].argmax(1) == labels).sum()) for images, labels in split.epoch(BATCH))
    return right / len(split)


def _to_hub_folder(source: Path, folder: Path, replace: bool, model: str | None, data: str | None, trust: bool) -> None:
    check_hub_folder(folder, replace)
    experiment, network, masks = _load(source, model, data, trust)
    about = load_masks(source / MASK if source.is_dir() else source).about
    result = finished(source) if source.is_dir() else None
    inputs = loading.inputs_of(experiment, source, [data], trust)
    counts = counted(network, masks, inputs.example(1))[0]
    text = card.card(experiment, counts, inputs, result, about.get("experiment"))
    config = card.config(experiment, network, counts, inputs)
    left = {"run", "metrics"} | ({"account", "collapsed"} if experiment.evolve else set())  # of the masks it began with
    about = {name: value for name, value in about.items() if name not in left}
    to_hub_folder(network, masks, folder, config, text, replace=replace, **about)
    say(f"{folder} holds {', '.join(FILES)}; read and complete {CARD}, for example with a license.")
    repository = f"YOUR-NAME/{shlex.quote(experiment.folder.rpartition('-')[0])}"
    say(f"To upload it: hf upload {repository} {shlex.quote(str(folder))}")


def _load(source: Path, model: str | None, data: str | None, trust: bool) -> tuple[Experiment, nn.Module, Masks]:
    import_from_working_folder(model, data, trust=trust)
    experiment, network, masks = loading.load(source, model, data, trust)
    if source.is_file() and "weights" in masks.about and not loading.found_for(masks, network):
        typer.echo(OTHER, err=True)
    return experiment, network, masks
