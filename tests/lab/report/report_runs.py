"""Run folders for the tests of the report, written without training anything."""

import base64
import gzip
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch
from lab_runs import made_up_result

from barebones.files.masks import save_masks
from barebones.lab.experiment.experiment import DENSE, Experiment
from barebones.lab.run import folder as files
from barebones.lab.run.checksums import stamp
from barebones.lab.run.metrics import Metrics
from barebones.models import build
from barebones.pruning.methods import METHODS
from barebones.scope import prunable

HOSTILE = "</script><script>document.title='broken in'</script><img src=x onerror=alert(1)>"
ROUNDS, EPOCHS = 6, 5

SHAPES = {name: weight.shape for name, weight in prunable(build("small-vgg", 10, 8, 1)).items()}


def masks_of(density: float, dead: str | None = None) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    masks = {name: torch.rand(shape, generator=generator) < 3 * density for name, shape in SHAPES.items()}
    return masks | ({dead: torch.zeros(SHAPES[dead], dtype=torch.bool)} if dead else {})


def metrics(rounds: int, epochs: int, accuracy: float, total: int) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for i in range(rounds):
        keep = round(total * 0.5 ** (i + 1))
        lines.append({"stage": "prune", "round": i + 1, "rounds": rounds, "keep": keep, "pruned": keep + 10 * (i > 0)})
        lines[-1] |= {"recovered": 10 * (i > 0), "recovered_empty": 0, "saliency": 50.0 / (i + 1), "loss": 2.3}
        lines[-1] |= {"seconds": 0.5, "elapsed": 0.5}
    for i in range(epochs):
        test = {"top1": accuracy, "top5": None, "loss": 0.3}
        lines.append({"stage": "train", "epoch": i + 1, "epochs": epochs, "lr": 0.1, "loss": 2.0 / (i + 1)})
        lines[-1] |= {"accuracy": 0.9, "validation": test, "test": test if i + 1 == epochs else None, "seconds": 1.0}
    return lines


def write_run(
    runs: Path,
    method: str = "force",
    sparsity: float = 0.98,
    seed: int = 0,
    accuracy: float | None = 0.9,
    *,
    dead: str | None = None,
    failed: str | None = None,
    rounds: int = ROUNDS,
    reached: int = 0,
    name: str | None = None,
    **settings: Any,
) -> Path:
    """Write a run folder as the lab does: finished if it has an accuracy, else failed or stopped in training."""
    chosen: dict[str, Any] = {"model": "small-vgg", "data": "digits", "epochs": EPOCHS} | settings
    chosen |= {"rounds": rounds} if METHODS.get(method, METHODS["snip"]).rounds > 1 else {}
    experiment = Experiment(method=method, sparsity=sparsity, seed=seed, **chosen).resolved()
    folder = runs / (name or experiment.folder)
    folder.mkdir(parents=True)
    owner = experiment.folder
    files.write_json(folder / files.EXPERIMENT, {"experiment": experiment.to_dict(), "initial": ""}, owner)
    masks = {n: torch.ones(s, dtype=torch.bool) for n, s in SHAPES.items()} if method == DENSE else None
    masks = masks or masks_of(1 - sparsity, dead)
    total, kept = sum(m.numel() for m in masks.values()), sum(int(m.sum()) for m in masks.values())
    numbers = {"prunable": total, "kept": kept, "effective": kept // 2, "sparsity": 1 - kept / total}
    numbers |= {"effective_sparsity": 1 - kept // 2 / total, "flops_dense": 100, "flops_effective": 7}
    collapsed = [dead] if dead else []
    about = {"experiment": experiment.to_dict(), "account": numbers, "collapsed": collapsed, "seconds": 0.5}
    reached = experiment.epochs or 0 if accuracy is not None else reached
    log = Metrics(folder / "metrics.jsonl", owner)
    log.rewind()
    for line in metrics(experiment.rounds or 0 if method != DENSE else 0, reached, accuracy or 0, total):
        log(line | ({"epochs": experiment.epochs} if line["stage"] == "train" else {}))
    save_masks(masks, folder / files.MASK, run=stamp(owner, files.MASK), metrics=log.mark(), **about)
    changes = numbers | {"collapsed": collapsed, "environment": {"torch": "2"}, "metrics": log.mark()}
    changes |= {"best_validation": {"epoch": 4, "validation": 0.93, "test": 0.91}}
    changes |= {"seconds": {"pretrain": 0, "prune": 0.0 if method == DENSE else 0.5 + seed, "train": 60.0}}
    log.close()
    if failed is not None:
        failure = {"experiment": experiment.to_dict(), "reason": failed, "traceback": "no"}
        files.write_json(folder / "failure.json", failure, owner)
    elif accuracy is not None:
        files.write_json(folder / files.RESULT, made_up_result(experiment, accuracy, **changes), owner)
    return folder


def run_with(content: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    [run] = [r for r in content["runs"] if r["settings"] and all(r["settings"][k] == v for k, v in wanted.items())]
    return run


def words_of(run: dict[str, Any]) -> str:
    return " ".join(sentence for _, sentence in run["words"])


def unpacked(page: str) -> str:
    """Return the JSON that a page holds."""
    return gzip.decompress(base64.b64decode(Tags(page).inside[1])).decode()


class Tags(HTMLParser):
    """The tags of a page, and what its scripts hold."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"] and data.strip():
            self.inside.append(data)
