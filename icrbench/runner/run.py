"""A request, run: one model after the other, unit by unit, each cell kept as it is finished."""

import logging
import sys
from contextlib import closing

from transformers.utils.logging import disable_progress_bar

from icrbench.backbone import Backbone
from icrbench.protocol import Datasets
from icrbench.runner.changed_code import changed_code
from icrbench.runner.plan import not_applicable, plan
from icrbench.runner.recorder import Recorder, Tally
from icrbench.runner.request import Request
from icrbench.runner.worker import Worker
from icrbench.store.store import Store
from icrbench.util.progress import note, say, set_quiet


def run(request: Request, *, quiet: bool = False) -> int:
    """Run the grid; returns 0, or 1 if a cell failed.

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
    failed = 0
    for model in request.models:
        backbone = request.load(model)
        tally = _run_model(backbone, request, datasets, store)
        failed += tally.failed
        say(f"{backbone.revision.name}: {tally}; results in {request.out}")
        del backbone  # before the next model is loaded
    return 1 if failed else 0


def _run_model(backbone: Backbone, request: Request, datasets: Datasets, store: Store) -> Tally:
    worker = Worker(backbone, datasets, request, store)
    units = plan(request, datasets)
    identities = (worker.identity(cell) for unit in units for cell in unit.cells)
    if sentence := changed_code(store, identities):
        note(sentence)
    recorder = Recorder(worker, datasets, request, store, total=sum(len(unit.cells) for unit in units))
    for unit in units:
        with closing(recorder.unfinished(unit.cells)) as cells:
            for outcome in worker.execute(cells):
                recorder.write(outcome)
    return recorder.tally
