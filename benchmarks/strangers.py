"""Networks as people write them, in torch's own initialization, pruned by every method and trained on digits.

    python benchmarks/strangers.py            # all; prints the tables of benchmarks/strangers.md

Each of them is pruned to four sparsities with three seeds, held, and trained for six epochs with one recipe. The
tables have the mean test accuracy, and the share of the kept weights that is on a path from input to output.
"""

import csv
import os
import sys
import warnings
from itertools import product
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from measuring import in_processes
from sklearn.datasets import load_digits
from torch import Tensor, nn

import barebones as bb

SPARSITIES, SEEDS, ROUNDS, EPOCHS, BATCH, PEAK = (0.8, 0.9, 0.95, 0.98), range(3), (20, 60), 6, 64, 0.01


class Residual(nn.Module):
    """A block, and a way around it."""

    def __init__(self, *block: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(*block)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class ViT(nn.Module):
    """Patches of 2x2 pixels, a class token, two blocks of attention."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.blocks = nn.Sequential(*(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        ))  # fmt: skip
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = self.blocks(torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places)
        return self.head(self.norm(x[:, 0]))


class Rows(nn.Module):
    """A GRU that reads an image row by row."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed, self.gru = nn.Linear(8, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(torch.relu(self.embed(x.squeeze(1))))[0][:, -1])


def conv(i: int, o: int, k: int = 3, norm: type[nn.Module] | None = nn.BatchNorm2d, **options: Any) -> list[nn.Module]:
    """Return a convolution, a norm and a ReLU."""
    return [nn.Conv2d(i, o, k, padding=k // 2, **options), *([norm(o)] if norm else []), nn.ReLU()]


def plain(**options: Any) -> nn.Module:
    """A CNN of three convolutions."""
    body = [*conv(1, 16, **options), *conv(16, 32, **options), nn.MaxPool2d(2), *conv(32, 32, **options)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def resnet() -> nn.Module:
    blocks = [(Residual(*conv(w, w), *conv(w, w)[:2]), nn.ReLU()) for w in (16, 32)]
    body = [*conv(1, 16), *blocks[0], *conv(16, 32, stride=2), *blocks[1]]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def depthwise() -> nn.Module:
    steps = [(*conv(i, i, groups=i), *conv(i, o, 1)) for i, o in ((16, 32), (32, 64), (64, 64))]
    body = [*conv(1, 16), *steps[0], nn.MaxPool2d(2), *steps[1], *steps[2]]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def mlp(norm: type[nn.Module] | None = None) -> nn.Module:
    def layer(i: int, o: int) -> list[nn.Module]:
        return [nn.Linear(i, o), *([norm(o)] if norm else []), nn.ReLU()]

    return nn.Sequential(nn.Flatten(), *layer(64, 300), *layer(300, 100), nn.Linear(100, 10))


NETWORKS = {
    "CNN": plain,
    "CNN, no bias": lambda: plain(bias=False),
    "CNN, GroupNorm": lambda: plain(norm=lambda width: nn.GroupNorm(8, width)),
    "CNN, no norm": lambda: plain(norm=None),
    "ResNet": resnet,
    "depthwise": depthwise,
    "MLP": mlp,
    "MLP, BatchNorm": lambda: mlp(nn.BatchNorm1d),
    "MLP, LayerNorm": lambda: mlp(nn.LayerNorm),
    "ViT": ViT,
    "GRU": Rows,
}
SCOPES = {"GRU": "*weight*"}  # the weights of recurrent layers are not in the default scope


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the training images and labels, then those of the test."""
    bunch = load_digits()
    images = (torch.as_tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16 - 0.3057) / 0.3760
    labels = torch.as_tensor(bunch.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return images[train], labels[train], images[test], labels[test]


def batches(images: Tensor, labels: Tensor, seed: int) -> list[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return [(images[part], labels[part]) for part in order.split(BATCH)]


def trained(model: nn.Module, masks: bb.Masks | None, seed: int) -> float:
    """Train with AdamW and one cycle of the learning rate; return the accuracy on the test images, in percent."""
    images, labels, test, expected = digits()
    optimizer = torch.optim.AdamW(model.parameters(), PEAK, weight_decay=0.01)
    if masks is not None:
        bb.hold(model, masks, optimizer)
    steps = EPOCHS * len(batches(images, labels, 0))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK, total_steps=steps)
    for epoch in range(EPOCHS):
        for x, y in batches(images, labels, 1000 * seed + epoch + 1):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        return 100 * (model(test).argmax(1) == expected).double().mean().item()


def case(network: str, sparsity: float, method: str, rounds: int, seed: int) -> dict[str, Any]:
    """Prune, count and train once; `rounds` of 0 are those of the method."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
    model = NETWORKS[network]()
    row = dict(network=network, sparsity=sparsity, method=method, rounds=rounds, seed=seed)
    if method == "dense":
        return row | dict(effective=1.0, accuracy=trained(model, None, seed))
    images, labels, *_ = digits()
    result = bb.prune(
        model, batches(images, labels, seed), sparsity, method, rounds=rounds or None, seed=seed, on_collapse="ignore",
        scope=SCOPES.get(network), example=images[:1],
    )  # fmt: skip
    on_path = bb.effective(model, result.masks, images[:1])
    share = sum(int(m.sum()) for m in on_path.values()) / sum(int(m.sum()) for m in result.masks.values())
    return row | dict(effective=share, accuracy=trained(model, result.masks, seed))


def cases() -> list[tuple[str, float, str, int, int]]:
    rounds = {name: ROUNDS if row.rounds > 1 and row.needs_data else (0,) for name, row in bb.METHODS.items()}
    methods = [(name, number) for name in rounds for number in rounds[name] if name != "grasp-taylor"]
    listed = [(n, s, m, r, seed) for n, s, (m, r), seed in product(NETWORKS, SPARSITIES, methods, SEEDS)]
    return [*((n, 0.0, "dense", 0, seed) for n, seed in product(NETWORKS, SEEDS)), *listed]


def table(rows: list[dict[str, Any]], column: str) -> str:
    """Return a Markdown table: methods by networks, each cell the mean over sparsities and seeds."""
    lines = [f"| method | {' | '.join(NETWORKS)} | worst |", "| --- |" + " --- |" * (len(NETWORKS) + 1)]
    for method, rounds in dict.fromkeys((row["method"], row["rounds"]) for row in rows):
        mine = [row for row in rows if (row["method"], row["rounds"]) == (method, rounds)]
        cells = [mean(row[column] for row in mine if row["network"] == name) for name in NETWORKS]
        label = f"{method}, {rounds} rounds" if rounds else method
        lines.append(f"| {label} | {' | '.join(f'{cell:.1f}' for cell in cells)} | {min(cells):.1f} |")
    return "\n".join(lines)


def main() -> None:
    rows = in_processes(case, cases())
    with open(sys.argv[1] if len(sys.argv) > 1 else os.devnull, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        row["effective"] *= 100
    for sparsity in (None, *SPARSITIES):
        some = [row for row in rows if sparsity is None or row["sparsity"] in (0.0, sparsity)]
        print(f"\n{'All sparsities' if sparsity is None else f'{100 * sparsity:g} % removed'}: accuracy, %\n")
        print(table(some, "accuracy"))
    print("\nAll sparsities: kept weights on a path, %\n")
    print(table([row for row in rows if row["method"] != "dense"], "effective"))


if __name__ == "__main__":
    main()
