"""Accuracy from the stored results: against what it costs, and how much of it is chance."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from icrbench.report.figures.style import GREY, MARKERS, PALETTE, headline, label_points, new_figure, short
from icrbench.report.leaderboard import AVERAGE, Column, Table
from icrbench.report.line import Line
from icrbench.report.names import display_name
from icrbench.store import CellRecord

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
    """Average accuracy against each cost that differs between the methods; None where no method has an average."""
    panels = {name: points(table, cost) for name, cost in _COSTS.items()}
    panels = {name: found for name, found in panels.items() if found}
    differing = {name: found for name, found in panels.items() if len({point.cost for point in found}) > 1}
    panels = differing or dict(list(panels.items())[:1])
    if not panels:
        return None
    figure = new_figure(0.6 + 1.6 * len(panels))
    color = {row.label: PALETTE[place % len(PALETTE)] for place, row in enumerate(table.rows)}
    marker = {row.label: MARKERS[place % len(MARKERS)] for place, row in enumerate(table.rows)}
    drawn = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    labels = []
    for axes, (name, found) in zip(drawn, panels.items(), strict=True):
        place = _cost_axis(axes, [point.cost for point in found])
        best = frontier(found)
        axes.step(
            [place(point.cost) for point in best],
            [point.accuracy for point in best],
            where="post",
            color=GREY,
            linewidth=0.8,
            zorder=1,
        )
        for point in found:
            axes.scatter(
                [place(point.cost)], [point.accuracy], s=18, color=color[point.label], marker=marker[point.label]
            )
        axes.set_xlabel(name)
        axes.margins(y=0.22)
        axes.autoscale_view(scalex=False)
        steps = [(place(point.cost), point.accuracy) for point in best]
        corners = [corner for one, other in pairwise(steps) for corner in (one, (other[0], one[1]), other)]
        labels.append(
            (axes, corners, [(display_name(p.label), place(p.cost), p.accuracy, color[p.label]) for p in found])
        )
    out = [display_name(row.label) for row in table.rows if row.scores[AVERAGE].mean is None]
    left_out = f" Without an average, left out: {', '.join(out)}." if out else ""
    headline(
        figure,
        "Accuracy against cost",
        f"{table.group.title}. Grey: nothing at most as dear is more accurate.{left_out}",
    )
    figure.supylabel("average accuracy, %", fontsize=7)
    for axes, corners, named in labels:
        label_points(axes, named, corners)
    return figure


def _cost_axis(axes: Axes, costs: list[float]) -> Callable[[float], float]:
    """A logarithmic axis with a place of its own for 0; returns what to plot a cost at."""
    positive = [cost for cost in costs if cost > 0]
    if not positive:
        positive = [1.0]
    zero = min(positive) / 8
    axes.set_xscale("log")
    low = zero if min(costs) <= 0 else min(positive)
    axes.set_xlim(low / 2, max(positive) * 4)
    decades = [10.0**power for power in range(-2, 13) if min(positive) / 3 <= 10.0**power <= max(positive) * 4]
    ticks = decades if len(decades) > 1 else sorted({min(positive), max(positive)})
    if min(costs) <= 0:
        ticks = [zero, *ticks]
    axes.set_xticks(ticks, ["0" if tick == zero and min(costs) <= 0 else short(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    return lambda cost: cost if cost > 0 else zero


def seed_values(line: Line, column: Column) -> list[float]:
    """The accuracy of each seed in per cent, averaged over the column's tasks; empty where cells are missing."""
    if not line.complete(*column.tasks):
        return []
    by_task = [line.moments(task).by_seed for task in column.tasks]
    return [100 * mean(of_seed) for of_seed in zip(*by_task, strict=True)]


def seeds(table: Table, by_label: dict[str, Line]) -> Figure | None:
    """Every seed of every method as a dot, with the interval over seeds and examples; one panel an average.

    Without any average the panels are the tasks; None where nothing is complete.
    """
    averages = [column for column in (table.columns[-1], *table.columns[:-1]) if column.is_average]
    columns = [column for column in averages if _shown(table, by_label, column)]
    columns = columns or [column for column in table.columns if _shown(table, by_label, column)]
    if not columns:
        return None
    figure = new_figure(0.55 + len(columns) * (0.4 + 0.17 * len(table.rows)))
    drawn = figure.subplots(len(columns), 1, squeeze=False, sharex=True)[:, 0]
    for axes, column in zip(drawn, columns, strict=True):
        for place, row in enumerate(table.rows):
            _seeds_of(axes, place, seed_values(by_label[row.label], column), row.scores[column.name].interval)
        axes.set_yticks(range(len(table.rows)), [display_name(row.label) for row in table.rows])
        axes.set_ylim(len(table.rows) - 0.5, -0.5)
        axes.set_title(column.title, loc="left", pad=2)
        axes.grid(axis="x", color="#e5e5e5", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
    drawn[-1].set_xlabel("accuracy, %")
    headline(
        figure,
        "Accuracy by seed",
        f"{table.group.title}. Dot: a seed. Bar: 95 % interval over seeds and examples; with one seed, over examples"
        " alone. Tick: mean.",
    )
    return figure


def _seeds_of(axes: Axes, place: int, values: list[float], interval: Any) -> None:
    if not values:
        axes.text(0.01, place, "not complete", transform=axes.get_yaxis_transform(), va="center", color=GREY)
        return
    if interval is not None:
        axes.plot([100 * interval.low, 100 * interval.high], [place, place], color="#a8c8e0", linewidth=4, zorder=1)
    centre = mean(values)
    axes.plot([centre, centre], [place - 0.3, place + 0.3], color="black", linewidth=1.0, zorder=2)
    spread = [place + 0.13 * (number % 3 - 1) if len(values) > 1 else place for number in range(len(values))]
    axes.scatter(values, spread, s=10, color=PALETTE[1], zorder=3, linewidths=0)


def _shown(table: Table, by_label: dict[str, Line], column: Column) -> bool:
    return any(seed_values(by_label[row.label], column) for row in table.rows)


def _records(table: Table, label: str) -> list[CellRecord]:
    return [record for name, record in table.group.records if name == label and record["status"] == "ok"]
