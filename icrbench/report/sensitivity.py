"""How far results depend on a template, an order or a draw of demonstrations, from cells that were varied in it."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from icrbench.data.task import OPEN_ENDED
from icrbench.experiments import WAYS, Vary
from icrbench.report.groups import Group, comparable_groups
from icrbench.report.outcomes import Calibration, Outcomes
from icrbench.store.records import CellRecord
from icrbench.store.store import Store
from icrbench.util.errors import UserError

Answer = int | str
"""An option's number, or a written text."""
BASE = "zero_shot"


@dataclass(frozen=True)
class Spread:
    """One method over the ways it was had, on one task or as the mean over tasks.

    Attributes:
        accuracies: by the number of the way, the plain one first.
        consistency: share of the ways that give a row its most frequent answer, mean over rows.
        kappa: agreement of the ways beyond chance (Fleiss 1971); None where all give every row the same answer.
    """

    accuracies: tuple[float, ...]
    consistency: float
    kappa: float | None

    @property
    def plain(self) -> float:
        """Accuracy the plain way."""
        return self.accuracies[0]

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return statistics.mean(self.accuracies)

    @property
    def sd(self) -> float:
        """Sample standard deviation of the accuracies."""
        return statistics.stdev(self.accuracies)

    @property
    def low(self) -> float:
        """Lowest accuracy."""
        return min(self.accuracies)

    @property
    def high(self) -> float:
        """Highest accuracy."""
        return max(self.accuracies)


@dataclass(frozen=True)
class Sensitivity:
    """The varied cells of one table.

    Attributes:
        vary: what was varied.
        group: the plain cells of the table.
        spreads: by label and task, where every way of every seed is there.
        plain: accuracy of plain zero-shot by task, as far as it is there.
        unfinished: labels of which some cells are missing or failed, with their tasks.
        calibrate: what answers are corrected by.
    """

    vary: Vary
    group: Group
    spreads: Mapping[str, Mapping[str, Spread]]
    plain: Mapping[str, float]
    unfinished: Mapping[str, Sequence[str]]
    calibrate: Calibration = "none"

    @property
    def title(self) -> str:
        """Title of its table."""
        return self.group.title + ("" if self.calibrate == "none" else f" · calibrated ({self.calibrate})")

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of any method, by name."""
        return tuple(sorted({task for own in self.spreads.values() for task in own}))

    def average(self, label: str) -> Spread | None:
        """Return a method's mean over the tasks, way by way; None where a task is missing."""
        own = self.spreads[label]
        if set(own) != set(self.tasks):
            return None
        known = [spread.kappa for spread in own.values() if spread.kappa is not None]
        by_way = zip(*(spread.accuracies for spread in own.values()), strict=True)
        return Spread(
            tuple(statistics.mean(way) for way in by_way),
            statistics.mean(spread.consistency for spread in own.values()),
            statistics.mean(known) if len(known) == len(own) else None,
        )

    def gains(self, label: str) -> tuple[float, ...] | None:
        """Average accuracy less that of zero-shot had the same way, by way.

        None for zero-shot itself, and where one of the two is not complete.
        """
        own = self.average(label)
        if own is None or label == BASE:
            return None
        if BASE in self.spreads:
            base = self.average(BASE)
            return None if base is None else tuple(np.subtract(own.accuracies, base.accuracies).tolist())
        if self.vary in ("orders", "demonstrations") and set(self.tasks) <= set(self.plain):  # zero-shot shows none
            constant = statistics.mean(self.plain[task] for task in self.tasks)
            return tuple(accuracy - constant for accuracy in own.accuracies)
        return None


def sensitivities(store: Store, vary: Vary) -> list[Sensitivity]:
    """One for each table with cells that were varied so; where they have priors, one more for each kind of these.

    Raises:
        UserError: if the folder has no results, or a file in it is damaged.
    """
    records = store.records()
    if not any(record["cell"].get("variation", {}).get("vary") == vary for record in records):
        return []  # what may stand in for it was varied for its own sake
    varied: dict[str, dict[int, CellRecord]] = defaultdict(dict)
    fits_nothing = {record["key"] for record in records if not record["identity"].get("pools")}
    for record in records:
        own = record["cell"].get("variation")
        if own is not None and own["vary"] in _standing_in(vary, own["of"] in fits_nothing):
            varied[own["of"]][own["number"]] = record
    outcomes, found = Outcomes(store), []
    for group in comparable_groups(records):
        raw = _sensitivity(store, outcomes, vary, group, varied, "none")
        ways = [way for _, record in group.records for way in varied.get(record["key"], {}).values()]
        if raw.spreads or raw.unfinished:
            found.append(raw)
        for calibrate in outcomes.kinds(ways):
            corrected = _sensitivity(store, outcomes, vary, group, varied, calibrate)
            found += [corrected] if corrected.spreads else []
    return found


def consistency(answers: Sequence[Sequence[Answer]]) -> float:
    """Mean over rows of the share of ways that give the most frequent answer; ``answers`` are by way, then row."""
    rows = list(zip(*answers, strict=True))
    return statistics.mean(max(Counter(row).values()) / len(row) for row in rows)


def fleiss_kappa(answers: Sequence[Sequence[Answer]]) -> float | None:
    """Agreement of the ways beyond chance: Fleiss (1971), the ways being the raters.

    Returns:
        At most 1, and 0 for what answers drawn from the same marginals would agree in; None where all answers are one
        and the same, of which chance would have it alike.
    """
    ways = len(answers)
    rows = list(zip(*answers, strict=True))
    pairs = [sum(count * (count - 1) for count in Counter(row).values()) / (ways * (ways - 1)) for row in rows]
    totals = Counter(answer for row in rows for answer in row)
    chance = sum((count / (ways * len(rows))) ** 2 for count in totals.values())
    return None if len(totals) == 1 else (statistics.mean(pairs) - chance) / (1 - chance)


def _standing_in(vary: Vary, fits_nothing: bool) -> tuple[Vary, ...]:
    """Return what may have been varied: where nothing is fitted, fitting anew is the same as scoring anew."""
    return (vary, "templates") if vary == "templates-refit" and fits_nothing else (vary,)


def _sensitivity(
    store: Store,
    outcomes: Outcomes,
    vary: Vary,
    group: Group,
    varied: Mapping[str, Mapping[int, CellRecord]],
    calibrate: Calibration,
) -> Sensitivity:
    spreads: dict[str, dict[str, Spread]] = {}
    unfinished: dict[str, list[str]] = {}
    plain: dict[str, float] = {}
    by_task: dict[tuple[str, str], list[CellRecord]] = defaultdict(list)
    for label, record in group.records:
        by_task[label, record["cell"]["task"]].append(record)
    for (label, task), seeds in by_task.items():
        if label == BASE and outcomes.has(seeds[0], calibrate):
            plain[task] = _accuracy(outcomes, seeds[0], calibrate)
        if not any(record["key"] in varied for record in seeds):
            continue
        ways = [[record, *(varied[record["key"]].get(way) for way in range(1, WAYS[vary]))] for record in seeds]
        complete = [[way for way in own if way is not None and outcomes.has(way, calibrate)] for own in ways]
        if all(len(own) == WAYS[vary] for own in complete):
            spreads.setdefault(label, {})[task] = _spread(store, outcomes, complete, calibrate)
        else:
            unfinished.setdefault(label, []).append(task)
    return Sensitivity(vary, group, spreads, plain, unfinished, calibrate)


def _spread(store: Store, outcomes: Outcomes, seeds: Sequence[Sequence[CellRecord]], calibrate: Calibration) -> Spread:
    """Return the spread of one method on one task: records by seed, then way."""
    answers = [[_answers(store, outcomes, record, calibrate) for record in ways] for ways in seeds]
    accuracies = [[_accuracy(outcomes, record, calibrate) for record in ways] for ways in seeds]
    kappas = [kappa for kappa in map(fleiss_kappa, answers) if kappa is not None]
    return Spread(
        tuple(statistics.mean(way) for way in zip(*accuracies, strict=True)),
        statistics.mean(map(consistency, answers)),
        statistics.mean(kappas) if len(kappas) == len(seeds) else None,
    )


def _accuracy(outcomes: Outcomes, record: CellRecord, calibrate: Calibration) -> float:
    return float(outcomes.answers(record, calibrate).correct.mean())


def _answers(store: Store, outcomes: Outcomes, record: CellRecord, calibrate: Calibration) -> list[Answer]:
    """Return what a cell answered, in the order of its rows' names."""
    column = "text" if record["task"]["role"] == OPEN_ENDED else "prediction"
    rows = store.rows(record["key"], ["example_id", column]).to_pylist()
    if len({row["example_id"] for row in rows}) != len(rows):
        raise UserError(f"examples/{record['key']}.parquet has an example twice: delete it and run again.")
    if calibrate != "none":
        for row, predicted in zip(rows, outcomes.outcome(record, calibrate).predicted.tolist(), strict=True):
            row[column] = predicted
    return [row[column] for row in sorted(rows, key=lambda row: str(row["example_id"]))]
