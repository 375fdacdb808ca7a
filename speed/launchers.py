"""What a launcher costs, and what it brings.

    python speed/launchers.py              # two workers of one thread against one, side by side
    python speed/launchers.py --ray        # one Ray worker against one local worker
    python speed/launchers.py --simulate   # a thousand workers and a hundred thousand cells, with empty work

The first runs a grid of 40 units on gemma-270m and the bundled rows with one worker, then with two, in folders of their
own, and prints the ratio of the times; workers load their model in either. The second does the same with one worker,
local and on a Ray cluster of this machine, and compares the times from the first finished cell to the last, so that
the start of the cluster does not count. The third drives workers that are done at once, and prints how many pieces a
second are handed out, and how much memory that takes.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

from icrbench.launch.board import Board, Piece
from icrbench.launch.drive import Driver
from icrbench.launch.messages import Order, Report

TASKS = "sst2,mr,sst5,trec"
UNITS = 40
SEEDS = ",".join(map(str, range(10)))  # of few-shot: with four tasks 40 units


class EmptySeat:
    """A worker that is done with a piece as soon as it has it."""

    where = "nowhere"
    alive = True
    ready = True

    def __init__(self) -> None:
        self._said: list[Report] = []

    def send(self, order: Order) -> None:
        """Do nothing, and say that it is done."""
        counts = {"done": len(order["cells"]), "kept": 0, "left": 0, "failed": 0, "uncalibrated": 0}
        self._said.append({"ended": order["number"], "counts": counts})

    def close(self) -> None:
        """End."""
        self.alive = False

    def reports(self) -> list[Report]:
        """Return what was said."""
        said, self._said = self._said, []
        return said

    def ending(self) -> str:
        """End as told to."""
        return ""

    def still(self) -> float:
        """Return no time at all."""
        return 0.0

    def stop(self) -> None:
        """Hold nothing that could be given back."""


class EmptyEngine:
    """Starts such workers."""

    def start(self, worker: int) -> EmptySeat:
        """Make a worker."""
        return EmptySeat()


def simulate(workers: int, cells: int) -> None:
    """Hand out empty work."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pieces = [Piece(n, n % 7, n, (0,), False, None, float(n % 1000), f"cell {n}") for n in range(cells)]
    board = Board(pieces, retries=2)
    begin = time.perf_counter()
    Driver(board, EmptyEngine(), workers, lambda text: None).run()
    seconds = time.perf_counter() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert board.tally.done == cells
    row = [workers, cells, round(cells / seconds), round(memory / 1024), round((memory - before) / 1024)]
    print(tabulate([row], ["workers", "cells", "pieces a second", "MiB in all", "MiB of it for the board"]))


def timed(workers: int, folder: Path, *more: str) -> tuple[float, float]:
    """Return the seconds of a run of 40 units: from the command to its end, and from the first cell to the last."""
    grid = ["--methods", "few_shot:per_class=2", "--models", "gemma-270m", "--tasks", TASKS, "--seeds", SEEDS]
    line = ["run", *grid, "--demo", "--limit", "20", "--no-priors", "--quiet", "--out", str(folder)]
    code = "import sys; from icrbench.cli import main; sys.exit(main(sys.argv[1:]))"
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", code, *line, "--workers", str(workers), *more],
        check=True,
        stdout=subprocess.DEVNULL,
        # Ray's workers yield to all other processes unless told not to.
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"},
    )
    seconds = time.perf_counter() - begin
    written = [cell.stat().st_mtime for cell in (folder / "cells").glob("*.json")]
    assert len(written) == UNITS
    return seconds, max(written) - min(written)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="empty work")
    parser.add_argument("--workers", type=int, default=1000, help="simulated")
    parser.add_argument("--cells", type=int, default=100_000, help="simulated")
    parser.add_argument("--ray", action="store_true", help="local against Ray")
    options = parser.parse_args()
    if options.simulate:
        simulate(options.workers, options.cells)
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.ray:
            _, local = timed(1, Path(folder) / "local")
            _, ray = timed(1, Path(folder) / "ray", "--launcher", "ray", "--ray-address", "local")
            rows = [["local", local, 1.0], ["ray", ray, ray / local]]
            print(tabulate(rows, ["launcher", "seconds from first cell to last", "times as long"], floatfmt=".2f"))
            return
        (one, _), (two, _) = (timed(workers, Path(folder) / str(workers)) for workers in (1, 2))
    print(tabulate([[1, one, 1.0], [2, two, one / two]], ["workers", "seconds", "times as fast"], floatfmt=".2f"))


if __name__ == "__main__":
    main()
