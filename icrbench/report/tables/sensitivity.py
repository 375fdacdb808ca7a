"""Tables of how far accuracy depends on a template, an order or a draw of demonstrations."""

import statistics
from collections.abc import Iterator

from icrbench.experiments import WAYS, Experiment
from icrbench.report.sensitivity import Sensitivity, Spread, sensitivities
from icrbench.report.tables.sheet import Sheet
from icrbench.report.text.grid import Entry, Grid
from icrbench.report.text.names import display_name, form_notes
from icrbench.report.text.numbers import MISSING, signed, tenths
from icrbench.store.store import Store

_NOTES = (
    "Plain: the task's own template, the first order, the first draw. Mean, min, max and sd (sample): of the average"
    " accuracy in %, over the ways to have it. In a task: highest less lowest accuracy of a task, in points, mean over"
    " tasks. Consistency: share of the ways that give a row its most frequent answer, in %; 100 also for a method that"
    " always answers the same. Kappa (Fleiss): the same beyond chance; — where every answer is the same.",
    "vs zero-shot: average accuracy less that of zero-shot had the same way, in points. The best way is picked on test"
    " rows: it says how large the choice is, never how good a method is.",
)


def sensitivity_sheets(experiment: Experiment, store: Store) -> list[Sheet]:
    """Two blocks a group of results: the averages, and every task; none where nothing was varied so.

    Raises:
        UserError: if a file of the store is damaged.
    """
    assert experiment.vary is not None, "a table of sensitivity varies something"
    return [
        sheet
        for found in sensitivities(store, experiment.vary)
        for sheet in (_averages(experiment, found), _by_task(experiment, found))
    ]


def _averages(experiment: Experiment, found: Sensitivity) -> Sheet:
    header = ("method", "Plain", "Mean", "Min", "Max", "sd", "In a task", "Consistency", "Kappa")
    rows = tuple((Entry(display_name(label)), *map(Entry, _summary(found, label))) for label in found.spreads)
    grid = Grid(experiment.title, (*header, "vs zero-shot: plain", "mean [min, max]"), rows)
    numbers = tuple(_numbers(found))
    return Sheet(found.title, grid, tuple(_notes(experiment, found)), tuple(found.group.origin), numbers)


def _by_task(experiment: Experiment, found: Sensitivity) -> Sheet:
    rows = tuple(
        (Entry(display_name(label)), *(Entry(_range(own.get(task))) for task in found.tasks))
        for label, own in found.spreads.items()
    )
    note = f"Plain accuracy in % and, in brackets, the lowest and highest of {WAYS[found.vary]} ways."
    grid = Grid(experiment.title, ("method", *found.tasks), rows)
    return Sheet(f"{found.title} · by task", grid, (note,), (), ())


def _summary(found: Sensitivity, label: str) -> Iterator[str]:
    average, gains = found.average(label), found.gains(label)
    if average is None:
        yield from [MISSING] * 10
        return
    for value in (average.plain, average.mean, average.low, average.high, average.sd):
        yield f"{tenths(value):.1f}"
    yield f"{tenths(statistics.mean(own.high - own.low for own in found.spreads[label].values())):.1f}"
    yield f"{tenths(average.consistency):.1f}"
    yield MISSING if average.kappa is None else f"{average.kappa:.2f}"
    yield "" if gains is None else signed(gains[0])
    yield "" if gains is None else f"{signed(statistics.mean(gains))} [{signed(min(gains))}, {signed(max(gains))}]"


def _range(spread: Spread | None) -> str:
    if spread is None:
        return MISSING
    return f"{tenths(spread.plain):.1f} ({tenths(spread.low):.1f}–{tenths(spread.high):.1f})"


def _notes(experiment: Experiment, found: Sensitivity) -> Iterator[str]:
    if experiment.note:
        yield experiment.note.strip()
    yield from _NOTES
    sizes = {record["result"]["n"] for _, record in found.group.records if record["result"]}
    chance = 50 / min(sizes) ** 0.5
    yield f"Chance alone: one accuracy on {min(sizes)} rows has a standard error of up to {chance:.1f} points."
    for label, tasks in found.unfinished.items():
        yield f"Left out, some cells being missing or failed: {display_name(label)} on {', '.join(tasks)}."
    yield from form_notes(found.spreads)


def _numbers(found: Sensitivity) -> Iterator[dict[str, object]]:
    """Return a line for each method, task and way; accuracies are fractions."""
    for label, by_task in found.spreads.items():
        for task, spread in by_task.items():
            for way, accuracy in enumerate(spread.accuracies):
                yield {
                    **found.group.place(),
                    "vary": found.vary,
                    "calibrate": found.calibrate,
                    "method": label,
                    "task": task,
                    "way": way,
                    "accuracy": accuracy,
                    "consistency": spread.consistency,
                    "kappa": spread.kappa,
                }
