"""``icrbench demo``: a first leaderboard on the bundled rows, in minutes."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from icrbench.cli.options import path

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands


def add(commands: "Subcommands") -> None:
    """Add the command."""
    parser = commands.add_parser("demo", help="a first leaderboard on the bundled rows, in minutes")
    parser.add_argument("--out", type=path, default=Path("runs/demo"))
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Run three methods, write the report and print the leaderboard."""
    from icrbench.report import print_report, write_report
    from icrbench.runner.request import Request
    from icrbench.runner.run import run

    request = Request.build(
        methods="zero_shot,few_shot,icr",
        models="gemma-270m",
        demo=True,
        preset="demo",
        out=options.out,
        command=options.line,
    )
    code = run(request)
    write_report(options.out, options.out)
    print()
    print_report(options.out)
    return code
