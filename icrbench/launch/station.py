"""What a worker does: it holds one model at a time, and computes the pieces that it is given."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from icrbench.launch.messages import Order, Report
from icrbench.runner.plan import Unit, plan
from icrbench.runner.recorder import Recorder
from icrbench.runner.request import PATHS, Request
from icrbench.runner.run import recorder_of, verify, work
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from icrbench.util.progress import say

LET_GO = (2.0, 8.0)
"""Seconds that are waited for a cell that another process has: one of ours, whose actor or node was lost, ends soon."""


class Station:
    """Computes pieces of a run.

    Args:
        arguments: of `Request.build`, as they come through JSON.
        tell: takes what is to be reported.
    """

    def __init__(self, arguments: Mapping[str, Any], tell: Callable[[Report], None]) -> None:
        self._tell = tell
        self._request = Request.build(**from_json(arguments))
        self._datasets = self._request.datasets()
        self._store = Store(self._request.out)
        self._plan: list[Unit] = plan(self._request, self._datasets)
        self._model: int | None = None
        self._recorder: Recorder | None = None

    def do(self, order: Order) -> None:
        """Compute a piece, and report that it ended."""
        try:
            recorder = self._prepared(order["model"])
        except UserError as error:
            self._tell({"ended": order["number"], "refused": str(error)})
            return
        cells = [self._plan[order["unit"]].cells[place] for place in order["cells"]]
        before = replace(recorder.tally)
        if order["fit"]:
            try:
                recorder.worker.fitted(cells[0])
            except Exception as error:  # each cell that needs the fit will fail with it, and its record will say so
                say(f"{cells[0]}: {error}")
        else:
            work(recorder, cells, self._request.priors)
            for pause in LET_GO:
                if recorder.tally.left <= before.left:
                    break
                time.sleep(pause)
                work(recorder, recorder.take_left(), self._request.priors)
        self._tell({"ended": order["number"], "counts": asdict(recorder.tally - before)})

    def close(self) -> None:
        """Read every weight once more before what was computed is relied on."""
        if self._recorder is not None and (error := verify(self._recorder)):
            self._tell({"spoilt": str(error)})
        self._model = self._recorder = None

    def _prepared(self, model: int) -> Recorder:
        if self._model != model or self._recorder is None:
            self.close()  # one model at a time
            asked = self._request.models[model]
            self._recorder = recorder_of(asked, self._plan, self._request, self._datasets, self._store, tell=self._line)
            self._model = model
        return self._recorder

    def _line(self, text: str) -> None:
        say(text)
        self._tell({"line": text})


def to_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Request.build` as JSON can hold them."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()}


def from_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `to_json` was given."""
    return {name: Path(value) if name in PATHS and value is not None else value for name, value in arguments.items()}
