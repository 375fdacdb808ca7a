"""How every figure looks: one column of a paper wide, colours that colour-blind people tell apart, labels at the data.

Nothing here needs a display, and the same data gives the same bytes: no dates and no versions are written.
"""

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from icrbench.files import write_atomic

WIDTH = 3.4  # inches, one column
ENDINGS = ("pdf", "png")
# Okabe and Ito (2008), without the yellow that a white page swallows.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vP*X"
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


def new_figure(height: float) -> Figure:
    """A figure one column wide and ``height`` inches high."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def headline(figure: Figure, words: str, about: str) -> None:
    """What is shown, in bold, and of what; lines break at the column's width."""
    title = "\n".join(textwrap.wrap(words, 52))
    figure.suptitle(title, x=0.01, ha="left", fontsize=8, fontweight="bold")
    figure.supxlabel("\n".join(textwrap.wrap(about, 68)), x=0.01, ha="left", fontsize=6, color="#555555")


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


def spaced(values: Sequence[float], gap: float) -> list[float]:
    """Values of 0..1 moved as little as a simple pass can, so that neighbours are at least ``gap`` apart."""
    order = sorted(range(len(values)), key=values.__getitem__)
    placed = [0.0] * len(values)
    lowest = float("-inf")
    for index in order:
        lowest = placed[index] = max(values[index], lowest + gap)
    above = 1.0
    for index in reversed(order):
        above = placed[index] = min(placed[index], above)
        above -= gap
    return placed


def label_ends(axes: Axes, ends: Sequence[tuple[str, float, float, str]]) -> None:
    """Write names beside the right edge, each joined to the end of its line; call it once the limits are set.

    Args:
        axes: with final limits.
        ends: name, x and y of the last point, colour.
    """
    height = axes.get_figure(root=True).get_size_inches()[1]  # type: ignore[union-attr]
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [float(to_axes.transform((x, y))[1]) for _, x, y, _ in ends]
    for (name, x, y, color), place in zip(ends, spaced(heights, 0.21 / height), strict=True):
        axes.annotate(
            name,
            (x, y),
            (1.06, place),
            textcoords="axes fraction",
            color=color,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": 0.5,
                "shrinkA": 1,
                "shrinkB": 2,
                "relpos": (0, 0.5),
            },
        )


def label_points(
    axes: Axes, points: Sequence[tuple[str, float, float, str]], corners: Sequence[tuple[float, float]]
) -> None:
    """Write a name beside each point where it covers no other name, point, line or edge, as far as there is room.

    Args:
        axes: with final limits.
        points: name, x, y, colour.
        corners: of a line through the plot that runs along the axes.
    """
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()  # settles the layout, on which overlaps depend
    inside = axes.get_window_extent()
    unit = figure.dpi / 72
    dots = _pixels(axes, [(x, y) for _, x, y, _ in points])
    taken = [_box(dot, dot, 3 * unit) for dot in dots]
    taken += [_box(one, other, unit) for one, other in pairwise(_pixels(axes, corners))]
    for name, x, y, color in points:
        best: tuple[float, Any, Any] | None = None
        for shift, (across, up) in _places():
            note = axes.annotate(
                name,
                (x, y),
                (across * shift, up * shift),
                textcoords="offset points",
                color=color,
                ha={1: "left", -1: "right", 0: "center"}[across],
                va={1: "bottom", -1: "top", 0: "center"}[up],
                annotation_clip=False,
            )
            note.set_in_layout(False)
            box = note.get_window_extent()
            area = box.x0, box.y0, box.x1, box.y1
            out = max(inside.x0 - box.x0, 0) + max(box.x1 - inside.x1, 0)
            out += max(inside.y0 - box.y0, 0) + max(box.y1 - inside.y1, 0)
            bad = 50 * out * unit + sum(_overlap(area, other) for other in taken) + 0.01 * shift
            if best is None or bad < best[0]:
                if best is not None:
                    best[1].remove()
                best = bad, note, area
            else:
                note.remove()
        assert best is not None
        taken.append(best[2])


def _places() -> Iterator[tuple[float, tuple[int, int]]]:
    for shift in (5.0, 9.0, 14.0, 20.0):
        for place in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)):
            yield shift, place


def _pixels(axes: Axes, places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(float(px), float(py)) for px, py in (axes.transData.transform(place) for place in places)]


_Box = tuple[float, float, float, float]


def _box(one: tuple[float, float], other: tuple[float, float], margin: float) -> _Box:
    (x0, x1), (y0, y1) = sorted((one[0], other[0])), sorted((one[1], other[1]))
    return x0 - margin, y0 - margin, x1 + margin, y1 + margin


def _overlap(one: _Box, other: _Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return width * height if width > 0 and height > 0 else 0.0


def short(number: float) -> str:
    """A count in few characters: ``950``, ``12 k``, ``3.4 M``."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"
