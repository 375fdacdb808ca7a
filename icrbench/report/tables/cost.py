"""Tables that are not of accuracy but come from the same records: what a fit costs, and what must be kept of it."""

from collections.abc import Sequence
from statistics import mean

from icrbench.data.find_tasks import get_tasks
from icrbench.report import costs as shared
from icrbench.report.costs import cached, cost_text, spread
from icrbench.report.origin import origin
from icrbench.report.tables.row_selection import Selection, place, row_notes
from icrbench.report.tables.sheet import Sheet
from icrbench.report.text.grid import Entry, Grid
from icrbench.report.text.numbers import MISSING
from icrbench.store.records import CellRecord

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
    """Make a row of the cost table; what the records do not say is None."""
    records = selection.records[label]
    tasks = len(get_tasks(selection.experiment.tasks, None))
    return {**shared.costs(records), "all_fits_seconds": _all_fits(records, tasks)}


def cost_sheet(selection: Selection) -> Sheet:
    """Make a block of the cost table."""
    found = {label: costs(selection, label) for _, label in selection.rows}
    rows = tuple(
        (Entry(selection.name(row, label)), *(Entry(cost_text(name, found[label][name])) for name in _COST))
        for row, label in selection.rows
    )
    lines = tuple(
        {**place(selection, row, label), "column": name, "value": found[label][name]}
        for row, label in selection.rows
        for name in _COST
    )
    note = _COST_NOTE.format(tasks=len(get_tasks(selection.experiment.tasks, None)))
    return _sheet(selection, ("method", *_COST.values()), rows, note, lines)


def parameters(selection: Selection, label: str) -> tuple[list[int], str | None]:
    """Return cached numbers of every cell of a row, and their formula if the records say it."""
    return cached(selection.records[label])


def parameter_sheet(selection: Selection) -> Sheet:
    """Make a block of the table of cached parameters."""
    rows, lines = [], []
    for row, label in selection.rows:
        kept, formula = parameters(selection, label)
        rows.append((Entry(selection.name(row, label)), Entry(spread(kept)), Entry(formula or MISSING)))
        values = {"mean": mean(kept), "min": min(kept), "max": max(kept)} if kept else {"mean": None}
        lines += [
            {**place(selection, row, label), "column": f"cached_{name}", "value": value, "formula": formula}
            for name, value in values.items()
        ]
    return _sheet(selection, ("method", "Cached", "Formula"), tuple(rows), _PARAMETER_NOTE, tuple(lines))


def _sheet(
    selection: Selection,
    header: tuple[str, ...],
    rows: tuple[tuple[Entry, ...], ...],
    note: str,
    lines: tuple[dict[str, object], ...],
) -> Sheet:
    records = [record for label in selection.records for record in selection.records[label]]
    made = origin(records)
    machines = next((value for name, value in made if name == "machine"), "")
    timed = [f"Timed on: {machines}."] if machines and selection.experiment.columns == "cost" else []
    notes = (*row_notes(selection), note, *timed, f"{MISSING}: not run, or not in the record.")
    return Sheet(selection.group.title, Grid(selection.experiment.title, header, rows), notes, tuple(made), lines)


def _all_fits(records: Sequence[CellRecord], tasks: int) -> float | None:
    """Seconds to fit for every task, each fit counted once; None unless every task was run."""
    if len({record["cell"]["task"] for record in records if record["result"] is not None}) < tasks:
        return None
    by_fit: dict[str | None, list[float]] = {}
    for record in records:
        if record["result"] is not None:  # tasks out of domain may share a fit
            by_fit.setdefault(record["identity"].get("target"), []).append(record["result"]["seconds_fit"])
    return sum(mean(seconds) for seconds in by_fit.values())
