"""``icrbench status``: how the runs of a results folder stand."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from icrbench.cli.options import path
from icrbench.util.errors import UserError

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands
    from icrbench.runner.standing import Standing

AGAIN = 5.0  # seconds between two looks of --watch


def add(commands: "Subcommands") -> None:
    """Add the command."""
    parser = commands.add_parser("status", help="say how the runs of a results folder stand")
    parser.add_argument("folder", type=path, help="the --out of a run")
    parser.add_argument("--watch", action="store_true", help="look again every five seconds, until all runs are over")
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Print what is done, running and lost, and where."""
    from icrbench.runner.standing import standings

    folder: Path = options.folder
    while True:
        found = standings(folder)
        if not found:
            raise UserError(f"no run has left word in {folder}: give the --out of a run that has begun.")
        print("\n\n".join(_text(own) for own in found), *_failed(folder), sep="\n", flush=True)
        if not options.watch or not any(_going_on(own) for own in found):
            return 0
        time.sleep(AGAIN)
        print()


def _going_on(standing: "Standing") -> bool:
    from icrbench.runner.standing import is_gone

    return not standing["over"] and not is_gone(standing)


def _text(standing: "Standing") -> str:
    from icrbench.util.progress import duration

    end = "over" if standing["over"] else "going on" if _going_on(standing) else "gone without an end"
    where, took = f"process {standing['process']} on {standing['host']}", standing["updated"] - standing["started"]
    ended = {name: standing[name] for name in ("done", "kept", "failed")}
    waiting = standing["cells"] - sum(ended.values()) - len(standing["running"])
    lines = [
        standing["command"],
        f"  {end}: {where}, {duration(took)}",
        f"  of {standing['cells']} cells {ended['done']} run, {ended['kept']} already there, {ended['failed']} failed,"
        f" {max(0, waiting)} waiting",
    ]
    if _going_on(standing):
        lines += [
            f"  running  {own['what']}  ({own['where']}, {duration(own['seconds'])})" for own in standing["running"]
        ]
    lines += [f"  lost     {own['what']}: {own['why']}" for own in standing["lost"]]
    return "\n".join(lines)


def _failed(folder: Path) -> list[str]:
    """Return a line for each cell of the folder that failed."""
    from icrbench.store.store import Store

    store = Store(folder)
    if store.empty:
        return []
    lines = []
    for record in store.records():
        if (error := record["error"]) is not None:
            cell = record["cell"]
            seed = "" if cell["seed"] is None else f" seed {cell['seed']}"
            lines.append(f"  failed   {cell['model']} {cell['label']} {cell['task']}{seed}: {error['message']}")
    return lines
