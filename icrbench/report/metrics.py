"""Metrics of one cell's answers, from its stored logits.

They stand with the reports and not with the scorer, because what the scorer's folder holds is part of every cell's
identity: a further metric must not make stored cells out of date.

Every metric is checked against scikit-learn, or by hand, in ``tests/test_metrics.py``. ``docs/calibration.md`` says
what each of them tells, and where other programs differ.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.integer]
Floats = npt.NDArray[np.float64]

BINS = 10


@dataclass(frozen=True)
class Outcome:
    """What a cell answered.

    Attributes:
        gold: index of the right option, ``[rows]``.
        predicted: index of the answer, ``[rows]``.
        probabilities: over the options of each row, ``[rows, options]``; 0 for an option that a row does not have.
    """

    gold: Ints
    predicted: Ints
    probabilities: Floats


@dataclass(frozen=True)
class Metric:
    """One number about an outcome.

    Attributes:
        title: as tables print it.
        value: the number; a fraction, which tables print times 100.
        lower_is_better: whether 0 is best.
        least, most: the ends of its range.
        by_class: options are compared as classes, which means little where they are letters.
    """

    title: str
    value: Callable[[Outcome], float]
    lower_is_better: bool = False
    by_class: bool = False
    least: float = 0.0
    most: float = 1.0


def accuracy(outcome: Outcome) -> float:
    """Share of rows answered rightly."""
    return float((outcome.gold == outcome.predicted).mean())


def macro_f1(outcome: Outcome) -> float:
    """Mean of 2 TP / (2 TP + FP + FN) over the classes that have gold rows.

    As scikit-learn's with ``labels`` set to those classes. Its default also counts classes that are only predicted.
    """
    scores = []
    for name in np.unique(outcome.gold):
        gold, predicted = outcome.gold == name, outcome.predicted == name
        scores.append(2 * (gold & predicted).sum() / (gold.sum() + predicted.sum()))
    return float(np.mean(scores))


def mcc(outcome: Outcome) -> float:
    """Matthews' correlation coefficient for several classes (Gorodkin 2004); 0 where it is not defined."""
    size = int(max(outcome.gold.max(), outcome.predicted.max())) + 1
    gold, predicted = (np.bincount(values, minlength=size) for values in (outcome.gold, outcome.predicted))
    n, right = len(outcome.gold), int((outcome.gold == outcome.predicted).sum())
    scale = float(n * n - predicted @ predicted) * float(n * n - gold @ gold)
    return float((n * right - predicted @ gold) / scale**0.5) if scale else 0.0


def ece(outcome: Outcome) -> float:
    """Return expected calibration error over ten bins of equal width, closed on the right (Naeini et al. 2015).

    The share of each bin times the distance of its accuracy from its mean confidence, which is the probability of the
    likeliest option.
    """
    bins = np.ceil(_confidence(outcome) * BINS).astype(int)
    return _calibration_error(outcome, [np.flatnonzero(bins == place) for place in range(1, BINS + 1)])


def ece_mass(outcome: Outcome) -> float:
    """As ``ece``, over ten bins with the same number of rows, as far as that divides."""
    order = np.argsort(_confidence(outcome), kind="stable")
    return _calibration_error(outcome, np.array_split(order, BINS))


def brier(outcome: Outcome) -> float:
    """Mean squared distance of the probabilities from the right answer's one-hot vector, 0 to 2 (Brier 1950)."""
    target = np.zeros_like(outcome.probabilities)
    target[np.arange(len(target)), outcome.gold] = 1.0
    return float(((outcome.probabilities - target) ** 2).sum(axis=1).mean())


def label_bias(outcome: Outcome) -> float:
    """How far the answers' shares of the options are from those of the gold answers: half the sum of the differences.

    The total variation distance of ``shares``: 0 where every option is answered as often as it is right.
    """
    predicted, gold = shares(outcome)
    return float(np.abs(predicted - gold).sum() / 2)


def shares(outcome: Outcome) -> tuple[Floats, Floats]:
    """Return the share of every option among the answers and among the gold answers, each ``[options]``."""
    size = outcome.probabilities.shape[1]
    predicted, gold = (np.bincount(values, minlength=size) for values in (outcome.predicted, outcome.gold))
    return predicted / predicted.sum(), gold / gold.sum()


def _confidence(outcome: Outcome) -> Floats:
    return np.asarray(outcome.probabilities.max(axis=1))


def _calibration_error(outcome: Outcome, bins: list[npt.NDArray[np.intp]]) -> float:
    right, confidence = outcome.gold == outcome.predicted, _confidence(outcome)
    gaps = [abs(float(right[rows].sum()) - float(confidence[rows].sum())) for rows in bins]
    return sum(gaps) / len(right)


METRICS: dict[str, Metric] = {
    "accuracy": Metric("Accuracy", accuracy),
    "macro_f1": Metric("Macro-F1", macro_f1, by_class=True),
    "mcc": Metric("MCC", mcc, by_class=True, least=-1.0),
    "ece": Metric("ECE, equal width", ece, lower_is_better=True),
    "ece_mass": Metric("ECE, equal mass", ece_mass, lower_is_better=True),
    "brier": Metric("Brier score", brier, lower_is_better=True, most=2.0),
    "label_bias": Metric("Label bias", label_bias, lower_is_better=True, by_class=True),
}
