"""The records of one row of a table, and what they answered, read once and summarised once for all its columns."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from icrbench.report import metrics, stats
from icrbench.report import moments as task_moments
from icrbench.report.groups import Group
from icrbench.report.outcomes import Calibration, Outcomes, option_words
from icrbench.store.records import CellRecord
from icrbench.store.rows import Answers, Ids
from icrbench.util.errors import UserError

Bits = npt.NDArray[np.bool_]


class Line:
    """One method label in one table.

    Args:
        label: as the table shows it.
        records: its records, one a task and seed.
        outcomes: has their answers.
        calibrate: what the answers are corrected by; a cell without that prior counts as not run.

    Raises:
        UserError: if two records are of the same task and seed.
    """

    def __init__(
        self, label: str, records: Sequence[CellRecord], outcomes: Outcomes, calibrate: Calibration = "none"
    ) -> None:
        self.label = label
        self.calibrate = calibrate
        self.method = records[0]["cell"]["method"]
        self.explicit = records[0]["cell"].get("explicit", False)
        self.tasks: dict[str, dict[int | None, CellRecord]] = {}
        for record in records:
            cell = record["cell"]
            twin = self.tasks.setdefault(cell["task"], {}).setdefault(cell["seed"], record)
            if twin is not record:
                raise _two_results(outcomes.folder, twin, record)
        found = {seed for by_seed in self.tasks.values() for seed in by_seed if seed is not None}
        self.seeds: list[int | None] = [*sorted(found)] if found else [None]
        self.n_seeds = len(self.seeds)
        self._outcomes = outcomes
        self._complete: dict[str, bool] = {}
        self._answers: dict[str, tuple[Ids, Bits]] = {}
        self._moments: dict[str, task_moments.Moments] = {}
        self._differences: dict[tuple[Line, str], task_moments.Moments] = {}

    def records(self, task: str) -> list[CellRecord]:
        """Return the record for each seed, as far as there is one; a record without a seed stands for every seed."""
        by_seed = self.tasks.get(task, {})
        picked = [by_seed.get(seed, by_seed.get(None)) for seed in self.seeds]
        return [record for record in picked if record is not None]

    def complete(self, *tasks: str) -> bool:
        """Every seed of every task is there, ran, and can be corrected."""
        for task in tasks:
            if task not in self._complete:
                records = self.records(task)
                ran = all(self._outcomes.has(record, self.calibrate) for record in records)
                self._complete[task] = ran and len(records) == self.n_seeds
        return all(self._complete[task] for task in tasks)

    def measurable(self, task: str) -> bool:
        """Return some seeds of a task are there, and all of these ran and can be corrected."""
        records = self.records(task)
        return bool(records) and all(self._outcomes.has(record, self.calibrate) for record in records)

    def answers(self, task: str) -> tuple[Ids, Bits]:
        """Return the ids of a task's examples, and right or wrong, [seeds, examples].

        Raises:
            UserError: if the seeds scored different examples, or a file is damaged.
        """
        if task not in self._answers:
            by_key: dict[str, Answers] = {}
            for record in self.records(task):
                if record["key"] not in by_key:
                    by_key[record["key"]] = self._outcomes.answers(record, self.calibrate)
            ids = next(iter(by_key.values())).ids
            if any(other.ids is not ids and other.ids != ids for other in by_key.values()):
                raise UserError(f"the seeds of {self._name(task)} scored different examples: run them again.")
            self._answers[task] = ids, np.array([by_key[record["key"]].correct for record in self.records(task)])
        return self._answers[task]

    def moments(self, task: str) -> task_moments.Moments:
        """Return a task's accuracy and its variances."""
        if task not in self._moments:
            self._moments[task] = task_moments.moments(self.answers(task)[1])
        return self._moments[task]

    def metric(self, name: str, task: str) -> tuple[float, ...]:
        """Return a metric of each seed on a task that is complete."""
        return tuple(self._outcomes.metric(record, name, self.calibrate) for record in self.records(task))

    def shares(self, task: str) -> tuple[list[float], list[float]]:
        """How often every option is answered and how often it is right, over the seeds of a complete task."""
        found = [metrics.shares(self._outcomes.outcome(record, self.calibrate)) for record in self.records(task)]
        answered, right = np.mean(found, axis=0).tolist()
        return answered, right

    def options(self, task: str) -> list[str]:
        """Return the options' words; their numbers where the records do not have them."""
        return option_words(self.records(task)[0])

    def mean(self, task: str) -> float:
        """Return a task's accuracy, the mean over seeds."""
        return self.moments(task).mean

    def compare(self, other: "Line", tasks: Sequence[str]) -> stats.Comparison:
        """Subtract another line on the same examples; seed by seed where both have the same seeds.

        Raises:
            UserError: if the two scored different examples.
        """
        if not self.paired(other):
            own = [self.answers(task)[1] for task in tasks]
            return stats.compare(own, [self.aligned(other, task) for task in tasks], same_seeds=False)
        return stats.compared([self._difference(other, task) for task in tasks])

    def paired(self, other: "Line") -> bool:
        """Their differences are taken seed by seed; else the seeds of the two are independent."""
        return self.seeds == other.seeds or 1 in (self.n_seeds, other.n_seeds)

    def aligned(self, other: "Line", task: str) -> Bits:
        """Another line's answers, [its seeds, examples], in the order of this line's examples."""
        (ids, _), (theirs, correct) = self.answers(task), other.answers(task)
        if ids is theirs or ids == theirs:
            return correct
        if len(ids) != len(theirs) or not all(name in theirs.place for name in ids):
            label = "zero-shot" if other.method == "zero_shot" else other.label
            raise UserError(f"{self._name(task)} and {label} scored different examples: run them again.")
        return correct[:, [theirs.place[name] for name in ids]]

    def _difference(self, other: "Line", task: str) -> task_moments.Moments:
        if (other, task) not in self._differences:
            self._differences[other, task] = task_moments.moments(self._less(other, task))
        return self._differences[other, task]

    def _less(self, other: "Line", task: str) -> npt.NDArray[np.int8]:
        """Return the difference on every example: -1, 0 or 1."""
        return self.answers(task)[1].view(np.int8) - self.aligned(other, task).view(np.int8)

    def _name(self, task: str) -> str:
        return f"{self.records(task)[0]['cell']['label']} on {task}"


def lines(group: Group, outcomes: Outcomes, calibrate: Calibration = "none") -> dict[str, Line]:
    """Return the lines of a table, by label."""
    return {label: Line(label, own, outcomes, calibrate) for label, own in group.by_label().items()}


def summarise(lines: Iterable[Line], tasks: Sequence[str]) -> None:
    """Give lines the moments of their complete tasks, all at once: one by one takes several times as long."""
    wanted = [(line, task) for line in lines for task in tasks if line.complete(task)]
    found = task_moments.all_moments([line.answers(task)[1] for line, task in wanted])
    for (line, task), moments in zip(wanted, found, strict=True):
        line._moments[task] = moments


def pair(pairs: Iterable[tuple[Line, Line]], tasks: Sequence[str]) -> None:
    """Give each first line the moments of its differences to the second, all at once, where both are complete."""
    wanted = [
        (line, other, task)
        for line, other in pairs
        if line.paired(other)
        for task in tasks
        if line.complete(task) and other.complete(task)
    ]
    found = task_moments.all_moments([line._less(other, task) for line, other, task in wanted])
    for (line, other, task), moments in zip(wanted, found, strict=True):
        line._differences[other, task] = moments


def _two_results(folder: Path, first: CellRecord, second: CellRecord) -> UserError:
    keys = sorted(first["identity"].keys() | second["identity"].keys())
    differing = [key for key in keys if first["identity"].get(key) != second["identity"].get(key)]
    older, newer = sorted((first, second), key=lambda record: record["finished"])
    cell, path = newer["cell"], folder / "cells" / f"{older['key']}.json"
    return UserError(
        f"two results for {cell['label']} on {cell['task']}, seed {cell['seed']}, which differ in "
        f"{', '.join(differing) or 'nothing'}: delete {path}, the older one."
    )
