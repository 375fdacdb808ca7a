"""The leaderboard as numbers: a pure function of the store, before any thought of Markdown or LaTeX.

Averages are macro averages (every task counts the same) and exist only where every one of their tasks is
there with every seed of the row: an average over a partial set would not compare with its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from icrbench import stats
from icrbench.errors import UserError
from icrbench.report.groups import Group, comparable_groups
from icrbench.store import CellRecord, Store

ROLES = {"id": "ID", "near_ood": "Near OOD", "far_ood": "Far OOD"}
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


@dataclass(frozen=True)
class Score:
    """One entry of the table. Accuracies are fractions; the last six fields are None unless known.

    ``partial``: some seeds of the row are missing on this task; the numbers are over those found.
    An average is ``ok`` or ``missing``.
    """

    status: Literal["ok", "partial", "missing", "failed"]
    seeds: int = 0
    errors: tuple[str, ...] = ()
    rows: int | None = None
    mean: float | None = None
    std: float | None = None
    """Sample standard deviation over seeds."""
    interval: stats.Interval | None = None
    versus: stats.Comparison | None = None
    """Against zero-shot, on the same examples."""
    p_holm: float | None = None
    """``versus.p`` corrected over the rows of this column (Holm)."""


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


@dataclass(frozen=True)
class Table:
    """One leaderboard: everything in it compares with everything else in it."""

    group: Group
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def rank(self, column: str, row: Row) -> int:
        """1 for the best of a column, 2 for the second best, else 0; what prints alike ties."""
        shown = {_shown(other.scores[column]) for other in self.rows} - {None}
        own = _shown(row.scores[column])
        if own is None or len(shown) < 2:
            return 0
        best = sorted((value for value in shown if value is not None), reverse=True)[:2]
        return best.index(own) + 1 if own in best else 0


def leaderboards(store: Store) -> list[Table]:
    """All tables of a results folder.

    Raises:
        UserError: if the folder has no results, a file in it is damaged, or two files hold the same cell.
    """
    return [_table(group, store) for group in comparable_groups(store.records())]


def _table(group: Group, store: Store) -> Table:
    columns = _columns(group)
    names: dict[str, str] = {label: record["cell"]["method"] for label, record in group.records}
    lines = {label: _Line(group, label, store) for label in names}
    # The plain label: a row marked as older is not what the others are compared with.
    reference = next((label for label, method in names.items() if method == "zero_shot" == label), None)
    base = lines[reference] if reference else None
    rows = []
    for label, line in lines.items():
        other = base if label != reference else None
        scores = {column.name: line.score(column, other) for column in columns}
        rows.append(Row(label, names[label], line.n_seeds, scores, _collapse(line, base, columns, scores)))
    return Table(group, columns, tuple(sorted(_corrected(rows, columns), key=_row_order)))


def _columns(group: Group) -> tuple[Column, ...]:
    """The tasks in order, each role followed by its average, and the average of all at the end."""
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
            columns.append(Column(role, ROLES[role], tuple(tasks), True))
        everything += tasks
    return (*columns, Column(AVERAGE, "Average", tuple(everything), True))


class _Line:
    """The records of one row, and their answers as arrays [seeds, examples]."""

    def __init__(self, group: Group, label: str, store: Store) -> None:
        self.tasks: dict[str, dict[int | None, CellRecord]] = {}
        for record in (record for other, record in group.records if other == label):
            cell = record["cell"]
            twin = self.tasks.setdefault(cell["task"], {}).setdefault(cell["seed"], record)
            if twin is not record:
                raise _two_results(store, twin, record)
        found = {seed for records in self.tasks.values() for seed in records if seed is not None}
        self.seeds: list[int | None] = [*sorted(found)] if found else [None]
        self.n_seeds = len(self.seeds)
        self._store = store
        self._answers: dict[str, pd.DataFrame] = {}

    def records(self, task: str) -> list[CellRecord]:
        """The record for each seed, as far as there is one; a record without a seed stands for every seed."""
        by_seed = self.tasks.get(task, {})
        picked = [by_seed.get(seed, by_seed.get(None)) for seed in self.seeds]
        return [record for record in picked if record is not None]

    def complete(self, task: str) -> bool:
        records = self.records(task)
        return len(records) == self.n_seeds and all(record["status"] == "ok" for record in records)

    def answers(self, task: str) -> pd.DataFrame:
        """Right or wrong, one row an example (index: its id) and one column a seed."""
        if task not in self._answers:
            frames: dict[str, pd.Series[bool]] = {}
            for record in self.records(task):
                if record["key"] not in frames:
                    frames[record["key"]] = _correct(self._store, record)
            first = next(iter(frames.values()))
            if any(not frame.index.equals(first.index) for frame in frames.values()):
                raise UserError(f"the seeds of {self._name(task)} scored different examples: run them again.")
            picked = [frames[record["key"]].to_numpy() for record in self.records(task)]
            self._answers[task] = pd.DataFrame(np.stack(picked, axis=1), index=first.index)
        return self._answers[task]

    def arrays(self, tasks: Sequence[str]) -> list[stats.Scores]:
        return [self.answers(task).to_numpy().T for task in tasks]

    def score(self, column: Column, base: "_Line | None") -> Score:
        if not all(self.complete(task) for task in column.tasks):
            return Score("missing") if column.is_average else self._incomplete(column.tasks[0])
        score = self._measured("ok", self.arrays(column.tasks))
        if base is None or not all(base.complete(task) for task in column.tasks):
            return score
        references = [self._aligned(base, task) for task in column.tasks]
        return replace(score, versus=stats.compare(self.arrays(column.tasks), references))

    def mean(self, task: str) -> float:
        return float(self.answers(task).to_numpy().mean())

    def _incomplete(self, task: str) -> Score:
        records = self.records(task)
        errors = [record["error"] for record in records if record["status"] == "failed"]
        if errors:
            words = [f"{error['type']}: {error['message']}" if error else "no message" for error in errors]
            return Score("failed", len(records), tuple(dict.fromkeys(words)))
        return self._measured("partial", self.arrays([task])) if records else Score("missing")

    def _measured(self, status: Literal["ok", "partial"], arrays: list[stats.Scores]) -> Score:
        by_seed = np.mean([array.mean(axis=1) for array in arrays], axis=0)  # [seeds]
        std = float(by_seed.std(ddof=1)) if len(by_seed) > 1 else None
        rows = sum(array.shape[1] for array in arrays)
        return Score(status, len(by_seed), (), rows, float(by_seed.mean()), std, stats.interval(arrays))

    def _aligned(self, base: "_Line", task: str) -> stats.Floats:
        """The reference's answers, [examples], in the order of this line's examples."""
        own, other = self.answers(task), base.answers(task)
        if len(own) != len(other) or not own.index.isin(other.index).all():
            raise UserError(f"{self._name(task)} and zero-shot scored different examples: run them again.")
        aligned: stats.Floats = other.loc[own.index].to_numpy().mean(axis=1)
        return aligned

    def _name(self, task: str) -> str:
        return f"{self.records(task)[0]['cell']['label']} on {task}"


def _correct(store: Store, record: CellRecord) -> "pd.Series[bool]":
    """Right or wrong by example id, checked against the record."""
    key = record["key"]
    frame = store.examples(key)
    result = record["result"]
    if result is None or (len(frame), int(frame["correct"].sum())) != (result["n"], result["correct"]):
        raise UserError(f"cells/{key}.json and examples/{key}.parquet disagree: delete both and run again.")
    if frame["example_id"].duplicated().any():
        raise UserError(f"examples/{key}.parquet has an example twice: delete it and run again.")
    answers: pd.Series[bool] = frame.set_index("example_id")["correct"]
    return answers


def _two_results(store: Store, first: CellRecord, second: CellRecord) -> UserError:
    keys = sorted(first["identity"].keys() | second["identity"].keys())
    differing = [key for key in keys if first["identity"].get(key) != second["identity"].get(key)]
    older, newer = sorted((first, second), key=lambda record: record["finished"])
    cell, path = newer["cell"], store.folder / "cells" / f"{older['key']}.json"
    return UserError(
        f"two results for {cell['label']} on {cell['task']}, seed {cell['seed']}, which differ in "
        f"{', '.join(differing) or 'nothing'}: delete {path}, the older one."
    )


def _collapse(line: _Line, base: _Line | None, columns: Sequence[Column], scores: dict[str, Score]) -> int | None:
    tasks = columns[-1].tasks
    if base is None or base is line or scores[AVERAGE].mean is None or not all(map(base.complete, tasks)):
        return None
    return sum(line.mean(task) < base.mean(task) - 1e-12 for task in tasks)


def _corrected(rows: list[Row], columns: Sequence[Column]) -> list[Row]:
    """The rows with Holm's correction over each column."""
    scores = [dict(row.scores) for row in rows]
    for column in (column.name for column in columns):
        compared = [(own, own[column].versus) for own in scores]
        tests = [(own, versus) for own, versus in compared if versus is not None]
        for (own, _), p in zip(tests, stats.holm([versus.p for _, versus in tests]), strict=True):
            own[column] = replace(own[column], p_holm=p)
    return [replace(row, scores=own) for row, own in zip(rows, scores, strict=True)]


def _row_order(row: Row) -> tuple[int, bool, float, str]:
    """Zero-shot, few-shot, the others; within each the best average first and rows without one last."""
    mean = row.scores[AVERAGE].mean
    return {"zero_shot": 0, "few_shot": 1}.get(row.method, 2), mean is None, -(mean or 0.0), row.label


def _shown(score: Score) -> float | None:
    """The number as printed, in tenths of a per cent; only complete scores take part in a ranking."""
    return round(100 * score.mean, 1) if score.status == "ok" and score.mean is not None else None
