"""Accounting: how many weights masks keep, how many of these are on a path to the output, and what they cost."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from .files.masks import encode
from .masks import everything
from .messages import Dotted, disconnected_outputs, html_bars, plain_text, shape_of
from .paths import Use, losses, trace
from .running.shards import count
from .scope import matched, parameters

FLOPS = ("dense", "effective", "shrunk")


@dataclass(frozen=True)
class LayerAccount:
    """The counts of one masked weight. Those that need an example input are None without one."""

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int
    effective: int | None = None  # kept weights on a path from input to output
    flops_dense: int | None = None  # FLOPs are those of one sample
    flops_kept: int | None = None
    flops_effective: int | None = None
    flops_shrunk: int | None = None

    @property
    def empty(self) -> bool:
        """Whether the layer keeps no weight."""
        return self.kept == 0

    @property
    def disconnected(self) -> bool:
        """Whether the layer keeps weights, but no effective one."""
        return self.kept > 0 and self.effective == 0


@dataclass(frozen=True, repr=False)
class Account:
    """The counts and costs of masks. It prints as a table.

    - FLOPs are two per multiply-add of convolutions, linear layers and other matrix products with a parameter, masked
      or not, in one forward pass, per sample. The first dimension of the example counts its samples, if all inputs
      and the first output have the same first size; otherwise the example counts as one sample.
    - `flops_shrunk` is an estimate: the cost of dense layers without the rows and columns that have no effective
      weight, for each layer by itself. (Residual sums tie channels together, so `shrink` may remove fewer.)
    - Bytes are those of the parameters. `bytes_stored` counts the kept values, and for each masked weight either one
      bit per element or the gaps between kept elements, whichever is smaller, as in a mask file.
    """

    layers: list[LayerAccount]
    parameters: int
    bytes_dense: int
    bytes_stored: int
    flops_dense: int | None = None
    flops_kept: int | None = None
    flops_effective: int | None = None
    flops_shrunk: int | None = None
    collapsed: list[str] | None = None  # layers that disconnect the network, see `paths.losses`
    disconnected_outputs: int | None = None  # such as classes: no signal reaches them because of the masks
    outputs: int | None = None  # columns of the outputs with two dimensions; no others are counted

    @property
    def total(self) -> int:
        """The number of masked weights, kept or not."""
        return sum(layer.total for layer in self.layers)

    @property
    def kept(self) -> int:
        """The number of weights that the masks keep."""
        return sum(layer.kept for layer in self.layers)

    @property
    def effective(self) -> int | None:
        """The number of kept weights on a path from input to output."""
        counts = [layer.effective for layer in self.layers if layer.effective is not None]
        return sum(counts) if len(counts) == len(self.layers) else None

    @property
    def sparsity(self) -> float:
        """The fraction of masked weights that was removed."""
        return (self.total - self.kept) / max(self.total, 1)

    @property
    def sparsity_of_all(self) -> float:
        """The fraction of all parameters that was removed; parameters without a mask are kept."""
        return (self.total - self.kept) / max(self.parameters, 1)

    @property
    def effective_sparsity(self) -> float | None:
        """The fraction of masked weights that are on no path from input to output."""
        return None if self.effective is None else (self.total - self.effective) / max(self.total, 1)

    @property
    def empty(self) -> list[str]:
        """The layers that keep no weight."""
        return [layer.name for layer in self.layers if layer.empty]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values for JSON."""
        derived = ("total", "kept", "effective", "sparsity", "sparsity_of_all", "effective_sparsity", "empty")
        layers = [asdict(layer) | {"shape": list(layer.shape)} for layer in self.layers]
        return asdict(self) | {"layers": layers} | {name: getattr(self, name) for name in derived}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        table = self._table(FLOPS)
        fits = console.measure(table, options=options.update(max_width=1000)).maximum <= options.max_width
        yield table if fits else self._table(())
        yield Text("\n".join(self._sentences()))

    def _table(self, flops: tuple[str, ...]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_footer=True)
        traced = self.effective is not None  # with an example
        flops = flops if traced else ()
        table.add_column("layer", "all")
        table.add_column("shape", _count(self.total), justify="right")
        table.add_column("kept", _count(self.kept), justify="right")
        table.add_column("%", _percent(1 - self.sparsity), justify="right")
        if traced:
            table.add_column("effective", _count(self.effective), justify="right")
        for kind in flops:
            table.add_column(f"FLOPs/\nsample\n{kind}", _scaled(getattr(self, f"flops_{kind}")), justify="right")
        table.add_column("")
        for layer in self.layers:
            note = "empty" if layer.empty else "disconnected" if layer.disconnected else ""
            note = "collapsed" if layer.name in (self.collapsed or ()) else note
            table.add_row(
                Dotted(layer.name.removesuffix(".weight")),
                shape_of(layer.shape),
                _count(layer.kept),
                _percent(layer.kept / max(layer.total, 1)),
                *([_count(layer.effective)] if traced else []),
                *(_scaled(getattr(layer, f"flops_{kind}")) for kind in flops),
                note,
                style={"collapsed": "red", "": None}.get(note, "yellow"),
            )
        return table

    def _sentences(self) -> list[str]:
        effective = "" if self.effective_sparsity is None else f", effectively {_percent(self.effective_sparsity)} %"
        apart = [layer.name for layer in self.layers if layer.disconnected]
        known = [] if self.effective is None else [(kind, _scaled(getattr(self, f"flops_{kind}"))) for kind in FLOPS]
        flops = ", ".join(f"{count.strip()} {kind}" for kind, count in known)
        lost = disconnected_outputs(self.disconnected_outputs, self.outputs)
        return [
            f"Sparsity {_percent(self.sparsity)} % of {self.total:,} weights{effective}; "
            f"{_percent(self.sparsity_of_all)} % of all {self.parameters:,} parameters.",
            f"Bytes {_scaled(self.bytes_dense)}B dense, {_scaled(self.bytes_stored)}B stored sparse.",
            *([f"FLOPs per sample: {flops}."] if flops else []),
            *([f"Empty, with no weight kept: {', '.join(self.empty)}."] if self.empty else []),
            *([f"Disconnected, with no effective weight: {', '.join(apart)}."] if apart else []),
            *([f"COLLAPSED: no signal passes {', '.join(self.collapsed)}."] if self.collapsed else []),
            *([f"{lost.capitalize()}."] if lost and not self.collapsed else []),
        ]

    def __repr__(self) -> str:
        return f"Account({len(self.layers)} layers, {self.kept:,} of {self.total:,} weights kept)"

    def __str__(self) -> str:
        return plain_text(self)

    def _repr_html_(self) -> str:
        counts = ((x.name, x.total, x.kept, x.kept if x.effective is None else x.effective) for x in self.layers)
        return html_bars("\n".join(self._sentences()), counts)


def account(model: nn.Module, masks: Mapping[str, Tensor], example: Any = None) -> Account:
    """Count what masks keep in a model; with an example input, also count paths and FLOPs. The model is not changed.

    The example is what the model is called with: an input, a tuple of arguments, a dict of arguments by name, or
    (args, kwargs). Rows of a table that it does not use, such as other tokens, count like those that it uses.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 1, bias=False))
    >>> masks = {"0.weight": torch.ones(2, 4) > 0, "1.weight": torch.tensor([[True, False]])}
    >>> counts = account(net, masks, torch.zeros(1, 4))
    >>> counts.kept, counts.effective, counts.flops_dense, counts.flops_effective, counts.flops_shrunk
    (9, 5, 20, 10, 10)
    """
    masked = matched(model, masks)
    named = parameters(model)
    size = sum(p.numel() for p in named.values())
    bytes_dense = bytes_stored = sum(p.numel() * p.element_size() for p in named.values())
    layers = {name: LayerAccount(name, tuple(p.shape), p.numel(), count(mask)) for name, p, mask in masked}
    for name, parameter, mask in masked:
        if removed := layers[name].total - layers[name].kept:
            bytes_stored += encode(mask)[1].numel() - removed * parameter.element_size()
    if example is None:
        return Account(list(layers.values()), size, bytes_dense, bytes_stored)

    unmasked = {n: p for n, p in named.items() if n not in masks and p.is_floating_point() and p.dim() > 1}
    traced = trace(model, {**masks, **everything(unmasked)}, example)
    sums = [0, 0, 0, 0]
    for name, on_path in traced.effective.items():
        kept = layers[name].kept if name in layers else on_path.numel()
        effective, use = int(on_path.count_nonzero()), traced.uses.get(name, Use())
        dense, used = use.dense // traced.samples, use.kept // traced.samples  # multiply-adds of one sample
        adds = (dense, used, used * effective / max(kept, 1), dense * _occupied(on_path))
        flops = [2 * round(each) for each in adds]
        sums = [a + b for a, b in zip(sums, flops, strict=True)]
        if name in layers:
            layers[name] = LayerAccount(name, layers[name].shape, layers[name].total, kept, effective, *flops)
    costs = (bytes_dense, bytes_stored, sums[0], sums[1], sums[2], sums[3])
    return Account(list(layers.values()), size, *costs, *losses(model, masks, example, traced), traced.columns)


def _occupied(mask: Tensor) -> float:
    """Return the share of a weight that is left without its empty rows and columns (output and input channels).

    >>> import torch
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
    """Write a number with three digits and a unit.

    >>> _scaled(12), _scaled(4_118_000_000), _scaled(999_960), _scaled(523_500)
    ('12 ', '4.12 G', '1.00 M', '524 k')
    """
    power = 0
    while number >= 999.5 and power < 4:
        number, power = number / 1000, power + 1
    return f"{number:#.3g}".rstrip(".") + f" {'kMGT'[power - 1]}" if power else f"{number:.0f} "
