"""A table of text, before any thought of Markdown or LaTeX."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

_GAP = 2  # characters between two columns


class Entry(NamedTuple):
    """One field of a grid: its text, and 1 (best), 2 (second best) or 0."""

    text: str
    rank: int = 0


@dataclass(frozen=True)
class Grid:
    """A table of text; the first column, or the first ``keys``, say what a row is."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    keys: int = 1


def blocks(grid: Grid, width: int) -> list[Grid]:
    """Cut a grid between columns into parts of at most ``width`` characters, each with the names of the rows.

    Parts have about the same number of columns. One that a single column fills is wider, if it must be.
    """
    sizes = [
        max(len(name), *(len(row[place].text) for row in grid.rows), 0) + _GAP for place, name in enumerate(grid.header)
    ]
    columns = range(grid.keys, len(sizes))
    keys = sum(sizes[: grid.keys])
    for number in range(1, len(columns) + 1):
        ends = [len(columns) * part // number for part in range(number + 1)]
        parts = [columns[start:end] for start, end in pairwise(ends)]
        if number == len(columns) or all(keys + sum(sizes[c] for c in part) <= width + _GAP for part in parts):
            return [_part(grid, part) for part in parts]
    return [grid]


def _part(grid: Grid, columns: range) -> Grid:
    places = [*range(grid.keys), *columns]
    rows = tuple(tuple(row[place] for place in places) for row in grid.rows)
    return replace(grid, header=tuple(grid.header[place] for place in places), rows=rows)
