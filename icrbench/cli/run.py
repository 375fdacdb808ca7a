"""``icrbench run``: methods x models x tasks x seeds into a results folder."""

import argparse
from typing import TYPE_CHECKING

from icrbench.cli.check_names import check_names
from icrbench.cli.options import add_run_options, request_arguments

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands


def add(commands: "Subcommands") -> None:
    """Add the command."""
    parser = commands.add_parser("run", help="run methods x models x tasks x seeds into a results folder")
    add_run_options(parser)
    parser.add_argument(
        "--no-priors",
        dest="priors",
        action="store_false",
        help="leave out the prompts that calibration needs; the same run without this adds them",
    )
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Run, or say what a run would cost."""
    check_names(options)
    from icrbench.runner.estimate import print_plan  # slow imports, not needed to say what is wrong above
    from icrbench.runner.request import Request
    from icrbench.runner.run import run

    request = Request.build(**request_arguments(options))
    if options.dry_run:
        print_plan(request)
        return 0
    return run(request, quiet=options.quiet)
