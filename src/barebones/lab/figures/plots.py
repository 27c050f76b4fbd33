"""Plots: the style that all figures share, sizes that fit a paper's column, and files that repeat byte for byte."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...data import DATA
from ...files.container import atomically
from ...imports import optional
from ...models import MODELS
from ..experiment.experiment import DENSE
from ..experiment.styles import looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Canvas
else:  # matplotlib is optional, and takes a second to import
    Axes = Canvas = Any

COLUMN, PAGE = 3.5, 7.0  # widths in inches: one column, and two
TALLEST = 9.2  # inches: what a printed page has room for, above a caption
LOWEST = 1.3  # inches: of a panel with its title and labels
SPAN = (0.9, 0.98)  # every axis of sparsities shows at least these
DPI = 220
INK, GRAY, FAINT, ALARM = "#222222", "#6b6b6b", "#d9d9d9", "#b22222"
ORDERED = "viridis"  # colors of ordered values, such as layers and sparsities

RC: Any = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.edgecolor": GRAY,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.4,
    **{f"{axis}tick.{name}color": color for axis in "xy" for name, color in (("", GRAY), ("label", INK))},
    **{f"{axis}tick.{name}": size for axis in "xy" for name, size in (("labelsize", 7), ("major.width", 0.6))},
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "svg.hashsalt": "barebones",
    "pdf.fonttype": 42,  # fonts as TrueType, as publishers ask for
    "figure.dpi": DPI,
}


def model_label(model: str) -> str:
    return MODELS[model].label if model in MODELS else model


def data_label(name: str) -> str:
    return (DATA[name].label if name in DATA else "") or name


def title(data: str, model: str) -> str:
    """Return the title of a panel: data set and network.

    >>> title("cifar10", "vgg19"), title("digits", "my.module:net")
    ('CIFAR-10, VGG-19', 'Digits, my.module:net')
    """
    return f"{data_label(data)}, {model_label(model)}"


def in_order(methods: Iterable[str]) -> list[str]:
    """Return these methods in the order in which they are drawn: dense first, FORCE last, so that it is on top."""
    known = dict.fromkeys(methods)
    return [method for method in dict.fromkeys([DENSE, *reversed(looks()), *known]) if method in known]


def percent(share: float) -> str:
    return f"{removed(share)} %"


def require_matplotlib() -> None:
    optional("matplotlib", "figures are drawn with matplotlib", "figures")


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this style inside the block, and ignore the user's settings of matplotlib."""
    require_matplotlib()
    from matplotlib import style

    with style.context(RC, after_reset=True):
        yield


def canvas(width: float, height: float) -> Canvas:
    """Return an empty figure of this size in inches; its layout makes room for what is drawn."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def panels(rows: int, columns: int, height: float = 2.3) -> tuple[Canvas, list[list[Axes]]]:
    """Return a figure with equal panels: one column wide for one panel, otherwise as wide as a page, and not taller."""
    figure = canvas(COLUMN if columns == 1 else PAGE, min(height * rows, TALLEST))
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False)]


def grid(number: int, columns: int, ylabel: str, height: float = 2.3) -> tuple[Canvas, list[Axes]]:
    """Return a figure with this many panels, line by line; the first of each line has the label of the y-axis."""
    figure, lines = panels(-(-number // columns), columns, height)
    axes = [axes for line in lines for axes in line]
    for first, *_ in lines:
        first.set_ylabel(ylabel)
    for empty in axes[number:]:
        empty.set_axis_off()
    return figure, axes[:number]


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
    title = figure.get_suptitle()
    figure.suptitle(f"{text}\n{title}" if title else text, x=0.01, ha="left", fontsize=7, color=ALARM)


def log_axis(axis: Any, low: float, high: float, text: Callable[[float], str] = "{:g}".format) -> None:
    """Make an axis logarithmic between two values, with more labels on a short axis; `text` is the label of a value."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}lim": (low, high), f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 600 * low else (1.0,), numticks=20))
    axis.set_major_formatter(lambda value, _: text(value))
    axis.set_minor_formatter(NullFormatter())


def density_axis(axes: Axes, sparsities: Iterable[float]) -> None:
    """Make the x-axis logarithmic in the density, falling, with sparsities as labels; it shows at least `SPAN`."""
    left = [1 - sparsity for sparsity in {*sparsities, *SPAN}]
    log_axis(axes.xaxis, min(left) / 1.25, max(left) * 1.25, lambda density: removed(1 - density))
    axes.set_xlabel("weights removed (%)")
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
    """Make the x-axis logarithmic, wide enough for these whole numbers."""
    low, high = min(numbers := list(counts)), max(numbers)
    room = max((high / low) ** 0.05, 1.1)
    log_axis(axes.xaxis, low / room, high * room)
    axes.set_xlabel(label)


def shades(values: Sequence[Any]) -> dict[Any, Any]:
    """Return a color for each of these ordered values, dark to light."""
    from matplotlib import colormaps

    most = max(len(values) - 1, 1)
    return {value: colormaps[ORDERED](0.92 * number / most) for number, value in enumerate(values)}


def legend(figure: Canvas, handles: dict[str, Any], columns: int = 5) -> float:
    """Draw one legend below the figure, with as many columns as there is room for, and return its height in inches."""
    for number in range(min(columns, len(handles)), 0, -1):
        drawn = figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=number)
        size = drawn.get_window_extent()
        if size.width <= figure.bbox.width or number == 1:
            return size.height / figure.dpi
        drawn.remove()
    return 0.0


def handle(color: str, marker: str, linestyle: Any = "-", **changes: Any) -> Any:
    """Return the line of a legend's entry."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **({"color": color, "marker": marker, "linestyle": linestyle} | changes))


def hollow(color: str, marker: str = "o") -> dict[str, Any]:
    """Return how a number of the paper is drawn: as a hollow marker beside ours."""
    return {
        "linestyle": "none", "marker": marker, "markersize": 6.5, "markerfacecolor": "none",
        "markeredgecolor": color, "markeredgewidth": 1.0, "zorder": 4,
    }  # fmt: skip
