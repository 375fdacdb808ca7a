"""``icrbench list``: what there is to choose from, as tables."""

import argparse
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from tabulate import tabulate

from icrbench.cli.options import add_folders, import_methods
from icrbench.data.find_tasks import load_tasks
from icrbench.experiments import experiments
from icrbench.model_names import known_models
from icrbench.util.errors import UserError

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands


WHAT = ("methods", "models", "tasks", "experiments")


def add(commands: "Subcommands") -> None:
    """Add the command."""
    parser = commands.add_parser("list", help="what there is to choose from; `list methods icr` describes one")
    parser.add_argument("what", nargs="?", choices=WHAT, help="default: everything")
    parser.add_argument("name", nargs="?", help="a method, to see its hyperparameters")
    add_folders(parser)
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Print a table of what is asked for, all tables, or one method."""
    if options.name is not None and options.what != "methods":
        raise UserError(f"`icrbench list {options.what}` takes no name: only methods are described one by one.")
    import_methods(options)
    if options.name is not None:
        from icrbench.cli.describe_method import describe_method  # imports torch

        print(describe_method(options.name))
        return 0
    wanted = WHAT if options.what is None else (options.what,)
    print("\n\n".join(listing(what, options.tasks_dir) for what in wanted))
    return 0


def listing(what: str, tasks_dir: Path | None = None) -> str:
    """Make a table of methods, models, tasks or experiments, one a line."""
    if what == "methods":
        from icrbench.registry import methods  # imports torch

        rows = [
            [name, method.scope, (inspect.getdoc(method) or "").splitlines()[0]] for name, method in methods().items()
        ]
        return tabulate(rows, ["method", "fitted per", "what it is"])
    if what == "models":
        rows = [
            [name, entry.get("hub") or f"pip: {entry['gguf']['package']}", entry.get("note", "")]
            for name, entry in known_models().items()
        ]
        return tabulate(rows, ["model", "from", "note"])
    if what == "experiments":
        rows = [
            [name, ", ".join(map(str, item.published)) or "-", str(len(item.rows)), item.tasks, item.title]
            for name, item in experiments().items()
        ]
        return tabulate(rows, ["experiment", "paper's table", "rows", "tasks", "what it shows"])
    rows = [
        [task.name, task.role, str(task.max_options), task.license, task.title]
        for task in load_tasks(tasks_dir).values()
    ]
    return tabulate(rows, ["task", "role", "options", "licence", "title"])
