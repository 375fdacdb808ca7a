"""Warnings that a table's own numbers call for: the best of many, a small task that moves averages."""

from statistics import fmean, median

from icrbench.report.leaderboard import AVERAGE, Row, Table
from icrbench.report.text.names import display_name
from icrbench.report.text.numbers import signed, tenths

MANY = 5
"""From so many rows on, being picked for the best score counts."""
_SMALL = 0.5  # of the median number of test rows
_MOVED = 1.0  # points of the leader's gain that a small task has to be worth


def cautions(table: Table) -> list[str]:
    """Return the warnings that hold for a table of accuracies."""
    return [*_flattered(table), *_moved(table)] if table.metric == "accuracy" and table.calibrate == "none" else []


def _flattered(table: Table) -> list[str]:
    rows = _ranked(table)
    variants = bool(table.group.variants_of)
    if len(rows) < MANY:
        return []
    what = f"{len(rows)} forms of {display_name(table.group.variants_of)}" if variants else f"{len(rows)} methods"
    return [
        f"The best of {what} is flattered: it was picked for the number it is shown with, so new rows or seeds will "
        "on average give it less."
    ]


def _moved(table: Table) -> list[str]:
    """Name the tasks with few test rows that move the gain of the best row, or whose absence makes another the best."""
    rows = _ranked(table)
    base = next((row for row in table.rows if row.label == "zero_shot"), None)
    tasks = table.columns[-1].tasks
    if not rows or base is None or base.scores[AVERAGE].mean is None or len(tasks) < 2:
        return []
    if not base.scores.keys() >= set(tasks):  # a table of averages alone
        return []
    sizes = {task: base.scores[task].rows or 0 for task in tasks}
    best = max(rows, key=lambda row: _gain(row, base, tasks))
    found = []
    for column in table.columns:
        if column.is_average or sizes[column.name] >= _SMALL * median(sizes.values()):
            continue
        rest = tuple(task for task in tasks if task != column.name)
        with_it, without = _gain(best, base, tasks), _gain(best, base, rest)
        first = max(rows, key=lambda row: _gain(row, base, rest))
        other = first is not best and tenths(_gain(first, base, rest)) > tenths(without)
        if not other and abs(tenths(with_it - without)) < _MOVED:
            continue
        size = sizes[column.name]
        text = (
            f"{column.title} has {size:,} test row{'s' if size > 1 else ''}, so one of them is "
            f"{tenths(1 / size):.1f} points there, and it moves averages: {display_name(best.label)} gains "
            f"{signed(with_it)} points over zero-shot with it and {signed(without)} without"
        )
        text += f", where {display_name(first.label)} is best with {signed(_gain(first, base, rest))}" if other else ""
        found.append(text + ".")
    return found


def _ranked(table: Table) -> list[Row]:
    return [row for row in table.rows if row.label != "zero_shot" and row.scores[AVERAGE].mean is not None]


def _gain(row: Row, base: Row, tasks: tuple[str, ...]) -> float:
    return fmean((row.scores[task].mean or 0.0) - (base.scores[task].mean or 0.0) for task in tasks)
