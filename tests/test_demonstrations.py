import random
from collections import Counter

import pytest

from icrbench.data.find_tasks import load_tasks
from icrbench.data.task import Example
from icrbench.method import Pool
from icrbench.toolkit.demonstrations import balanced, multi_task
from icrbench.util.errors import UserError

TASKS = load_tasks()


def rows(task: str, *counts: int) -> tuple[Example, ...]:
    """So many rows of class 0, of class 1, ..., mixed."""
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    random.Random(0).shuffle(labels)
    options = tuple(str(label) for label in range(len(counts)))
    return tuple(
        Example(f"{task}/train/{i}", {"text": f"{task} {i}"}, options, label, f"{task}-{i}")
        for i, label in enumerate(labels)
    )


def pool(task: str, *counts: int) -> Pool:
    return Pool(TASKS[task], rows(task, *counts), "0")


def test_every_class_gets_its_share() -> None:
    chosen = balanced(rows("trec", 30, 10, 20), 5, random.Random(1))
    assert Counter(example.label for example in chosen) == {0: 5, 1: 5, 2: 5}
    assert len({example.id for example in chosen}) == 15


def test_a_small_class_gives_all_it_has() -> None:
    chosen = balanced(rows("trec", 30, 2, 0, 7), 5, random.Random(1))
    assert Counter(example.label for example in chosen) == {0: 5, 1: 2, 3: 5}


def test_demonstrations_are_shuffled_and_repeatable() -> None:
    train = rows("sst2", 30, 30)
    first, again, other = (balanced(train, 5, random.Random(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    labels = [example.label for example in first]
    assert labels not in ([0] * 5 + [1] * 5, [1] * 5 + [0] * 5)


def test_what_is_excluded_is_never_shown() -> None:
    train = rows("sst2", 6, 6)
    query = train[0]
    for seed in range(20):
        chosen = balanced(train, 6, random.Random(seed), {query.content_hash})
        assert query not in chosen
        assert len(chosen) == 11


def test_every_task_gives_its_share_of_different_classes() -> None:
    pools = {"sst2": pool("sst2", 9, 9), "trec": pool("trec", 5, 5, 5, 5), "csqa": pool("csqa", 4, 4, 4)}
    chosen = multi_task(pools, 3, random.Random(1))
    by_task = {name: [example for owner, example in chosen if owner is pools[name]] for name in pools}
    assert {name: len(found) for name, found in by_task.items()} == {"sst2": 3, "trec": 3, "csqa": 3}
    assert {name: len({row.label for row in found}) for name, found in by_task.items()} == {
        "sst2": 2,  # it has no more
        "trec": 3,
        "csqa": 3,
    }
    assert len({example.id for _, example in chosen}) == 9
    assert [owner.task.name for owner, _ in chosen] != sorted(owner.task.name for owner, _ in chosen)


def test_the_order_of_the_pools_does_not_matter() -> None:
    first = {"sst2": pool("sst2", 9, 9), "trec": pool("trec", 5, 5)}
    turned = dict(reversed(first.items()))
    assert [row.id for _, row in multi_task(first, 3, random.Random(4))] == [
        row.id for _, row in multi_task(turned, 3, random.Random(4))
    ]


def test_a_pool_with_one_class_repeats_it() -> None:
    chosen = multi_task({"sst2": pool("sst2", 5, 0)}, 4, random.Random(1))
    assert [example.label for _, example in chosen] == [0] * 4


def test_too_few_rows_are_an_error() -> None:
    with pytest.raises(UserError, match="4 demonstrations wanted"):
        multi_task({"sst2": pool("sst2", 2, 1)}, 4, random.Random(1))
