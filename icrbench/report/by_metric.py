"""A leaderboard in another metric than accuracy, from the same stored logits."""

from collections.abc import Sequence

from icrbench.report.leaderboard import Column, Row, Score, Table, row_order
from icrbench.report.line import Line
from icrbench.report.metrics import METRICS


def by_metric(table: Table, name: str) -> Table:
    """Return the table with a metric in the place of accuracy.

    Means over seeds, averages over tasks and what is missing are as in the leaderboard. There are no intervals and no
    tests: these metrics are no means over examples.

    Args:
        table: a leaderboard, raw or calibrated.
        name: of the metric.
    """
    if name == table.metric:
        return table
    lower = METRICS[name].lower_is_better
    rows = [
        Row(
            row.label,
            row.method,
            row.seeds,
            _scores(table.lines[row.label], row, table.columns, name),
            None,
            explicit=row.explicit,
        )
        for row in table.rows
    ]
    rows.sort(key=lambda row: row_order(row, lower_is_better=lower))
    return Table(table.group, table.columns, tuple(rows), table.calibrate, name, lines=table.lines)


def _scores(line: Line, row: Row, columns: Sequence[Column], name: str) -> dict[str, Score]:
    return {column.name: _score(line, row.scores[column.name], column, name) for column in columns}


def _score(line: Line, score: Score, column: Column, name: str) -> Score:
    if score.mean is None:
        return score
    known = [line.metric(name, task) for task in column.tasks]
    by_seed = tuple(sum(of_seed) / len(known) for of_seed in zip(*known, strict=True))
    mean = sum(by_seed) / len(by_seed)
    squares = sum((one - mean) ** 2 for one in by_seed)
    return Score(
        score.status,
        score.seeds,
        rows=score.rows,
        mean=mean,
        by_seed=by_seed,
        std=(squares / (len(by_seed) - 1)) ** 0.5 if len(by_seed) > 1 else None,
    )
