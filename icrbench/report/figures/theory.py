"""How well PCA finds directions that domains share, on synthetic data whose answer is known."""

import numpy as np
from matplotlib.figure import Figure

from icrbench.report.figures.sources import Theory
from icrbench.report.figures.style import headline, label_ends, logarithmic, mark, new_figure


def theory(found: Theory) -> Figure:
    """Draw the sine and its bound against the number of domains, a line for each number of samples."""
    held = (found.sine <= found.bound)[found.bound < 1]
    figure = new_figure(2.9)
    axes = figure.add_subplot()
    ends = []
    for place, (samples, sine, bound) in enumerate(zip(found.samples, found.sine, found.bound, strict=True)):
        own, middle = mark(place), np.median(sine, axis=-1)
        axes.fill_between(found.domains, sine.min(-1), sine.max(-1), color=own.color, alpha=0.2, linewidth=0)
        axes.plot(found.domains, middle, marker=own.marker, markersize=3, color=own.color)
        axes.plot(found.domains, np.median(bound, axis=-1), color=own.color, linestyle=(0, (3, 1.5)), linewidth=0.8)
        ends.append((f"N = {samples}", found.domains[-1], float(middle[-1]), own))
    logarithmic(axes, found.domains)
    axes.set_xlabel("domains D")
    axes.set_ylabel("sine of the largest angle")
    headline(
        figure,
        "Does PCA find what domains share?",
        f"Synthetic data: {found.rank} shared directions in {found.width} dimensions, N samples in all domains"
        f" together. Line and band: median and range of {found.sine.shape[-1]} seeds. Dashed: median of the Davis–Kahan"
        f" bound, which held in {held.sum()} of the {held.size} draws in which it is below 1.",
    )
    figure.draw_without_rendering()  # settles limits and layout
    label_ends(axes, ends)
    return figure
