"""Reports: pure functions of a results folder. No report loads a model."""

import sys
from pathlib import Path

from icrbench.files import write_atomic
from icrbench.report import render
from icrbench.report.leaderboard import leaderboards
from icrbench.store import Store


def write_report(folder: Path, out: Path) -> list[Path]:
    """Write ``leaderboard.md``, ``.csv`` and ``.tex`` from a results folder; returns their paths.

    Raises:
        UserError: if ``folder`` holds no results or a damaged file, or ``out`` cannot be written.
    """
    tables = leaderboards(Store(folder))
    contents = {"md": render.markdown(tables), "csv": render.csv(tables), "tex": render.latex(tables)}
    paths = [out / f"leaderboard.{suffix}" for suffix in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_atomic(path, content)
    return paths


def print_report(folder: Path) -> None:
    """Print the leaderboards of a results folder: laid out for a terminal, or Markdown where it is piped.

    Raises:
        UserError: if ``folder`` holds no results or a damaged file.
    """
    tables = leaderboards(Store(folder))
    print(render.terminal(tables) if sys.stdout.isatty() else render.markdown(tables))
