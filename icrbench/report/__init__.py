"""Reports: pure functions of a results folder. No report loads a model."""

import gc
import sys
from pathlib import Path

from icrbench.report import lm_eval_results, page
from icrbench.report.by_metric import by_metric
from icrbench.report.leaderboard import Table, leaderboards
from icrbench.report.lm_eval_results import Value, lm_eval_values
from icrbench.report.metrics import METRICS
from icrbench.report.outcomes import Calibration
from icrbench.report.text import render
from icrbench.store.store import Store
from icrbench.util.errors import UserError, unknown
from icrbench.util.files import write_atomic


def write_report(folder: Path, out: Path) -> list[Path]:
    """Write ``leaderboard.md``, ``.csv``, ``.tex`` and ``.html`` from a results folder; returns their paths.

    What lm-evaluation-harness measured below the folder is a further table in the first, and ``lm_eval.csv``.

    Raises:
        UserError: if ``folder`` holds no results or a damaged file, or ``out`` cannot be written.
    """
    tables, values = _results(folder)
    return _write(folder, out, tables, values, _markdown(tables, values))


def print_report(folder: Path) -> None:
    """Print the leaderboards of a results folder: laid out for a terminal, or Markdown where it is piped.

    Raises:
        UserError: if ``folder`` holds no results or a damaged file.
    """
    tables, values = _results(folder)
    print(_terminal(tables, values) if sys.stdout.isatty() else _markdown(tables, values))


def report(folder: Path, out: Path, calibrate: Calibration = "none", metric: str = "accuracy") -> list[Path]:
    """Write and print, from one reading of the folder; returns the paths.

    With a calibration or another metric than accuracy, ``leaderboard-CALIBRATION-METRIC.md``, ``.csv`` and ``.tex``
    are written instead; the page has all of them.

    Raises:
        UserError: as ``write_report``; or if there is no such metric, or no cell has such a prior.
    """
    collecting = gc.isenabled()
    gc.disable()  # what is made is kept to the end: looking through it for garbage takes a quarter of the time
    try:
        if calibrate != "none" or metric != "accuracy":
            return _report_view(folder, out, calibrate, metric)
        tables, values = _results(folder)
        markdown = _markdown(tables, values)
        paths = _write(folder, out, tables, values, markdown)
        print(_terminal(tables, values) if sys.stdout.isatty() else markdown)
    finally:
        if collecting:
            gc.enable()
    return paths


def _report_view(folder: Path, out: Path, calibrate: Calibration, metric: str) -> list[Path]:
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    tables = leaderboards(Store(folder))
    if calibrate != "none":
        tables = [table.calibrated[calibrate] for table in tables if calibrate in table.calibrated]
    if not tables:
        raise UserError(f"no cell in {folder} has a prior of kind {calibrate}: the same `icrbench run` again adds it.")
    if metric != "accuracy":
        tables = [by_metric(table, metric) for table in tables if not table.group.written]
    if not tables:
        raise UserError(f"{folder} holds written answers alone, which have no metric but exact match and token F1.")
    parts = [calibrate] * (calibrate != "none") + [metric] * (metric != "accuracy")
    stem = "-".join(["leaderboard", *parts])
    contents = {"md": render.markdown(tables), "csv": render.csv(tables), "tex": render.latex(tables)}
    for ending, content in contents.items():
        write_atomic(out / f"{stem}.{ending}", content)
    print(render.terminal(tables) if sys.stdout.isatty() else contents["md"])
    return [out / f"{stem}.{ending}" for ending in contents]


def _write(folder: Path, out: Path, tables: list[Table], values: list[Value], markdown: str) -> list[Path]:
    contents = {"leaderboard.md": markdown}
    if tables:
        contents["leaderboard.csv"] = render.csv(tables)
        contents["leaderboard.tex"] = render.latex(tables)
    contents["leaderboard.html"] = page.html(tables, values, Store(folder))
    if values:
        contents["lm_eval.csv"] = lm_eval_results.csv(values)
    for name, content in contents.items():
        write_atomic(out / name, content)
    return [out / name for name in contents]


def _results(folder: Path) -> tuple[list[Table], list[Value]]:
    """Leaderboards and numbers of lm-eval's; a folder may hold either alone."""
    values = lm_eval_values(folder)
    lm_eval_alone = bool(values) and not (folder / "cells").is_dir()
    return ([] if lm_eval_alone else leaderboards(Store(folder))), values


def _terminal(tables: list[Table], values: list[Value]) -> str:
    return render.terminal(tables) + "\n" + lm_eval_results.terminal(values)


def _markdown(tables: list[Table], values: list[Value]) -> str:
    return "\n".join(part for part in (render.markdown(tables), lm_eval_results.markdown(values)) if part)
