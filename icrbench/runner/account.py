"""How far the work of one process is, told from another thread while it goes on."""

import time
from collections.abc import Sequence
from itertools import accumulate

from icrbench.method import Scope
from icrbench.protocol import Datasets
from icrbench.runner.estimate import fit_tokens, scoring_tokens
from icrbench.runner.plan import Unit
from icrbench.runner.recorder import Recorder
from icrbench.runner.standing import Lost, Progress, Running
from icrbench.util.progress import current


class Account:
    """How far the work is.

    Args:
        units: of the plan, the same for every model.
        datasets: for the estimates.
        models: how many.
    """

    def __init__(self, units: Sequence[Unit], datasets: Datasets, models: int) -> None:
        self.units = units
        weights = []
        for unit in units:
            fitted = unit.cells[0].method.method.scope is not Scope.NONE
            own = [scoring_tokens(cell, datasets) for cell in unit.cells]
            own[0] += fit_tokens(unit.cells[0], datasets) if fitted else 0.0
            weights += own
        self._through = [0.0, *accumulate(weights)]
        self._models = models
        self._begun: list[Recorder | None] = []
        self._lost: list[Lost] = []

    def begun(self, recorder: Recorder) -> None:
        """Go on with the next model."""
        self._begun.append(recorder)

    def refused(self, model: str, why: str) -> None:
        """Leave a model out."""
        self._begun.append(None)
        self._lost.append({"what": f"all cells of {model}", "why": why})

    def look(self) -> Progress:
        """Return how far it is."""
        cells = len(self._through) - 1
        recorders = [own for own in self._begun if own is not None]
        running: list[Running] = []
        through = self._through[-1] * (len(self._begun) - 1)
        if self._begun and (latest := self._begun[-1]) is not None:
            through += self._through[max(0, min(latest.number, cells) - (latest.at is not None))]
            if latest.at is not None:
                cell, since = latest.at
                running = [{"what": str(cell), "where": current() or "", "seconds": time.monotonic() - since}]
        return {
            "cells": cells * self._models,
            "done": sum(own.tally.done for own in recorders),
            "kept": sum(own.tally.kept for own in recorders),
            "failed": sum(own.tally.failed for own in recorders),
            "share": max(0.0, through) / (self._through[-1] * self._models or 1.0),
            "running": running,
            "lost": self._lost,
        }
