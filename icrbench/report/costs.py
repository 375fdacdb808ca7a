"""What methods cost, from the records of their cells; what the records do not say is None."""

from collections.abc import Sequence
from statistics import fmean

from icrbench.report.text.numbers import MISSING
from icrbench.store.records import CellRecord, Result

COSTS = {
    "fit_seconds": "Fit, s",
    "fit_steps": "Fit, steps",
    "fit_examples": "Fit, examples trained on",
    "fit_sequences": "Fit, sequences",
    "fit_tokens": "Fit, tokens",
    "fit_peak_bytes": "Fit peak, MiB",
    "milliseconds_a_row": "Scoring, ms a row",
}
_COUNTED = ("fit_steps", "fit_examples", "fit_sequences", "fit_tokens")
COST_NOTE = (
    "Cached: numbers kept to apply the method to a new query, the mean over tasks and seeds, and the smallest and"
    " largest where they differ; M demonstration tokens, d hidden size, L layers. Fit: one fit, the mean over tasks and"
    " seeds (one that finds intermediate states of another on disk takes less than from nothing); examples trained on:"
    " the batches of all steps together; peak: most memory beyond what was held before the fit, the largest. Scoring:"
    " the mean; methods that leave the same states alone share them, so the first of them pays."
)


def results(records: Sequence[CellRecord]) -> list[Result]:
    """Those of the cells that ran."""
    return [record["result"] for record in records if record["result"] is not None]


def costs(records: Sequence[CellRecord]) -> dict[str, float | None]:
    """Means over the cells of a row, by the names of ``COSTS``; the peak is the largest."""
    ran = results(records)
    found: dict[str, float | None] = {
        "fit_seconds": fmean(result["seconds_fit"] for result in ran) if ran else None,
        "milliseconds_a_row": fmean(1000 * result["seconds_score"] / result["n"] for result in ran) if ran else None,
    }
    for name in (*_COUNTED, "fit_peak_bytes"):
        numbers = [float(number) for result in ran if (number := result.get(name)) is not None]  # type: ignore[arg-type]
        together = max if name == "fit_peak_bytes" else fmean
        found[name] = together(numbers) if numbers else None
    return found


def cost_text(name: str, value: float | None) -> str:
    """Return a cost in words."""
    if value is None:
        return MISSING
    if name == "fit_peak_bytes":
        return f"{value / 2**20:,.0f}"
    whole = name in _COUNTED or value >= 100
    return f"{value:,.0f}" if whole else f"{value:.1f}"


def cached(records: Sequence[CellRecord]) -> tuple[list[int], str | None]:
    """Return cached numbers of every cell of a row, and their formula if the records say it."""
    ran = results(records)
    formulas = dict.fromkeys(result["cached_formula"] for result in ran if result.get("cached_formula"))
    return [result["cached_parameters"] for result in ran], " or ".join(formulas) or None


def spread(values: Sequence[int]) -> str:
    """Return a mean, and the range if there is one."""
    if not values:
        return MISSING
    words = f"{fmean(values):,.0f}"
    return words if min(values) == max(values) else f"{words} ({min(values):,}–{max(values):,})"
