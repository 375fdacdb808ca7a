"""One loaded model at work: fits methods, scores cells, and yields what is to be recorded."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from icrbench.backbone import Backbone
from icrbench.backbone.metering import Cost, metered
from icrbench.backbone.reuse import Reused
from icrbench.data.task import Example
from icrbench.method import Fitted, Scope
from icrbench.protocol import Datasets
from icrbench.runner.fits import Fits
from icrbench.runner.guard import Guard, LeftBehind, check_fit, contained, fingerprint, sentence
from icrbench.runner.identity import cell_identity
from icrbench.runner.plan import Cell
from icrbench.runner.request import Request
from icrbench.scoring.calibration import Measured, Options, examples, measure
from icrbench.scoring.next_token import Scored, score
from icrbench.scoring.prior import Kind
from icrbench.scoring.prompting import Prompter
from icrbench.store.artefact import Artefact
from icrbench.store.priors import Priors, Prompts
from icrbench.store.records import Result
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from icrbench.util.progress import bar


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: a result with its example rows, or an error.

    Attributes:
        cell: the cell.
        started, finished: when.
        result: its numbers; None if it failed.
        rows: one an example, with the columns of ``EXAMPLE_SCHEMA`` or, where answers are written, of
            ``WRITTEN_SCHEMA``; empty if it failed.
        fit: hash of the stored fit that it was scored with; None if it has none, or failed.
        error: why it failed.
    """

    cell: Cell
    started: datetime
    finished: datetime
    result: Result | None
    rows: Sequence[Mapping[str, Any]]
    fit: str | None
    error: Exception | None


class Worker:
    """Fits and scores the cells of one model.

    A method that leaves something behind (`Guard`) costs its own cells: the model is loaded anew before the next.

    Raises:
        UserError: if the model cannot be loaded, or the options of a task cannot be told apart on its tokenizer.
    """

    def __init__(self, model: str | Backbone, datasets: Datasets, request: Request, store: Store) -> None:
        self._model = model
        self._spoilt: LeftBehind | None = None
        self.backbone = request.load(model)
        self._guard = Guard(self.backbone)
        self._datasets = datasets
        self._request = request
        self._store = store
        self._fits = Fits(store, self.backbone)
        self._reused = Reused()
        self._texts: dict[str, Mapping[Kind, Mapping[Options, tuple[Example, ...]]]] = {}
        self._identities: dict[Cell, dict[str, Any]] = {}
        for task in datasets.tasks.values():  # options that cannot be told apart are found before any work
            for variation in request.variations:
                prompter = Prompter(self.backbone, variation.task(task))
                for example in datasets.test(task.name):
                    prompter.check(example)

    def identity(self, cell: Cell) -> dict[str, Any]:
        """Everything that can change the cell's result, computed once."""
        if cell not in self._identities:
            self._identities[cell] = cell_identity(cell, self.backbone, self._datasets, self._request.rules)
        return self._identities[cell]

    def execute(self, cells: Iterable[Cell]) -> Iterator[Outcome]:
        """Fit and score cells one by one, each when the outcome of the last has been taken.

        Whatever a method does wrong costs its own cells.

        Raises:
            UserError: if a method has changed a model that was given loaded, and so cannot be loaded anew.
        """
        for cell in cells:
            self._refuse_spoilt()
            started = datetime.now(UTC)
            result: Result | None = None
            rows: list[dict[str, Any]] = []
            failure: Exception | None = None
            fit: str | None = None
            try:
                result, rows, fit = self._run(cell)
            except Exception as error:
                failure = error
            yield Outcome(cell, started, datetime.now(UTC), result, rows, fit, failure)
            self._refuse_spoilt()

    def verify(self) -> None:
        """Read every weight, where the looks between cells read a sample; fits made on changed ones are removed.

        Raises:
            LeftBehind: if one has changed; which cell did it cannot be told.
        """
        if left := self._guard.left(whole=True):
            self._fits.discard()
            raise LeftBehind(f"a method of this run, which cannot be told, left behind {', '.join(left[:3])}.")

    def fitted(self, cell: Cell) -> Artefact:
        """Return the cell's fit."""
        method = cell.method.method
        folder = self._store.fit_folder(self.identity(cell))
        return self._fits.get(method, folder, lambda: self._fit(cell), str(cell))

    def priors(self, cell: Cell) -> Priors:
        """Measure what the cell's method answers to prompts that say nothing about the answer.

        Raises:
            LeftBehind: if the method has left something behind.
            UserError: if a method has changed a model that was given loaded, and so cannot be loaded anew.
        """
        self._refuse_spoilt()
        fitted = self.fitted(cell).fitted
        task, test = cell.variation.task(self._datasets.tasks[cell.task]), self._datasets.test(cell.task)
        begin = time.perf_counter()
        if cell.task not in self._texts:
            option_sets = sorted({example.options for example in test}, key=len)
            self._texts[cell.task] = examples(task, option_sets, self._datasets.inputs(cell.task))
        texts = self._texts[cell.task]
        with self._applied(cell, fitted):
            measured = measure(self.backbone, fitted, task, texts, self._request.scoring, self._reused)
        seconds = time.perf_counter() - begin
        read = {name for part in measured.get("bc", []) for name in part.ids}
        return {
            "prompts": {kind: [_prompts(part) for part in parts] for kind, parts in measured.items()},
            "inputs": self._datasets.inputs_sha256(cell.task),
            "overlap": self._datasets.overlap_of(read, cell.task),
            "seconds": round(seconds, 3),
            "command": self._request.command,
        }

    def _fit(self, cell: Cell) -> tuple[Fitted, Cost]:
        method = cell.method.method
        data = self._datasets.for_fit(method, cell.task)
        data = replace(data, pools=cell.variation.pools(data.pools))
        with self._guarded(cell), metered(self.backbone) as cost:
            fitted = method.fit(self.backbone, data, cell.variation.randomness(cell.seed or 0))
        check_fit(self.backbone, method, fitted)
        return fitted, cost

    def _check(self, cell: Cell) -> None:
        """Raise LeftBehind if anything is not as it was, after making it so again: the model is loaded anew."""
        left = self._guard.left()
        if not left:
            return
        error = sentence(cell.method.method.name, left)
        self._guard.restore()
        if isinstance(self._model, Backbone):
            self._spoilt = error
            raise error
        self.backbone = self._request.load(self._model)
        self._guard = Guard(self.backbone)
        self._fits.use(self.backbone)
        self._reused = Reused()  # what was computed with the changed model
        raise error

    @contextmanager
    def _guarded(self, cell: Cell) -> Iterator[None]:
        """Run a method's code inside; whatever it leaves behind is an error."""
        try:
            with contained(cell.method.method.name):
                yield
        except Exception:
            with suppress(LeftBehind):  # the method's own error says more
                self._check(cell)
            raise
        self._check(cell)

    @contextmanager
    def _applied(self, cell: Cell, fitted: Fitted) -> Iterator[None]:
        """Apply a fit inside, guarded; that the fit changes is an error, too."""
        before = fingerprint(fitted)
        changed = False
        try:
            with self._guarded(cell):
                yield
        finally:
            if changed := fingerprint(fitted) != before:
                self._fits.use(self.backbone)  # the next cell reads the fit anew
        if changed:
            raise sentence(cell.method.method.name, ["another fit than it was given"])

    def _refuse_spoilt(self) -> None:
        if self._spoilt:
            raise UserError(f"{self._spoilt} The model was given loaded, so load it anew and run again.")

    def _run(self, cell: Cell) -> tuple[Result, list[dict[str, Any]], str | None]:
        artefact = self.fitted(cell)
        examples = self._datasets.test(cell.task)
        begin = time.perf_counter()
        with self._applied(cell, artefact.fitted):
            scored = self._score(cell, artefact.fitted, examples)
        seconds = time.perf_counter() - begin
        rows = [_row(example, answer) for example, answer in zip(examples, scored, strict=True)]
        stored = artefact.method.scope is not Scope.NONE
        return _result(rows, seconds, artefact), rows, artefact.sha256 if stored else None

    def _score(self, cell: Cell, fitted: Fitted, examples: Sequence[Example]) -> list[Scored]:
        task, options = cell.variation.task(self._datasets.tasks[cell.task]), self._request.scoring
        with bar(str(cell), len(examples)) as progress:
            return score(self.backbone, fitted, task, examples, options, self._reused, progress.update)


def _prompts(measured: Measured) -> Prompts:
    return {
        "options": list(measured.options),
        "ids": list(measured.ids),
        "logits": [[round(logit, 6) for logit in logits] for logits in measured.logits],
    }


def _row(example: Example, scored: Scored) -> dict[str, Any]:
    written = {} if scored.text is None else {"text": scored.text, "gold_text": example.options[0], "f1": scored.f1}
    return {
        **written,
        "example_id": example.id,
        "content_hash": example.content_hash,
        "gold": example.label,
        "prediction": scored.prediction,
        "correct": scored.prediction == example.label,
        "option_logits": list(scored.option_logits),
        "prompt_tokens": len(scored.prompt.tokens),
        "truncated": scored.prompt.truncated or scored.prompt.dropped > 0,
    }


def _result(rows: Sequence[Mapping[str, Any]], seconds: float, artefact: Artefact) -> Result:
    fitted, cost = artefact.fitted, artefact.cost
    correct = sum(bool(row["correct"]) for row in rows)
    result: Result = {
        "accuracy": correct / len(rows),
        "n": len(rows),
        "correct": correct,
        "truncated": sum(bool(row["truncated"]) for row in rows),
        "seconds_score": round(seconds, 3),
        "seconds_fit": cost.seconds,
        "fit_sequences": cost.sequences,
        "fit_tokens": cost.tokens,
        "fit_steps": cost.steps,
        "fit_examples": cost.examples,
        "below_published": artefact.method.below_published(),
        "fit_peak_bytes": cost.peak_bytes,
        "fit_taken": None if cost.taken is None else asdict(cost.taken),
        "cached_parameters": fitted.cached_parameters,
        "cached_formula": fitted.formula,
        "prompt_tokens": sum(int(row["prompt_tokens"]) for row in rows),
    }
    if "f1" in rows[0]:
        result["f1"] = sum(float(row["f1"]) for row in rows) / len(rows)
    return result
