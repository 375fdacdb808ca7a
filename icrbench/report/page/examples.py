"""Single predictions, packed for the page: one character a prediction, two bytes an option logit.

The page stays small whatever the size of the results: only so many cells, predictions and logits go into it, every
row's first seed before any second one, and what was left out is counted for the reader.
"""

import base64
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icrbench.report.leaderboard import Table
from icrbench.store.records import CellRecord
from icrbench.store.store import Store

MOST_CELLS = 1_000
MOST_PREDICTIONS = 3_000_000
MOST_LOGITS = 1_500_000
_FIRST = 35
"""Option 0 is "#": the printable characters from here on, so that most need no escape."""
_COLUMNS = ("example_id", "gold", "prediction", "correct", "option_logits")
_HUNDREDTHS = 32_767  # largest logit of a packed cell, times 100


def packed(tables: Sequence[Table], store: Store) -> list[dict[str, Any]]:
    """One entry for each table and task with at least one cell: its rows, and the predictions of its cells.

    Returns:
        Entries with ``table`` (number), ``task``, ``total`` (cells that ran), ``ids`` (common start, and the rest of
        each id), ``gold``, ``options`` (words, may be empty) and ``cells``: ``row`` (number in the table), ``seed``,
        ``key``, ``predictions``, ``logits`` (base64 of little-endian int16, hundredths; None if left out) and
        ``counts`` (options of each example).

    Raises:
        UserError: if a file of the store is damaged.
    """
    sets: dict[tuple[int, str], dict[str, Any]] = {}
    orders: dict[tuple[int, str], pa.ChunkedArray] = {}
    cells = predictions = logits = 0
    for _, table, row, _, record in sorted(_cells(tables), key=itemgetter(0, 1, 2, 3)):
        result, task = record["result"], record["cell"]["task"]
        if result is None or tables[table].group.written:  # whose rows have a text, no option
            continue
        if (table, task) not in sets:
            sets[table, task] = _empty(table, record)
        entry = sets[table, task]
        entry["total"] += 1
        if cells == MOST_CELLS or predictions + result["n"] > MOST_PREDICTIONS:
            continue
        rows = store.rows(record["key"], _COLUMNS)
        order = orders.setdefault((table, task), rows["example_id"])
        if not rows["example_id"].equals(order):
            places = pc.index_in(order, rows["example_id"])
            if len(rows) != len(order) or places.null_count:
                continue  # of a table without zero-shot, where nothing was paired: it counts as left out
            rows = rows.take(places)
        gold, prediction = (rows[name].to_numpy() for name in ("gold", "prediction"))
        if not entry["cells"]:
            entry["ids"], entry["gold"] = _ids(order.to_pylist()), _characters(gold)
        values, counts = _logits(rows["option_logits"])
        fits = values is not None and logits + len(values) <= MOST_LOGITS
        entry["cells"].append(
            {
                "row": row,
                "seed": record["cell"]["seed"],
                "key": record["key"],
                "predictions": _characters(prediction),
                "logits": base64.b64encode(values.tobytes()).decode() if values is not None and fits else None,
                "counts": _characters(counts),
            }
        )
        cells, predictions = cells + 1, predictions + len(rows)
        logits += len(values) if values is not None and fits else 0
    return [entry for _, entry in sorted(sets.items(), key=lambda item: item[0][0]) if entry["cells"]]


def _cells(tables: Sequence[Table]) -> Iterator[tuple[int, int, int, int, CellRecord]]:
    """Place of the cell's seed within its row, number of the table, of the row and of the task, record."""
    for number, table in enumerate(tables):
        rows = {row.label: place for place, row in enumerate(table.rows)}
        tasks = {task: place for place, task in enumerate(table.columns[-1].tasks)}
        seeds: dict[str, set[int | None]] = {}
        for label, record in table.group.records:
            seeds.setdefault(label, set()).add(record["cell"]["seed"])
        ranks = {
            label: {seed: rank for rank, seed in enumerate(sorted(found, key=lambda s: -1 if s is None else s))}
            for label, found in seeds.items()
        }
        for label, record in table.group.records:
            cell = record["cell"]
            yield ranks[label][cell["seed"]], number, rows[label], tasks[cell["task"]], record


def _empty(table: int, record: CellRecord) -> dict[str, Any]:
    task = record["identity"].get("task")
    words = task.get("options") if isinstance(task, dict) else None
    options = [str(word) for word in words] if isinstance(words, list) else []
    return {"table": table, "task": record["cell"]["task"], "total": 0, "options": options, "cells": []}


def _ids(ids: list[str]) -> tuple[str, list[str]]:
    """Their common start, and the rest of each."""
    start, first, last = "", min(ids), max(ids)
    for own, other in zip(first, last, strict=False):
        if own != other:
            break
        start += own
    return start, [name[len(start) :] for name in ids]


def _characters(values: npt.NDArray[np.integer[Any]]) -> str:
    return (values + _FIRST).astype("<u2").tobytes().decode("utf-16-le")


def _logits(lists: pa.ChunkedArray) -> tuple[npt.NDArray[np.int16] | None, npt.NDArray[np.integer[Any]]]:
    """All options' logits in hundredths, one example after the other, and how many each has."""
    counts = pc.list_value_length(lists).to_numpy()
    hundredths = np.round(100 * pc.list_flatten(lists).to_numpy().astype(np.float64))
    if not np.isfinite(hundredths).all() or np.abs(hundredths).max(initial=0) > _HUNDREDTHS:
        return None, counts
    return hundredths.astype("<i2"), counts
