"""``icrbench export``: results in the format of another project."""

import argparse
from typing import TYPE_CHECKING

from icrbench.cli.options import path

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands


def add(commands: "Subcommands") -> None:
    """Add the command."""
    parser = commands.add_parser("export", help="results in the format of another project")
    parser.add_argument("folder", type=path, help="folder a run wrote to")
    parser.add_argument("--format", required=True, choices=["every_eval_ever"], help="every_eval_ever: schema 0.3.0")
    parser.add_argument("--out", type=path, required=True, help="folder that gets data/icrbench/...")
    parser.add_argument("--organization", default="unknown", help="who ran the evaluations (default: unknown)")
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Write the files and say what was left out."""
    from icrbench.report.every_eval_ever import export

    done = export(options.folder, options.out, options.organization)
    left_out = [f"{done.failed} failed cells"] if done.failed else []
    left_out += [f"{done.demo} cells on demonstration rows"] if done.demo else []
    ending = f" (left out: {' and '.join(left_out)})" if left_out else ""
    print(f"written: {len(done.files)} evaluations below {options.out}{ending}")
    return 0
