"""What the page shows of the costs of methods: a number to draw and sort by, and how it is written."""

from collections.abc import Sequence
from statistics import fmean

from icrbench.report import costs as shared
from icrbench.store.records import CellRecord

COSTS = {
    "fit_seconds": "Fit, s",
    "fit_tokens": "Fit, tokens",
    "fit_peak_bytes": "Fit peak, MiB",
    "cached_parameters": "Numbers kept",
    "prompt_tokens": "Prompt, tokens",
    "milliseconds_a_row": "Scoring, ms a row",
}
_COUNTS = ("cached_parameters", "prompt_tokens")


def costs(records: Sequence[CellRecord]) -> dict[str, tuple[float, str]]:
    """Return every cost of a row that its records say, by the names of ``COSTS``: as a number, and written.

    Memory is in MiB, as it is written; all are means over the cells but the peak, which is the largest.
    """
    ran = shared.results(records)
    found = shared.costs(records)
    if ran:
        found["cached_parameters"] = fmean(result["cached_parameters"] for result in ran)
        rows = sum(result["n"] for result in ran)
        found["prompt_tokens"] = sum(result["prompt_tokens"] for result in ran) / rows if rows else None
    known = {name: value for name in COSTS if (value := found.get(name)) is not None}
    return {name: (_unit(name, value), _text(name, value)) for name, value in known.items()}


def _unit(name: str, value: float) -> float:
    return round(value / 2**20 if name == "fit_peak_bytes" else value, 3)


def _text(name: str, value: float) -> str:
    return f"{value:,.0f}" if name in _COUNTS else shared.cost_text(name, value)
