"""Choosing labelled examples to show before a query."""

import random
from collections.abc import Collection, Mapping, Sequence

from icrbench.data.task import Example
from icrbench.method import Pool
from icrbench.util.errors import UserError


def balanced(
    train: Sequence[Example], per_class: int, rng: random.Random, exclude: Collection[str] = ()
) -> list[Example]:
    """``per_class`` random examples of every class (for multiple choice, of every answer letter), shuffled.

    A class with fewer rows gives all it has: the demonstrations are then as balanced as the data allow.

    Args:
        train: rows to draw from.
        per_class: demonstrations per class.
        rng: source of randomness.
        exclude: content hashes that may not be drawn, for example the query's own.
    """
    classes = _by_class(train, exclude)
    chosen = [
        example
        for label in sorted(classes)
        for example in rng.sample(classes[label], min(per_class, len(classes[label])))
    ]
    rng.shuffle(chosen)
    return chosen


def multi_task(
    pools: Mapping[str, Pool], per_task: int, rng: random.Random, exclude: Collection[str] = ()
) -> list[tuple[Pool, Example]]:
    """``per_task`` examples of every pool, of different classes where there are that many, all shuffled together.

    The in-context baseline for tasks without demonstrations of their own (ICR paper, Sec. 3.1: three from each
    in-domain task).
    """
    chosen = [
        (pool, example) for _, pool in sorted(pools.items()) for example in spread(pool.train, per_task, rng, exclude)
    ]
    rng.shuffle(chosen)
    return chosen


def spread(train: Sequence[Example], count: int, rng: random.Random, exclude: Collection[str] = ()) -> list[Example]:
    """``count`` random examples, cycling through the classes in random order.

    Raises:
        UserError: if there are fewer rows.
    """
    classes = _by_class(train, exclude)
    if sum(map(len, classes.values())) < count:
        raise UserError(f"{count} demonstrations wanted, but a train split has fewer rows: lower the number.")
    for rows in classes.values():
        rng.shuffle(rows)
    order = rng.sample(sorted(classes), len(classes))
    chosen: list[Example] = []
    while len(chosen) < count:
        for label in order:
            if classes[label] and len(chosen) < count:
                chosen.append(classes[label].pop())
    return chosen


def dealt(count: int, names: Collection[str], rng: random.Random) -> dict[str, int]:
    """``count`` dealt to names as evenly as it divides; ``rng`` draws which names get the remainder."""
    order = rng.sample(sorted(names), len(names))
    whole, rest = divmod(count, len(order))
    return {name: whole + (place < rest) for place, name in enumerate(order)}


def _by_class(train: Sequence[Example], exclude: Collection[str]) -> dict[int, list[Example]]:
    classes: dict[int, list[Example]] = {}
    for example in train:
        if example.content_hash not in exclude:
            classes.setdefault(example.label, []).append(example)
    return classes
