"""Tables of accuracies: a row an experiment's row, a column a task or an average."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from icrbench import method_spec
from icrbench.data.find_tasks import get_tasks
from icrbench.experiments import Experiment
from icrbench.report.leaderboard import AVERAGE, PAPER, ROLES, Column, Row, Score, Table, accuracies, role_titles
from icrbench.report.notes import failures, notes
from icrbench.report.outcomes import Calibration, Outcomes
from icrbench.report.tables.row_selection import Selection, place, row_notes
from icrbench.report.tables.sheet import Sheet
from icrbench.report.text.control import beside, besides, calibrated_accuracies
from icrbench.report.text.grid import Entry, Grid
from icrbench.report.text.numbers import MISSING
from icrbench.report.text.render import accuracy


def accuracy_table(selection: Selection, outcomes: Outcomes, calibrate: Calibration = "none") -> Table:
    """Scores of the rows, in the experiment's order; a row without records is there and has none."""
    columns = _columns(selection.experiment, selection.group.protocol)
    rows = accuracies(selection.group, outcomes, columns, calibrate)
    own = {label for _, label in selection.rows}
    records = tuple((label, record) for label, record in selection.group.records if label in own)
    return Table(
        replace(selection.group, records=records),
        columns,
        every_row(selection, rows, columns),
        calibrate,
    )


def every_row(selection: Selection, rows: Mapping[str, Row], columns: Sequence[Column]) -> tuple[Row, ...]:
    """Return the rows of an experiment in its order; one without records has no score."""
    none = {column.name: Score("missing") for column in columns}
    return tuple(
        rows.get(label) or Row(label, method_spec.split(label)[0], 0, none, None) for _, label in selection.rows
    )


def _columns(experiment: Experiment, protocol: str) -> tuple[Column, ...]:
    tasks = {task.name: task for task in get_tasks(experiment.tasks, None) if task.name in PAPER}
    order = sorted(tasks, key=PAPER.index)
    average = Column(AVERAGE, "Average", tuple(order), True)
    if experiment.columns == "roles":
        by_role = {role: tuple(name for name in order if tasks[name].role == role) for role in ROLES}
        return (
            *(Column(role, role_titles(protocol)[role], names, True) for role, names in by_role.items() if names),
            average,
        )
    return (*(Column(name, tasks[name].title, (name,), False) for name in order), average)


def accuracy_sheet(selection: Selection, outcomes: Outcomes, calibrate: Calibration = "none") -> Sheet:
    """Return a block with accuracies; beside the raw average stand the calibrated ones, where there are any."""
    table = accuracy_table(selection, outcomes, calibrate)
    if calibrate == "none":
        kinds = outcomes.kinds(record for _, record in table.group.records)
        table = replace(table, calibrated={kind: accuracy_table(selection, outcomes, kind) for kind in kinds})
    numbers = failures(table)
    titles = [column.title if column.is_average else column.name for column in table.columns]
    grid = Grid(
        selection.experiment.title,
        ("method", *titles, *besides(table), "Collapse"),
        tuple(
            (
                Entry(selection.name(row, label)),
                *(Entry(_entry(found, column, numbers), table.rank(column.name, found)) for column in table.columns),
                *beside(table, found),
                Entry("" if found.collapse is None else str(found.collapse)),
            )
            for (row, label), found in zip(selection.rows, table.rows, strict=True)
        ),
    )
    lines = tuple(
        {
            **place(selection, row, label),
            "calibrate": calibrate,
            **_score(found, column),
            **calibrated_accuracies(table, found, column),
        }
        for (row, label), found in zip(selection.rows, table.rows, strict=True)
        for column in table.columns
    )
    return Sheet(table.title, grid, tuple(_notes(selection, table)), tuple(table.group.origin), lines)


def _entry(row: Row, column: Column, numbers: dict[str, int]) -> str:
    # Of a row that was not run a table of averages alone would show nothing.
    return accuracy(row, column, numbers) if row.seeds or column.name == AVERAGE else MISSING


def _score(row: Row, column: Column) -> dict[str, object]:
    """Accuracies are fractions, as in leaderboard.csv."""
    score = row.scores[column.name]
    return {
        "column": column.name,
        "is_average": column.is_average,
        "status": score.status,
        "accuracy": score.mean,
        "std": score.std,
        "ci_low": score.interval.low if score.interval else None,
        "ci_high": score.interval.high if score.interval else None,
        "seeds": score.seeds or None,
        "row_seeds": row.seeds or None,
        "test_rows": score.rows,
        "collapse": row.collapse if column.name == AVERAGE else None,
        "error": " | ".join(score.errors) or None,
    }


def _notes(selection: Selection, table: Table) -> list[str]:
    lines = [*row_notes(selection), *(notes(table) if table.group.records else ["—: not run."])]
    return list(dict.fromkeys(lines))  # both say which methods are forms of our own
