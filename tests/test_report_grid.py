"""Grids that are wider than a page or a terminal."""

import pytest

from icrbench.report.text.grid import Entry, Grid, blocks


def grid(*widths: int, keys: int = 1) -> Grid:
    """Columns of these widths, each field with a letter of its own."""
    texts = [chr(ord("a") + place) * width for place, width in enumerate(widths)]
    return Grid("t", tuple(texts), (tuple(Entry(text, 1) for text in texts),) * 2, keys)


def test_what_fits_stays_whole() -> None:
    whole = grid(4, 3, 3)
    assert blocks(whole, 4 + 2 + 3 + 2 + 3) == [whole]
    assert len(blocks(whole, 4 + 2 + 3 + 2 + 3 - 1)) == 2


@pytest.mark.parametrize("keys", [1, 2])
def test_parts_repeat_the_names_and_share_the_columns_in_order(keys: int) -> None:
    whole = grid(6, 2, *[5] * 12, keys=keys)
    parts = blocks(whole, 40)
    assert all(part.header[:keys] == whole.header[:keys] for part in parts)
    assert [name for part in parts for name in part.header[keys:]] == list(whole.header[keys:])
    assert [entry for part in parts for entry in part.rows[1][keys:]] == list(whole.rows[1][keys:])
    sizes = [len(part.header) - keys for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert all(sum(len(name) + 2 for name in part.header) - 2 <= 40 for part in parts)


def test_a_column_that_is_too_wide_stands_alone() -> None:
    assert [len(part.header) for part in blocks(grid(3, 90, 4), 40)] == [2, 2]
    assert blocks(grid(90), 40) == [grid(90)]
