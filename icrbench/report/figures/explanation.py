"""What a method does to one input, as ``icrbench explain`` found it."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from icrbench.report.figures.style import (
    DIVERGING,
    ENDINGS,
    GREY,
    PALETTE,
    SEQUENTIAL,
    headline,
    new_figure,
    save,
    styled,
)
from icrbench.report.text.names import display_name
from icrbench.util.errors import UserError


def check_ending(path: Path) -> None:
    """Refuse a file that is no figure's.

    Raises:
        UserError: unless the name ends in .pdf or .png.
    """
    if path.suffix[1:] not in ENDINGS:
        raise UserError(f"--figure {path} must end in .pdf or .png: name it so.")


def write_explanation(explained: dict[str, Any], path: Path) -> None:
    """Draw and write one explanation.

    Raises:
        UserError: if the folder cannot be written.
    """
    with styled():
        save(explanation(explained), path)


def explanation(explained: dict[str, Any]) -> Figure:
    """Alpha and gamma where there is a router, change of attention by layer, and the options before and after."""
    router, options = explained["router"], explained["options"]
    heights = [0.25 + 0.14 * len(router["layers"])] * 2 if router else []
    heights += [0.8, 0.15 + 0.2 * len(options)]
    figure = new_figure(sum(heights) + 0.45 * len(heights) + 0.6)
    drawn = list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
    if router:
        alpha, gamma = np.array(router["alpha"]), np.array(router["gamma"])
        most = max(float(np.abs(alpha).max()), 1e-9)
        _grid(figure, drawn.pop(0), alpha, router["layers"], "alpha", "direction", DIVERGING, (-most, most))
        _grid(figure, drawn.pop(0), gamma, router["layers"], "gamma", "head", SEQUENTIAL, (0.0, 1.0))
    layers = explained["layers"]
    drawn[0].bar(
        [layer["layer"] for layer in layers], [layer["attention_change"] for layer in layers], color=PALETTE[0]
    )
    drawn[0].set_title("change of the last token's attention (total variation)", loc="left")
    drawn[0].set_xlabel("layer, counted from 0")
    drawn[0].set_ylim(bottom=0)
    drawn[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    _options(drawn[1], options)
    headline(
        figure,
        f"{display_name(explained['method'])} on one input",
        f"{explained['model']}, task {explained['task']}: “{_end(explained['prompt'])}”",
    )
    return figure


def _grid(
    figure: Figure, axes: Axes, values: Any, layers: list[int], title: str, across: str, colours: str, limits: Any
) -> None:
    image = axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set_ylabel("layer")
    axes.set_xlabel(f"{across}, counted from 0", labelpad=1)
    axes.set_title(title, loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)


def _options(axes: Axes, options: list[dict[str, Any]]) -> None:
    """Grey ring before, filled dot after, a line between."""
    for place, option in enumerate(options):
        before, after = 100 * option["before"], 100 * option["after"]
        axes.plot([before, after], [place, place], color=GREY, linewidth=1.0, zorder=1)
        axes.scatter([before], [place], s=22, facecolors="white", edgecolors=GREY, zorder=2)
        axes.scatter([after], [place], s=22, color=PALETTE[1], zorder=3)
        axes.annotate(f"{after:.0f}", (after, place), (0, 4), textcoords="offset points", ha="center", color=PALETTE[1])
    axes.set_yticks(range(len(options)), [option["option"] for option in options])
    axes.set_ylim(len(options) - 0.5, -0.7)
    axes.set_xlim(-3, 103)
    axes.set_title("probability among the options, %: ring before, dot after", loc="left")
    axes.tick_params(axis="y", length=0)


def _end(prompt: str, longest: int = 150) -> str:
    words = " ".join(prompt.split())
    return words if len(words) <= longest else "…" + words[-longest:]
