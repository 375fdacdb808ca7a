"""Experiments as data: one YAML each says which rows a table has, and a run needs, and what they mirror in the paper.

The same file drives ``icrbench run --experiment NAME`` and ``icrbench report DIR --table NAME``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

import yaml

from icrbench.data.templates import L9
from icrbench.util.errors import UserError, unknown

Columns = Literal["tasks", "roles", "cost", "parameters", "iclness", "sensitivity", "calibration"]
Vary = Literal["templates", "templates-refit", "orders", "demonstrations"]
WAYS: dict[Vary, int] = {"templates": len(L9), "templates-refit": len(L9), "orders": 8, "demonstrations": 8}
"""Ways to have a cell, the plain one among them."""


@dataclass(frozen=True)
class ExperimentRow:
    """A row of an experiment's table.

    Attributes:
        name: what the table calls it.
        method: as ``--methods`` takes it: ``icr:rank=4``.
        setting: the published table's own words for it; empty where it has the method alone.
    """

    name: str
    method: str
    setting: str = ""


@dataclass(frozen=True)
class Experiment:
    """Rows that belong together.

    Attributes:
        name: as on the command line.
        title: heading of its table.
        published: tables of the ICR paper (arXiv 2509.22854) that show the same, in the order they are searched.
        columns: accuracy by task, averages by role, averages raw and calibrated, or something else than accuracy.
        tasks: as ``--tasks`` takes them.
        rows: in the table's order.
        note: what a reader must know beside.
        vary: what changes from cell to cell of a row; the rows are then those of ``--methods``, if it is given.
    """

    name: str
    title: str
    published: tuple[int, ...]
    columns: Columns
    rows: tuple[ExperimentRow, ...]
    tasks: str = "all"
    note: str | None = None
    vary: Vary | None = None


@cache
def experiments() -> dict[str, Experiment]:
    """Every experiment by name, in the order of the paper's tables and then by name."""
    found = [
        _experiment(path.name.removesuffix(".yaml"), yaml.safe_load(path.read_text("utf-8")))
        for path in files(__name__).iterdir()
        if path.name.endswith(".yaml")
    ]
    found.sort(key=lambda experiment: (experiment.published[:1] or (10**6,), experiment.name))
    return {experiment.name: experiment for experiment in found}


def get_experiments(text: str) -> list[Experiment]:
    """Experiments from ``all`` (which leaves out those that vary something) or names joined by commas.

    Raises:
        UserError: for an unknown name, or none.
    """
    known = experiments()
    every = [name for name, own in known.items() if own.vary is None]
    names = every if text.strip() == "all" else [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise UserError(f"no experiment in '{text}': `icrbench list experiments` shows them.")
    for name in names:
        if name not in known:
            raise unknown("experiment", name, known)
    return [known[name] for name in dict.fromkeys(names)]


def specs(chosen: Sequence[Experiment]) -> list[str]:
    """Return the methods of some experiments, each once."""
    return list(dict.fromkeys(row.method for experiment in chosen for row in experiment.rows))


def _experiment(name: str, entry: dict[str, Any]) -> Experiment:
    if entry["columns"] not in get_args(Columns):
        raise ValueError(f"{name}.yaml: no such columns: {entry['columns']}")
    if entry.get("vary") not in (None, *get_args(Vary)):
        raise ValueError(f"{name}.yaml: nothing varies like {entry['vary']}")
    rows = tuple(ExperimentRow(**row) for row in entry.pop("rows"))
    return Experiment(name, rows=rows, published=tuple(entry.pop("published")), **entry)
