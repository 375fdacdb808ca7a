"""What becomes of outcomes: one record a cell, written as it is finished, and a line that says so."""

import time
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import astuple, dataclass, replace

from icrbench.protocol import Datasets
from icrbench.runner.environment import environment
from icrbench.runner.plan import Cell
from icrbench.runner.request import Request
from icrbench.runner.variation import PLAIN
from icrbench.runner.worker import Outcome, Worker
from icrbench.store import records
from icrbench.store.priors import read_priors, remove_priors, write_priors
from icrbench.store.records import SCHEMA_VERSION, CellRecord, Environment, Failure, identity_key
from icrbench.store.store import Store
from icrbench.util.errors import shortened
from icrbench.util.progress import say

LONGEST_TRACEBACK = 20_000  # characters; the end says most


@dataclass
class Tally:
    """How a run went, in cells."""

    done: int = 0
    kept: int = 0
    left: int = 0
    failed: int = 0
    uncalibrated: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: "Tally") -> "Tally":
        return Tally(*(own - less for own, less in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        left = f", {self.left} left to another process" if self.left else ""
        uncalibrated = f", {self.uncalibrated} without priors" if self.uncalibrated else ""
        return f"{self.done} cells run, {self.kept} already there{left}, {self.failed} failed{uncalibrated}"


class Recorder:
    """Records the cells of one model.

    Args:
        worker: knows the identity of each cell, and the model.
        datasets: the data of the run, for the records.
        request: what was asked for.
        store: where records go.
        total: cells of the run, for progress; 0 where somebody else counts them.
        tell: takes the line about each cell.

    Attributes:
        tally: what has become of cells so far.
        number: of the cell that is looked at, from 1, in the order of the plan.
        at: the cell that is being computed, and since when by the process's clock.
    """

    def __init__(
        self,
        worker: Worker,
        datasets: Datasets,
        request: Request,
        store: Store,
        total: int = 0,
        tell: Callable[[str], None] = say,
    ) -> None:
        self.worker = worker
        self._datasets = datasets
        self._request = request
        self._store = store
        self._total = total
        self._tell = tell
        self.number = 0
        self.at: tuple[Cell, float] | None = None
        self._environment: Environment = {**environment(), "command": request.command}
        self._left: list[Cell] = []
        self._written: list[Outcome] = []
        self._calibrated: list[str] = []
        self.tally = Tally()

    def unfinished(self, cells: Sequence[Cell]) -> Generator[Cell]:
        """Yield the cells that have no result yet, each claimed until the next is asked for."""
        for cell in cells:
            self.number += 1
            key = identity_key(self.worker.identity(cell))
            with self._store.lock(key) as free:
                if not free:
                    self._say(cell, "being run by another process, left to it")
                    self._left.append(cell)
                    self.tally.left += 1
                elif kept := self._store.completed(key):
                    self.tally.kept += 1
                    self._store.add_protocol(kept, self._request.rules.protocol)
                    if kept["cell"]["label"] != cell.label:
                        self._say(cell, f"is the same as {kept['cell']['label']}, already there")
                else:
                    self.at = (cell, time.monotonic())
                    yield cell
                    self.at = None

    def take_left(self) -> list[Cell]:
        """Give the cells that were left to other processes, which are no longer counted as such."""
        left, self._left = self._left, []
        self.number -= len(left)
        self.tally.left = 0
        return left

    def name_left(self) -> None:
        """Say which cells have no result yet."""
        if self._left:
            names = ", ".join(map(str, self._left[:5])) + (" and others" if len(self._left) > 5 else "")
            say(f"no result yet: {names}; another process is at work on them, so run again when it has ended.")

    def revoke(self, error: Exception) -> None:
        """Record every cell of this run as failed: what was written of them cannot be relied on."""
        self._tell(f"{error} No cell of this run is kept.")
        for outcome in self._written:
            self._store.write(self._record(replace(outcome, result=None, rows=(), fit=None, error=error)), None)
        for key in self._calibrated:
            remove_priors(self._store.folder, key)
        self.tally.failed += len(self._written)
        self.tally.done -= len(self._written)

    def write(self, outcome: Outcome) -> None:
        """Keep what became of a cell."""
        record = self._record(outcome)
        self._store.write(record, outcome.rows if outcome.error is None else None)
        if record["error"] is not None:
            self.tally.failed += 1
            self._say(outcome.cell, f"failed: {record['error']['message']}")
        elif record["result"] is not None:
            self.tally.done += 1
            self._written.append(replace(outcome, rows=()))
            result = record["result"]
            accuracy, seconds = 100 * result["accuracy"], result["seconds_score"]
            self._say(outcome.cell, f"{accuracy:5.1f} %  ({result['n']} rows, {seconds:.1f} s)")

    def without_priors(self, cells: Sequence[Cell]) -> Generator[Cell]:
        """Yield the cells that have a result and no priors, or priors of other train rows; each claimed as above."""
        for cell in cells:
            if self._datasets.tasks[cell.task].answer_form == "generate":  # no options to prefer
                continue
            key = identity_key(self.worker.identity(cell))
            with self._store.lock(key) as free:
                if free and self._store.completed(key):
                    known = read_priors(self._store.folder, key)
                    if known is None or known["inputs"] != (self._datasets.inputs_sha256(cell.task) or known["inputs"]):
                        yield cell

    def write_priors(self, cell: Cell) -> None:
        """Measure and keep the priors of a cell; where that fails its result stands, and is said to have none."""
        try:
            priors = self.worker.priors(cell)
        except Exception as error:
            self.tally.uncalibrated += 1
            self._say(cell, f"no priors: {_failure(error)['message']}")
            return
        key = identity_key(self.worker.identity(cell))
        write_priors(self._store.folder, key, priors)
        self._calibrated.append(key)

    def _record(self, outcome: Outcome) -> CellRecord:
        cell, rules = outcome.cell, self._request.rules
        identity = self.worker.identity(cell)
        data = self._datasets.data[cell.task]
        provenance = data.provenance
        return {
            "schema": SCHEMA_VERSION,
            "key": identity_key(identity),
            "status": "ok" if outcome.error is None else "failed",
            "cell": self._place(cell),
            "identity": identity,
            "task": {"title": data.task.title, "role": data.task.role, "n_options": data.task.max_options},
            "data": {
                "kind": provenance.kind,
                "location": provenance.location,
                "revision": provenance.revision,
                "resolved": provenance.resolved,
                "sha256": provenance.sha256,
                "n_test_full": provenance.n_test,
                "limit": rules.limit,
                "contamination": {
                    "pairs": self._datasets.overlap(cell.method.method, cell.task),
                    "clean": rules.clean,
                },
            },
            "fit": outcome.fit,
            "result": outcome.result,
            "error": None if outcome.error is None else _failure(outcome.error),
            "environment": self._environment,
            "started": outcome.started.isoformat(timespec="seconds"),
            "finished": outcome.finished.isoformat(timespec="seconds"),
        }

    def _place(self, cell: Cell) -> records.CellName:
        """Where the cell stands in the grid."""
        protocol = self._request.rules.protocol
        place: records.CellName = {
            "method": cell.method.method.name,
            "label": cell.label,
            "model": self.worker.backbone.revision.name,
            "task": cell.task,
            "seed": cell.seed,
            "protocol": protocol,
            "protocols": sorted({protocol, *self._store.protocols(identity_key(self.worker.identity(cell)))}),
            "clean": self._request.rules.clean,
            "explicit": cell.method.method.explicit,
            "own_rows": cell.method.method.own_rows,
        }
        if cell.variation.vary is not None:
            plain = identity_key(self.worker.identity(replace(cell, variation=PLAIN)))
            place["variation"] = {"vary": cell.variation.vary, "number": cell.variation.number, "of": plain}
        return place

    def _say(self, cell: Cell, text: str) -> None:
        place = f"[{self.number:{len(str(self._total))}}/{self._total}] " if self._total else ""
        self._tell(f"{place}{self.worker.backbone.revision.name}  {cell!s:<32} {text}")


def _failure(error: Exception) -> Failure:
    return {
        "type": type(error).__name__,
        "message": shortened((str(error).strip().splitlines() or [type(error).__name__])[0]),
        "traceback": "".join(traceback.format_exception(error))[-LONGEST_TRACEBACK:],
    }
