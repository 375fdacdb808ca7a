"""``icrbench push FIT ORG/NAME``: a fit and its model card on the model hub."""

import argparse
from typing import TYPE_CHECKING

from icrbench.cli.options import path

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands


def add(commands: "Subcommands") -> None:
    """Add the command."""
    parser = commands.add_parser("push", help="send a fit to the model hub, with a card that says what it is")
    parser.add_argument("fit", type=path, help="folder of the fit: OUT/fitted/METHOD-KEY")
    parser.add_argument("repository", metavar="ORG/NAME", help="made if it is not there")
    parser.add_argument("--private", action="store_true", help="visible to its owner alone")
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Send the fit and print its address."""
    from icrbench.api.hub import push

    print(push(options.fit, options.repository, private=options.private))
    return 0
