"""Two methods of a results folder against each other, task by task, on the same examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from icrbench.report import stats
from icrbench.report.groups import Group, comparable_groups
from icrbench.report.leaderboard import task_columns
from icrbench.report.line import Line, lines
from icrbench.report.metrics import METRICS
from icrbench.report.outcomes import Calibration, Outcomes
from icrbench.report.text.grid import Entry, Grid
from icrbench.report.text.names import display_name, form_notes
from icrbench.report.text.numbers import probability, signed, signed_interval
from icrbench.report.text.render import (
    escape_markdown,
    markdown_grid,
    markdown_notes,
    terminal_grid,
    terminal_notes,
    terminal_title,
)
from icrbench.scoring.prior import KINDS
from icrbench.store.store import Store
from icrbench.util.errors import UserError, unknown


@dataclass(frozen=True)
class Counts:
    """McNemar's table of one task, in examples; means over the seeds where there are several."""

    both: float
    first_only: float
    second_only: float
    neither: float


@dataclass(frozen=True)
class TaskComparison:
    """The two methods on one task."""

    task: str
    title: str
    first: float
    """Accuracy of the first method, the mean over its seeds."""
    second: float
    versus: stats.Comparison
    counts: Counts
    p_holm: float
    """``versus.p`` corrected over the tasks (Holm)."""


@dataclass(frozen=True)
class MethodComparison:
    """The two methods in one table."""

    group: Group
    labels: tuple[str, str]
    seeds: tuple[tuple[int | None, ...], tuple[int | None, ...]]
    tasks: tuple[TaskComparison, ...]
    average: stats.Comparison
    """Macro average over ``tasks``. One test, so nothing to correct for."""
    left_out: tuple[str, ...]
    """Tasks that one of the two lacks, in part or whole."""
    calibrate: Calibration
    metrics: Mapping[str, tuple[float, float]]
    """Averages of both over ``tasks`` in every metric."""
    calibrated: Mapping[Calibration, tuple[float, float, stats.Comparison]]
    """Where nothing is corrected: average accuracies and difference with both corrected, where both can be."""

    @property
    def same_seeds(self) -> bool:
        """Differences were taken seed by seed, or one of the two has but one row for all seeds."""
        return self.seeds[0] == self.seeds[1] or 1 in map(len, self.seeds)


def compare_methods(
    store: Store, first: str, second: str, model: str | None, calibrate: Calibration = "none"
) -> list[MethodComparison]:
    """One comparison for each table that holds both methods.

    Args:
        store: a results folder.
        first: label of the method to judge, as in the leaderboard.
        second: the label to judge it by.
        model: only this model; None for all.
        calibrate: what the answers of both are corrected by.

    Raises:
        UserError: if a label or the model is not there, no table holds both on the same task, a file is damaged, or
            the two scored different examples.
    """
    groups = comparable_groups(store.records())
    outcomes = Outcomes(store)
    if model is not None:
        if model not in {group.model for group in groups}:
            raise unknown("model", model, {group.model for group in groups})
        groups = [group for group in groups if group.model == model]
    known = {label for group in groups for label, _ in group.records}
    for label in (first, second):
        if label not in known:
            raise unknown("method", label, known)
    if first == second:
        raise UserError(f"'{first}' is given twice: name two different methods.")
    found = []
    for group in groups:
        by_label = lines(group, outcomes, calibrate)
        if first in by_label and second in by_label:
            comparison = _compared(group, by_label[first], by_label[second])
            if comparison and calibrate == "none":
                comparison = replace(comparison, calibrated=_calibrated(group, outcomes, comparison))
            found += [comparison] if comparison else []
    if not found:
        priors = "" if calibrate == "none" else f" with a prior of kind {calibrate}"
        raise UserError(
            f"no table has '{first}' and '{second}' on the same task{priors}: run both with the same options."
        )
    return found


def _compared(group: Group, first: Line, second: Line) -> MethodComparison | None:
    titles = {column.name: column.title for column in task_columns(group)}
    there = [task for task in titles if first.complete(task) and second.complete(task)]
    if not there:
        return None
    versus = [first.compare(second, [task]) for task in there]
    corrected = stats.holm([each.p for each in versus])
    tasks = tuple(
        TaskComparison(task, titles[task], first.mean(task), second.mean(task), each, _counts(first, second, task), p)
        for task, each, p in zip(there, versus, corrected, strict=True)
    )
    seeds = tuple(first.seeds), tuple(second.seeds)
    left_out = tuple(titles[task] for task in titles if task not in there)
    average = first.compare(second, there)
    metrics = {
        name: (_mean_metric(first, name, there), _mean_metric(second, name, there))
        for name in (() if group.written else METRICS)
    }
    labels = first.label, second.label
    return MethodComparison(group, labels, seeds, tasks, average, left_out, first.calibrate, metrics, {})


def _mean_metric(line: Line, name: str, tasks: Sequence[str]) -> float:
    return float(np.mean([np.mean(line.metric(name, task)) for task in tasks]))


def _calibrated(
    group: Group, outcomes: Outcomes, raw: MethodComparison
) -> dict[Calibration, tuple[float, float, stats.Comparison]]:
    tasks = [each.task for each in raw.tasks]
    found: dict[Calibration, tuple[float, float, stats.Comparison]] = {}
    for kind in KINDS:
        by_label = lines(group, outcomes, kind)
        first, second = (by_label[label] for label in raw.labels)
        if first.complete(*tasks) and second.complete(*tasks):
            means = [_mean_metric(line, "accuracy", tasks) for line in (first, second)]
            found[kind] = (means[0], means[1], first.compare(second, tasks))
    return found


def _counts(first: Line, second: Line, task: str) -> Counts:
    own, other = first.answers(task)[1], first.aligned(second, task)
    if len(own) != len(other) or first.seeds != second.seeds:
        # No seed of one belongs to a seed of the other: every pair of seeds counts the same.
        own, other = np.repeat(own, len(other), axis=0), np.tile(other, (len(own), 1))
    pairs = len(own)
    both, wins, losses = (int(x.sum()) / pairs for x in (own & other, own & ~other, ~own & other))
    return Counts(both, wins, losses, own.shape[1] - both - wins - losses)


def print_comparison(
    folder: Path, first: str, second: str, model: str | None, calibrate: Calibration = "none", *, terminal: bool
) -> None:
    """Print every comparison: laid out for a terminal, or as Markdown.

    Raises:
        UserError: as ``compare_methods``.
    """
    for comparison in compare_methods(Store(folder), first, second, model, calibrate):
        title, shown = comparison.group.title, [_grid(comparison)]
        shown += [_averages(comparison)] if comparison.metrics else []
        title += "" if calibrate == "none" else f" · calibrated by {calibrate}"
        if terminal:
            print("\n\n".join([terminal_title(title), *map(terminal_grid, shown)]))
            print(terminal_notes(_notes(comparison)) + "\n")
        else:
            grids = [markdown_grid(grid, code=False) for grid in shown]
            print("\n\n".join([f"## {escape_markdown(title)}", *grids]) + "\n")
            print("\n\n".join(markdown_notes(_notes(comparison))) + "\n")


def _grid(comparison: MethodComparison) -> Grid:
    rows = [
        (
            task.title,
            *(f"{100 * mean:.1f}" for mean in (task.first, task.second)),
            *_difference(task.versus),
            *map(_count, (task.counts.both, task.counts.first_only, task.counts.second_only, task.counts.neither)),
            f"{probability(task.versus.p)} ({task.versus.test})",
            probability(task.p_holm),
        )
        for task in comparison.tasks
    ]
    means = (np.mean([getattr(task, side) for task in comparison.tasks]) for side in ("first", "second"))
    average = (
        f"Average of {len(rows)}",
        *(f"{100 * mean:.1f}" for mean in means),
        *_difference(comparison.average),
        *[""] * 4,
        f"{probability(comparison.average.p)} ({comparison.average.test})",
        "",
    )
    header = ("task", "A", "B", "A − B", "95 %", "both", "only A", "only B", "neither", "p", "p Holm")
    return Grid("", header, tuple(tuple(Entry(text) for text in row) for row in (*rows, average)))


def _averages(comparison: MethodComparison) -> Grid:
    """Every metric and every calibration, averaged over the tasks."""
    rows = [
        (
            METRICS[name].title + (" (lower is better)" if METRICS[name].lower_is_better else ""),
            f"{100 * first:.1f}",
            f"{100 * second:.1f}",
            signed(first - second),
            "",
        )
        for name, (first, second) in comparison.metrics.items()
        if name != "accuracy"
    ]
    rows += [
        (f"Accuracy, both calibrated by {kind}", f"{100 * first:.1f}", f"{100 * second:.1f}", *_difference(versus))
        for kind, (first, second, versus) in comparison.calibrated.items()
    ]
    header = (f"average of {len(comparison.tasks)}", "A", "B", "A − B", "95 %")
    return Grid("", header, tuple(tuple(Entry(text) for text in row) for row in rows))


def _difference(versus: stats.Comparison) -> tuple[str, str]:
    return signed(versus.difference), signed_interval(versus.interval)


def _count(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:.1f}"


def _notes(comparison: MethodComparison) -> list[str]:
    (first, second), (own, other) = comparison.labels, comparison.seeds
    several = max(len(own), len(other)) > 1
    named = display_name(first), display_name(second)
    lines = [f"A: {named[0]}, seeds {_listed(own)}. B: {named[1]}, seeds {_listed(other)}."]
    lines += form_notes(comparison.labels)
    lines.append(
        "A − B in points with its 95 % interval: over new examples and new seeds (t, two-way analysis of variance)."
        if several
        else "A − B in points with its 95 % interval: paired bootstrap over examples; other seeds may differ by more."
    )
    lines.append(
        "both, only A, only B, neither: how many examples which of the two has right"
        + (", the mean over seeds." if several else ".")
    )
    if several and not comparison.same_seeds:
        lines.append("The two were run with different seeds, which are taken to be independent.")
    lines.append(
        f"p Holm: corrected over the {len(comparison.tasks)} tasks; the average is one test. Comparing more pairs of "
        "methods calls for a further correction."
    )
    if comparison.left_out:
        lines.append(f"Not compared, because one of the two lacks it: {', '.join(comparison.left_out)}.")
    if comparison.group.demo:
        lines.append("These are bundled demonstration rows: they say nothing about a method.")
    return lines


def _listed(seeds: Sequence[int | None]) -> str:
    return ", ".join("none" if seed is None else str(seed) for seed in seeds)
