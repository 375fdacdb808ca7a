"""Intervals and paired tests for accuracies measured on the same examples, with one or several seeds.

Scores come as one array a task, shaped [seeds, examples], holding 1 for a right answer and 0 for a wrong
one. A list of tasks is summarised by its macro average: the mean over tasks of each task's accuracy,
whatever the tasks' sizes.

Two things vary: which examples the test set happens to hold, and which seeds were run. Both are crossed (every
seed answers every example), and one seed of a universal method serves every task. With S seeds, T tasks and n
examples in a task, the two-way analysis of variance gives three mean squares, here each as a variance of the
macro average:

    A  between seeds:    variance over seeds of the seeds' macro averages / S
    B  between examples: sum over tasks of the variance over examples of the mean over seeds / (n T^2)
    C  interaction:      sum over tasks of the mean square of what neither explains / (S n T^2)

A and B hold C once each, so the variance of the average over new seeds and new examples is A + B - C. Nothing is
resampled, so all functions are exact repetitions of themselves and cost microseconds. ``docs/statistics.md``
says what each number means, how it was checked, and what it does not say.

Sources:
    Wilson (1927), Probable inference, the law of succession, and statistical inference. JASA 22.
    McNemar (1947), Note on the sampling error of the difference between correlated proportions.
        Psychometrika 12.
    Satterthwaite (1946), An approximate distribution of estimates of variance components. Biometrics Bulletin 2.
    Searle, Casella & McCulloch (1992), Variance components, ch. 4 (two-way crossed, random, balanced).
    Holm (1979), A simple sequentially rejective multiple test procedure. Scand. J. Stat. 6.
    Efron & Tibshirani (1993), An introduction to the bootstrap, ch. 13 (percentiles).
    Hall (1992), The bootstrap and Edgeworth expansion, sections 2.5 (Cornish-Fisher) and 3.3 (bootstrap means).
    Dror, Baumer, Shlomov & Reichart (2018), The hitchhiker's guide to testing statistical significance in
        natural language processing. ACL.
    Miller (2024), Adding error bars to evals. arXiv 2411.00640 (paired differences, clustered errors).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, stdtr, stdtrit

from icrbench.report.moments import Floats, Moments, Scores, moments

CONFIDENCE = 0.95
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_TINY = 1e-12
"""Below rounding errors of a mean, far below 1 / any test set."""


class Interval(NamedTuple):
    """A 95 % confidence interval, ends included."""

    low: float
    high: float


class Comparison(NamedTuple):
    """A method against a reference on the same examples."""

    difference: float
    """Macro average of the method less that of the reference."""
    interval: Interval
    p: float
    """Two-sided, not corrected for the number of comparisons."""
    test: str
    """"McNemar" or "t"."""


class Spread(NamedTuple):
    """What a macro average owes to chance; the squares of both add up to its variance."""

    seeds: float | None
    """Standard error due to which seeds were run; None with a single seed, which cannot tell."""
    examples: float
    """Standard error due to which examples the test sets hold (for these seeds)."""


def wilson(correct: int, n: int) -> Interval:
    """Return the score interval of one proportion (Wilson 1927); sensible at 0 and 1 and for n = 1.

    Raises:
        ValueError: unless 0 <= correct <= n and n > 0.
    """
    if n <= 0 or not 0 <= correct <= n:
        raise ValueError(f"no proportion: {correct} of {n}")
    rate = correct / n
    centre = (rate + _Z * _Z / (2 * n)) / (1 + _Z * _Z / n)
    half = _Z / (1 + _Z * _Z / n) * (rate * (1 - rate) / n + _Z * _Z / (4 * n * n)) ** 0.5
    # The exact ends at 0 and n are 0 and 1; rounding must not move them.
    return Interval(0.0 if correct == 0 else centre - half, 1.0 if correct == n else centre + half)


def interval(tasks: Sequence[Scores | Moments]) -> Interval:
    """95 % interval of the macro average over tasks.

    * One task on which all seeds agree is one proportion: Wilson.
    * One seed (or seeds that agree on everything): percentile bootstrap over the examples of each task.
    * Several seeds: mean +- t x standard error over seeds and examples, with Satterthwaite's degrees of freedom. A
      bootstrap of two or three seeds is far too narrow, because it cannot go beyond the seeds it has.

    With a single seed the interval says nothing about other seeds.

    Args:
        tasks: one array a task, [seeds, examples], with the same seeds in the same order; or their moments.

    Raises:
        ValueError: if there is no task, no example, or the tasks differ in their number of seeds.
    """
    return interval_and_spread(tasks)[0]


def spread(tasks: Sequence[Scores | Moments]) -> Spread:
    """Split the variance of a macro average into what seeds and what examples contribute.

    Estimates of variance components from the two-way analysis of variance (Searle, Casella & McCulloch 1992,
    ch. 4), those below 0 set to 0: seeds A - C, examples B. The interaction is counted with the examples.

    Args:
        tasks: as for ``interval``.
    """
    return interval_and_spread(tasks)[1]


def interval_and_spread(tasks: Sequence[Scores | Moments]) -> tuple[Interval, Spread]:
    """``interval`` and ``spread`` from one analysis of variance."""
    known = _moments(tasks)
    variance = _Variance.of(known)
    seeds = max(variance.seeds - variance.interaction, 0.0) ** 0.5 if len(known[0].by_seed) > 1 else None
    found = Spread(seeds, max(variance.examples, variance.interaction) ** 0.5)
    if not all(task.unanimous for task in known):
        return variance.interval(_mean(known), 0.0, 1.0), found
    if len(known) > 1:
        return _bootstrap(known), found
    return wilson(round(known[0].by_seed[0] * known[0].n), known[0].n), found


def mcnemar(wins: int, losses: int) -> float:
    """Exact two-sided p of McNemar's test (1947) for two classifiers on the same examples.

    Only discordant pairs count: without a difference each falls either way like a coin. No such pair: p = 1.

    Args:
        wins: examples that the first alone has right.
        losses: examples that the second alone has right.
    """
    return min(1.0, 2 * float(bdtr(min(wins, losses), wins + losses, 0.5))) if wins + losses else 1.0


def compare(method: Sequence[Scores], reference: Sequence[Scores], *, same_seeds: bool = True) -> Comparison:
    """Compare two methods on the same tasks and examples.

    The interval is that of ``interval`` for the differences. The test is exact McNemar for one task and one seed, and
    else a t-test with the same variance as the interval, but for the examples' part, which is taken about 0, as
    under the hypothesis. So interval and p speak of the same thing: new examples, and new seeds if there are
    several. With no example on which the two differ, the interval is the point 0 and p is 1.

    Args:
        method: one array a task, [seeds, examples] or [examples].
        reference: the same. One row of either stands for every seed of the other.
        same_seeds: row k of both is the same seed, and differences are taken seed by seed. Else the seeds of the two
            are independent, and their numbers may differ.

    Raises:
        ValueError: if tasks, examples or seeds do not match.
    """
    pairs = [
        (np.atleast_2d(np.asarray(own, dtype=np.float64)), np.atleast_2d(np.asarray(other, dtype=np.float64)))
        for own, other in zip(method, reference, strict=True)
    ]
    if any(own.shape[1:] != other.shape[1:] for own, other in pairs):
        raise ValueError("method and reference were not scored on the same tasks and examples")
    if not same_seeds and all(len(own) > 1 and len(other) > 1 for own, other in pairs):
        return _independent(pairs)
    if any(len(other) not in (1, len(own)) and len(own) != 1 for own, other in pairs):
        raise ValueError("method and reference differ in their number of seeds")
    return compared([moments(own - other) for own, other in pairs])


def compared(differences: Sequence[Moments]) -> Comparison:
    """``compare`` from the moments of the differences, one a task."""
    known = _moments(differences)
    difference = _mean(known)
    variance = _Variance.of(known)
    alike = all(task.unanimous for task in known)
    found = _bootstrap(known) if alike else variance.interval(difference, -1.0, 1.0)
    if len(known) == 1 and known[0].discordant is not None:
        return Comparison(difference, found, mcnemar(*known[0].discordant), "McNemar")
    return Comparison(difference, found, variance.p(difference), "t")


def holm(p_values: Sequence[float], untested: int = 0) -> list[float]:
    """Holm's (1979) adjusted p-values, in the order given: they bound the chance of any false alarm among them.

    Args:
        p_values: not corrected.
        untested: hypotheses of the same family that were not looked at, which count as the least significant.
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) + untested - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


@dataclass
class _Variance:
    """The mean squares A, B and C of the module's docstring, and the parts their degrees of freedom come from."""

    seeds: float
    examples: float
    examples_null: float
    interaction: float
    freedom: tuple[tuple[float, float], ...]
    """Pairs of a part of A, B or C and its degrees of freedom."""

    @classmethod
    def of(cls, tasks: Sequence[Moments]) -> "_Variance":
        n_tasks, n_seeds = len(tasks), len(tasks[0].by_seed)
        between = 0.0
        freedom = []
        if n_seeds > 1:
            averages = [sum(of_seed) / n_tasks for of_seed in zip(*(task.by_seed for task in tasks), strict=True)]
            mean = sum(averages) / n_seeds
            between = sum((average - mean) ** 2 for average in averages) / (n_seeds - 1) / n_seeds
            freedom.append((between, float(n_seeds - 1)))
        square = n_tasks**2
        examples = examples_null = interaction = 0.0
        for task in tasks:
            free = max(task.n - 1, 1)
            freedom.append((task.examples / square, free))
            freedom.append((task.interaction / square, free * max(n_seeds - 1, 1)))
            examples += task.examples
            examples_null += task.examples_null
            interaction += task.interaction
        return cls(between, examples / square, examples_null / square, interaction / square, tuple(freedom))

    def interval(self, centre: float, lowest: float, highest: float) -> Interval:
        variance = self._total(self.examples)
        half = float(stdtrit(self._freedom(variance), (1 + CONFIDENCE) / 2)) * variance**0.5 if variance else 0.0
        return Interval(max(lowest, centre - half), min(highest, centre + half))

    def p(self, difference: float) -> float:
        variance = self._total(self.examples_null)
        if abs(difference) < _TINY or not variance:
            return 1.0
        return min(1.0, 2 * float(stdtr(self._freedom(variance), -abs(difference) / variance**0.5)))

    def _total(self, examples: float) -> float:
        """Return A + B - C; the differences A - C and B - C, which cannot be negative, are at least 0."""
        return max(self.seeds, self.interaction) + max(examples, self.interaction) - self.interaction

    def _freedom(self, variance: float) -> float:
        """Satterthwaite's degrees of freedom of a sum of independent mean squares."""
        return variance * variance / self._spent if self._spent else float("inf")

    @cached_property
    def _spent(self) -> float:
        return sum(part * part / free for part, free in self.freedom)


def _independent(pairs: Sequence[tuple[Floats, Floats]]) -> Comparison:
    """Compare methods whose seeds are unrelated: each side contributes a variance component for its seeds."""
    sides = [_Variance.of([moments(side) for side in sides]) for sides in zip(*pairs, strict=True)]
    paired = [moments(own.mean(axis=0) - other.mean(axis=0)) for own, other in pairs]
    shared = _Variance.of(paired)
    seed_parts = [part for side in sides for part in (side.freedom[0], *side.freedom[2::2])]
    variance = _Variance(
        sum(side.seeds for side in sides),
        shared.examples,
        shared.examples_null,
        sum(side.interaction for side in sides),
        (*shared.freedom, *seed_parts),
    )
    difference = _mean(paired)
    return Comparison(difference, variance.interval(difference, -1.0, 1.0), variance.p(difference), "t")


def _moments(tasks: Sequence[Scores | Moments]) -> list[Moments]:
    known = [task if isinstance(task, Moments) else moments(task) for task in tasks]
    if not known:
        raise ValueError("every task needs at least one seed and one example, and there is at least one task")
    if len({len(task.by_seed) for task in known}) > 1:
        raise ValueError(f"tasks differ in their number of seeds: {[len(task.by_seed) for task in known]}")
    return known


def _mean(tasks: Sequence[Moments]) -> float:
    return sum(task.mean for task in tasks) / len(tasks)


def _bootstrap(tasks: Sequence[Moments]) -> Interval:
    """Percentile bootstrap of the macro average, the examples of each task drawn anew (Efron & Tibshirani 1993).

    Without resampling: a bootstrap mean is a mean of independent draws from the sample, so its cumulants are the
    sample's over powers of n, cumulants of independent tasks add, and quantiles follow from them by Cornish and
    Fisher's expansion (Hall 1992). What is left out is of order 1/n and below the noise of thousands of resamples.
    """
    count = len(tasks)
    centre = _mean(tasks)
    second, third, fourth = (sum(task.cumulants[order] for task in tasks) / count ** (order + 2) for order in range(3))
    lowest, highest = (sum(ends) / count for ends in zip(*((t.lowest, t.highest) for t in tasks), strict=True))
    if second <= _TINY**2:
        return Interval(centre, centre)
    skew, tail = third / second**1.5, fourth / second**2
    ends = []
    for z in (-_Z, _Z):
        step = z + skew * (z * z - 1) / 6 + tail * (z**3 - 3 * z) / 24 - skew * skew * (2 * z**3 - 5 * z) / 36
        ends.append(min(max(centre + second**0.5 * step, lowest), highest))
    return Interval(*ends)
