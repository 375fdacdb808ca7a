"""What stands beside raw accuracies: the calibrated ones, and what is left of a gain against calibrated zero-shot."""

from icrbench.report.leaderboard import AVERAGE, Change, Column, Row, Score, Table
from icrbench.report.outcomes import Calibration
from icrbench.report.text.grid import Entry, Grid
from icrbench.report.text.numbers import MISSING, probability, signed, signed_interval
from icrbench.scoring.prior import KINDS


def besides(table: Table) -> list[str]:
    """Titles of the calibrated averages that stand beside the raw one: of each kind that some row has."""
    return [f"Average, {kind}" for kind in _averaged(table)]


def beside(table: Table, row: Row) -> list[Entry]:
    """Return a row's entries below ``besides``."""
    found = []
    for kind in _averaged(table):
        other = table.calibrated[kind]
        same = other.row(row.label)
        found.append(Entry(_hundredfold(same.scores[AVERAGE]), other.rank(AVERAGE, same)))
    return found


def controlled(table: Table) -> list[Table]:
    """Return the calibrated tables with an average that rows of the raw one can be held against."""
    return [other for other in table.calibrated.values() if control_column(table, other) is not None]


def control_column(table: Table, other: Table) -> Column | None:
    """Return the average that a calibrated table is shown by: of all tasks, or else of the last group that has one."""
    there = [
        column
        for column in table.columns
        if column.is_average and any(column.name in row.controls.get(other.calibrate, {}) for row in table.rows)
    ]
    return there[-1] if there else None


def control_grid(table: Table, other: Table) -> Grid:
    """Return what is left of every row against zero-shot, before and after correction.

    Args:
        table: raw.
        other: one of ``controlled``.
    """
    column, kind = control_column(table, other), other.calibrate
    assert column is not None
    rows = tuple(
        (
            Entry(row.name),
            Entry(_hundredfold(row.scores[column.name]), table.rank(column.name, row)),
            Entry(_hundredfold(same.scores[column.name]), other.rank(column.name, same)),
            Entry(versus(row.scores[column.name])),
            Entry(versus(row.controls.get(kind, {}).get(column.name))),
            Entry(versus(same.scores[column.name])),
        )
        for row, same in ((row, other.row(row.label)) for row in table.rows)
    )
    header = ("method", column.title, f"{column.title}, {kind}", "raw − raw", f"raw − {kind}", f"{kind} − {kind}")
    return Grid(f"Against zero-shot calibrated by {kind}", header, rows)


def control_notes(table: Table) -> list[str]:
    """How ``control_grid`` is read, where there is one."""
    kinds = [other.calibrate for other in controlled(table)]
    return [
        f"raw − raw: both as they answered. raw − {kind}: the row as answered, against zero-shot corrected; what is "
        f"left of a gain beside one that needs no training. {kind} − {kind}: both corrected. Each with a 95 % "
        "interval and a p corrected over the rows."
        for kind in kinds[:1]
    ]


def calibrated_numbers(table: Table, row: Row, column: Column) -> dict[str, object]:
    """For the CSV: the accuracy of corrected answers, and what is left against calibrated zero-shot."""
    found: dict[str, object] = {}
    for kind in KINDS if table.metric == "accuracy" and table.calibrate == "none" else ():
        found |= numbers(row, column, kind, table.calibrated.get(kind))
    return found


def calibrated_accuracies(table: Table, row: Row, column: Column) -> dict[str, object]:
    """For the CSV of a table without comparisons: the accuracy of corrected answers."""
    known = table.calibrated.items()
    return {f"accuracy_{kind}": other.row(row.label).scores[column.name].mean for kind, other in known}


def numbers(row: Row, column: Column, kind: Calibration, other: Table | None) -> dict[str, object]:
    """Those of one kind, fractions; empty without a prior."""
    score = other.row(row.label).scores[column.name] if other else None
    both = score.versus if score else None
    control = row.controls.get(kind, {}).get(column.name)
    return {
        f"accuracy_{kind}": score.mean if score else None,
        f"vs_{kind}_zero_shot": control.versus.difference if control else None,
        f"vs_{kind}_zero_shot_low": control.versus.interval.low if control else None,
        f"vs_{kind}_zero_shot_high": control.versus.interval.high if control else None,
        f"vs_{kind}_zero_shot_p_holm": control.p_holm if control else None,
        f"both_{kind}": both.difference if both else None,
        f"both_{kind}_low": both.interval.low if both else None,
        f"both_{kind}_high": both.interval.high if both else None,
        f"both_{kind}_p_holm": score.p_holm if score and both else None,
    }


def versus(compared: Score | Change | None) -> str:
    """Return a difference with its interval and p, or nothing."""
    if compared is None or compared.versus is None or compared.p_holm is None:
        return ""
    found = compared.versus
    return f"{signed(found.difference)} {signed_interval(found.interval)} {probability(compared.p_holm)}"


def _averaged(table: Table) -> list[Calibration]:
    return [
        kind
        for kind, other in table.calibrated.items()
        if any(row.scores[AVERAGE].mean is not None for row in other.rows)
    ]


def _hundredfold(score: Score) -> str:
    return MISSING if score.mean is None else f"{100 * score.mean:.1f}"
