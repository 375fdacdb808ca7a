"""`icrbench.results` and `icrbench.leaderboard`: a results folder as tables. No model is loaded, torch not imported."""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Self

import pandas as pd
from tabulate import tabulate

from icrbench.report.leaderboard import Table, leaderboards
from icrbench.report.text import render
from icrbench.report.text.grid import Grid
from icrbench.store.store import Store


class Results(pd.DataFrame):
    """Cells as a data frame, one a row; what is left after filtering still knows its examples."""

    _metadata = ["folder"]  # noqa: RUF012  # pandas copies these attributes to what is made of the frame
    folder: Path

    @property
    def _constructor(self) -> Callable[..., Self]:
        return type(self)

    def examples(self) -> pd.DataFrame:
        """Return the example rows of the cells: gold, prediction, option logits, method, model, task and seed."""
        store = Store(self.folder)
        names = ["label", "model", "task", "seed", "protocol"]
        parts = [
            store.examples(str(cell["key"])).assign(**{name: cell[name] for name in names})
            for cell in self.to_dict("records")
            if cell["status"] == "ok"
        ]
        whole = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
        return whole[[*names, *(name for name in whole.columns if name not in names)]] if parts else whole


def results(folder: str | Path) -> Results:
    """Read every cell of a results folder.

    Args:
        folder: that a run wrote to.

    Returns:
        One row a cell: method, label, model, task, seed, protocol, accuracy, n, costs.

    Raises:
        UserError: if the folder holds no results, or a damaged file.
    """
    frame = Results(Store(Path(folder)).frame())
    frame.folder = Path(folder)
    return frame


@dataclass(frozen=True)
class Leaderboard:
    """The leaderboards of a results folder; shows itself in a notebook, and prints as Markdown.

    Attributes:
        tables: one a model, protocol and kind of data.
    """

    tables: tuple[Table, ...]

    def __str__(self) -> str:
        return render.markdown(list(self.tables))

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the averages, with intervals and the comparison to zero-shot."""
        return "".join(_html(table.group.title, render.grids(table)[0]) for table in self.tables)


def leaderboard(folder: str | Path) -> Leaderboard:
    """Rank the methods of a results folder.

    Raises:
        UserError: if the folder holds no results, or a damaged file.
    """
    return Leaderboard(tuple(leaderboards(Store(Path(folder)))))


def _html(title: str, grid: Grid) -> str:
    rows = [[entry.text for entry in row] for row in grid.rows]
    table = tabulate(rows, grid.header, tablefmt="html", disable_numparse=True)  # escapes what it is given
    return f"<p><strong>{escape(title)}</strong></p>{table}"
