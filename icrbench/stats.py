"""Intervals and paired tests for accuracies measured on the same examples, with one or several seeds.

Scores come as one array a task, shaped [seeds, examples], holding 1 for a right answer and 0 for a wrong
one. A list of tasks is summarised by its macro average: the mean over tasks of each task's accuracy,
whatever the tasks' sizes.

Resampling never touches single examples: those with the same scores under all seeds are interchangeable, so
how often each kind is drawn is sampled directly (a multinomial for the bootstrap, binomials for sign flips).
That has exactly the distribution of the usual loops, at a cost that hardly depends on the size of the test
set.

Every function is deterministic: the generator is seeded with a constant.

Sources:
    Wilson (1927), Probable inference, the law of succession, and statistical inference. JASA 22.
    McNemar (1947), Note on the sampling error of the difference between correlated proportions.
        Psychometrika 12.
    Holm (1979), A simple sequentially rejective multiple test procedure. Scand. J. Stat. 6.
    Efron & Tibshirani (1993), An introduction to the bootstrap, ch. 13 (percentiles), 15 (permutations).
    Owen (2007), The pigeonhole bootstrap. Annals of Applied Statistics 1 (rows and columns both resampled).
    Phipson & Smyth (2010), Permutation p-values should never be zero. Stat. Appl. Genet. Mol. Biol. 9.
    Dror, Baumer, Shlomov & Reichart (2018), The hitchhiker's guide to testing statistical significance in
        natural language processing. ACL.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

Scores = npt.NDArray[np.floating[Any]] | npt.NDArray[np.bool_]
"""Right (1) or wrong (0): [seeds, examples], or [examples] where there is one seed."""
Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
BOOTSTRAP_DRAWS = 5_000
FLIP_DRAWS = 20_000
_SEED = 0
_CHUNK = 2_000_000  # numbers held at once while resampling


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval, ends included."""

    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """A method against a reference on the same examples."""

    difference: float
    """Macro average of the method less that of the reference."""
    interval: Interval
    p: float
    """Two-sided, not corrected for the number of comparisons."""
    test: str
    """"McNemar" or "sign flip"."""


def wilson(correct: int, n: int) -> Interval:
    """The score interval of one proportion (Wilson 1927); sensible at 0 and 1 and for n = 1.

    Raises:
        ValueError: unless 0 <= correct <= n and n > 0.
    """
    if n <= 0 or not 0 <= correct <= n:
        raise ValueError(f"no proportion: {correct} of {n}")
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    rate = correct / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (rate * (1 - rate) / n + z * z / (4 * n * n)) ** 0.5
    # The exact ends at 0 and n are 0 and 1; rounding must not move them.
    return Interval(0.0 if correct == 0 else centre - half, 1.0 if correct == n else centre + half)


def interval(tasks: Sequence[Scores]) -> Interval:
    """95 % interval of the macro average over tasks.

    One task on which all seeds agree is one proportion: Wilson. Anything else is a percentile bootstrap over
    two levels. Examples are drawn anew within each task and kept together over the seeds (Efron & Tibshirani
    1993); seeds are drawn anew too, the same draw for all tasks, because one seed of a universal method
    serves every task (rows and columns resampled independently: Owen 2007). With a single seed only examples
    are drawn: the interval then says nothing about other seeds.

    Args:
        tasks: one array a task, [seeds, examples], with the same seeds in the same order.

    Raises:
        ValueError: if there is no task, no example, or the tasks differ in their number of seeds.
    """
    arrays = _arrays(tasks)
    if len(arrays) == 1 and bool(np.all(arrays[0] == arrays[0][0])):
        return wilson(int(arrays[0][0].sum()), arrays[0].shape[1])
    return _bootstrap(arrays)


def mcnemar(method: Scores, reference: Scores) -> float:
    """Exact two-sided p of McNemar's test (1947) for two classifiers on the same examples, each [examples].

    Only discordant pairs count: without a difference each falls either way like a coin. No such pair: p = 1.
    """
    first, second = np.asarray(method, dtype=bool), np.asarray(reference, dtype=bool)
    wins, losses = int((first & ~second).sum()), int((second & ~first).sum())
    return 1.0 if wins + losses == 0 else float(binomtest(wins, wins + losses).pvalue)


def sign_flip(differences: Sequence[Floats]) -> float:
    """Two-sided p of the paired sign-flip permutation test on a macro average.

    If method and reference were exchangeable, each example's difference could as well have the other sign
    (Efron & Tibshirani 1993, ch. 15). Signs are flipped example by example within each task, so the statistic
    stays the mean over tasks of the mean difference. The observed assignment counts as one of the draws, so p
    is never 0 (Phipson & Smyth 2010).

    Args:
        differences: one array a task, [examples]: method less reference, averaged over seeds.
    """
    rng = np.random.default_rng(_SEED)
    observed = float(np.mean([task.mean() for task in differences]))
    drawn = np.zeros(FLIP_DRAWS)
    for task in differences:
        sizes, counts = np.unique(np.abs(task[task != 0]).round(12), return_counts=True)
        for size, count in zip(sizes, counts, strict=True):
            kept = rng.binomial(count, 0.5, FLIP_DRAWS)
            drawn += size * (2 * kept - count) / (len(task) * len(differences))
    extreme = int((np.abs(drawn) >= abs(observed) - 1e-10).sum())
    return (1 + extreme) / (1 + FLIP_DRAWS)


def compare(method: Sequence[Scores], reference: Sequence[Scores]) -> Comparison:
    """Compare two methods on the same tasks and examples.

    One task and one seed: exact McNemar. Otherwise the sign-flip test on differences averaged over seeds,
    which speaks of new examples for the seeds that were run. The interval is the two-level bootstrap of
    ``interval`` applied to the differences, so it speaks of new seeds as well, and can hold 0 where p is
    small and the seeds disagree. With no example on which the two differ, the interval is the point 0 and p
    is 1.

    Args:
        method: one array a task, [seeds, examples] or [examples].
        reference: one array a task, [examples]: a method without randomness, or the mean over its seeds.

    Raises:
        ValueError: if tasks, examples or seeds do not match.
    """
    arrays = _arrays(method)
    bases = [np.asarray(base, dtype=np.float64) for base in reference]
    if [array.shape[1:] for array in arrays] != [base.shape for base in bases]:
        raise ValueError("method and reference were not scored on the same tasks and examples")
    differences = [array - base for array, base in zip(arrays, bases, strict=True)]
    means = [difference.mean(axis=0) for difference in differences]
    binary = all(bool(np.isin(base, (0, 1)).all()) for base in bases)
    if len(arrays) == 1 and len(arrays[0]) == 1 and binary:
        p, test = mcnemar(arrays[0][0], bases[0]), "McNemar"
    else:
        p, test = sign_flip(means), "sign flip"
    return Comparison(float(np.mean([mean.mean() for mean in means])), _bootstrap(differences), p, test)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values, in the order given: they bound the chance of any false alarm."""
    order = np.argsort(p_values, kind="stable")
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _arrays(tasks: Sequence[Scores]) -> list[Floats]:
    """Each task as float64 [seeds, examples], checked."""
    arrays = [np.atleast_2d(np.asarray(task, dtype=np.float64)) for task in tasks]
    if not arrays or any(array.size == 0 or array.ndim != 2 for array in arrays):
        raise ValueError("every task needs at least one seed and one example")
    if len({len(array) for array in arrays}) > 1:
        raise ValueError(f"tasks differ in their number of seeds: {[len(array) for array in arrays]}")
    return arrays


def _bootstrap(tasks: Sequence[Floats]) -> Interval:
    """Percentile interval of the mean over tasks, seeds and examples; seeds and examples are resampled."""
    rng = np.random.default_rng(_SEED)
    seeds = len(tasks[0])
    weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), BOOTSTRAP_DRAWS) / seeds  # [draws, seeds]
    drawn = np.zeros(BOOTSTRAP_DRAWS)
    for task in tasks:
        kinds, counts = np.unique(task, axis=1, return_counts=True)  # [seeds, kinds], [kinds]
        n = task.shape[1]
        step = max(1, _CHUNK // len(counts))
        for start in range(0, BOOTSTRAP_DRAWS, step):
            part = slice(start, min(start + step, BOOTSTRAP_DRAWS))
            often = rng.multinomial(n, counts / n, part.stop - part.start)  # [part, kinds]
            drawn[part] += ((often @ kinds.T) / n * weights[part]).sum(axis=1) / len(tasks)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(low), float(high))
