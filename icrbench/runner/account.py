"""How far the work of one process is, told from another thread while it goes on."""

import time
from collections.abc import Sequence
from itertools import accumulate, chain

from icrbench.protocol import Datasets
from icrbench.runner.estimate import Costs
from icrbench.runner.plan import Unit
from icrbench.runner.recorder import Recorder
from icrbench.runner.standing import Lost, Progress, Running
from icrbench.util.progress import current


class Account:
    """How far the work is.

    Args:
        units: of the plan, of each model.
        datasets: for the estimates.
    """

    def __init__(self, units: Sequence[Sequence[Unit]], datasets: Datasets) -> None:
        self.units = units
        # Of each model the tokens that are through when so many cells have been looked at.
        costs = Costs(datasets)
        self._through = [list(accumulate(chain([0.0], *map(costs.cells, own)))) for own in units]
        self._begun: list[Recorder | None] = []
        self._lost: list[Lost] = []

    def begun(self, recorder: Recorder) -> None:
        """Go on with the next model."""
        self._begun.append(recorder)

    def skipped(self) -> None:
        """Go on with the next model, of which there is nothing to do."""
        self._begun.append(None)

    def refused(self, model: str, why: str) -> None:
        """Leave a model out."""
        self.skipped()
        self._lost.append({"what": f"all cells of {model}", "why": why})

    def look(self) -> Progress:
        """Return how far it is."""
        recorders = [own for own in self._begun if own is not None]
        running: list[Running] = []
        through = sum(own[-1] for own in self._through[: max(0, len(self._begun) - 1)])
        if self._begun and (latest := self._begun[-1]) is not None:
            steps = self._through[len(self._begun) - 1]
            through += steps[max(0, min(latest.number, len(steps) - 1) - (latest.at is not None))]
            if latest.at is not None:
                cell, since = latest.at
                running = [{"what": str(cell), "where": current() or "", "seconds": time.monotonic() - since}]
        return {
            "cells": sum(len(own) - 1 for own in self._through),
            "done": sum(own.tally.done for own in recorders),
            "kept": sum(own.tally.kept for own in recorders),
            "failed": sum(own.tally.failed for own in recorders),
            "share": through / (sum(own[-1] for own in self._through) or 1.0),
            "running": running,
            "lost": self._lost,
        }
