"""``icrbench report``: the leaderboard of a results folder, tables by name, figures."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from icrbench.cli.options import add_calibrate, path
from icrbench.util.errors import UserError

OTHERS = ("macro_f1", "mcc", "ece", "ece_mass", "brier", "label_bias")
"""Of `icrbench.report.metrics`, which takes numpy to import."""

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands


def add(commands: "Subcommands") -> None:
    """Add the command."""
    parser = commands.add_parser("report", help="leaderboard of a results folder, or tables by name")
    parser.add_argument("folder", type=path, help="folder a run wrote to")
    parser.add_argument("--out", type=path, help="where the files go (default: the same folder)")
    parser.add_argument("--table", metavar="NAMES", help="tables by name (`icrbench list experiments`), or all")
    parser.add_argument("--figures", action="store_true", help="draw OUT/figures/*.pdf and .png")
    parser.add_argument("--compare-paper", action="store_true", help="set the published numbers beside the tables")
    parser.add_argument(
        "--set", action="append", default=[], metavar="M.H=V", help="as in the run whose tables are wanted; repeatable"
    )
    parser.add_argument(
        "--metric", metavar="NAME", default="accuracy", help=f"instead of accuracy: {', '.join(OTHERS)}"
    )
    add_calibrate(parser)
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Write what is asked for: figures, tables, or the leaderboard."""
    out = options.out or options.folder
    if options.metric != "accuracy" and (options.figures or options.table is not None or options.compare_paper):
        raise UserError("--metric is for the leaderboard: leave it out beside --figures, --table and --compare-paper.")
    if options.calibrate != "none" and options.figures:
        raise UserError("--calibrate is for tables: leave it out beside --figures, which have a figure of their own.")
    if options.figures:
        _figures(options.folder, out)
    if options.table is not None or options.compare_paper:
        from icrbench.report.tables import write_tables

        names = "all" if options.table is None else options.table
        written = write_tables(
            options.folder, out, names, options.set, options.calibrate, compare=options.compare_paper
        )
        print(f"written: {len(written)} files in {out / 'tables'}", file=sys.stderr)
    elif not options.figures:
        from icrbench.report import report

        paths = report(options.folder, out, options.calibrate, options.metric)
        print("written: " + ", ".join(map(str, paths)), file=sys.stderr)
    return 0


def _figures(folder: Path, out: Path) -> None:
    from icrbench.report.figures import write_figures

    drawn = write_figures(folder, out)
    for sentence in drawn.missing:
        print(f"icrbench: {sentence}", file=sys.stderr)
    print(f"written: {len(drawn.paths)} files in {out / 'figures'}", file=sys.stderr)
