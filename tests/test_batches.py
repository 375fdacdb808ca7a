"""Cutting rows into batches: the least time there is, every row once, within the limits."""

import random
from collections.abc import Callable, Iterator

import pytest

from icrbench.backbone.batch import by_length, least_padding

MOST = 640
A_PASS = 10


def cuts(rows: int, most: Callable[[int], int], start: int = 0) -> Iterator[list[int]]:
    """Every way to cut a row of rows into batches, by the number of rows in each."""
    if start == rows:
        yield []
        return
    for count in range(1, min(most(start), rows - start) + 1):
        for others in cuts(rows, most, start + count):
            yield [count, *others]


def time_of(lengths: list[int], batches: list[list[int]]) -> int:
    return sum(max(lengths[row] for row in rows) * len(rows) + A_PASS for rows in batches)


@pytest.mark.parametrize("seed", range(20))
def test_no_other_cuts_take_less_time(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.randint(1, 120) for _ in range(10)]
    longest_first = sorted(lengths, reverse=True)

    def most(longest: int) -> int:
        return min(4, MOST // longest)

    found = list(least_padding(lengths, most, MOST))
    wanted = []
    for counts in cuts(len(lengths), lambda start: most(longest_first[start])):
        ends = [sum(counts[: place + 1]) for place in range(len(counts))]
        parts = [list(range(end - count, end)) for end, count in zip(ends, counts, strict=True)]
        wanted.append(time_of(longest_first, parts))
    assert time_of(lengths, found) == min(wanted)


@pytest.mark.parametrize("seed", range(5))
def test_every_row_is_in_one_batch_and_no_batch_is_too_large(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.randint(1, 90) for _ in range(200)]
    found = list(by_length(lengths, 80))
    assert sorted(row for rows in found for row in rows) == list(range(200))
    assert all(len(rows) == 1 or max(lengths[row] for row in rows) * len(rows) <= 80 for rows in found)
    order = [lengths[row] for rows in found for row in rows]
    assert order == sorted(order, reverse=True)


def test_rows_of_one_length_fill_batches_and_no_row_is_no_batch() -> None:
    assert [len(rows) for rows in by_length([10] * 9, 40)] == [4, 4, 1]
    assert list(by_length([], 40)) == []


def test_less_padding_than_full_batches_have() -> None:
    """Lengths spread as in a set of short texts: a few long ones fill a batch with padding."""
    lengths = [20 + round(60 * (row / 64) ** 3) for row in range(64)]
    padded = sum(max(lengths[row] for row in rows) * len(rows) for rows in by_length(lengths, 2048))
    full = sorted(lengths, reverse=True)
    greedy = sum(full[start] * len(full[start : start + 25]) for start in (0, 25, 50))
    assert 1 - sum(lengths) / padded < 0.12
    assert 1 - sum(lengths) / greedy > 0.2
