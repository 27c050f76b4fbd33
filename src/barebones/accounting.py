"""The account: what masks keep, what of it still carries a signal, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any

import torch
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from .files.encoding import encode
from .paths import Use, cuts, trace
from .scope import matched, parameters

WIDTH = 100  # columns, as plain text


@dataclass(frozen=True)
class Layer:
    """One masked weight. What needs an example to be known is None without one."""

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int
    effective: int | None = None  # kept weights on a path from input to output
    flops_dense: int | None = None
    flops_kept: int | None = None
    flops_effective: int | None = None
    flops_shrunk: int | None = None

    @property
    def dead(self) -> bool:
        """It keeps no weight at all."""
        return self.kept == 0

    @property
    def idle(self) -> bool:
        """It keeps weights, but none on a path."""
        return self.kept > 0 and self.effective == 0


@dataclass(frozen=True)
class Account:
    """Masks, honestly accounted for; prints as a table, and `to_dict` is ready for JSON.

    - `sparsity` is the fraction removed of the masked weights, `sparsity_of_all` of all parameters (those without
      a mask are kept), and `effective_sparsity` counts as removed what lies on no path from input to output.
    - FLOPs are two per multiply-add of the convolutions, linear layers and other matrix products with a parameter,
      masked or not, in one forward pass of the example as given: pass one sample for FLOPs per sample.
    - `flops_shrunk` is an estimate: what dense layers cost without the rows and columns that hold no effective
      weight, each layer by itself. (Residual sums tie channels together, so `shrink` may remove fewer.)
    - Bytes are those of the parameters: `bytes_stored` as kept values and, per masked weight, the smaller of one bit
      each or the gaps between kept ones, as in a mask file.
    """

    layers: list[Layer]
    parameters: int
    bytes_dense: int
    bytes_stored: int
    flops_dense: int | None = None
    flops_kept: int | None = None
    flops_effective: int | None = None
    flops_shrunk: int | None = None
    collapsed: list[str] | None = None  # the layers that cut the network, as `paths.collapsed`

    @property
    def total(self) -> int:
        """Weights under masks."""
        return sum(layer.total for layer in self.layers)

    @property
    def kept(self) -> int:
        """Weights that the masks keep."""
        return sum(layer.kept for layer in self.layers)

    @property
    def effective(self) -> int | None:
        """Kept weights on a path from input to output."""
        counts = [layer.effective for layer in self.layers if layer.effective is not None]
        return sum(counts) if len(counts) == len(self.layers) else None

    @property
    def sparsity(self) -> float:
        """Fraction removed of the weights under masks."""
        return (self.total - self.kept) / max(self.total, 1)

    @property
    def sparsity_of_all(self) -> float:
        """Fraction removed of all parameters."""
        return (self.total - self.kept) / max(self.parameters, 1)

    @property
    def effective_sparsity(self) -> float | None:
        """Fraction of the weights under masks that lie on no path."""
        return None if self.effective is None else (self.total - self.effective) / max(self.total, 1)

    @property
    def dead(self) -> list[str]:
        """The layers that keep no weight."""
        return [layer.name for layer in self.layers if layer.dead]

    def to_dict(self) -> dict[str, Any]:
        """Everything as numbers, strings, lists and dicts."""
        derived = ("total", "kept", "effective", "sparsity", "sparsity_of_all", "effective_sparsity", "dead")
        layers = [asdict(layer) | {"shape": list(layer.shape)} for layer in self.layers]
        return asdict(self) | {"layers": layers} | {name: getattr(self, name) for name in derived}

    def __rich__(self) -> Group:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_footer=True)
        known = self.effective is not None
        flops = ("dense", "effective", "shrunk") if known else ()
        table.add_column("layer", "all", overflow="fold")
        table.add_column("shape", _count(self.total), justify="right")
        table.add_column("kept", _count(self.kept), justify="right")
        table.add_column("%", _percent(1 - self.sparsity), justify="right")
        if known:
            table.add_column("effective", _count(self.effective), justify="right")
        for kind in flops:
            table.add_column(f"FLOPs\n{kind}", _scaled(getattr(self, f"flops_{kind}")), justify="right")
        table.add_column("")
        for layer in self.layers:
            cuts_off = layer.name in (self.collapsed or ())
            note = "cuts" if cuts_off else "dead" if layer.dead else "idle" if layer.idle else ""
            table.add_row(
                layer.name.removesuffix(".weight"),
                "×".join(map(str, layer.shape)),
                _count(layer.kept),
                _percent(layer.kept / max(layer.total, 1)),
                *([_count(layer.effective)] if known else []),
                *(_scaled(getattr(layer, f"flops_{kind}")) for kind in flops),
                note,
                style="red" if cuts_off else "yellow" if note else None,
            )
        return Group(table, Text("\n".join(self._sentences())))

    def _sentences(self) -> list[str]:
        effectively = "" if self.effective_sparsity is None else f", effectively {_percent(self.effective_sparsity)} %"
        idle = [layer.name for layer in self.layers if layer.idle]
        return [
            f"Sparsity {_percent(self.sparsity)} % of {self.total:,} weights{effectively}; "
            f"{_percent(self.sparsity_of_all)} % of all {self.parameters:,} parameters.",
            f"Bytes {_scaled(self.bytes_dense)}B dense, {_scaled(self.bytes_stored)}B stored sparse.",
            *([f"Dead, with no weight kept: {', '.join(self.dead)}."] if self.dead else []),
            *([f"Idle, with no kept weight on a path: {', '.join(idle)}."] if idle else []),
            *([f"COLLAPSED: no signal passes {', '.join(self.collapsed)}."] if self.collapsed else []),
        ]

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=WIDTH, color_system=None, legacy_windows=False)
        with console.capture() as text:
            console.print(self)
        return "\n".join(line.rstrip() for line in text.get().splitlines())


def account(model: nn.Module, masks: Mapping[str, Tensor], example: Any = None) -> Account:
    """Account for masks on a model; with an example input, also for paths and FLOPs. The model is left untouched.

    The example is what the model is called with: an input, a tuple of arguments, a dict of them by name, or
    (args, kwargs). Only shapes, and integers, are read of it.

    >>> net = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 1, bias=False))
    >>> masks = {"0.weight": torch.ones(2, 4) > 0, "1.weight": torch.tensor([[True, False]])}
    >>> told = account(net, masks, torch.zeros(1, 4))
    >>> told.kept, told.effective, told.flops_dense, told.flops_effective, told.flops_shrunk
    (9, 5, 20, 10, 10)
    """
    fitted = matched(model, masks)
    named = parameters(model)
    size = sum(p.numel() for p in named.values())
    bytes_dense = bytes_stored = sum(p.numel() * p.element_size() for p in named.values())
    layers = {name: Layer(name, tuple(p.shape), p.numel(), int(mask.count_nonzero())) for name, p, mask in fitted}
    for name, parameter, mask in fitted:
        removed = layers[name].total - layers[name].kept
        bytes_stored += (encode(mask)[1].numel() if removed else 0) - removed * parameter.element_size()
    if example is None:
        return Account(list(layers.values()), size, bytes_dense, bytes_stored)

    others = {n: p for n, p in named.items() if n not in masks and p.is_floating_point() and p.dim() > 1}
    every = dict(masks) | {n: torch.ones(p.shape, dtype=torch.bool, device=p.device) for n, p in others.items()}
    seen = trace(model, every, example)
    sums = [0, 0, 0, 0]
    for name, on_path in seen.effective.items():
        kept = layers[name].kept if name in layers else on_path.numel()
        effective, use = int(on_path.count_nonzero()), seen.uses.get(name, Use())
        live, occupied = use.kept * effective / max(kept, 1), use.dense * _occupied(on_path)
        flops = [2 * use.dense, 2 * use.kept, 2 * round(live), 2 * round(occupied)]
        sums = [a + b for a, b in zip(sums, flops, strict=True)]
        if name in layers:
            layers[name] = Layer(name, layers[name].shape, layers[name].total, kept, effective, *flops)
    dense, kept, effective, shrunk = sums
    collapsed = cuts(model, masks, example, seen)
    rows = list(layers.values())
    return Account(rows, size, bytes_dense, bytes_stored, dense, kept, effective, shrunk, collapsed)


def _occupied(mask: Tensor) -> float:
    """The share of a weight left when its empty rows and columns (output and input channels) are taken out.

    >>> _occupied(torch.tensor([[True, False, False, False], [False, False, False, False]]))
    0.125
    """
    share = 1.0
    for dim in range(min(mask.dim(), 2)):
        lines = mask.movedim(dim, 0).flatten(1).any(1) if mask.dim() > 1 else mask
        share *= int(lines.count_nonzero()) / max(lines.numel(), 1)
    return share


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _scaled(number: float) -> str:
    """Three digits and a unit.

    >>> _scaled(12), _scaled(4_118_000_000), _scaled(999_960), _scaled(523_500)
    ('12 ', '4.12 G', '1.00 M', '524 k')
    """
    power = 0
    while number >= 999.5 and power < 4:
        number, power = number / 1000, power + 1
    return f"{number:#.3g}".rstrip(".") + f" {'kMGT'[power - 1]}" if power else f"{number:.0f} "
