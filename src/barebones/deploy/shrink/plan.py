"""What a network loses when it is shrunk: the cuts, and their plan as a table, in sentences and for JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from ...messages import Dotted, plain_text
from .cut import RemovedChannels


@dataclass(frozen=True)
class LayerPlan:
    """One layer that became smaller: its channels before and after."""

    name: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    blank: bool = False  # all its weights are removed: it returns its bias, or zeros


@dataclass(frozen=True)
class ShrinkPlan:
    """What `shrink` did; it prints as a table, and `to_dict` is ready for JSON."""

    layers: list[LayerPlan]
    parameters: tuple[int, int]  # before and after, as dense tensors
    weights: tuple[int, int]  # that the masks keep, before and after
    folded: dict[str, int] = field(default_factory=dict)  # layer -> constant inputs that were added to its bias
    shifts: dict[str, int] = field(default_factory=dict)  # layer -> shifts that count as pruned (before_training)
    left: dict[str, str] = field(default_factory=dict)  # layer -> why channels without a signal are kept
    unchecked: str = ""  # where the networks were not compared, and why: "in train mode: ...", "with other values: ..."
    layout: str = ""  # why the weights are not channels last in memory, if they should be

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values for JSON."""
        return asdict(self)

    def __rich__(self) -> Group:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for title in ("layer", "inputs", "outputs", ""):
            table.add_column(title, justify="left" if title in ("layer", "") else "right")
        for layer in self.layers:
            blank = "blank" if layer.blank else ""
            table.add_row(Dotted(layer.name), _change(layer.inputs), _change(layer.outputs), blank)
        return Group(*([table] if self.layers else []), Text("\n".join(self._sentences())))

    def _sentences(self) -> list[str]:
        before, after = self.parameters
        share = f" ({100 * after / before:.1f} %)" if before else ""
        blank = [layer.name for layer in self.layers if layer.blank]
        kept, still_kept = self.weights
        sentences = [f"Parameters {before:,} → {after:,}{share}; kept weights {kept:,} → {still_kept:,}."]
        if blank:
            sentences.append(f"Whole layers removed: {', '.join(blank)}.")
        if self.folded:
            sentences.append(f"Constant inputs folded into the biases of: {', '.join(self.folded)}.")
        if self.shifts:
            count = sum(self.shifts.values())
            sentences.append(f"{count:,} shifts of channels without input count as pruned: {', '.join(self.shifts)}.")
        if self.unchecked:
            sentences.append(f"Not compared {self.unchecked}.")
        if self.layout:
            sentences.append(f"The weights keep their order in memory: {self.layout}.")
        sentences += [f"Channels without a signal stay in {name}: {why}." for name, why in self.left.items()]
        return sentences

    def __str__(self) -> str:
        return plain_text(self)


@dataclass(frozen=True)
class Cuts:
    """What shrinking changes in a network, by layer."""

    removed: RemovedChannels
    added: dict[str, Tensor]  # to the bias: what constant inputs that are removed contribute
    zeroed: dict[str, Tensor]  # bool: the channels whose shift counts as pruned
    zeroed_connections: dict[str, Tensor]  # bool, as (outputs, inputs): the connections that `expand` sets to zero
    channels_last: bool
    plan: ShrinkPlan


def smaller_layers(removed: RemovedChannels, large: nn.Module) -> list[LayerPlan]:
    """Return the layers that became smaller, in the order of the model."""
    sizes: dict[str, dict[str, tuple[int, int]]] = {}
    for (name, side), mask in removed.items():
        for end in ("in", "out") if side == "both" else (side,):
            sizes.setdefault(name, {})[end] = (mask.numel(), int((~mask).sum()))
    rows = []
    for name, module in large.named_modules():
        if name not in sizes or all(before == after for before, after in sizes[name].values()):
            continue
        width = getattr(module, "in_channels", getattr(module, "in_features", 0))
        inputs, outputs = sizes[name].get("in", (width, width)), sizes[name].get("out", (0, 0))
        rows.append(LayerPlan(name, inputs, outputs, blank=0 in (inputs[1], outputs[1])))
    return rows


def _change(sizes: tuple[int, int]) -> str:
    before, after = sizes
    return "" if before == 0 else f"{before:,}" if before == after else f"{before:,} → {after:,}"
