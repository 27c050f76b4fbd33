"""Model cards: what a sparse network is, what it costs, how good it is, and the commands that make it."""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from ...accounting import Account
from ...data import Inputs
from ...deploy.hub import MASKS, WEIGHTS
from ...messages import printable, shortened
from ...models import MODELS
from ...names import NONE
from ...pruning.methods import METHODS
from ...version import __version__
from ..experiment.experiment import DENSE, SETTLED, Experiment
from ..experiment.styles import look
from ..run.connectivity import untrained, when_tested
from ..run.options import SKIP
from . import plots

LOADING = """import barebones as bb
from barebones.models import build
from safetensors.torch import load_file

model = build({model!r}, classes={classes}, size={size}, channels={channels})
model.load_state_dict(load_file("{weights}"))
masks = bb.load_masks("{masks}", model)  # masks.about says how they were made
bb.audit(model, masks)  # raises an error if a pruned weight is not zero"""


def config(experiment: Experiment, network: nn.Module, counts: Account, inputs: Inputs) -> dict[str, Any]:
    """Return the content of config.json: everything needed to build the network again, and its sparsity."""
    return {
        "model_type": "barebones",
        "architectures": [type(network).__name__],
        "barebones_version": __version__,
        "model": experiment.model,
        "num_classes": inputs.classes,
        "input_shape": list(inputs.shape),
        "input_dtype": inputs.dtype,
        "sparsity": counts.sparsity,
        "effective_sparsity": counts.effective_sparsity,
        "experiment": experiment.to_dict(),
    }


def card(
    experiment: Experiment,
    counts: Account,
    inputs: Inputs,
    result: Mapping[str, Any] | None,
    finder: Mapping[str, Any] | None = None,
) -> str:
    """Return the model card in Markdown; `finder` has the settings that found the masks, if they came from a file."""
    label = plots.model_label(experiment.model).replace("`", "'")
    name = f"{label} on {plots.data_label(experiment.data)}"
    dense = experiment.method == DENSE
    share = "dense" if dense else f"{plots.removed(counts.sparsity)} % sparse"
    task = "image-classification" if inputs.size else "other"
    about: dict[str, Any] = {
        "library_name": "barebones",
        "pipeline_tag": task,
        "tags": ["barebones", "pruning", "sparsity", "pruning-at-initialization", experiment.method],
        "metrics": ["accuracy"],
    }
    if result is not None:
        data = {"name": plots.data_label(experiment.data), "type": experiment.data}
        metric = {"type": "accuracy", "value": result["test"]["top1"], "name": f"test accuracy {when_tested(result)}"}
        measured = {"task": {"type": task}, "dataset": data, "metrics": [metric]}
        about["model-index"] = [{"name": f"{name}, {share}", "results": [measured]}]
    header = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in about.items()]  # JSON is YAML, too
    rows = [f"| {what} | {value} |" for what, value in _numbers(counts, result)]
    form = {"classes": inputs.classes, "size": inputs.size, "channels": inputs.channels}
    loading = LOADING.format(model=experiment.model, **form, weights=WEIGHTS, masks=MASKS)
    method = "not pruned" if dense else f"pruned at initialization ({look(experiment.method).label})"
    state = "trained" if result is not None else "not trained: these are its initial weights"
    made_by = commands(experiment, result is not None, finder)
    if result is not None and untrained(result):
        state = "not trained after that, because no signal passes from input to output"
        made_by[-1] += f" --on-collapse {SKIP}"
    own = "" if experiment.model in MODELS else " The code of the network is not part of this folder."
    parts = [
        "\n".join(["---", *header, "---"]),
        f"# {name}, {share}",
        f"The network is {method} by barebones {__version__}, and {state}. Pruned weights are zeros in `{WEIGHTS}`; "
        f"`{MASKS}` says which weights are pruned.{own}",
        "\n".join(["| | |", "| --- | --- |", *rows]),
        "## How it was made",
        "\n".join(["```sh", *made_by, "```"]),
        "## How to load it",
        f"```python\n{loading}\n```",
    ]
    return "\n".join(map(printable, "\n\n".join(parts).split("\n"))) + "\n"


def _numbers(counts: Account, result: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    yield "sparsity", f"{counts.sparsity:.4%}: {counts.kept:,} of {counts.total:,} prunable weights are left"
    if counts.effective_sparsity is not None:
        on_paths = f"{counts.effective:,} weights are on a path from input to output"
        yield "effective sparsity", f"{counts.effective_sparsity:.4%}: {on_paths}"
    if counts.flops_dense and counts.flops_effective is not None:
        left = f"{counts.flops_effective:,} ({counts.flops_effective / counts.flops_dense:.2%})"
        yield "FLOPs per sample", f"{left} for the weights on a path, {counts.flops_dense:,} for the dense network"
    if counts.collapsed:
        yield "collapsed", f"no signal passes {shortened(counts.collapsed)}"
    elif counts.disconnected_outputs:
        yield "disconnected outputs", f"no signal reaches {counts.disconnected_outputs} of {counts.outputs}"
    if result is None:
        yield "test accuracy", "not trained"
        return
    top5 = result["test"]["top5"]
    five = f", {top5:.2%} top-5" if top5 is not None else ""
    yield "test accuracy", f"{result['test']['top1']:.2%}{five}, {when_tested(result)}"


def commands(experiment: Experiment, trained: bool, finder: Mapping[str, Any] | None = None) -> list[str]:
    """Return the commands that make a network with these settings, without paths of this machine.

    >>> commands(Experiment("small-vgg", "digits", "snip", 0.9, epochs=1).resolved(), trained=True)
    ['barebones run --data digits --model small-vgg --method snip --sparsity 0.9 --seed 0 --epochs 1']
    """
    if experiment.mask is None:
        return [_command("run" if trained else "prune", _chosen(experiment))]
    found = Experiment.from_dict(finder) if finder else None
    lines = [_command("prune", _chosen(found), "-o", MASKS)] if found and found.mask is None else []
    if trained:
        before = Experiment(experiment.model, experiment.data).to_dict() | dict(finder or {})
        if before["optimizer"] != experiment.optimizer:
            before |= {"lr": None, "weight_decay": None}
        settings = {n: v for n, v in experiment.to_dict().items() if n not in {*SETTLED, "mask", "method"}}
        chosen = {n: NONE if v is None else v for n, v in settings.items() if v or v != before[n]}
        lines.append(_command("train", chosen, "--mask", MASKS))
    return lines or ["# the masks came from a file that does not say how they were found"]


def _chosen(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that determine an experiment: the main ones, and those that differ from their defaults."""
    main = ["data", "model", "method", "sparsity", "seed"]
    if experiment.method == DENSE:
        main.remove("sparsity")
    chosen = {name: getattr(experiment, name) for name in main}
    known = experiment.method if experiment.method in METHODS else DENSE  # code is not imported for a card
    plain = Experiment(**chosen | {"method": known}).resolved().to_dict()
    settings = experiment.to_dict()
    return chosen | {name: v for name, v in settings.items() if name not in main and v not in (None, plain[name])}


def _command(verb: str, settings: Mapping[str, Any], *more: str) -> str:
    words = ["barebones", verb]
    for name, value in settings.items():
        option = ("--no-" if value is False else "--") + name.replace("_", "-")
        words += [option] if isinstance(value, bool) else [option, str(value)]
    return shlex.join([*words, *more])
