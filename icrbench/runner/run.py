"""A request, run in this process: one model after the other, unit by unit, each cell kept as it is finished."""

import logging
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing

from transformers.utils.logging import disable_progress_bar

from icrbench.backbone import Backbone
from icrbench.protocol import Datasets
from icrbench.runner.changed_code import changed_code
from icrbench.runner.estimate import Costs
from icrbench.runner.guard import LeftBehind
from icrbench.runner.pace import Pace
from icrbench.runner.plan import Cell, Unit, not_applicable, plan
from icrbench.runner.recorder import Recorder, State, Tally
from icrbench.runner.request import Request
from icrbench.runner.worker import Worker
from icrbench.store.store import Store
from icrbench.util.progress import doing, duration, note, plain_lines, say, set_quiet


def run(request: Request, *, quiet: bool = False) -> int:
    """Run the grid; returns 0, or 1 if a cell failed or has no result yet.

    Args:
        request: what to run.
        quiet: no progress bars.
    """
    prepare(quiet=quiet)
    store = Store(request.out)
    store.check_writable()
    datasets = request.datasets()
    for sentence in not_applicable(request, datasets):
        say(sentence)
    complete = True
    for model in request.models:
        tally = _run_model(model, request, datasets, store)
        complete = complete and not (tally.failed or tally.left)
        name = model.revision.name if isinstance(model, Backbone) else model
        say(f"{name}: {tally}; results in {request.out}")
    return 0 if complete else 1


def prepare(*, quiet: bool) -> None:
    """Let libraries be silent, and draw bars only where somebody may see them."""
    set_quiet(quiet)
    if quiet or not sys.stderr.isatty():  # transformers draws its bars into log files, too
        disable_progress_bar()
    for noisy in ("transformers", "huggingface_hub", "datasets"):
        logging.getLogger(noisy).setLevel(logging.ERROR)


def run_units(worker: Worker, recorder: Recorder, units: Iterable[Unit], *, priors: bool) -> Tally:
    """Do units of work on a loaded model, and read all its weights afterwards.

    Args:
        worker: holds the model.
        recorder: keeps what becomes of the cells.
        units: some of the model's plan.
        priors: also measure what calibration needs.
    """
    for unit in units:
        _work(worker, recorder, unit.cells, priors)
    # Another process that had a cell may have been killed since: whoever is still here takes it over.
    _work(worker, recorder, recorder.take_left(), priors)
    recorder.name_left()
    try:
        worker.verify()
    except LeftBehind as error:
        recorder.revoke(error)
    return recorder.tally


def _run_model(model: str | Backbone, request: Request, datasets: Datasets, store: Store) -> Tally:
    worker = Worker(model, datasets, request, store)
    units = plan(request, datasets)
    identities = (worker.identity(cell) for unit in units for cell in unit.cells)
    if sentence := changed_code(store, identities):
        note(sentence)
    console = _Console(worker.backbone.revision.name, units, datasets)
    with plain_lines(console.line):
        return run_units(worker, Recorder(worker, datasets, request, store, console), units, priors=request.priors)


def _work(worker: Worker, recorder: Recorder, cells: Sequence[Cell], priors: bool) -> None:
    with closing(recorder.unfinished(cells)) as unfinished:
        for outcome in worker.execute(unfinished):
            recorder.write(outcome)
    if priors:
        with closing(recorder.without_priors(cells)) as uncalibrated:
            for cell in uncalibrated:
                recorder.write_priors(cell)


class _Console:
    """Prints what becomes of the cells of one model."""

    def __init__(self, model: str, units: Sequence[Unit], datasets: Datasets) -> None:
        costs = Costs(datasets)
        first = {unit.cells[0] for unit in units}  # the fit is made for it
        cells = [cell for unit in units for cell in unit.cells]
        self._pace = Pace({str(cell): costs.score(cell) + (costs.fit(cell) if cell in first else 0) for cell in cells})
        self._model = model
        self._total = len(cells)
        self._ended: set[Cell] = set()

    def begun(self, cell: Cell) -> None:
        self._pace.begin(str(cell))

    def ended(self, cell: Cell, state: State, text: str) -> None:
        self._ended.add(cell)
        self._pace.end(str(cell))
        if text:
            width = len(str(self._total))
            say(f"[{len(self._ended):{width}}/{self._total}] {self._model}  {cell!s:<32} {text}")

    def said(self, text: str) -> None:
        say(text)

    def line(self) -> str:
        """Say how far it is."""
        left = self._pace.seconds_left()
        time = f"; about {duration(left)} left for {self._model}" if left else ""
        return f"{len(self._ended)} of {self._total} cells; {doing() or 'between two cells'}{time}"
