"""The control of every gain: accuracies raw and calibrated, and what is left against calibrated zero-shot."""

from dataclasses import replace

from icrbench.report.leaderboard import Table, leaderboard
from icrbench.report.notes import notes
from icrbench.report.outcomes import Calibration, Outcomes
from icrbench.report.tables.accuracy import accuracy_sheet, every_row
from icrbench.report.tables.row_selection import Selection, place, row_notes
from icrbench.report.tables.sheet import Sheet
from icrbench.report.text.control import control_column, control_grid, control_notes, controlled, numbers
from icrbench.scoring.prior import KINDS

_TRANSDUCTIVE = (
    "An analysis, no result: the prior is the mean over the very test rows that are scored, as batch calibration was "
    "published. An answer here depends on the other test rows, so no leaderboard has these numbers."
)


def calibration_sheets(selection: Selection, outcomes: Outcomes) -> list[Sheet]:
    """Return a block for each kind of prior that the records have, and one for the transductive form, which needs none.

    Where no row can be held against zero-shot, the accuracies alone.
    """
    kinds: tuple[Calibration, ...] = (*KINDS, "transductive")
    table = leaderboard(selection.group, outcomes, kinds)
    calibrated = {kind: _every_row(selection, other) for kind, other in table.calibrated.items()}
    table = replace(_every_row(selection, table), calibrated=calibrated)
    sheets = [_sheet(selection, table, other) for other in controlled(table)]
    return sheets or [accuracy_sheet(selection, outcomes)]


def _sheet(selection: Selection, table: Table, other: Table) -> Sheet:
    column = control_column(table, other)
    assert column is not None
    names = {label: row for row, label in selection.rows}
    lines = tuple(
        {
            **place(selection, names[row.label], row.label),
            "calibrate": other.calibrate,
            "column": column.name,
            "accuracy": row.scores[column.name].mean,
            **{_common(name, other.calibrate): value for name, value in found.items()},
        }
        for row, found in ((row, numbers(row, column, other.calibrate, other)) for row in table.rows)
    )
    own = replace(table, calibrated={other.calibrate: other})
    words = [_TRANSDUCTIVE] if other.calibrate == "transductive" else []
    words += [*row_notes(selection), *notes(own), *control_notes(own)]
    title = f"{table.group.title} · {other.calibrate}"
    return Sheet(title, control_grid(table, other), tuple(dict.fromkeys(words)), tuple(table.group.origin), lines)


def _every_row(selection: Selection, table: Table) -> Table:
    return replace(table, rows=every_row(selection, {row.label: row for row in table.rows}, table.columns))


def _common(name: str, kind: Calibration) -> str:
    """Return the name of a column that all kinds share: ``both_calibrated`` of ``both_bc``."""
    return name.replace(kind, "calibrated", 1)
