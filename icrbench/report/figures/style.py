"""How every figure looks: one or two columns of a paper wide, colours that colour-blind people tell apart.

Nothing here needs a display, and the same data gives the same bytes: no dates and no versions are written.
"""

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import offset_copy
from scipy.optimize import isotonic_regression

from icrbench.util.files import write_atomic

WIDTH = 3.4  # inches, one column
WIDE = 7.0  # both columns and the gap between
LINE = 8.5 / 72  # inches from one label to the next
ENDINGS = ("pdf", "png")
# Okabe and Ito (2008), without the yellow that a white page swallows.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*X"
DOT = 5.5  # points across a mark
_SIZES = {"*": 1.5, "P": 1.2, "X": 1.2, "^": 1.1, "v": 1.1, "D": 0.9}  # by which marks look equally large
_KEY = 14  # points from the edge of a plot to the mark of a label
GREY = "#777777"
SEQUENTIAL = "Blues"
DIVERGING = "RdBu_r"

_SETTINGS: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws alike; its digits are tabular
    "font.size": 7.0,
    "axes.titlesize": 7.0,
    "axes.labelsize": 7.0,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "pdf.fonttype": 42,  # text stays text
    "savefig.dpi": 300,
}


@contextmanager
def styled() -> Iterator[None]:
    """Figures made and saved within look like each other, whatever the user's matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Make a figure of ``width`` by ``height`` inches; one column wide by default."""
    return Figure(figsize=(width, height), layout="constrained")


def headline(figure: Figure, words: str, about: str) -> None:
    """Write the title in bold and its subject; lines break at the width of the figure."""
    columns = figure.get_figwidth() / WIDTH
    title = "\n".join(textwrap.wrap(words, int(52 * columns)))
    figure.suptitle(title, x=0.01 / columns, ha="left", fontsize=8, fontweight="bold")
    said = "\n".join(textwrap.wrap(about, int(68 * columns)))
    figure.supxlabel(said, x=0.01 / columns, ha="left", fontsize=6, color="#555555")


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's ending.

    Raises:
        UserError: if the folder cannot be written.
    """
    kind = path.suffix[1:]
    metadata = {"pdf": {"CreationDate": None, "Producer": None, "Creator": None}, "png": {"Software": None}}[kind]
    content = io.BytesIO()
    figure.savefig(content, format=kind, metadata=metadata)
    write_atomic(path, content.getvalue())


@dataclass(frozen=True)
class Mark:
    """How one method is drawn: 56 pairs of a marker and a colour before one comes back."""

    marker: str
    color: str


def mark(place: int) -> Mark:
    """Return the mark of the method in this place of a table."""
    return Mark(MARKERS[place % len(MARKERS)], PALETTE[place % len(PALETTE)])


def spaced(values: Sequence[float], gap: float) -> list[float]:
    """Values of 0..1 moved as little as can be (least squares), so that neighbours are at least ``gap`` apart.

    Where there is no room for all of them, they stick out of 0..1 alike at both ends.
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    room = 1 - gap * (len(values) - 1)
    # Less ``gap`` for each value below, the moved values must only not fall: an isotonic regression.
    level = isotonic_regression([values[index] - gap * rank for rank, index in enumerate(order)]).x
    placed = [0.0] * len(values)
    for rank, index in enumerate(order):
        placed[index] = (min(max(float(level[rank]), 0.0), room) if room > 0 else room / 2) + gap * rank
    return placed


def logarithmic(axes: Axes, ticks: Sequence[int]) -> None:
    """Both axes logarithmic: across, a tick at each of these whole numbers; up, at 1, 2 and 5 of each power of ten."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def label_ends(axes: Axes, ends: Sequence[tuple[str, float, float, Mark]]) -> None:
    """Write names one below the other beside the right edge, each with its mark and a thin line to its point.

    Call it once limits and layout are settled (``Figure.draw_without_rendering``).

    Args:
        axes: with final limits.
        ends: name, x and y of the point where its line starts, mark.
    """
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [float(to_axes.transform((x, y))[1]) for _, x, y, _ in ends]
    key, text = (offset_copy(axes.transAxes, figure, points, units="points") for points in (_KEY, _KEY + 6))
    gap = LINE * figure.dpi / axes.get_window_extent().height
    for (name, x, y, own), place in zip(ends, spaced(heights, gap), strict=True):
        line = ConnectionPatch((x, y), (1, place), axes.transData, key, color=own.color, linewidth=0.5, clip_on=False)
        line.set_in_layout(False)
        axes.add_artist(line)
        dot(axes, 1, place, own, transform=key, clip_on=False, zorder=3)
        axes.text(1, place, name, transform=text, va="center", color="#222222")


def dot(axes: Axes, x: float, y: float, own: Mark, **more: Any) -> None:
    """One mark with a white edge, by which marks that cover each other are told apart."""
    size = (DOT * _SIZES.get(own.marker, 1.0)) ** 2
    axes.scatter([x], [y], s=size, color=own.color, marker=own.marker, edgecolors="white", linewidths=0.4, **more)


def apart(places: Sequence[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Places moved sideways, and as little as half steps allow, until no two are closer than ``gap``; any unit."""
    moved: dict[int, tuple[float, float]] = {}
    for index in sorted(range(len(places)), key=lambda index: (places[index][1], places[index][0])):
        x, y = places[index]
        steps = (side * step * gap / 2 for step in count() for side in (1, -1))
        tries = ((x + step, y) for step in steps)
        moved[index] = next(new for new in tries if all(math.dist(new, old) >= gap for old in moved.values()))
    return [moved[index] for index in range(len(places))]


def short(number: float) -> str:
    """Shorten a count: ``950``, ``12 k``, ``3.4 M``."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"
