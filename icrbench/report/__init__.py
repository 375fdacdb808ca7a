"""Reports: pure functions of a results folder. No report loads a model."""

import gc
import sys
from pathlib import Path

from icrbench.report import lm_eval_results, page
from icrbench.report.leaderboard import Table, leaderboards
from icrbench.report.lm_eval_results import Value, lm_eval_values
from icrbench.report.text import render
from icrbench.store.store import Store
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


def report(folder: Path, out: Path) -> list[Path]:
    """Write and print, from one reading of the folder; returns the paths.

    Raises:
        UserError: as ``write_report``.
    """
    gc.disable()  # what is made is kept to the end: looking through it for garbage takes a quarter of the time
    try:
        tables, values = _results(folder)
        markdown = _markdown(tables, values)
        paths = _write(folder, out, tables, values, markdown)
        print(_terminal(tables, values) if sys.stdout.isatty() else markdown)
    finally:
        gc.enable()
    return paths


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
