"""Seconds a query against the length of its prompt."""

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from icrbench.report.figures.sources import Latency
from icrbench.report.figures.style import MARKERS, PALETTE, headline, label_ends, new_figure
from icrbench.report.names import display_name


def latency(found: Latency) -> Figure:
    """One line a method, on logarithmic axes."""
    figure = new_figure(2.6)
    axes = figure.add_subplot()
    ends = []
    for place, (label, seconds) in enumerate(found.seconds.items()):
        color, milliseconds = PALETTE[place % len(PALETTE)], [1000 * value for value in seconds]
        axes.plot(found.lengths, milliseconds, marker=MARKERS[place % len(MARKERS)], markersize=3, color=color)
        ends.append((display_name(label), found.lengths[-1], milliseconds[-1], color))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(found.lengths, [str(length) for length in found.lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("tokens of the query")
    axes.set_ylabel("ms a query")
    label_ends(axes, ends)
    headline(
        figure,
        "Time of one query",
        f"{found.model}. Median of rounds in which the methods take turns, one query at a time; demonstrations are"
        " computed before, where the method allows it.",
    )
    return figure
