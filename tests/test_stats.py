from itertools import product

import numpy as np
import pytest
from scipy import stats as scipy_stats

from icrbench import stats


def bits(rate: float, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) < rate


@pytest.mark.parametrize(("correct", "n"), [(0, 1), (1, 1), (0, 10), (10, 10), (57, 200), (199, 200)])
def test_wilson_is_scipys(correct: int, n: int) -> None:
    expected = scipy_stats.binomtest(correct, n).proportion_ci(0.95, method="wilson")
    found = stats.wilson(correct, n)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_refuses_no_examples() -> None:
    for correct, n in [(0, 0), (2, 1), (-1, 3)]:
        with pytest.raises(ValueError, match="no proportion"):
            stats.wilson(correct, n)


def test_mcnemar_on_known_tables() -> None:
    def table(wins: int, losses: int, ties: int = 7) -> float:
        method = np.array([True] * wins + [False] * losses + [True] * ties)
        base = np.array([False] * wins + [True] * losses + [True] * ties)
        return stats.mcnemar(method, base)

    assert table(0, 0) == 1.0
    assert table(1, 0) == 1.0
    assert table(5, 5) == pytest.approx(1.0)
    assert table(6, 0) == pytest.approx(2 / 2**6)
    assert table(9, 1) == pytest.approx(2 * (1 + 10) / 2**10)
    # Approval of a prime minister in two polls: 150 and 86 changed their mind (Agresti, Categorical data
    # analysis, table 10.1; the uncorrected chi-square is 17.36).
    assert table(150, 86) == pytest.approx(scipy_stats.chi2.sf(17.36, 1), rel=0.3)
    assert table(3, 12) == table(12, 3)


def test_holm_by_hand() -> None:
    # Sorted: .005*4, .01*3, .03*2, .04*1 -> .02, .03, .06, max(.06, .04)
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.6, 0.9]) == [1.0, 1.0]
    assert stats.holm([0.2]) == [0.2]
    assert stats.holm([]) == []


def test_interval_of_one_proportion_is_wilson() -> None:
    answers = bits(0.7, 50)
    expected = stats.wilson(int(answers.sum()), 50)
    assert stats.interval([answers]) == expected
    assert stats.interval([np.stack([answers] * 3)]) == expected  # seeds that all agree add nothing
    assert stats.interval([np.ones((3, 20))]).low < 0.9  # no certainty from 20 right answers


def slow_bootstrap(tasks: list[np.ndarray], draws: int = 4000) -> tuple[float, float]:
    rng = np.random.default_rng(1)
    means = []
    for _ in range(draws):
        seeds = rng.integers(0, len(tasks[0]), len(tasks[0]))
        means.append(np.mean([t[seeds][:, rng.integers(0, t.shape[1], t.shape[1])].mean() for t in tasks]))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


@pytest.mark.parametrize("seeds", [1, 3])
def test_bootstrap_equals_the_loop_over_examples(seeds: int) -> None:
    tasks = [bits(0.6, seeds, 40, seed=1), bits(0.8, seeds, 15, seed=2)]
    found = stats.interval(tasks)
    assert (found.low, found.high) == pytest.approx(slow_bootstrap(tasks), abs=0.012)


def test_bootstrap_with_one_seed_is_scipys() -> None:
    first, second = bits(0.6, 60, seed=3), bits(0.5, 60, seed=4)
    expected = scipy_stats.bootstrap(
        (first.astype(float) - second,), np.mean, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    found = stats.compare([first], [second]).interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.018)


def test_interval_covers_the_true_average() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        found = stats.interval([rng.random((1, 60)) < 0.7, rng.random((1, 90)) < 0.4])
        covered += found.low <= 0.55 <= found.high
    assert 180 <= covered <= 199


def test_disagreeing_seeds_widen_the_interval() -> None:
    same = np.stack([bits(0.5, 400)] * 4)
    shifted = np.stack([bits(rate, 400) for rate in (0.35, 0.45, 0.55, 0.65)])
    width = {name: stats.interval([a]) for name, a in {"same": same, "shifted": shifted}.items()}
    assert width["shifted"].high - width["shifted"].low > 1.5 * (width["same"].high - width["same"].low)


def test_sign_flip_is_exact_by_enumeration() -> None:
    tasks = [np.array([1.0, 1.0, 0.0, -1.0, 1.0]), np.array([1 / 3, 1 / 3, -1 / 3, 2 / 3])]
    observed = abs(np.mean([task.mean() for task in tasks]))
    means = []
    for signs in product((-1, 1), repeat=9):
        flipped = [np.array(signs[:5]) * tasks[0], np.array(signs[5:]) * tasks[1]]
        means.append(abs(np.mean([task.mean() for task in flipped])))
    exact = np.mean(np.array(means) >= observed - 1e-12)
    assert stats.sign_flip(tasks) == pytest.approx(exact, abs=0.012)


def test_sign_flip_agrees_with_mcnemar_for_one_task_and_seed() -> None:
    method, base = bits(0.7, 120, seed=6), bits(0.55, 120, seed=7)
    p = stats.sign_flip([method.astype(float) - base])
    assert p == pytest.approx(stats.mcnemar(method, base), abs=0.01)


def test_sign_flip_p_is_uniform_without_an_effect() -> None:
    rng = np.random.default_rng(8)
    p_values = []
    for _ in range(300):
        tasks = [rng.choice([-1.0, -1 / 3, 0.0, 1 / 3, 1.0], size) for size in (80, 50)]
        p_values.append(stats.sign_flip(tasks))
    assert scipy_stats.kstest(p_values, "uniform").pvalue > 0.01
    assert 4 <= sum(p < 0.05 for p in p_values) <= 28


def test_small_tasks_count_as_much_as_large_ones() -> None:
    # The large task gets worse by 4 of 100, the small one better by 5 of 10: the macro average rises.
    large, small = np.zeros(100), np.zeros(10)
    large[:4], small[:5] = -1, 1
    comparison = stats.compare([large + (base := np.ones(100)) * 1, small], [base, np.zeros(10)])
    assert comparison.difference == pytest.approx((-0.04 + 0.5) / 2)


def test_compare_picks_the_test() -> None:
    method, base = bits(0.7, 80, seed=1), bits(0.6, 80, seed=2)
    one = stats.compare([method], [base])
    assert (one.test, one.p) == ("McNemar", stats.mcnemar(method, base))
    assert one.difference == pytest.approx(method.mean() - base.mean())
    assert stats.compare([np.stack([method, method])], [base]).test == "sign flip"
    assert stats.compare([method, method], [base, base]).test == "sign flip"
    assert (
        stats.compare(
            [method],
            [base],
        )
        == one
    )  # deterministic


def test_equal_methods_and_single_examples() -> None:
    base = bits(0.5, 30)
    same = stats.compare([base, base], [base, base])
    assert (same.difference, same.p, same.interval) == (0.0, 1.0, stats.Interval(0.0, 0.0))
    one = stats.compare([np.array([True])], [np.array([False])])
    assert (one.difference, one.p) == (1.0, 1.0)
    assert stats.sign_flip([np.array([1.0])]) == 1.0


def test_what_does_not_match_is_refused() -> None:
    with pytest.raises(ValueError, match="same tasks and examples"):
        stats.compare([bits(0.5, 3)], [bits(0.5, 4)])
    with pytest.raises(ValueError, match="number of seeds"):
        stats.interval([bits(0.5, 2, 5), bits(0.5, 3, 5)])
    for empty in ([], [np.zeros((1, 0))]):
        with pytest.raises(ValueError, match="at least one"):
            stats.interval(empty)
