"""What cells answered, as they answered it or corrected for their prior; every file is read once."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from icrbench.data.rules import own_rows
from icrbench.data.task import OPEN_ENDED
from icrbench.report.metrics import METRICS, Outcome
from icrbench.scoring.prior import FROM_INPUTS, KINDS, Floats, Kind, corrected, log_prior, log_softmax
from icrbench.store.priors import Priors, keys_with_priors, logits_by_options, read_priors
from icrbench.store.records import CellRecord
from icrbench.store.rows import Answers, Ids
from icrbench.store.store import Store
from icrbench.util.errors import UserError

Calibration = Literal["none", "cc", "dc", "bc", "transductive"]
"""What answers are corrected by. ``transductive`` takes the prior from the very rows that are scored, as batch
calibration was published: its answers depend on the other test rows, and no leaderboard has them."""
CALIBRATIONS: tuple[Calibration, ...] = get_args(Calibration)

_COLUMNS = ("example_id", "gold", "prediction", "option_logits")


@dataclass(frozen=True)
class _Rows:
    """The rows of one cell: options side by side, ``-inf`` for one that a row does not have."""

    ids: Ids
    gold: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]
    logits: Floats
    counts: npt.NDArray[np.int64]


class Outcomes:
    """Answers and metrics of the cells of one results folder.

    Args:
        store: as of its last call of ``records``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._with_priors = keys_with_priors(store.folder)
        self._answers: dict[tuple[str, str], dict[Calibration, Answers | None]] = {}
        self._metrics: dict[tuple[str, str, Calibration], dict[str, float]] = {}

    @property
    def folder(self) -> Path:
        """The results folder."""
        return self._store.folder

    def has(self, record: CellRecord, calibrate: Calibration) -> bool:
        """Whether the cell ran, and has a prior of this kind for every row; written answers have none."""
        if record["status"] != "ok":
            return False
        if calibrate == "none":
            return True
        if record["task"]["role"] == OPEN_ENDED:
            return False
        if calibrate == "transductive":
            return True
        return record["key"] in self._with_priors and self._corrected(record)[calibrate] is not None

    def kinds(self, records: Iterable[CellRecord]) -> tuple[Calibration, ...]:
        """Return the kinds of prior that some of these cells have."""
        known = list(records)
        return tuple(kind for kind in KINDS if any(self.has(record, kind) for record in known))

    def answers(self, record: CellRecord, calibrate: Calibration = "none") -> Answers:
        """Which examples were answered right.

        Raises:
            UserError: if a file is damaged.
            ValueError: if the cell has no such prior.
        """
        if calibrate == "none":
            return self._store.answers(record)
        found = self._corrected(record)[calibrate]
        if found is None:
            raise ValueError(f"cell {record['key']} has no prior of kind {calibrate}")
        return found

    def metric(self, record: CellRecord, name: str, calibrate: Calibration = "none") -> float:
        """Return a metric of one cell.

        Raises:
            UserError, ValueError: as ``answers``.
        """
        place = record["key"], record["cell"]["protocol"], calibrate
        if place not in self._metrics:
            outcome = self.outcome(record, calibrate)
            self._metrics[place] = {metric: METRICS[metric].value(outcome) for metric in METRICS}
        return self._metrics[place][name]

    def outcome(self, record: CellRecord, calibrate: Calibration = "none") -> Outcome:
        """Return the answers and probabilities of one cell.

        Raises:
            UserError, ValueError: as ``answers``.
        """
        rows = self._rows(record)
        if calibrate == "none":
            return Outcome(rows.gold, rows.predicted, np.exp(log_softmax(rows.logits)))
        scores = _scores(rows, self._priors(record), calibrate)
        if scores is None:
            raise ValueError(f"cell {record['key']} has no prior of kind {calibrate}")
        return Outcome(rows.gold, scores.argmax(axis=1), np.exp(scores))

    def _corrected(self, record: CellRecord) -> dict[Calibration, Answers | None]:
        key = record["key"], record["cell"]["protocol"]
        if key not in self._answers:
            rows, priors = self._rows(record), self._priors(record)
            self._answers[key] = {}
            for calibrate in CALIBRATIONS[1:]:
                scores = _scores(rows, priors, calibrate)
                answers = None if scores is None else Answers(rows.ids, scores.argmax(axis=1) == rows.gold)
                self._answers[key][calibrate] = answers
        return self._answers[key]

    def _priors(self, record: CellRecord) -> Priors | None:
        """Read a cell's priors, as far as the record's protocol allows them."""
        priors = read_priors(self.folder, record["key"])
        if priors is None or own_rows(record["cell"]["protocol"], record["task"]["role"]):
            return priors
        return {**priors, "prompts": {kind: own for kind, own in priors["prompts"].items() if kind not in FROM_INPUTS}}

    def _rows(self, record: CellRecord) -> _Rows:
        table = self._store.rows(record["key"], _COLUMNS)
        ids = self._store.answers(record).ids  # the same object for cells with the same examples
        lists = table["option_logits"].combine_chunks()
        counts = lists.value_lengths().to_numpy()
        logits = np.full((len(counts), int(counts.max(initial=0))), -np.inf)
        logits[np.arange(logits.shape[1]) < counts[:, np.newaxis]] = lists.flatten().to_numpy()
        gold, predicted = (table[name].to_numpy().astype(np.int64) for name in ("gold", "prediction"))
        if (gold >= counts).any() or (predicted >= counts).any():
            raise UserError(f"examples/{record['key']}.parquet lacks logits: delete it and run again.")
        return _Rows(ids, gold, predicted, logits, counts)


def _scores(rows: _Rows, priors: Priors | None, calibrate: Calibration) -> Floats | None:
    """Logarithms of the corrected probabilities, or None where some row's options have no prior."""
    prompts = None
    if calibrate != "transductive":
        if priors is None or calibrate not in priors["prompts"]:
            return None
        prompts = logits_by_options(priors["prompts"][calibrate])
    kind: Kind = "cc" if calibrate in ("cc", "dc") else "bc"
    scores = np.full_like(rows.logits, -np.inf)
    for size in np.unique(rows.counts):
        same = rows.counts == size
        own = rows.logits[same, :size]
        shown = own if prompts is None else np.array(prompts.get(int(size), []), dtype=np.float64)
        if not len(shown):
            return None
        scores[same, :size] = corrected(own, log_prior(shown, kind))
    return scores


def option_words(record: CellRecord) -> list[str]:
    """Return the options' words; their numbers where the record does not have them."""
    words = record["identity"].get("task", {}).get("options") or []
    return [*map(str, words), *map(str, range(len(words), record["task"]["n_options"]))]
