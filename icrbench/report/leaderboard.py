"""The leaderboard as numbers: a pure function of the store, before any thought of Markdown or LaTeX.

Averages are macro averages (every task counts the same) and exist only where every one of their tasks is
there with every seed of the row: an average over a partial set would not compare with its neighbours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from icrbench.report import stats
from icrbench.report.groups import Group, comparable_groups
from icrbench.report.line import Line, lines, pair, summarise
from icrbench.report.metrics import METRICS
from icrbench.report.outcomes import Calibration, Outcomes
from icrbench.report.text.names import display_name, marked
from icrbench.store.store import Store

ROLES = {"id": "ID", "near_ood": "Near OOD", "far_ood": "Far OOD", "open_ended": "Open-ended"}
_OWN_ROWS = {"id": "Main", "near_ood": "Near", "far_ood": "Far", "open_ended": "Open-ended"}
"""Where every task gives its own training rows: none is out of a domain."""
AVERAGE = "average"
PAPER = ("agnews", "sst2", "trec", "csqa", "piqa", "sst5", "mr", "mrpc", "cb", "copa", "creak", "ai2scie")
"""The order of the ICR paper's main table; other tasks follow by name."""


@dataclass(frozen=True)
class Column:
    """A task, or an average over several."""

    name: str
    title: str
    tasks: tuple[str, ...]
    is_average: bool


class Score(NamedTuple):
    """One entry of the table. Accuracies are fractions; what is not known is None or empty.

    ``partial``: some seeds of the row are missing on this task; the numbers are over those found.
    An average is ``ok`` or ``missing``.
    """

    status: Literal["ok", "partial", "missing", "failed"]
    seeds: int = 0
    errors: tuple[str, ...] = ()
    rows: int | None = None
    mean: float | None = None
    by_seed: tuple[float, ...] = ()
    """The accuracy of each seed, in the order of the row's seeds."""
    std: float | None = None
    """Sample standard deviation over seeds."""
    interval: stats.Interval | None = None
    versus: stats.Comparison | None = None
    """Against zero-shot, on the same examples."""
    p_holm: float | None = None
    """``versus.p`` corrected (Holm) over all rows and all columns of this kind: tasks, roles, or the average."""
    spread: stats.Spread | None = None
    """How much of the uncertainty is owed to the seeds, and how much to the examples."""
    f1: float | None = None
    """Mean token F1, of written answers alone; the mean above is then exact match."""


@dataclass(frozen=True)
class Behind:
    """How far the best average of a table is ahead of another row's, on the same examples."""

    leader: str
    """Label of the row with the best average."""
    versus: stats.Comparison
    """The leader's average less this row's."""
    p_holm: float
    """``versus.p`` corrected over all pairs of rows (Holm), because any of them might have been the leader."""


@dataclass(frozen=True)
class Change:
    """A row less another than raw zero-shot, on the same examples."""

    versus: stats.Comparison
    p_holm: float
    """``versus.p`` corrected (Holm) over the rows and over all columns of this kind: tasks, roles, or the average."""


@dataclass(frozen=True)
class Row:
    """One method label."""

    label: str
    method: str
    seeds: int
    """Number of seeds; 1 for a method without randomness."""
    scores: dict[str, Score]
    collapse: int | None
    """Number of tasks below zero-shot (ICR paper); None for zero-shot itself, and if a task is missing."""
    behind: Behind | None = None
    """None for the leader, for zero-shot (the leader's ``versus`` has it), and without an average."""
    changes: dict[str, Change] = field(default_factory=dict)
    """Less the plain method, by column, in a table of variants; not where one of the two is incomplete."""
    controls: Mapping[Calibration, Mapping[str, Change]] = field(default_factory=dict)
    """As answered, less calibrated zero-shot, by kind of calibration and column; for averages alone."""
    explicit: bool = False
    """Whether demonstrations stood before every query."""

    @property
    def name(self) -> str:
        """What tables call the row; an explicit one is marked."""
        return marked(display_name(self.label), self.explicit)

    @property
    def change(self) -> Change | None:
        """That of the average."""
        return self.changes.get(AVERAGE)


@dataclass(frozen=True)
class Table:
    """One leaderboard: everything in it compares with everything else in it."""

    group: Group
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    calibrate: Calibration = "none"
    """What the answers were corrected by."""
    metric: str = "accuracy"
    calibrated: "Mapping[Calibration, Table]" = field(default_factory=dict)
    """The same table of corrected answers, for every kind of prior that some cell has."""
    lines: Mapping[str, Line] = field(default_factory=dict, compare=False, repr=False)
    """What the rows were made of, by label."""

    @property
    def title(self) -> str:
        """What the table holds, in one line."""
        parts = [self.group.title]
        parts += [f"calibrated by {self.calibrate}"] if self.calibrate != "none" else []
        parts += [METRICS[self.metric].title] if self.metric != "accuracy" else []
        return " · ".join(parts)

    def row(self, label: str) -> Row:
        """Return the row of a label that the table has."""
        return next(row for row in self.rows if row.label == label)

    def rank(self, column: str, row: Row) -> int:
        """1 for the best of a column, 2 for the second best, else 0; what prints alike ties."""
        shown = _shown(row.scores[column])
        return self._ranks[column].get(shown, 0) if shown is not None else 0

    @cached_property
    def _ranks(self) -> dict[str, dict[float, int]]:
        """The ranks of the two best numbers of each column, as printed; none where all are alike."""
        shown = {c.name: {_shown(row.scores[c.name]) for row in self.rows} - {None} for c in self.columns}
        most_first = not METRICS[self.metric].lower_is_better
        best = {name: sorted((v for v in f if v is not None), reverse=most_first)[:2] for name, f in shown.items()}
        return {name: dict(zip(two, (1, 2), strict=True)) if len(two) > 1 else {} for name, two in best.items()}


def leaderboards(store: Store) -> list[Table]:
    """All tables of a results folder.

    Raises:
        UserError: if the folder has no results, a file in it is damaged, or two files hold the same cell.
    """
    groups = comparable_groups(store.records())
    outcomes = Outcomes(store)
    return [leaderboard(part, outcomes) for group in groups for part in group.leaderboards()]


def leaderboard(group: Group, outcomes: Outcomes, kinds: Sequence[Calibration] | None = None) -> Table:
    """Return a table, and again for each calibration; by default for every kind of prior that a cell has."""
    table = _table(group, outcomes)
    if kinds is None:
        kinds = outcomes.kinds(record for _, record in group.records)
    calibrated = {kind: _table(group, outcomes, kind) for kind in kinds}
    return replace(table, rows=_controlled(table, calibrated), calibrated=calibrated)


def _table(group: Group, outcomes: Outcomes, calibrate: Calibration = "none") -> Table:
    columns = _columns(group)
    by_label = lines(group, outcomes, calibrate)
    # The plain label: a row marked as older is not what the others are compared with.
    base = next((line for label, line in by_label.items() if line.method == "zero_shot" == label), None)
    summarise(by_label.values(), columns[-1].tasks)
    if base is not None:
        pair(((line, base) for line in by_label.values() if line is not base), columns[-1].tasks)
    rows = []
    for line in by_label.values():
        scores = {column.name: _score(line, column, None if line is base else base) for column in columns}
        collapse = _collapse(line, base, columns, scores)
        rows.append(Row(line.label, line.method, line.n_seeds, scores, collapse, explicit=line.explicit))
    compared = _behind(_corrected(rows, columns), by_label, columns[-1].tasks, base)
    compared = _changed(compared, by_label, columns, group.variants_of)
    return Table(group, columns, tuple(sorted(compared, key=row_order)), calibrate, lines=by_label)


def accuracies(
    group: Group, outcomes: Outcomes, columns: Sequence[Column], calibrate: Calibration = "none"
) -> dict[str, Row]:
    """Rows by label with other columns than a leaderboard's, the last of them an average; nothing is compared."""
    by_label = lines(group, outcomes, calibrate)
    summarise(by_label.values(), columns[-1].tasks)
    base = by_label.get("zero_shot")
    rows = {}
    for label, line in by_label.items():
        scores = {column.name: _score(line, column, None) for column in columns}
        collapse = _collapse(line, base, columns, scores)
        rows[label] = Row(label, line.method, line.n_seeds, scores, collapse, explicit=line.explicit)
    return rows


def task_columns(group: Group) -> list[Column]:
    """Return the tasks of a table in order."""
    return [column for column in _columns(group) if not column.is_average]


def role_titles(protocol: str) -> dict[str, str]:
    """Return what the averages over roles are called under a protocol."""
    return _OWN_ROWS if protocol == "in_task" else ROLES


def _columns(group: Group) -> tuple[Column, ...]:
    """Return the tasks in order, each role followed by its average, and the average of all at the end."""
    known = {record["cell"]["task"]: record["task"] for _, record in group.records}
    order = {name: place for place, name in enumerate(PAPER)}
    columns: list[Column] = []
    everything: list[str] = []
    roles = [role for role in ROLES if any(task["role"] == role for task in known.values())]
    for role in roles:
        tasks = [name for name, task in known.items() if task["role"] == role]
        tasks.sort(key=lambda name: (order.get(name, len(order)), name))
        columns += [Column(name, known[name]["title"], (name,), False) for name in tasks]
        if len(roles) > 1:
            columns.append(Column(role, role_titles(group.protocol)[role], tuple(tasks), True))
        everything += tasks
    return (*columns, Column(AVERAGE, "Average", tuple(everything), True))


def _score(line: Line, column: Column, base: Line | None) -> Score:
    if not line.complete(*column.tasks):
        return Score("missing") if column.is_average else _incomplete(line, column.tasks[0])
    compared = base is not None and base.complete(*column.tasks)
    return _measured(line, "ok", column.tasks, line.compare(base, column.tasks) if base and compared else None)


def _incomplete(line: Line, task: str) -> Score:
    records = line.records(task)
    errors = [record["error"] for record in records if record["status"] == "failed"]
    if errors:
        words = [f"{error['type']}: {error['message']}" if error else "no message" for error in errors]
        return Score("failed", len(records), tuple(dict.fromkeys(words)))
    return _measured(line, "partial", [task]) if line.measurable(task) else Score("missing")


def _measured(
    line: Line, status: Literal["ok", "partial"], tasks: Sequence[str], versus: stats.Comparison | None = None
) -> Score:
    known = [line.moments(task) for task in tasks]
    by_seed = [sum(of_seed) / len(known) for of_seed in zip(*(task.by_seed for task in known), strict=True)]
    mean = sum(by_seed) / len(by_seed)
    squares = sum((one - mean) ** 2 for one in by_seed)
    interval, spread = stats.interval_and_spread(known)
    return Score(
        status,
        len(by_seed),
        rows=sum(task.n for task in known),
        mean=mean,
        by_seed=tuple(by_seed),
        std=(squares / (len(by_seed) - 1)) ** 0.5 if len(by_seed) > 1 else None,
        interval=interval,
        versus=versus,
        spread=spread,
        f1=_f1(line, tasks),
    )


def _f1(line: Line, tasks: Sequence[str]) -> float | None:
    """Mean token F1 over seeds, then tasks; None where answers are chosen."""
    results = [[record["result"] for record in line.records(task)] for task in tasks]
    by_task = [[result["f1"] for result in own if result is not None and "f1" in result] for own in results]
    if not by_task or not all(by_task):
        return None
    return sum(sum(own) / len(own) for own in by_task) / len(by_task)


def _collapse(line: Line, base: Line | None, columns: Sequence[Column], scores: dict[str, Score]) -> int | None:
    tasks = columns[-1].tasks
    if base is None or base is line or scores[AVERAGE].mean is None or not base.complete(*tasks):
        return None
    return sum(line.mean(task) < base.mean(task) - 1e-12 for task in tasks)


def _corrected(rows: list[Row], columns: Sequence[Column]) -> list[Row]:
    """Add the corrected p of every comparison to zero-shot to the rows."""
    versus = {(row.label, name): score.versus for row in rows for name, score in row.scores.items() if score.versus}
    p_holm = _holm(versus, columns)
    return [
        replace(
            row,
            scores={
                name: score._replace(p_holm=p_holm[row.label, name]) if score.versus else score
                for name, score in row.scores.items()
            },
        )
        for row in rows
    ]


def _holm(
    versus: Mapping[tuple[str, str], stats.Comparison], columns: Sequence[Column]
) -> dict[tuple[str, str], float]:
    """Corrected p by row and column (Holm): once over all tasks, once over all roles, once over the averages."""
    kinds = {column.name: (column.is_average, column.name == AVERAGE) for column in columns}
    corrected: dict[tuple[str, str], float] = {}
    for kind in dict.fromkeys(kinds.values()):
        tested = [place for place in versus if kinds[place[1]] == kind]
        corrected.update(zip(tested, stats.holm([versus[place].p for place in tested]), strict=True))
    return corrected


def _behind(rows: list[Row], by_label: dict[str, Line], tasks: Sequence[str], base: Line | None) -> list[Row]:
    """Add the leader's advance over each row, which says whether its first place may be noise."""
    means = {row.label: row.scores[AVERAGE].mean for row in rows}
    ranked = {label: mean for label, mean in means.items() if mean is not None}
    leader = max(ranked, key=lambda label: ranked[label], default=None)
    if leader is None or by_label[leader] is base:
        return rows
    others = [by_label[label] for label in ranked if label != leader and by_label[label] is not base]
    pair(((by_label[leader], other) for other in others), tasks)
    found = {other.label: by_label[leader].compare(other, tasks) for other in others}
    # The leader was picked for being best, so every pair was a candidate, and none of the others counts as tested.
    untested = len(found) * (len(found) - 1) // 2
    holm = stats.holm([versus.p for versus in found.values()], untested)
    corrected = dict(zip(found, holm, strict=True))
    return [
        replace(row, behind=Behind(leader, found[row.label], corrected[row.label])) if row.label in found else row
        for row in rows
    ]


def _changed(rows: list[Row], by_label: dict[str, Line], columns: Sequence[Column], plain: str) -> list[Row]:
    """Add to each row of a table of variants what the variant changes."""
    if plain not in by_label:
        return rows
    reference = by_label[plain]
    others = [by_label[row.label] for row in rows if row.label != plain]
    pair(((line, reference) for line in others), columns[-1].tasks)
    versus = {
        (line.label, column.name): line.compare(reference, column.tasks)
        for line in others
        for column in columns
        if line.complete(*column.tasks) and reference.complete(*column.tasks)
    }
    changes: dict[str, dict[str, Change]] = {}
    for (label, name), p in _holm(versus, columns).items():
        changes.setdefault(label, {})[name] = Change(versus[label, name], p)
    return [replace(row, changes=changes.get(row.label, {})) for row in rows]


def _controlled(table: Table, calibrated: Mapping[Calibration, Table]) -> tuple[Row, ...]:
    """Return the rows, each with what is left of it against calibrated zero-shot."""
    averages = [column for column in table.columns if column.is_average]
    controls: dict[str, dict[Calibration, dict[str, Change]]] = {row.label: {} for row in table.rows}
    for kind, other in calibrated.items():
        base = other.lines.get("zero_shot")
        if base is None:
            continue
        there = [column for column in averages if base.complete(*column.tasks)]
        versus = {
            (label, column.name): line.compare(base, column.tasks)
            for label, line in table.lines.items()
            for column in there
            if line.complete(*column.tasks)
        }
        for (label, name), p in _holm(versus, averages).items():
            controls[label].setdefault(kind, {})[name] = Change(versus[label, name], p)
    return tuple(replace(row, controls=controls[row.label]) for row in table.rows)


def row_order(row: Row, *, lower_is_better: bool = False) -> tuple[int, bool, float, str]:
    """Zero-shot, few-shot, the others; within each the best average first and rows without one last."""
    mean = row.scores[AVERAGE].mean
    value = (mean or 0.0) if lower_is_better else -(mean or 0.0)
    return {"zero_shot": 0, "few_shot": 1}.get(row.method, 2), mean is None, value, row.label


def _shown(score: Score) -> float | None:
    """Return the number as printed, in tenths of a per cent; only complete scores are ranked."""
    return round(100 * score.mean, 1) if score.status == "ok" and score.mean is not None else None
