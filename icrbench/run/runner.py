"""The grid: methods x models x tasks x seeds, one cell after the other, each kept as it is finished."""

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from icrbench.backbone import Backbone
from icrbench.backbone.metering import Cost, metered
from icrbench.backbone.reuse import Reused
from icrbench.method import Fitted, Scope
from icrbench.protocol import Datasets, Rules
from icrbench.randomness import Randomness
from icrbench.run.environment import environment
from icrbench.run.identity import code_identity
from icrbench.run.plan import Cell
from icrbench.scoring.next_token import Scored, ScoringOptions, score
from icrbench.scoring.prompting import MAX_QUERY_TOKENS, Prompter
from icrbench.store.artefact import Artefact, DamagedArtefact
from icrbench.store.records import SCHEMA_VERSION, CellRecord, Failure, identity_key
from icrbench.store.store import Store
from icrbench.util.progress import bar, say

POLL_SECONDS = 1.0  # between two looks at a lock


@dataclass
class Outcome:
    """How a run went."""

    done: int = 0
    kept: int = 0
    left: int = 0
    failed: int = 0

    def __str__(self) -> str:
        left = f", {self.left} left to another process" if self.left else ""
        return f"{self.done} cells run, {self.kept} already there{left}, {self.failed} failed"


class _FitFailed(Exception):
    """The cell needs a fit that has failed in this run already."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure["message"])
        self.failure = failure


class Runner:
    """Runs the cells of one model into a store.

    Args:
        backbone: the model.
        datasets: test rows and train pools.
        rules: how they are handed out.
        store: where records go.
        options: how to score.
        command: what the user typed, for the records.

    Raises:
        UserError: if the options of a task cannot be told apart on this model's tokenizer.
    """

    def __init__(
        self,
        backbone: Backbone,
        datasets: Datasets,
        rules: Rules,
        store: Store,
        options: ScoringOptions,
        command: str = "",
    ) -> None:
        self._backbone = backbone
        self._datasets = datasets
        self._rules = rules
        self._store = store
        self._options = options
        self._reused = Reused()
        self._fits: dict[Path, tuple[Fitted, Cost]] = {}
        self._failed_fits: dict[Path, Failure] = {}
        self._environment = {**environment(), "command": command}
        for task in datasets.tasks.values():  # options that cannot be told apart are found before any work
            prompter = Prompter(backbone, task)
            for example in datasets.data[task.name].test:
                prompter.option_tokens(task.prompt(example), example.options)

    def run(self, grid: Sequence[Cell]) -> Outcome:
        """Run every cell that is not in the store yet; a failing cell is recorded and the grid goes on."""
        outcome = Outcome()
        for number, cell in enumerate(grid, 1):
            key = identity_key(self.identity(cell))
            with self._store.lock(key) as free:
                if not free:
                    self._say(number, grid, cell, "being run by another process, left to it")
                    outcome.left += 1
                elif kept := self._store.completed(key):
                    outcome.kept += 1
                    if kept["cell"]["label"] != cell.method.label:
                        self._say(number, grid, cell, f"is the same as {kept['cell']['label']}, already there")
                else:
                    self._run_cell(cell, key, outcome, lambda text: self._say(number, grid, cell, text))  # noqa: B023
        return outcome

    def identity(self, cell: Cell) -> dict[str, Any]:
        """Everything that can change a cell's result."""
        data, method = self._datasets.data[cell.task], cell.method.method
        return {
            "method": {"name": method.name, "hyperparameters": method.hyperparameters()},
            "code": code_identity(type(method)),
            "model": self._backbone.identity(),
            "pools": {
                name: {"rows": pool.sha256, "task": pool.task.identity()}
                for name, pool in self._datasets.pools(method, cell.task).items()
            },
            "target": self._datasets.target(method, cell.task),
            "seed": cell.seed,
            "protocol": self._rules.protocol,
            "clean": self._rules.clean,
            "task": data.task.identity(),
            "test": {"sha256": data.provenance.sha256["test"], "limit": self._rules.limit},
            "scoring": {"max_query_tokens": MAX_QUERY_TOKENS},
        }

    def _run_cell(self, cell: Cell, key: str, outcome: Outcome, say_result: Callable[[str], None]) -> None:
        started = datetime.now(UTC)
        try:
            fitted, cost = self.fitted(cell)
            begin = time.perf_counter()
            scored = self._score(cell, fitted)
            seconds = time.perf_counter() - begin
        except DamagedArtefact:  # no fault of the method: nothing is recorded until the user has seen to it
            raise
        except Exception as error:  # whatever a method does wrong costs its own cell, not the grid
            failure = _failure(error)
            self._store.write(self._record(cell, key, started, None, failure), None)
            outcome.failed += 1
            say_result(f"failed: {failure['message']}")
            return
        examples = self._datasets.test(cell.task)
        rows = [
            {
                "example_id": example.id,
                "content_hash": example.content_hash,
                "gold": example.label,
                "prediction": result.prediction,
                "correct": result.prediction == example.label,
                "option_logits": list(result.option_logits),
                "prompt_tokens": len(result.prompt.tokens),
                "truncated": result.prompt.truncated or result.prompt.dropped > 0,
            }
            for example, result in zip(examples, scored, strict=True)
        ]
        correct = sum(bool(row["correct"]) for row in rows)
        result = {
            "accuracy": correct / len(rows),
            "n": len(rows),
            "correct": correct,
            "truncated": sum(bool(row["truncated"]) for row in rows),
            "seconds_score": round(seconds, 3),
            "seconds_fit": cost.seconds,
            "fit_sequences": cost.sequences,
            "fit_tokens": cost.tokens,
            "fit_peak_bytes": cost.peak_bytes,
            "cached_parameters": fitted.cached_parameters,
            "cached_formula": fitted.formula,
            "prompt_tokens": sum(len(item.prompt.tokens) for item in scored),
        }
        self._store.write(self._record(cell, key, started, result, None), rows)
        outcome.done += 1
        say_result(f"{100 * correct / len(rows):5.1f} %  ({len(rows)} rows, {seconds:.1f} s)")

    def _score(self, cell: Cell, fitted: Fitted) -> list[Scored]:
        examples = self._datasets.test(cell.task)
        with bar(str(cell), len(examples)) as progress:
            return score(
                self._backbone,
                fitted,
                self._datasets.tasks[cell.task],
                examples,
                self._options,
                self._reused,
                progress.update,
            )

    def fitted(self, cell: Cell) -> tuple[Fitted, Cost]:
        """The cell's fit: from this run, from the results folder, or made now; and what it took."""
        folder = self._store.fit_folder(self.identity(cell))
        if folder in self._failed_fits:
            raise _FitFailed(self._failed_fits[folder])
        if folder not in self._fits:
            try:
                self._fits = {folder: self._stored_fit(cell, folder)}  # cells of one fit follow each other
            except DamagedArtefact:
                raise
            except Exception as error:
                self._failed_fits[folder] = _failure(error)
                raise
        return self._fits[folder]

    def _stored_fit(self, cell: Cell, folder: Path) -> tuple[Fitted, Cost]:
        """Read the fit from the results folder, or make it and put it there; one process makes it, others wait."""
        method = cell.method.method
        if method.scope is Scope.NONE:
            return self._fit(cell)
        waiting = False
        while True:
            with self._store.lock(f"fit-{folder.name}") as free:
                if free:
                    if not (folder / "fitted.json").exists():
                        fitted, cost = self._fit(cell)
                        Artefact(method, fitted, self._backbone.identity(), cost).save(folder)
                        return fitted, cost
                    artefact = Artefact.load(folder, self._backbone)
                    if artefact.method != method:
                        raise DamagedArtefact(f"{folder} holds another fit: delete it, and it is fitted again.")
                    return artefact.fitted, artefact.cost
            if not waiting:
                say(f"{cell}: waiting for another process that makes the same fit")
                waiting = True
            time.sleep(POLL_SECONDS)

    def _fit(self, cell: Cell) -> tuple[Fitted, Cost]:
        method = cell.method.method
        data = self._datasets.for_fit(method, cell.task)
        with metered(self._backbone) as cost:
            fitted = method.fit(self._backbone, data, Randomness(cell.seed or 0))
        return fitted, cost

    def _record(self, cell: Cell, key: str, started: datetime, result: Any, failure: Failure | None) -> CellRecord:
        data = self._datasets.data[cell.task]
        provenance = data.provenance
        return {
            "schema": SCHEMA_VERSION,
            "key": key,
            "status": "ok" if failure is None else "failed",
            "cell": {
                "method": cell.method.method.name,
                "label": cell.method.label,
                "model": self._backbone.revision.name,
                "task": cell.task,
                "seed": cell.seed,
                "protocol": self._rules.protocol,
                "clean": self._rules.clean,
            },
            "identity": self.identity(cell),
            "task": {
                "title": data.task.title,
                "role": data.task.role,
                "n_options": data.task.max_options,
            },
            "data": {
                "kind": provenance.kind,
                "location": provenance.location,
                "revision": provenance.revision,
                "sha256": provenance.sha256,
                "n_test_full": provenance.n_test,
                "limit": self._rules.limit,
                "contamination": {
                    "pairs": self._datasets.overlap(cell.method.method, cell.task),
                    "clean": self._rules.clean,
                },
            },
            "result": result,
            "error": failure,
            "environment": self._environment,
            "started": started.isoformat(timespec="seconds"),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _say(self, number: int, grid: Sequence[Cell], cell: Cell, text: str) -> None:
        width = len(str(len(grid)))
        say(f"[{number:{width}}/{len(grid)}] {self._backbone.revision.name}  {cell!s:<32} {text}")


def _failure(error: Exception) -> Failure:
    if isinstance(error, _FitFailed):
        return error.failure
    return {
        "type": type(error).__name__,
        "message": (str(error).strip().splitlines() or [type(error).__name__])[0],
        "traceback": "".join(traceback.format_exception(error)),
    }
