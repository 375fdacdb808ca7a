"""The ranking at the head of the page: the best of one table, each with its interval, its gain and its cost."""

from typing import NamedTuple

from icrbench.report.leaderboard import AVERAGE, Change, Row, Score, Table
from icrbench.report.page.costs import costs
from icrbench.report.text.numbers import MISSING, signed, signed_interval, tenths
from icrbench.report.verdict import Certainty, certainty

MOST_PLACES = 5


class Place(NamedTuple):
    """One line. Numbers are written as everywhere on the page; what is not known is "—"."""

    number: int | None
    """1 for the best; None for what the others are measured against."""
    label: str | None
    """None for a line that is no row of the table."""
    name: str
    mean: str
    interval: str
    gain: str = MISSING
    gain_interval: str = ""
    sure: Certainty | None = None
    below: bool = False
    """Whether the gain is a loss."""
    fit: str = MISSING
    prompt: str = ""
    """How long it is."""


def ranking(table: Table) -> list[Place]:
    """Return the best rows by average, and among them, by theirs, what they are measured against.

    That is the reference, and where there are priors zero-shot calibrated by the kind that does it most good: a gain
    that is not above it is no more than what calibration gives for nothing.
    """
    reference = table.group.variants_of or "zero_shot"
    ranked = [row for row in table.rows if row.scores[AVERAGE].mean is not None]
    ranked.sort(key=_mean, reverse=True)
    best = [row for row in ranked if row.label != reference][:MOST_PLACES]
    lines = [(_mean(row), _place(table, row, number)) for number, row in enumerate(best, 1)]
    lines += [(_mean(row), _place(table, row, None)) for row in ranked if row.label == reference]
    lines += [] if table.group.variants_of else _control(table)
    return [place for _, place in sorted(lines, key=lambda line: line[0], reverse=True)]


def _mean(row: Row) -> float:
    return row.scores[AVERAGE].mean or 0.0


def _control(table: Table) -> list[tuple[float, Place]]:
    found = {
        kind: row
        for kind, other in table.calibrated.items()
        for row in other.rows
        if row.label == "zero_shot" and row.scores[AVERAGE].mean is not None
    }
    if not found:
        return []
    kind = max(found, key=lambda kind: _mean(found[kind]))
    return [(_mean(found[kind]), Place(None, None, f"zero-shot, calibrated ({kind})", *_number(found[kind])))]


def _place(table: Table, row: Row, number: int | None) -> Place:
    place = Place(number, row.label, row.name, *_number(row))
    compared: Score | Change | None = row.change if table.group.variants_of else row.scores[AVERAGE]
    if compared and compared.versus and compared.p_holm is not None:
        place = place._replace(
            gain=signed(compared.versus.difference),
            gain_interval=signed_interval(compared.versus.interval),
            sure=certainty(compared.versus, compared.p_holm),
            below=tenths(compared.versus.difference) < 0,
        )
    known = costs(table.group.by_label()[row.label])
    if "fit_seconds" in known:
        place = place._replace(fit=f"{known['fit_seconds'][1].removesuffix('.0')} s")
    if "prompt_tokens" in known:
        place = place._replace(prompt=f"{known['prompt_tokens'][1]} tokens")
    return place


def _number(row: Row) -> tuple[str, str]:
    interval = row.scores[AVERAGE].interval
    ends = f"{tenths(interval.low):.1f}–{tenths(interval.high):.1f}" if interval else ""
    return f"{tenths(_mean(row)):.1f}", ends
