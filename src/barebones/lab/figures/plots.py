"""Plots: the style that all figures share, sizes that fit a paper's column, and files that repeat byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import floor, log, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...data import DATA
from ...files.container import atomically
from ...models import MODELS
from ..experiment.styles import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COLUMN, PAGE = 3.5, 7.0  # widths in inches: one column, and two
TALLEST = 9.2  # inches: what a printed page has room for, above a caption
LOWEST = 1.3  # inches: of a panel with its title and labels
ENTRY = 0.16  # inches: a line of a legend
AXIS = 2.8  # inches: about the width of a panel's x-axis
LETTER = 0.055  # inches: about the width of a letter in legends and beside ticks
SPAN = (0.9, 0.99, 0.999, 0.9999)  # every axis of sparsities shows at least these
DPI = 220
INK, GREY, FAINT, ALARM = "#222222", "#6b6b6b", "#d9d9d9", "#b22222"
ORDERED = "viridis"  # colours of ordered values, such as layers and sparsities

RC: Any = {
    "font.family": "DejaVu Sans",  # matplotlib brings it, so every machine draws the same
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.titlepad": 5,
    "axes.labelsize": 7.5,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.4,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.visible": False,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "text.color": INK,
    "svg.hashsalt": "barebones",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # fonts as TrueType, as publishers ask for
    "figure.dpi": DPI,
}


def model_label(model: str) -> str:
    """Return the label of a network in its row; a network without a row is shown by its name."""
    return MODELS[model].label if model in MODELS else model


def data_label(name: str) -> str:
    """Return the label of a data set; the name itself if there is none."""
    return (DATA[name].label if name in DATA else "") or name


def title(data: str, model: str) -> str:
    """Return the title of a panel: data set and network.

    >>> title("cifar10", "vgg19"), title("digits", "my.module:net")
    ('CIFAR-10, VGG-19', 'Digits, my.module:net')
    """
    return f"{data_label(data)}, {model_label(model)}"


def percent(share: float) -> str:
    """Return a share as a percentage.

    >>> percent(0.9), percent(0.995), percent(0.9999)
    ('90 %', '99.5 %', '99.99 %')
    """
    return f"{round(100 * share, 6):g} %"


def require_matplotlib() -> None:
    """Raise an `ImportError` that says how to install matplotlib if it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("figures are drawn with matplotlib: pip install 'barebones[figures]'") from error


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this style inside the block, and ignore the user's settings of matplotlib."""
    require_matplotlib()
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


def canvas(width: float, height: float) -> Canvas:
    """Return an empty figure of this size in inches; its layout makes room for what is drawn."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def panels(rows: int, columns: int, height: float = 2.3, below: Sequence[str] = ()) -> tuple[Canvas, list[list[Axes]]]:
    """Return a figure with equal panels: one column wide for one panel, otherwise as wide as a page, and not taller.

    `below` are the labels of a legend that needs room of its own. Only if there are very many, the page is taller.
    """
    width = COLUMN if columns == 1 else PAGE
    room = 0.0
    if below:
        lines = max(label.count("\n") + 1 for label in below)
        room = ENTRY * lines * -(-len(below) // legend_columns(below, width))
    figure = canvas(width, max(min(height * rows + room, TALLEST), LOWEST * rows + room))
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False)]


def save(figure: Canvas, stem: Path) -> list[Path]:
    """Write stem.png, stem.svg and stem.pdf; the same figure gives the same bytes."""
    about: dict[str, dict[str, Any]] = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": "barebones"},
        "pdf": {"CreationDate": None, "Producer": None, "Creator": "barebones"},
    }
    written = []
    for kind, metadata in about.items():
        written.append(stem.with_name(f"{stem.name}.{kind}"))
        with atomically(written[-1]) as file:
            figure.savefig(file, format=kind, dpi=DPI, facecolor="white", metadata=metadata)
    return written


def caution(figure: Canvas, text: str) -> None:
    """Write a warning above a figure, in room of its own."""
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.25)
    if not figure.get_constrained_layout():  # a table, which fills the figure
        for axes in figure.axes:
            axes.set_position((0.0, 0.0, 1.0, height / (height + 0.25)))
    title = figure.get_suptitle()
    figure.suptitle(f"{text}\n{title}" if title else text, x=0.01, ha="left", fontsize=7, color=ALARM)


def log_axis(
    axes: Axes, ticks: Mapping[float, str], label: str, room: float = 1.25, reach: Iterable[float] = ()
) -> None:
    """Make the x-axis logarithmic, with a tick at each position and labels where there is room.

    Short labels come first, and of these the powers of ten. The axis goes beyond the ticks, and beyond the positions
    in `reach`, by the factor `room` at each end.
    """
    from matplotlib.ticker import FixedLocator, NullLocator

    places = [*ticks, *reach]
    low, high = min(places) / room, max(places) * room
    axes.set_xlim(low, high)
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
    placed: dict[float, tuple[float, float]] = {}  # centre and half of the width of each label, in inches
    for position in sorted(ticks, key=lambda place: (len(ticks[place]), round(log10(place) % 1, 6) != 0, -place)):
        centre, half = AXIS * log(position) / log(high / low), LETTER * (len(ticks[position]) + 0.6) / 2
        if all(abs(centre - other) >= half + reserved for other, reserved in placed.values()):
            placed[position] = centre, half
    axes.set_xticklabels([ticks[position] if position in placed else "" for position in sorted(ticks)])
    axes.set_xlabel(label)


def density_axis(axes: Axes, sparsities: Iterable[float], room: float = 1.25, span: Iterable[float] = SPAN) -> None:
    """Make the x-axis logarithmic in the density, falling, with sparsities as labels; it shows at least `span`."""
    ticks = {1 - sparsity: removed(sparsity) for sparsity in {*sparsities, *span}}
    log_axis(axes, ticks, "weights removed (%)", room)
    axes.invert_xaxis()


def removed(sparsity: float) -> str:
    """Return a sparsity in percent, with as many digits as show three digits of what is left.

    >>> [removed(share) for share in (0.0, 0.825, 0.9000123, 0.995, 0.99995, 1.0)]
    ['0', '82.5', '90', '99.5', '99.995', '100']
    """
    left = 100 * (1 - sparsity)
    digits = max(0, 2 - floor(log10(left))) if left > 0 else 0
    return f"{round(100 * sparsity, digits):.15g}"


def count_axis(axes: Axes, counts: Iterable[int], label: str) -> None:
    """Make the x-axis logarithmic, with a tick for each of these whole numbers and labels where there is room."""
    ticks = {float(count): str(count) for count in counts}
    log_axis(axes, ticks, label, room=max((max(ticks) / min(ticks)) ** 0.05, 1.1))


def whole_ticks(axis: Any) -> None:
    """Put ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(6, integer=True))


def ticks_every(axis: Any, size: float) -> None:
    """Put ticks at the multiples of a number."""
    from matplotlib.ticker import MultipleLocator

    axis.set_major_locator(MultipleLocator(size))


def plain_log(axis: Any, low: float, high: float) -> None:
    """Label a logarithmic axis with plain numbers, fewer of them on a long axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    fine = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    axis.set_major_locator(LogLocator(subs=fine if high < 5 * low else (1.0, 2.0, 5.0), numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def shades(values: Sequence[Any]) -> dict[Any, Any]:
    """Return a colour for each of these ordered values, dark to light."""
    from matplotlib import colormaps

    most = max(len(values) - 1, 1)
    return {value: colormaps[ORDERED](0.92 * number / most) for number, value in enumerate(values)}


def scale_bar(figure: Canvas, axes: Axes, values: Sequence[float], label: str) -> None:
    """Draw the meaning of `shades` in the place of an empty panel."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    shown = ListedColormap([colormaps[ORDERED](0.92 * number / 255) for number in range(256)])
    inside = axes.inset_axes((0.1, 0.5, 0.8, 0.06))
    figure.colorbar(ScalarMappable(Normalize(min(values), max(values)), shown), cax=inside, orientation="horizontal")
    inside.set_xlabel(label)


def legend(figure: Canvas, handles: dict[str, Any], columns: int = 5) -> None:
    """Draw one legend for the whole figure, below it; it has fewer columns if the labels are too long for so many."""
    if handles:
        columns = legend_columns(list(handles), figure.get_figwidth(), columns)
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns)


def legend_columns(labels: Sequence[str], width: float, most: int = 5) -> int:
    """Return how many columns of a legend fit into a figure of this width: each is as wide as its longest label."""
    number = len(labels)
    for columns in range(min(most, number), 1, -1):
        sizes = [number // columns + (n < number % columns) for n in range(columns)]  # as matplotlib splits them
        parts = [labels[sum(sizes[:n]) : sum(sizes[: n + 1])] for n in range(columns)]
        longest = [max(len(line) for label in part for line in label.splitlines()) for part in parts]
        if sum(LETTER * letters + 0.5 for letters in longest) <= width:
            return columns
    return 1


def handle(method: str, **changes: Any) -> Any:
    """Return the legend entry of a method."""
    return line_handle(**({"colour": look(method).colour, "marker": look(method).marker} | changes))


def line_handle(colour: str, marker: str, linestyle: Any = "-", **changes: Any) -> Any:
    """Return a legend entry for a line."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **({"color": colour, "marker": marker, "linestyle": linestyle} | changes))


def hollow(colour: str, marker: str = "o") -> dict[str, Any]:
    """Return how a number of the paper is drawn: as a hollow marker beside ours."""
    return {
        "linestyle": "none", "marker": marker, "markersize": 6.5, "markerfacecolor": "none",
        "markeredgecolor": colour, "markeredgewidth": 1.0, "zorder": 4,
    }  # fmt: skip


def thickness(layers: int, line: float, marker: float) -> dict[str, float]:
    """Return the sizes of a line over layers: deep networks are drawn finer."""
    factor = 1.0 if layers <= 20 else 0.65
    return {"linewidth": factor * line, "markersize": factor * marker}


Cell = str | tuple[str, dict[str, Any]]  # a text, optionally with properties of matplotlib's text


def table(
    head: Sequence[str],
    body: Sequence[Sequence[Cell]],
    widths: Sequence[float],
    above: Sequence[tuple[int, int, str]] = (),
    rules: Iterable[int] = (),
    note: str = "",
) -> Canvas:
    """Return a table as a picture: the first column aligned left, the others right.

    `widths` are in inches. Each entry of `above` is (first column, last column, text): a heading over several columns.
    `rules` are the rows after which a thin line is drawn.
    """
    line = 0.19  # inches
    lines = len(body) + 1.2 + (1 if above else 0)
    foot = note.count("\n") + 1.6 if note else 0.3
    page_width, page_height = sum(widths) + 0.2, line * (lines + foot + 0.4)
    figure = canvas(page_width, page_height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0, page_width)
    axes.set_ylim(page_height, 0)
    edges = [0.1]
    for width in widths:
        edges.append(edges[-1] + width)

    def put(column: int, y: float, cell: Cell, **defaults: Any) -> None:
        text, properties = (cell, {}) if isinstance(cell, str) else cell
        first = column == 0
        x = edges[0] if first else edges[column + 1] - 0.06
        axes.text(x, y, text, ha="left" if first else "right", va="center", **(defaults | properties))

    def rule(y: float, thick: float, start: float = edges[0], end: float = edges[-1]) -> None:
        axes.plot([start, end], [y, y], color=INK, linewidth=thick, solid_capstyle="butt")

    y = 0.12
    rule(y, 0.9)
    if above:
        for first, last, word in above:
            axes.text((edges[first] + edges[last + 1]) / 2 + 0.06, y + line * 0.6, word, ha="center", va="center")
            rule(y + line * 1.1, 0.4, edges[first] + 0.12, edges[last + 1])
        y += line * 1.1
    for column, word in enumerate(head):
        put(column, y + line * 0.6, word, fontweight="bold")
    y += line * 1.15
    rule(y, 0.6)
    after = set(rules)
    for number, cells in enumerate(body):
        for column, cell in enumerate(cells):
            put(column, y + line * 0.58, cell)
        y += line
        if number in after:
            rule(y + line * 0.06, 0.4)
    rule(y + line * 0.1, 0.9)
    if note:
        axes.text(edges[0], y + line * 0.45, note, ha="left", va="top", fontsize=6.5, color=GREY, linespacing=1.35)
    return figure
