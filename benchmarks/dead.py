"""Count the channels that die in training: those whose output hardly changes over the training images.

It takes the folders of finished runs of VGG-19 or small-vgg, where each convolution has a batch-norm and a ReLU.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer
from measuring import start
from torch import Tensor, nn

from barebones.cli.options import check_device, check_output
from barebones.lab.records import tables
from barebones.lab.records.records import DONE, records
from barebones.lab.run import loading
from barebones.lab.run.network import data_of
from barebones.lab.run.options import RunOptions
from barebones.masks import Masks
from barebones.paths import effective

COLUMNS = (
    "model", "method", "sparsity", "seed", "control", "revive_empty", "scoring_bn", "loss", "warmup", "precision",
    "epochs", "top1", "disconnected_outputs", "folder",
)  # fmt: skip
STILL = 0.01  # a channel is dead if its output varies by at most this share of what varies most in its layer
THICKNESSES = {"up_to_5": (1, 5), "6_to_10": (6, 10), "11_to_20": (11, 20), "over_20": (21, 2**31)}  # kept weights
Found = dict[str, int | float]


def count(model: nn.Module, masks: Masks, batches: Iterable[Tensor]) -> Found:
    """Count the channels of convolutions on a path from input to output, those that died, and classes never chosen.

    `weights` is the median number of weights that a channel keeps, over those that keep any. `narrowest` has the
    number of channels on a path in the convolution that has the fewest, and `narrowest_alive` the same without those
    that died. `on_NAME` and `dead_NAME` count the channels on a path, and the dead ones, that keep few or many weights.
    `expected_NAME` is how many of these would be dead if all channels of a layer died equally often.
    """
    kinds = {kind: [m for m in model.modules() if isinstance(m, kind)] for kind in (nn.Conv2d, nn.ReLU)}
    if len(kinds[nn.Conv2d]) != len(kinds[nn.ReLU]):
        raise ValueError("the network needs one ReLU for each convolution")
    highest: dict[nn.Module, Tensor] = {}  # over all images, for each channel and pixel
    lowest: dict[nn.Module, Tensor] = {}

    def watch(relu: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        highest[relu] = torch.maximum(highest.get(relu, output[0]), output.amax(0))
        lowest[relu] = torch.minimum(lowest.get(relu, output[0]), output.amin(0))

    hooks = [relu.register_forward_hook(watch) for relu in kinds[nn.ReLU]]
    chosen: set[int] = set()
    example: Tensor | None = None
    with torch.no_grad():
        for images in batches:
            example = images[:1] if example is None else example
            outputs = model.eval()(images)
            chosen |= set(outputs.argmax(1).tolist())
    for hook in hooks:
        hook.remove()
    names = {module: name for name, module in model.named_modules()}
    paths = effective(model, masks, example)
    alive = [paths[f"{names[conv]}.weight"].flatten(1).any(1) for conv in kinds[nn.Conv2d]]
    thickness = torch.cat([masks[f"{names[conv]}.weight"].flatten(1).sum(1).cpu() for conv in kinds[nn.Conv2d]])
    ranges = [(highest[relu] - lowest[relu]).amax((1, 2)).cpu() for relu in kinds[nn.ReLU]]
    dead = [on & (span <= STILL * span.max()) for on, span in zip(alive, ranges, strict=True)]
    widths = [(int(on.sum()), int(off.sum())) for on, off in zip(alive, dead, strict=True)]
    total, lost = (sum(numbers) for numbers in zip(*widths, strict=True))
    narrowest, narrowest_alive = min(on for on, _ in widths), min(on - off for on, off in widths)
    groups: Found = {}
    shares = torch.cat(
        [torch.full((len(on),), off / max(number, 1)) for on, (number, off) in zip(alive, widths, strict=True)]
    )
    for name, (low, high) in THICKNESSES.items():
        inside = torch.cat(alive) & (thickness >= low) & (thickness <= high)
        groups[f"on_{name}"] = int(inside.sum())
        groups[f"dead_{name}"] = int((torch.cat(dead) & inside).sum())
        groups[f"expected_{name}"] = round(float(shares[inside].sum()), 2)
    return groups | {
        "weights": int(thickness[thickness > 0].median()), "channels": total, "dead": lost,
        "narrowest": narrowest, "narrowest_alive": narrowest_alive, "never_chosen": outputs.shape[1] - len(chosen),
    }  # fmt: skip


def main(
    runs: Annotated[Path, typer.Argument(help="Folder with the runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Table to write.")] = Path("dead.csv"),
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    data_root: Annotated[Path | None, typer.Option(help="Folder with the data set.")] = None,
    images: Annotated[int | None, typer.Option(help="Take this many training images, instead of all.", min=2)] = None,
) -> None:
    """Write a row for each finished run of VGG-19 or small-vgg that has its weights."""
    check_output(out)
    check_device(device)
    rows = []
    for row in records(runs):
        readable = row["status"] == DONE and (runs / row["folder"] / "weights.safetensors").exists()
        if not readable or row["model"] not in ("vgg19", "small-vgg"):
            continue
        experiment, model, masks = loading.load(runs / row["folder"])
        data = data_of(experiment, RunOptions(runs, device=device, data_root=data_root))
        found = count(model.to(device), masks, first(images or len(data.train), data.train.epoch(500)))
        rows.append({name: row[name] for name in COLUMNS} | found)
        tables.write(rows, out)
        print(*(f"{name} {value}" for name, value in rows[-1].items()), sep=", ", flush=True)
    if not rows:
        raise ValueError(f"{runs} holds no finished run of VGG-19 or small-vgg with its weights")


def first(images: int, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[Tensor]:
    """Yield the first images of some batches."""
    for inputs, _ in batches:
        yield inputs[:images]
        images -= len(inputs)
        if images <= 0:
            return


if __name__ == "__main__":
    start(main)
