"""Accuracy from the stored results: against what it costs, and how much of it is chance."""

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from icrbench.report.figures.style import (
    DOT,
    GREY,
    LINE,
    PALETTE,
    WIDE,
    WIDTH,
    apart,
    dot,
    headline,
    label_ends,
    mark,
    new_figure,
    short,
)
from icrbench.report.leaderboard import AVERAGE, Column, Score, Table
from icrbench.report.text.names import display_name
from icrbench.store.records import CellRecord

_COSTS: dict[str, Callable[[Any], float | None]] = {
    "numbers kept (cached parameters)": lambda result: result["cached_parameters"],
    "tokens through the model to fit": lambda result: result.get("fit_tokens"),
    "seconds to fit": lambda result: result["seconds_fit"],
    "tokens of a prompt": lambda result: result["prompt_tokens"] / result["n"],
}


@dataclass(frozen=True)
class Point:
    """One method: its average accuracy in per cent, and the mean of a cost over its cells."""

    label: str
    accuracy: float
    cost: float


def points(table: Table, cost: Callable[[Any], float | None]) -> list[Point]:
    """Methods with an average and the cost in their records."""
    found = []
    for row in table.rows:
        accuracy = row.scores[AVERAGE].mean
        costs = [cost(record["result"]) for record in _records(table, row.label)]
        known = [value for value in costs if value is not None]
        if accuracy is not None and known and len(known) == len(costs):
            found.append(Point(row.label, 100 * accuracy, float(mean(known))))
    return found


def frontier(found: list[Point]) -> list[Point]:
    """Those that no other point beats: nothing at most as dear is more accurate. Cheapest first."""
    best: list[Point] = []
    for point in sorted(found, key=lambda point: (point.cost, -point.accuracy)):
        if not best or point.accuracy > best[-1].accuracy:
            best.append(point)
    return best


def pareto(table: Table) -> Figure | None:
    """Average accuracy against each cost that differs between the methods; None where no method has an average.

    Panels share the accuracy axis, so one column of labels beside a row of panels names the points of all of them.
    """
    panels = {name: points(table, cost) for name, cost in _COSTS.items()}
    panels = {name: found for name, found in panels.items() if found}
    differing = {name: found for name, found in panels.items() if len({point.cost for point in found}) > 1}
    panels = differing or dict(list(panels.items())[:1])
    if not panels:
        return None
    marks = {row.label: mark(place) for place, row in enumerate(table.rows)}
    known = {point.label: point.accuracy for found in panels.values() for point in found}
    across = 2 if len(panels) == 4 else len(panels)
    down = len(panels) // across
    figure = new_figure(0.55 + down * (0.45 + max(1.2, LINE * (len(known) + 1))), WIDE if across > 1 else WIDTH)
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    out = [display_name(row.label) for row in table.rows if row.scores[AVERAGE].mean is None]
    left_out = f" Without an average, left out: {', '.join(out)}." if out else ""
    headline(
        figure,
        "Accuracy against cost",
        f"{table.group.title}. Grey line, the Pareto frontier: methods on it are more accurate than every other that"
        f" costs as much or less. Marks that would hide each other are moved sideways.{left_out}",
    )
    low, high = min(known.values()), max(known.values())
    margin = 0.06 * (high - low) or 1.0
    grid[0, 0].set_ylim(low - margin, high + margin)
    placed = []
    for axes, (name, found) in zip(grid.flat, panels.items(), strict=True):
        place = _cost_axis(axes, [point.cost for point in found])
        best = frontier(found)
        at, steps = [place(point.cost) for point in best], [point.accuracy for point in best]
        axes.step(at, steps, where="post", color=GREY, linewidth=0.8, zorder=1)
        axes.grid(axis="y", color="#e5e5e5", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.set_xlabel(textwrap.fill(name, 20) if across > 2 else name)  # or it would run into its neighbour's
        placed.append((axes, [(point.label, place(point.cost), point.accuracy) for point in found]))
    for row in grid:
        row[0].set_ylabel("average accuracy, %")
        figure.draw_without_rendering()  # settles the height of the panels, on which the labels' places depend
        edge = row[-1].get_xlim()[1]
        label_ends(row[-1], [(display_name(label), edge, value, marks[label]) for label, value in known.items()])
    figure.draw_without_rendering()  # settles their width, on which hiding depends
    for axes, named in placed:
        pixels = [(float(x), float(y)) for x, y in axes.transData.transform([place for _, *place in named])]
        moved = axes.transData.inverted().transform(apart(pixels, 0.75 * DOT * figure.dpi / 72))
        for (label, _, value), (x, _) in zip(named, moved, strict=True):
            dot(axes, float(x), value, marks[label], zorder=3)
    return figure


def _cost_axis(axes: Axes, costs: list[float]) -> Callable[[float], float]:
    """Make an axis logarithmic, with a place for 0; return the function from a cost to its place."""
    positive = [cost for cost in costs if cost > 0]
    if not positive:
        positive = [1.0]
    zero = min(positive) / 8
    axes.set_xscale("log")
    low = zero if min(costs) <= 0 else min(positive)
    axes.set_xlim(low / 2, max(positive) * 2)
    ticks: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5)):  # what of each power of ten; more, where there would be no scale to read
        if len(ticks) < 2:
            round_numbers = [step * 10.0**power for power in range(-3, 13) for step in steps]
            ticks = [number for number in round_numbers if min(positive) / 2 <= number <= max(positive) * 2]
    if min(costs) <= 0:
        ticks = [zero, *ticks]
    axes.set_xticks(ticks, ["0" if tick == zero and min(costs) <= 0 else short(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    return lambda cost: cost if cost > 0 else zero


def seeds(table: Table) -> Figure | None:
    """Every seed of every method as a dot, with the interval over seeds and examples; one panel an average.

    Without any average the panels are the tasks; None where nothing is complete.
    """
    averages = [column for column in (table.columns[-1], *table.columns[:-1]) if column.is_average]
    columns = [column for column in averages if _shown(table, column)]
    columns = columns or [column for column in table.columns if _shown(table, column)]
    if not columns:
        return None
    across = min(4, len(columns))
    down = math.ceil(len(columns) / across)
    figure = new_figure(0.7 + down * (0.4 + 0.15 * len(table.rows)), WIDE if across > 1 else WIDTH)
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    grid[0, 0].set_yticks(range(len(table.rows)), [row.name for row in table.rows])
    grid[0, 0].set_ylim(len(table.rows) - 0.5, -0.5)
    for axes, column in zip(grid.flat, columns, strict=False):
        for place, row in enumerate(table.rows):
            _seeds_of(axes, place, row.scores[column.name])
        axes.set_title(column.title, loc="left", pad=2)
        axes.grid(axis="x", color="#e5e5e5", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
    for number, axes in enumerate(grid.flat):
        if number >= len(columns):
            axes.remove()
        elif number + across >= len(columns):  # the lowest of its column of panels
            axes.tick_params(axis="x", labelbottom=True)
            axes.set_xlabel("accuracy, %")
    headline(
        figure,
        "Accuracy by seed",
        f"{table.group.title}. Dot: a seed. Bar: 95 % interval over seeds and examples; with one seed, over examples"
        " alone. Tick: mean.",
    )
    return figure


def _seeds_of(axes: Axes, place: int, score: Score) -> None:
    if score.status != "ok":
        axes.text(0.01, place, "not complete", transform=axes.get_yaxis_transform(), va="center", color=GREY)
        return
    values, interval = [100 * value for value in score.by_seed], score.interval
    if interval is not None:
        ends = [100 * interval.low, 100 * interval.high]
        axes.plot(ends, [place, place], color="#a8c8e0", linewidth=4, solid_capstyle="butt", zorder=1)
    centre = mean(values)
    axes.plot([centre, centre], [place - 0.3, place + 0.3], color="black", linewidth=1.0, zorder=2)
    spread = [place + 0.13 * (number % 3 - 1) if len(values) > 1 else place for number in range(len(values))]
    axes.scatter(values, spread, s=10, color=PALETTE[1], zorder=3, linewidths=0)


def _shown(table: Table, column: Column) -> bool:
    return any(row.scores[column.name].status == "ok" for row in table.rows)


def _records(table: Table, label: str) -> list[CellRecord]:
    return [record for name, record in table.group.records if name == label and record["status"] == "ok"]
