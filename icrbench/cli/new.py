"""``icrbench new task FILE.jsonl``: a first task file from a data file's columns."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from icrbench.cli.options import path

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands


def add(commands: "Subcommands") -> None:
    """Add the command."""
    parser = commands.add_parser("new", help="write a first task file from your data: icrbench new task FILE.jsonl")
    parser.add_argument("what", choices=["task"])
    parser.add_argument("file", type=path, help="training rows, .jsonl or .parquet")
    parser.add_argument("--test", type=path, help="test rows (default: the same name with test for train)")
    parser.add_argument("--label", help="the column with the right answer (default: guessed)")
    parser.add_argument("--out", type=path, default=Path("tasks"), help="folder for the task file (default: tasks)")
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Write the file, and say what to look at and how to run it."""
    from icrbench.data.draft import draft_task

    written, name = draft_task(options.file, options.test, options.label, options.out)
    run = f"icrbench run --methods zero_shot,few_shot --models gemma-270m --tasks {name} --tasks-dir {options.out}"
    print(f"written: {written}; look at its title, template and options, then run it:")
    print(f"  {run} --protocol in_task --out runs/{name}")
    return 0
