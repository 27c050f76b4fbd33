"""The plan: what shrinking did to each layer, as a table, in sentences and for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from io import StringIO
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from torch import nn

from .cut import Removed

WIDTH = 100  # columns, as plain text


@dataclass(frozen=True)
class LayerPlan:
    """One layer that became smaller: its channels before and after."""

    name: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    blank: bool = False  # nothing of it is left: it says its bias, or zeros


@dataclass(frozen=True)
class ShrinkPlan:
    """What `shrink` did; prints as a table, and `to_dict` is ready for JSON."""

    layers: list[LayerPlan]
    parameters: tuple[int, int]  # before and after, as dense tensors
    weights: tuple[int, int]  # that the masks keep, before and after
    folded: dict[str, int] = field(default_factory=dict)  # layer -> constant inputs that its bias took over
    shifts: dict[str, int] = field(default_factory=dict)  # layer -> shifts taken as pruned (before_training)
    left: dict[str, str] = field(default_factory=dict)  # layer -> why channels without a signal stay
    unchecked: str = ""  # why the two networks were not compared in train mode, where they were not
    layout: str = ""  # why its weights are not channels last in memory, where they should be

    def to_dict(self) -> dict[str, Any]:
        """Everything as numbers, strings, lists and dicts."""
        return asdict(self)

    def __rich__(self) -> Group:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for title in ("layer", "inputs", "outputs", ""):
            table.add_column(title, justify="left" if title in ("layer", "") else "right")
        for layer in self.layers:
            table.add_row(layer.name, _change(layer.inputs), _change(layer.outputs), "blank" if layer.blank else "")
        return Group(*([table] if self.layers else []), Text("\n".join(self._sentences())))

    def _sentences(self) -> list[str]:
        before, after = self.parameters
        share = f" ({100 * after / before:.1f} %)" if before else ""
        blank = [layer.name for layer in self.layers if layer.blank]
        kept, still = self.weights
        sentences = [f"Parameters {before:,} → {after:,}{share}; kept weights {kept:,} → {still:,}."]
        if blank:
            sentences.append(f"Whole layers gone: {', '.join(blank)}.")
        if self.folded:
            sentences.append(f"Constants folded into the biases of: {', '.join(self.folded)}.")
        if self.shifts:
            count = sum(self.shifts.values())
            sentences.append(
                f"{count:,} shifts of channels without input are taken as pruned: {', '.join(self.shifts)}."
            )
        if self.unchecked:
            sentences.append(f"Compared in eval mode alone: {self.unchecked}.")
        if self.layout:
            sentences.append(f"Weights in the order in memory that they had: {self.layout}.")
        sentences += [f"Left as they are, in {name}: {why}." for name, why in self.left.items()]
        return sentences

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=WIDTH, color_system=None, legacy_windows=False)
        with console.capture() as text:
            console.print(self)
        return "\n".join(line.rstrip() for line in text.get().splitlines())


def changed(removed: Removed, large: nn.Module) -> list[LayerPlan]:
    """The layers that became smaller, in the order of the model."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for (name, side), mask in removed.items():
        for end in ("in", "out") if side == "both" else (side,):
            found.setdefault(name, {})[end] = (mask.numel(), int((~mask).sum()))
    rows = []
    for name, module in large.named_modules():
        if name not in found or all(before == after for before, after in found[name].values()):
            continue
        ins = getattr(module, "in_channels", getattr(module, "in_features", 0))
        inputs, outputs = found[name].get("in", (ins, ins)), found[name].get("out", (0, 0))
        rows.append(LayerPlan(name, inputs, outputs, blank=0 in (inputs[1], outputs[1])))
    return rows


def _change(sizes: tuple[int, int]) -> str:
    before, after = sizes
    return "" if before == 0 else f"{before:,}" if before == after else f"{before:,} → {after:,}"
