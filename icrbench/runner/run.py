"""A request, run: one model after the other, unit by unit, each cell kept as it is finished."""

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import closing

from transformers.utils.logging import disable_progress_bar

from icrbench.backbone import Backbone
from icrbench.protocol import Datasets
from icrbench.runner.account import Account
from icrbench.runner.changed_code import changed_code
from icrbench.runner.guard import LeftBehind
from icrbench.runner.plan import Cell, Unit, not_applicable, plan
from icrbench.runner.recorder import Recorder
from icrbench.runner.request import Request
from icrbench.runner.shares import deal
from icrbench.runner.standing import Reporter
from icrbench.runner.worker import Worker
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from icrbench.util.progress import note, say, set_quiet


def run(request: Request, *, quiet: bool = False) -> int:
    """Run the grid; returns 0, or 1 if a cell failed or has no result yet.

    A model that cannot be loaded costs its own cells: the others are run, if there are others.

    Args:
        request: what to run.
        quiet: no progress bars, and no line a minute.

    Raises:
        UserError: if the only model cannot be loaded, or the run cannot begin.
    """
    store, datasets = prepared(request, quiet=quiet)
    account = Account(_units(request, datasets), datasets)
    reporter = Reporter(
        request.out,
        request.command,
        account.look,
        lines=not quiet and not sys.stderr.isatty(),
        share=request.share is not None,
    )
    complete = True
    with reporter.beside():
        for model, units in zip(request.models, account.units, strict=True):
            name = model.revision.name if isinstance(model, Backbone) else model
            if request.share is not None and not units:  # another share's: no need to load it
                account.skipped()
                continue
            try:
                recorder = recorder_of(
                    model, units, request, datasets, store, total=sum(len(unit.cells) for unit in units)
                )
            except UserError as error:
                if len(request.models) == 1:
                    raise
                say(f"{name}: {error} None of its cells was run.")
                account.refused(name, str(error))
                complete = False
                continue
            account.begun(recorder)
            _work_off(recorder, units, request)
            tally = recorder.tally
            complete = complete and not (tally.failed or tally.left)
            say(f"{name}: {tally}; results in {request.out}")
    return 0 if complete else 1


def prepared(request: Request, *, quiet: bool) -> tuple[Store, Datasets]:
    """Check that results can be kept, load the data, and say what will not be run; keep a log free of libraries' talk.

    Raises:
        UserError: if the folder cannot be written, or data cannot be had.
    """
    set_quiet(quiet)
    if quiet or not sys.stderr.isatty():
        disable_progress_bar()
    for noisy in ("transformers", "huggingface_hub", "datasets"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    store = Store(request.out)
    store.check_writable()
    datasets = request.datasets()
    for sentence in not_applicable(request, datasets):
        say(sentence)
    return store, datasets


def _units(request: Request, datasets: Datasets) -> list[list[Unit]]:
    """Return the units of each model: all of the plan, or those of the share asked for."""
    units = plan(request, datasets)
    if request.share is None:
        return [units] * len(request.models)
    number, shares = request.share
    return [[units[own] for own in places] for places in deal(units, len(request.models), datasets, shares)[number - 1]]


def recorder_of(
    model: str | Backbone,
    units: Sequence[Unit],
    request: Request,
    datasets: Datasets,
    store: Store,
    *,
    total: int = 0,
    tell: Callable[[str], None] = say,
) -> Recorder:
    """Load a model, say which of its cells other code has computed, and return what records them (`Recorder`).

    Raises:
        UserError: as `Worker`.
    """
    worker = Worker(model, datasets, request, store)
    if sentence := changed_code(store, (worker.identity(cell) for unit in units for cell in unit.cells)):
        note(sentence)
    return Recorder(worker, datasets, request, store, total, tell)


def _work_off(recorder: Recorder, units: Sequence[Unit], request: Request) -> None:
    for unit in units:
        work(recorder, unit.cells, request.priors)
    # Another process that had a cell may have been killed since: whoever is still here takes it over.
    work(recorder, recorder.take_left(), request.priors)
    recorder.name_left()
    verify(recorder)


def verify(recorder: Recorder) -> LeftBehind | None:
    """Read every weight once more; if one has changed no cell of this run is kept, and the reason is returned."""
    try:
        recorder.worker.verify()
    except LeftBehind as error:
        recorder.revoke(error)
        return error
    return None


def work(recorder: Recorder, cells: Sequence[Cell], priors: bool) -> None:
    """Fit, score and record cells that have no result yet, then measure the priors that they lack."""
    with closing(recorder.unfinished(cells)) as unfinished:
        for outcome in recorder.worker.execute(unfinished):
            recorder.write(outcome)
    if priors:
        with closing(recorder.without_priors(cells)) as uncalibrated:
            for cell in uncalibrated:
                recorder.write_priors(cell)
