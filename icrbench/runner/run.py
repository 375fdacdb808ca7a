"""A request, run: one model after the other, unit by unit, each cell kept as it is finished."""

import logging
import sys
from collections.abc import Sequence
from contextlib import closing

from transformers.utils.logging import disable_progress_bar

from icrbench.backbone import Backbone
from icrbench.protocol import Datasets
from icrbench.runner.changed_code import changed_code
from icrbench.runner.guard import LeftBehind
from icrbench.runner.plan import Cell, not_applicable, plan
from icrbench.runner.recorder import Recorder, Tally
from icrbench.runner.request import Request
from icrbench.runner.worker import Worker
from icrbench.store.store import Store
from icrbench.util.progress import note, say, set_quiet


def run(request: Request, *, quiet: bool = False) -> int:
    """Run the grid; returns 0, or 1 if a cell failed or has no result yet.

    Args:
        request: what to run.
        quiet: no progress bars.
    """
    set_quiet(quiet)
    if quiet or not sys.stderr.isatty():  # transformers draws its bars into log files, too
        disable_progress_bar()
    for noisy in ("transformers", "huggingface_hub", "datasets"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
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


def _run_model(model: str | Backbone, request: Request, datasets: Datasets, store: Store) -> Tally:
    worker = Worker(model, datasets, request, store)
    units = plan(request, datasets)
    identities = (worker.identity(cell) for unit in units for cell in unit.cells)
    if sentence := changed_code(store, identities):
        note(sentence)
    recorder = Recorder(worker, datasets, request, store, total=sum(len(unit.cells) for unit in units))
    for unit in units:
        _work(worker, recorder, unit.cells, request.priors)
    # Another process that had a cell may have been killed since: whoever is still here takes it over.
    _work(worker, recorder, recorder.take_left(), request.priors)
    recorder.name_left()
    try:
        worker.verify()
    except LeftBehind as error:
        recorder.revoke(error)
    return recorder.tally


def _work(worker: Worker, recorder: Recorder, cells: Sequence[Cell], priors: bool) -> None:
    with closing(recorder.unfinished(cells)) as unfinished:
        for outcome in worker.execute(unfinished):
            recorder.write(outcome)
    if priors:
        with closing(recorder.without_priors(cells)) as uncalibrated:
            for cell in uncalibrated:
                recorder.write_priors(cell)
