"""``icrbench analyse``: look into fitted methods: layers, heads, words, time."""

import argparse
import sys
from typing import TYPE_CHECKING

from icrbench.cli.check_names import check_names
from icrbench.cli.options import add_run_options, request_arguments
from icrbench.util.errors import UserError

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands


def add(commands: "Subcommands") -> None:
    """Add the command."""
    parser = commands.add_parser("analyse", help="look into fitted methods: layers, heads, words, time")
    add_run_options(parser, theory=True)
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Analyse fits, or PCA on synthetic data."""
    if options.theory:
        if options.methods or options.experiment:
            raise UserError("--theory is not allowed with --methods or --experiment: it needs no method.")
        if options.models or options.tasks or options.seeds:
            raise UserError("--theory draws data of its own: leave out --models, --tasks and --seeds.")
    else:
        check_names(options)
    from icrbench.analysis.analyse import analyse, analyse_theory
    from icrbench.runner.request import Request

    if options.theory:
        paths = [analyse_theory(options.out)]
    else:
        paths = analyse(Request.build(**request_arguments(options)), quiet=options.quiet)
    print("written: " + ", ".join(map(str, paths)), file=sys.stderr)
    return 0
