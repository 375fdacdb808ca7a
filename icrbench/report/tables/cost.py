"""Tables that are not of accuracy but come from the same records: what a fit costs, and what must be kept of it."""

from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any

from icrbench.report.notes import origin
from icrbench.report.render import MISSING, Entry, Grid
from icrbench.report.tables.selection import Selection, place, row_notes
from icrbench.report.tables.sheet import Sheet
from icrbench.store import CellRecord
from icrbench.task import get_tasks

_COST = {
    "fit_seconds": "Fit, s",
    "all_fits_seconds": "All fits, s",
    "fit_tokens": "Fit, tokens",
    "milliseconds_a_row": "Scoring, ms a row",
    "fit_peak_bytes": "Fit peak, MiB",
}
_COST_NOTE = (
    "Fit: one fit, the mean over tasks and seeds; ICR is fitted once for all tasks, the other methods once a task."
    " All fits: what the {tasks} tasks need together, one seed. A fit that finds ICL bases or trunk states of another"
    " on disk takes less than from nothing. Scoring: mean over tasks and seeds."
    " Fit peak: most memory beyond what was held before the fit, the largest of the row."
)
_PARAMETER_NOTE = (
    "Cached: numbers kept to apply the method to a new query, the mean over tasks and seeds, and the smallest and"
    " largest where they differ. The formula is in M demonstration tokens, d hidden size, L layers, r rank."
)


def costs(selection: Selection, label: str) -> dict[str, float | None]:
    """A row of the cost table; what the records do not say is None."""
    ran = _results(selection, label)
    tasks = len(get_tasks(selection.experiment.tasks, None))
    peaks = _optional(ran, "fit_peak_bytes")
    tokens = _optional(ran, "fit_tokens")
    return {
        "fit_seconds": mean(result["seconds_fit"] for _, result in ran) if ran else None,
        "all_fits_seconds": _all_fits(ran, tasks),
        "fit_tokens": mean(tokens) if tokens else None,
        "milliseconds_a_row": mean(1000 * r["seconds_score"] / r["n"] for _, r in ran) if ran else None,
        "fit_peak_bytes": max(peaks) if peaks else None,
    }


def cost_sheet(selection: Selection) -> Sheet:
    """A block of the cost table."""
    found = {label: costs(selection, label) for _, label in selection.rows}
    rows = tuple(
        (Entry(row.name), *(Entry(_cost(name, found[label][name])) for name in _COST)) for row, label in selection.rows
    )
    lines = tuple(
        {**place(selection, row, label), "column": name, "value": found[label][name]}
        for row, label in selection.rows
        for name in _COST
    )
    note = _COST_NOTE.format(tasks=len(get_tasks(selection.experiment.tasks, None)))
    return _sheet(selection, ("method", *_COST.values()), rows, note, lines)


def parameters(selection: Selection, label: str) -> tuple[list[int], str | None]:
    """Cached numbers of every cell of a row, and their formula if the records say it."""
    ran = _results(selection, label)
    formulas = dict.fromkeys(str(result["cached_formula"]) for _, result in ran if result.get("cached_formula"))
    return [result["cached_parameters"] for _, result in ran], " or ".join(formulas) or None


def parameter_sheet(selection: Selection) -> Sheet:
    """A block of the table of cached parameters."""
    rows, lines = [], []
    for row, label in selection.rows:
        cached, formula = parameters(selection, label)
        rows.append((Entry(row.name), Entry(spread(cached)), Entry(formula or MISSING)))
        values = {"mean": mean(cached), "min": min(cached), "max": max(cached)} if cached else {"mean": None}
        lines += [
            {**place(selection, row, label), "column": f"cached_{name}", "value": value, "formula": formula}
            for name, value in values.items()
        ]
    return _sheet(selection, ("method", "Cached", "Formula"), tuple(rows), _PARAMETER_NOTE, tuple(lines))


def spread(values: Sequence[int]) -> str:
    """A mean, and the range if there is one."""
    if not values:
        return MISSING
    words = f"{mean(values):,.0f}"
    return words if min(values) == max(values) else f"{words} ({min(values):,}–{max(values):,})"


def _sheet(
    selection: Selection,
    header: tuple[str, ...],
    rows: tuple[tuple[Entry, ...], ...],
    note: str,
    lines: tuple[dict[str, object], ...],
) -> Sheet:
    records = [record for label in selection.records for record in selection.records[label]]
    made = origin(records) if records else []
    machines = next((value for name, value in made if name == "machine"), "")
    timed = [f"Timed on: {machines}."] if machines and selection.experiment.columns == "cost" else []
    notes = (*row_notes(selection), note, *timed, f"{MISSING}: not run, or not in the record.")
    return Sheet(selection.group.title, Grid(selection.experiment.title, header, rows), notes, tuple(made), lines)


def _results(selection: Selection, label: str) -> list[tuple[CellRecord, Any]]:
    """The successful cells of a row."""
    return [(record, record["result"]) for record in selection.records[label] if record["result"] is not None]


def _optional(ran: Iterable[tuple[CellRecord, Any]], key: str) -> list[float]:
    return [float(result[key]) for _, result in ran if result.get(key) is not None]


def _all_fits(ran: Sequence[tuple[CellRecord, Any]], tasks: int) -> float | None:
    """Seconds to fit for every task; None unless every task was run."""
    by_task: dict[str, list[float]] = {}
    for record, result in ran:
        by_task.setdefault(record["cell"]["task"], []).append(float(result["seconds_fit"]))
    if len(by_task) < tasks:
        return None
    if all(record["identity"].get("target") is None for record, _ in ran):  # one fit serves every task
        return mean(float(result["seconds_fit"]) for _, result in ran)
    return sum(mean(seconds) for seconds in by_task.values())


def _cost(name: str, value: float | None) -> str:
    if value is None:
        return MISSING
    if name == "fit_peak_bytes":
        return f"{value / 2**20:,.0f}"
    return f"{value:,.0f}" if name == "fit_tokens" or value >= 100 else f"{value:.1f}"
