"""``icrbench compare``: two methods against each other, task by task."""

import argparse
import sys
from typing import TYPE_CHECKING

from icrbench.cli.options import add_calibrate, path

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands


def add(commands: "Subcommands") -> None:
    """Add the command."""
    parser = commands.add_parser("compare", help="two methods against each other, task by task")
    parser.add_argument("folder", type=path, help="folder a run wrote to")
    parser.add_argument("first", metavar="METHOD_A", help="a label of the leaderboard, as icr:rank=4")
    parser.add_argument("second", metavar="METHOD_B", help="the label to judge it by")
    parser.add_argument("--model", help="only this model (default: all)")
    add_calibrate(parser)
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Print the comparison."""
    from icrbench.report.comparison import print_comparison

    terminal = sys.stdout.isatty()
    print_comparison(options.folder, options.first, options.second, options.model, options.calibrate, terminal=terminal)
    return 0
