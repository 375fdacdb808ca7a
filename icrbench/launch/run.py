"""A run with a launcher: from a request to pieces, workers and an exit code."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from icrbench.launch import drive
from icrbench.launch.board import Board
from icrbench.launch.devices import environments, gpus
from icrbench.launch.drive import Driver, Engine
from icrbench.launch.how import Launch
from icrbench.launch.local import LocalEngine
from icrbench.launch.on_ray import RayEngine, cluster, places
from icrbench.launch.on_slurm import SlurmRun
from icrbench.launch.pieces import cut
from icrbench.launch.station import to_json
from icrbench.runner.plan import plan
from icrbench.runner.request import Request
from icrbench.runner.run import prepared
from icrbench.runner.standing import FOLDER, Progress, Reporter, path_of
from icrbench.util.errors import UserError
from icrbench.util.progress import note, say

SHOWN = 5  # pieces named in a sentence


def launch(request: Request, arguments: Mapping[str, Any], how: Launch, *, quiet: bool = False) -> int:
    """Run a grid on several workers; returns 0, or 1 if a cell failed or could not be had; 0 if it is only submitted.

    Args:
        request: what to run.
        arguments: of `Request.build` that it was built from, for the workers.
        how: which workers.
        quiet: no line a minute.

    Raises:
        UserError: if the run cannot begin, or if workers end without getting anything done.
    """
    models = [model for model in request.models if isinstance(model, str)]
    if len(models) != len(request.models):
        raise UserError("a model that is loaded already cannot be sent to workers: give its folder or hub id.")
    _, datasets = prepared(request, quiet=quiet)
    units = plan(request, datasets)
    if how.launcher == "slurm":
        slurm_run = SlurmRun(request, arguments, how, units, datasets)
        return slurm_run.watch(quiet=quiet) if how.wait else slurm_run.leave()
    board = Board(cut(units, models, datasets), how.retries)
    cells = sum(len(unit.cells) for unit in units) * len(models)
    with _engine(arguments, request, how) as (engine, workers):
        driver = Driver(board, engine, workers, _numbered(cells), hangs=drive.HANGS)
        reporter = Reporter(
            request.out, request.command, lambda: _look(driver, cells), lines=not quiet and not sys.stderr.isatty()
        )
        reporter.update()
        driver.watch = reporter.update
        try:
            driver.run()
        finally:
            reporter.update(over=True)
    return _close(driver, cells, request)


@contextmanager
def _engine(arguments: Mapping[str, Any], request: Request, how: Launch) -> Iterator[tuple[Engine, int]]:
    spread = {"device_map": "auto"} if how.gpus_per_model > 1 and request.device_map is None else {}
    sent = to_json({**arguments, **spread})
    logs = request.out / FOLDER
    logs.mkdir(parents=True, exist_ok=True)
    if how.launcher == "ray":
        with cluster(how.ray_address) as nodes:
            found = places(nodes, how.workers, how.gpus_per_model, request.device)
            note(f"Ray cluster of {len(nodes)} nodes: {found}.")
            yield RayEngine(sent, found, logs, path_of(request.out)), found.workers
    else:
        each = environments(how.workers, how.gpus_per_model, request.device, gpus())
        yield LocalEngine(sent, each, logs), len(each)


def _numbered(cells: int) -> Callable[[str], None]:
    """Return what prints a worker's line, with how many cells there are come to an end."""
    number = 0

    def tell(text: str) -> None:
        nonlocal number
        number += 1
        say(f"[{min(number, cells):{len(str(cells))}}/{cells}] {text}")

    return tell


def _look(driver: Driver, cells: int) -> Progress:
    now = time.monotonic()
    board, tally = driver.board, driver.board.tally
    return {
        "cells": cells,
        "done": tally.done,
        "kept": tally.kept,
        "failed": tally.failed,
        "share": board.share_done(),
        "running": [
            {
                "what": piece.name,
                "where": f"worker {worker}, {driver.seats[worker].where}" if worker in driver.seats else "",
                "seconds": now - board.entries[piece.number].since,
            }
            for worker, piece in driver.busy.items()
        ],
        "lost": [{"what": entry.piece.name, "why": entry.why} for entry in board.lost],
    }


def _close(driver: Driver, cells: int, request: Request) -> int:
    """Say how it went."""
    tally, lost = driver.board.tally, driver.board.lost
    for sentence in driver.spoilt:
        say(sentence)
    if lost:
        names = ", ".join(entry.piece.name for entry in lost[:SHOWN]) + (" and others" if len(lost) > SHOWN else "")
        say(f"could not be had: {names}; the same command tries them again.")
    left = f", {tally.left} left to another run" if tally.left else ""
    say(
        f"{tally.done} cells run, {tally.kept} already there{left}, {tally.failed} failed of {cells};"
        f" results in {request.out}"
    )
    return 1 if lost or driver.spoilt or tally.failed or tally.left else 0
