from pathlib import Path

import numpy as np
import pytest

from icrbench.cli import main
from icrbench.report import stats
from icrbench.report.comparison import MethodComparison, compare_methods
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from records import TASKS, add, record, rows

N = 40


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def bits(rate: float, seed: int) -> list[bool]:
    return (np.random.default_rng(seed).random(N) < rate).tolist()


def fill(store: Store, label: str, seeds: list[int | None], rate: float) -> dict[str, np.ndarray]:
    made = {}
    for place, task in enumerate(TASKS):
        answers = [bits(rate, 100 * place + (seed or 0) + len(label)) for seed in seeds]
        for seed, correct in zip(seeds, answers, strict=True):
            add(store, task, label, seed, correct)
        made[task] = np.array(answers)
    return made


def only(store: Store, first: str = "icr", second: str = "few_shot") -> MethodComparison:
    (comparison,) = compare_methods(store, first, second, None)
    return comparison


def test_every_number_is_that_of_the_arrays(store: Store) -> None:
    own, other = fill(store, "icr", [0, 1], 0.8), fill(store, "few_shot", [0, 1], 0.5)
    found = only(store)
    assert [task.task for task in found.tasks] == list(TASKS)
    for task in found.tasks:
        a, b = own[task.task], other[task.task]
        assert task.versus == stats.compare([a], [b])
        assert (task.first, task.second) == (pytest.approx(a.mean()), pytest.approx(b.mean()))
        assert task.counts.first_only == pytest.approx((a & ~b).sum() / 2)
        assert task.counts.neither == pytest.approx((~a & ~b).sum() / 2)
        assert task.counts.both + task.counts.first_only + task.counts.second_only + task.counts.neither == N
    assert found.average == stats.compare(list(own.values()), list(other.values()))
    assert [task.p_holm for task in found.tasks] == stats.holm([task.versus.p for task in found.tasks])


def test_one_seed_is_mcnemar_on_the_counts(store: Store) -> None:
    fill(store, "icr", [0], 0.8)
    fill(store, "zero_shot", [None], 0.5)
    for task in only(store, "icr", "zero_shot").tasks:
        assert task.versus.test == "McNemar"
        assert task.versus.p == stats.mcnemar(int(task.counts.first_only), int(task.counts.second_only))


def test_swapping_the_methods_turns_the_sign(store: Store) -> None:
    fill(store, "icr", [0, 1], 0.7)
    fill(store, "few_shot", [0, 1], 0.6)
    there, back = only(store), only(store, "few_shot", "icr")
    assert there.average.difference == pytest.approx(-back.average.difference)
    assert there.average.p == pytest.approx(back.average.p)
    assert there.average.interval.low == pytest.approx(-back.average.interval.high)


def test_different_seeds_are_independent(store: Store) -> None:
    own, other = fill(store, "icr", [0, 1, 2], 0.8), fill(store, "few_shot", [5, 6], 0.5)
    found = only(store)
    assert not found.same_seeds
    assert found.average == stats.compare(list(own.values()), list(other.values()), same_seeds=False)
    a, b = own["sst2"], other["sst2"]
    pairs = [(a[i] & ~b[j]).sum() for i in range(3) for j in range(2)]
    assert found.tasks[0].counts.first_only == pytest.approx(np.mean(pairs))


def test_examples_are_paired_by_id(store: Store) -> None:
    order = np.random.default_rng(0).permutation(N)
    own, other = bits(0.8, 1), bits(0.5, 2)
    store.write(record("sst2", "icr", 0, own), rows("sst2", own, order.tolist()))
    add(store, "sst2", "zero_shot", None, other)
    (task,) = only(store, "icr", "zero_shot").tasks
    assert task.versus == stats.compare([np.array(own)], [np.array(other)])


def test_tasks_that_one_lacks_are_named(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    fill(store, "icr", [0], 0.8)
    add(store, "sst2", "few_shot", 0, bits(0.5, 1))
    add(store, "mr", "few_shot", 0, bits(0.5, 1), error="out of memory")
    assert [task.task for task in only(store).tasks] == ["sst2"]
    assert main(["compare", str(store.folder), "icr", "few_shot"]) == 0
    text = capsys.readouterr().out
    assert "Not compared, because one of the two lacks it: TREC, MR, CB." in text
    assert "| Average of 1" in text


def test_labels_and_models_that_are_not_there(store: Store) -> None:
    fill(store, "icr", [0], 0.8)
    fill(store, "few_shot", [0], 0.8)
    with pytest.raises(UserError, match="unknown method 'few_shop': did you mean few_shot"):
        compare_methods(store, "icr", "few_shop", None)
    with pytest.raises(UserError, match="unknown model 'huge'"):
        compare_methods(store, "icr", "few_shot", "huge")
    with pytest.raises(UserError, match="given twice"):
        compare_methods(store, "icr", "icr", None)
    add(store, "sst2", "other", 0, bits(0.5, 1), limit=20)
    with pytest.raises(UserError, match="no table has 'icr' and 'other' on the same task"):
        compare_methods(store, "icr", "other", None)


def test_a_model_is_picked(store: Store) -> None:
    fill(store, "icr", [0], 0.8)
    fill(store, "few_shot", [0], 0.8)
    assert len(compare_methods(store, "icr", "few_shot", "tiny")) == 1


def test_a_form_of_our_own_says_so(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    fill(store, "m2iv", [0], 0.8)
    fill(store, "few_shot", [0], 0.8)
    assert main(["compare", str(store.folder), "m2iv", "few_shot"]) == 0
    text = capsys.readouterr().out
    assert "A: M2IV-style, seeds 0." in text
    assert "our own form after M2IV" in text
