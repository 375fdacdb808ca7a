"""Accuracy of every way to have a method: under each template, order or draw of demonstrations."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from icrbench.experiments import WAYS, Vary
from icrbench.report.figures.style import GREY, PALETTE, WIDE, WIDTH, headline, new_figure
from icrbench.report.sensitivity import Sensitivity, Spread
from icrbench.report.text.names import display_name

_WORDS: dict[Vary, str] = {
    "templates": "templates, fitted under the first",
    "templates-refit": "templates, fitted under each",
    "orders": "orders of the same demonstrations",
    "demonstrations": "draws of demonstrations",
}


def sensitivity(found: Sensitivity) -> Figure:
    """Return a dot a way, a row a method, a panel a task and one for the average."""
    labels = list(found.spreads)
    panels: list[tuple[str, list[Spread | None]]] = [("Average", [found.average(label) for label in labels])]
    panels += [(task, [found.spreads[label].get(task) for label in labels]) for task in found.tasks]
    if len(found.tasks) == 1:
        panels = panels[1:]
    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)
    figure = new_figure(0.8 + down * (0.45 + 0.22 * len(labels)), WIDE if across > 1 else WIDTH)
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    grid[0, 0].set_yticks(range(len(labels)), [display_name(label) for label in labels])
    grid[0, 0].set_ylim(len(labels) - 0.5, -0.5)
    for axes, (title, spreads) in zip(grid.flat, panels, strict=False):
        for place, spread in enumerate(spreads):
            _row(axes, place, spread)
        axes.set_title(title, loc="left", pad=2)
        axes.grid(axis="x", color="#e5e5e5", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.remove()
        elif number + across >= len(panels):
            axes.set_xlabel("accuracy, %")
    headline(
        figure,
        f"Accuracy under {WAYS[found.vary]} {_WORDS[found.vary]}",
        f"{found.title}. Dot: one of {WAYS[found.vary]} ways; filled, the plain one. Bar: from the lowest to the"
        " highest. Tick: mean.",
    )
    return figure


def _row(axes: Axes, place: int, spread: Spread | None) -> None:
    if spread is None:
        axes.text(0.01, place, "not complete", transform=axes.get_yaxis_transform(), va="center", color=GREY)
        return
    ends = [100 * spread.low, 100 * spread.high]
    axes.plot(ends, [place] * 2, color="#a8c8e0", linewidth=4, solid_capstyle="butt", zorder=1)
    axes.plot([100 * spread.mean] * 2, [place - 0.32, place + 0.32], color="black", linewidth=1.0, zorder=2)
    for way, accuracy in enumerate(spread.accuracies):
        height = place + 0.13 * (way % 3 - 1)
        fill = PALETTE[1] if way == 0 else "none"
        axes.scatter([100 * accuracy], [height], s=11, facecolors=fill, edgecolors=PALETTE[1], linewidths=0.6, zorder=3)
