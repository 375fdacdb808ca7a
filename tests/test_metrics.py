"""Every metric against scikit-learn, or by hand."""

import warnings

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, brier_score_loss, f1_score, matthews_corrcoef

from icrbench.report.metrics import METRICS, Outcome, shares


def outcome(seed: int, n: int = 200, options: int = 4, classes: int | None = None) -> Outcome:
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(options, 0.5), n)
    gold = rng.integers(0, classes or options, n)
    return Outcome(gold, probabilities.argmax(axis=1), probabilities)


def constant(gold: list[int], answer: int, options: int) -> Outcome:
    probabilities = np.full((len(gold), options), 0.1 / (options - 1))
    probabilities[:, answer] = 0.9
    return Outcome(np.array(gold), np.full(len(gold), answer), probabilities)


def one_hot(gold: list[int], predicted: list[int], options: int = 2) -> Outcome:
    return Outcome(np.array(gold), np.array(predicted), np.eye(options)[predicted])


def value(name: str, of: Outcome) -> float:
    return METRICS[name].value(of)


@pytest.mark.parametrize("seed", range(5))
def test_against_scikit_learn(seed: int) -> None:
    of = outcome(seed, classes=3)  # the fourth class is predicted and never right
    assert value("accuracy", of) == pytest.approx(accuracy_score(of.gold, of.predicted))
    present = np.unique(of.gold)
    expected = f1_score(of.gold, of.predicted, labels=present, average="macro", zero_division=0)
    assert value("macro_f1", of) == pytest.approx(expected)
    with warnings.catch_warnings():  # it is the default that counts a class which only answers have
        warnings.simplefilter("ignore")
        assert value("macro_f1", of) > f1_score(of.gold, of.predicted, average="macro")
    assert value("mcc", of) == pytest.approx(matthews_corrcoef(of.gold, of.predicted))
    full = brier_score_loss(of.gold, of.probabilities, labels=[0, 1, 2, 3], scale_by_half=False)
    assert value("brier", of) == pytest.approx(full)


def test_calibration_errors_against_scikit_learn_and_by_hand() -> None:
    of = outcome(7, n=300)
    confidence, right = of.probabilities.max(axis=1), of.gold == of.predicted
    edges = np.linspace(0, 1, 11)
    counts = np.histogram(confidence, edges)[0]  # no confidence is on an edge
    share, mean = calibration_curve(right, confidence, n_bins=10, strategy="uniform")
    expected = sum(n * abs(a - c) for n, a, c in zip(counts[counts > 0], share, mean, strict=True)) / 300
    assert value("ece", of) == pytest.approx(expected)
    share, mean = calibration_curve(right, confidence, n_bins=10, strategy="quantile")
    assert value("ece_mass", of) == pytest.approx(float(np.abs(share - mean).mean()))
    # Four rows by hand: two bins of equal width, (.5, .6] and (.8, .9].
    small = Outcome(
        np.array([0, 1, 0, 0]), np.array([0, 0, 0, 0]), np.array([[0.6, 0.4], [0.6, 0.4], [0.9, 0.1], [0.9, 0.1]])
    )
    assert value("ece", small) == pytest.approx((2 * abs(0.5 - 0.6) + 2 * abs(1 - 0.9)) / 4)


def test_one_hot_answers_are_in_a_bin() -> None:
    """A confidence of exactly 1 belongs to the last bin; left-closed bins lose it, and all-wrong then scores 0."""
    for name, best, worst in (("ece", 0.0, 1.0), ("ece_mass", 0.0, 1.0), ("brier", 0.0, 2.0)):
        assert value(name, one_hot([0, 1, 0], [0, 1, 0])) == best
        assert value(name, one_hot([0, 1, 0], [1, 0, 1])) == worst


def test_constant_answers_on_cb() -> None:
    """CB's test split: 23 entailments, 28 contradictions, 5 neutral."""
    gold = [0] * 23 + [1] * 28 + [2] * 5
    of = constant(gold, 0, 3)
    assert value("accuracy", of) == pytest.approx(23 / 56)
    assert value("macro_f1", of) == pytest.approx((2 * 23 / (2 * 23 + 33)) / 3)  # by hand: 0.194
    assert value("mcc", of) == 0.0
    assert value("label_bias", of) == pytest.approx(33 / 56)
    predicted, right = shares(of)
    assert predicted.tolist() == [1, 0, 0]
    assert right.tolist() == pytest.approx([23 / 56, 28 / 56, 5 / 56])


def test_classes_without_gold_rows_do_not_count() -> None:
    assert value("macro_f1", one_hot([0, 1], [0, 1], options=3)) == 1.0  # two of three classes are there, both right


def test_rows_with_fewer_options() -> None:
    """The probability of an option that a row does not have is 0: it adds nothing to the Brier score."""
    of = Outcome(np.array([0, 2]), np.array([0, 2]), np.array([[0.8, 0.2, 0.0], [0.1, 0.2, 0.7]]))
    assert value("brier", of) == pytest.approx(((0.04 + 0.04) + (0.01 + 0.04 + 0.09)) / 2)
