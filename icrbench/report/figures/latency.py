"""Seconds a query against the length of its prompt."""

from matplotlib.figure import Figure

from icrbench.report.figures.sources import Latency
from icrbench.report.figures.style import LINE, headline, label_ends, logarithmic, mark, new_figure
from icrbench.report.text.names import display_name


def latency(found: Latency) -> Figure:
    """One line a method, on logarithmic axes."""
    figure = new_figure(max(2.6, 1.2 + LINE * len(found.seconds)))
    axes = figure.add_subplot()
    ends = []
    for place, (label, seconds) in enumerate(found.seconds.items()):
        own, milliseconds = mark(place), [1000 * value for value in seconds]
        axes.plot(found.lengths, milliseconds, marker=own.marker, markersize=3, color=own.color)
        ends.append((display_name(label), found.lengths[-1], milliseconds[-1], own))
    logarithmic(axes, found.lengths)
    axes.set_xlabel("tokens of the query")
    axes.set_ylabel("ms a query")
    headline(
        figure,
        "Time of one query",
        f"{found.model}. Median of rounds in which the methods take turns, one query at a time; demonstrations are"
        " computed before, where the method allows it.",
    )
    figure.draw_without_rendering()  # settles limits and layout
    label_ends(axes, ends)
    return figure
