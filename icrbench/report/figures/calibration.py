"""What is left of every gain once label bias is taken out of both sides."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from icrbench.report.figures.style import GREY, LINE, WIDE, WIDTH, Mark, dot, headline, mark, new_figure
from icrbench.report.leaderboard import Table

Gain = tuple[str, float, float]
"""Label, raw gain, calibrated gain; in points."""


def gains(table: Table, other: Table) -> list[Gain]:
    """Of each method on each task, the difference to zero-shot: of the answers as they are, and of both corrected."""
    found = []
    for row in table.rows:
        for column in table.columns:
            raw, corrected = row.scores[column.name].versus, other.row(row.label).scores[column.name].versus
            if not column.is_average and raw and corrected:
                found.append((row.label, 100 * raw.difference, 100 * corrected.difference))
    return found


def calibration(table: Table) -> Figure | None:
    """Raw against calibrated gain, one dot a method and task, a panel a kind; None where nothing is calibrated."""
    panels = {kind: gains(table, other) for kind, other in table.calibrated.items()}
    panels = {kind: found for kind, found in panels.items() if found}
    if not panels:
        return None
    labels = list(dict.fromkeys(label for found in panels.values() for label, _, _ in found))
    names = {row.label: row.name for row in table.rows}
    marks = {label: mark(place) for place, label in enumerate(labels)}
    wide = WIDE if len(panels) > 1 else WIDTH
    figure = new_figure(0.6 + max(min((wide - 1.2) / len(panels), 2.9), LINE * (len(labels) + 1)), wide)
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)
    for axes, (kind, found) in zip(grid.flat, panels.items(), strict=True):
        _panel(axes, found, marks)
        axes.set_title(f"{kind}: {len({label for label, _, _ in found})} methods, {len(found)} dots", loc="left", pad=2)
        axes.set_xlabel("gain over zero-shot, points")
    grid[0, 0].set_ylabel("gain with both calibrated, points")
    handles = [
        Line2D([], [], linestyle="", marker=own.marker, color=own.color, markersize=4, label=names[label])
        for label, own in marks.items()
    ]
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=6.5)
    headline(
        figure,
        "What is left of a gain beside calibration",
        f"{table.group.title}. Dot: a method on a task. On the grey diagonal calibration changes nothing; on the "
        "horizontal line nothing is left of the gain.",
    )
    return figure


def _panel(axes: Axes, found: list[Gain], marks: dict[str, Mark]) -> None:
    ends = [value for _, *pair in found for value in pair] + [0.0]
    low, high = min(ends), max(ends)
    margin = 0.05 * (high - low) or 1.0
    low, high = low - margin, high + margin
    axes.plot([low, high], [low, high], color=GREY, linewidth=0.8, zorder=1)
    axes.axhline(0, color="black", linewidth=0.6, zorder=1)
    axes.axvline(0, color="#dddddd", linewidth=0.6, zorder=0)
    for label, raw, corrected in found:
        dot(axes, raw, corrected, marks[label], zorder=3)
