"""Results that lm-evaluation-harness wrote for our methods, as a table beside the leaderboard."""

import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pandas as pd

from icrbench.report.text.grid import Entry, Grid
from icrbench.report.text.names import display_name, form_notes
from icrbench.report.text.numbers import MISSING
from icrbench.report.text.render import (
    csv_value,
    escape_markdown,
    markdown_grid,
    markdown_notes,
    terminal_grid,
    terminal_notes,
    terminal_title,
)
from icrbench.store.store import FOLDERS
from icrbench.util.errors import UserError


@dataclass(frozen=True)
class Value:
    """One number of lm-eval's.

    Attributes:
        model: what the user calls the model.
        method: its name.
        identity: hash of all that can change the number but the task.
        artefact: hash of method and fit.
        task: lm-eval's name and version.
        metric: lm-eval's name, with the filter if there is one.
        higher_is_better: None where lm-eval does not say.
        shots: demonstrations that lm-eval showed.
        rows: documents scored.
        value: as lm-eval gives it.
        error: its standard error, if lm-eval gives one.
        date: seconds since 1970.
    """

    model: str
    method: str
    identity: str
    artefact: str
    task: str
    metric: str
    higher_is_better: bool | None
    shots: int
    rows: int
    value: float
    error: float | None
    date: float


def lm_eval_values(folder: Path) -> list[Value]:
    """Every number below a folder; of one measured twice the latest, sorted by model, task, metric and method.

    Files that another of lm-eval's models wrote are passed over.

    Raises:
        UserError: for a file that is cut or not lm-eval's (it is named).
    """
    latest: dict[tuple[str | int, ...], Value] = {}
    for path in _files(folder):
        try:
            record = json.loads(path.read_text("utf-8"))
            found = _values(record) if "icrbench" in record.get("config", ()) else []
            unusable = next((value for value in found if not math.isfinite(value.value)), None)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not a whole results file of lm-eval: delete it and evaluate again.") from error
        if unusable is not None:
            raise UserError(
                f"{path}: {unusable.metric} of {unusable.task} is not finite: delete it and evaluate again."
            )
        for value in found:
            key = (*row_of(value), value.method, value.identity)
            if key not in latest or latest[key].date < value.date:
                latest[key] = value
    return [latest[key] for key in sorted(latest)]


def _files(folder: Path) -> list[Path]:
    """lm-eval's results files anywhere below a folder, but not among the many files of a store."""
    found = []
    for place, folders, names in os.walk(folder):
        if Path(place) == folder:
            folders[:] = [name for name in folders if name not in FOLDERS]
        found += [Path(place, name) for name in names if fnmatch(name, "results_*.json")]
    return sorted(found)


def row_of(value: Value) -> tuple[str, str, str, int, int]:
    """Return what two numbers must share to be compared: model, task, metric, shots, rows."""
    return value.model, value.task, value.metric, value.shots, value.rows


def labels(values: Sequence[Value]) -> dict[str, str]:
    """Identity to column title, zero-shot first: the method, and the identity too if the method has several."""
    names = {value.identity: value.method for value in values}
    order = sorted(names, key=lambda identity: (names[identity] != "zero_shot", names[identity], identity))
    several = Counter(names.values())
    return {
        identity: display_name(names[identity]) + ("" if several[names[identity]] == 1 else f" {identity[:6]}")
        for identity in order
    }


def _values(record: dict[str, Any]) -> list[Value]:
    """Return the numbers of one file of lm-eval's (its ``result_schema``)."""
    ours = record["config"]["icrbench"]
    found = []
    for task, numbers in record["results"].items():
        if task not in record["n-samples"]:  # a group: its tasks are there
            continue
        for name, value in numbers.items():
            metric, comma, kind = name.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = numbers.get(f"{metric}_stderr,{kind}")
            found.append(
                Value(
                    model=ours["model"]["name"],
                    method=ours["method"],
                    identity=ours["identity"],
                    artefact=ours["artefact"],
                    task=f"{task} {record['versions'].get(task, '')}".rstrip(),
                    metric=metric if kind == "none" else f"{metric}, {kind}",
                    higher_is_better=record["higher_is_better"].get(task, {}).get(metric),
                    shots=int(record["n-shot"].get(task, 0)),
                    rows=int(record["n-samples"][task]["effective"]),
                    value=float(value),
                    error=float(error) if isinstance(error, int | float) else None,
                    date=float(record["date"]),
                )
            )
    return found


def markdown(values: Sequence[Value]) -> str:
    """One table a model, as GitHub Markdown; empty without values."""
    parts = []
    for grid, notes in tables(values):
        parts += [f"## {escape_markdown(grid.title)}", markdown_grid(grid), *markdown_notes(notes)]
    return "".join(f"{part}\n\n" for part in parts)


def terminal(values: Sequence[Value]) -> str:
    """Return the tables for a terminal."""
    parts = []
    for grid, notes in tables(values):
        parts += [terminal_title(grid.title), terminal_grid(grid), terminal_notes(notes)]
    return "".join(f"{part}\n\n" for part in parts)


def csv(values: Sequence[Value]) -> str:
    """One line a number."""
    return pd.DataFrame([asdict(value) for value in values]).map(csv_value).to_csv(index=False, lineterminator="\n")


def tables(values: Sequence[Value]) -> list[tuple[Grid, list[str]]]:
    """Make a grid with footnotes for each model: a row a task and metric, a column a method, the best in bold."""
    made = []
    for model in dict.fromkeys(value.model for value in values):
        own = [value for value in values if value.model == model]
        titles = labels(own)
        rows = []
        for key in dict.fromkeys(map(row_of, own)):
            here = {value.identity: value for value in own if row_of(value) == key}
            _, task, metric, shots, count = key
            best = _best(list(here.values()))
            fields = [
                Entry(_number(here[one]), int(here[one].value == best)) if one in here else Entry(MISSING)
                for one in titles
            ]
            down = " ↓" if next(iter(here.values())).higher_is_better is False else ""
            rows.append((Entry(task), Entry(metric + down), Entry(str(shots)), Entry(str(count)), *fields))
        title = f"{model} · lm-evaluation-harness"
        grid = Grid(title, ("task", "metric", "shots", "rows", *titles.values()), tuple(rows))
        fits = {value.identity: value.artefact for value in own}
        notes = [f"{titles[one]}: identity {one}, fit {fits[one]}" for one in titles]
        notes += form_notes(value.method for value in own)
        made.append((grid, ["±: lm-eval's standard error; ↓: lower is better.", *notes]))
    return made


def _best(values: Sequence[Value]) -> float | None:
    """Return the value to mark in a row; None where there is nothing to compare or no better direction."""
    better = values[0].higher_is_better
    if len(values) < 2 or better is None:
        return None
    return (max if better else min)(value.value for value in values)


def _number(value: Value) -> str:
    error = "" if value.error is None else f" ±{value.error:.4f}"
    return f"{value.value:.4f}{error}"
