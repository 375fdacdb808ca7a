"""What a table says, in sentences: who wins, by how much, where, and whether it is noise.

Everything is read off the table; no number is computed here.
"""

from dataclasses import dataclass
from typing import Literal

from icrbench.report import stats
from icrbench.report.cautions import cautions
from icrbench.report.groups import REFERENCES
from icrbench.report.leaderboard import AVERAGE, ROLES, Change, Row, Score, Table
from icrbench.report.notes import overlap
from icrbench.report.text.names import display_name
from icrbench.report.text.numbers import probability, signed, signed_interval, tenths

Certainty = Literal["clear", "weak", "noise"]
WORDS: dict[Certainty, str] = {"clear": "not noise", "weak": "weak evidence", "noise": "may be noise"}
_DOMAINS = {"id": "in-domain", "near_ood": "near out-of-domain", "far_ood": "far out-of-domain"}
_GROUPS = {"id": "main tasks", "near_ood": "near tasks", "far_ood": "far tasks"}
_MOST_NAMED = 5


@dataclass(frozen=True)
class Verdict:
    """One table in plain words.

    Attributes:
        headline: who wins, or that nobody does.
        certainty: of the headline; None where there is nothing to be sure of.
        facts: pairs of a question and its answer.
        leader: label of the row that the words are about; None where no method has a result on every task.
    """

    headline: str
    certainty: Certainty | None
    facts: tuple[tuple[str, str], ...]
    leader: str | None = None


def certainty(versus: stats.Comparison, p_holm: float) -> Certainty:
    """How far a difference can be trusted.

    "clear" if the corrected test rejects at 5 % and the printed interval leaves out 0; "weak" if only one of the two
    does (only the test is corrected for the number of methods); else "noise".
    """
    low, high = tenths(versus.interval.low), tenths(versus.interval.high)
    agreeing = (p_holm < 1 - stats.CONFIDENCE) + (low > 0 or high < 0)
    return ("noise", "weak", "clear")[agreeing]


def significance(versus: stats.Comparison, p_holm: float, over: str) -> str:
    """Say what the test and the interval of a difference come to.

    Args:
        versus: the difference.
        p_holm: its p, corrected.
        over: what p was corrected over, as " over all pairs of 3 methods"; empty if it was the only test.
    """
    significant = p_holm < 1 - stats.CONFIDENCE
    outside = not tenths(versus.interval.low) <= 0 <= tenths(versus.interval.high)
    correction = f" after correction{over}" if over else ""
    joint = "and" if significant == outside else "but"
    alone = ", which is not corrected," if over and outside and not significant else ""
    return (
        f"{'' if significant else 'not '}significant{correction} (p {_p(p_holm)}), "
        f"{joint} the interval{alone} {'leaves out' if outside else 'reaches'} 0"
    )


def verdict(table: Table) -> Verdict:
    """Write the words for one table."""
    ranked = [row for row in table.rows if row.scores[AVERAGE].mean is not None]
    beware = tuple(("Beware", text) for text in _cautions(table))
    if changed := [row for row in ranked if row.change and row.label != "zero_shot"]:
        headline, sure, facts = _variants(table, changed)
        return Verdict(headline, sure, facts + beware, table.group.variants_of)
    if not ranked:
        return Verdict("No winner can be named: no method has a result on every task.", None, beware)
    leader = max(ranked, key=lambda row: row.scores[AVERAGE].mean or 0.0)
    has_reference = any(row.label == "zero_shot" for row in ranked)
    if leader.label == "zero_shot":
        return _nobody(table, ranked, beware)
    if not has_reference:
        headline = f"{display_name(leader.label)} has the best average, {_mean(leader)}."
        facts = (("Is it noise?", "There is no complete zero-shot row to compare with."), *_next(ranked))
        return Verdict(headline, None, facts + beware, leader.label)
    headline, sure = _headline(leader, ranked)
    facts = (*_size(table, leader), *_remains(table, leader), *_where(table, leader))
    facts += (*_next(ranked), *_implicit(leader, ranked))
    return Verdict(headline, sure, facts + beware, leader.label)


def _headline(leader: Row, ranked: list[Row]) -> tuple[str, Certainty]:
    name = display_name(leader.label)
    score = leader.scores[AVERAGE]
    assert score.versus is not None  # zero-shot is complete
    assert score.p_holm is not None
    sure, ahead = certainty(score.versus, score.p_holm), f"{tenths(score.versus.difference):.1f}"
    if sure == "noise":
        return f"No clear winner: {name} is {ahead} points ahead of zero-shot, which may be noise.", sure
    if sure == "weak":
        over = " after correction" if score.p_holm >= 1 - stats.CONFIDENCE else ", but the interval reaches 0"
        held = "not significant" if score.p_holm >= 1 - stats.CONFIDENCE else "significant"
        return f"{name} is {ahead} points ahead of zero-shot, which is {held}{over}.", sure
    open_race = [row for row in ranked if row.behind and certainty(row.behind.versus, row.behind.p_holm) != "clear"]
    if open_race:
        rival = max(open_race, key=lambda row: row.scores[AVERAGE].mean or 0.0)
        others = len(open_race) - 1
        more = f" and {others} other{'s' if others > 1 else ''}" if others else ""
        lead = f"its lead over {display_name(rival.label)}{more} is not certain"
        return f"{name} beats zero-shot by {ahead} points, but {lead}.", sure
    return f"{name} wins, {ahead} points ahead of zero-shot; this is not noise.", sure


def _variants(table: Table, changed: list[Row]) -> tuple[str, Certainty, tuple[tuple[str, str], ...]]:
    """Which settings matter: a table of variants is not about who wins."""
    plain = next(row for row in table.rows if row.label == table.group.variants_of)
    name, found = display_name(plain.label), [(row, row.change) for row in changed if row.change]
    found.sort(key=lambda pair: -pair[1].versus.difference)
    by_certainty: dict[Certainty, list[tuple[Row, Change]]] = {"clear": [], "weak": [], "noise": []}
    for row, change in found:
        by_certainty[certainty(change.versus, change.p_holm)].append((row, change))
    better = sum(change.versus.difference > 0 for _, change in by_certainty["clear"])
    worse = len(by_certainty["clear"]) - better
    variants = f"{len(found)} variants" if len(found) > 1 else "one variant"
    against_zero = f" {_change(plain.scores[AVERAGE])} against zero-shot." if plain.scores[AVERAGE].versus else ""
    facts = [(f"Plain {name}", f"{_mean(plain)}.{against_zero} Differences below are to it.{_seeds(table, plain)}")]
    telling: tuple[Certainty, ...] = ("clear", "weak")
    for sure in telling:
        lines = [f"{display_name(row.label)} {_points(change.versus)}" for row, change in by_certainty[sure]]
        facts += [(WORDS[sure].capitalize(), "\n".join(lines))] if lines else []
    rest = [f"{display_name(row.label)} {signed(change.versus.difference)}" for row, change in by_certainty["noise"]]
    facts += [(WORDS["noise"].capitalize(), ", ".join(rest))] if rest else []
    if not by_certainty["clear"]:
        return f"No difference between {name} and its {variants} is beyond noise.", "noise", tuple(facts)
    counts = ((better, "better"), (worse, "worse"))
    parts = [f"{number} {'is' if number == 1 else 'are'} {word}" for number, word in counts if number]
    return f"Of {variants} of {name}, {' and '.join(parts)} beyond noise.", "clear", tuple(facts)


def _nobody(table: Table, ranked: list[Row], beware: tuple[tuple[str, str], ...]) -> Verdict:
    others = [row for row in ranked if row.label != "zero_shot"]
    if not others:
        return Verdict("Only zero-shot has a result on every task.", None, beware)
    best = max(others, key=lambda row: row.scores[AVERAGE].mean or 0.0)
    facts = (("Closest", f"{display_name(best.label)}. {_size(table, best)[0][1]}"), *_size(table, best)[1:])
    facts = (*facts, *_remains(table, best), *_where(table, best), *beware)
    return Verdict("No method beats zero-shot.", None, facts, best.label)


def _size(table: Table, row: Row) -> tuple[tuple[str, str], ...]:
    score = row.scores[AVERAGE]
    base = next(other for other in table.rows if other.label == "zero_shot").scores[AVERAGE]
    assert score.versus is not None
    assert score.p_holm is not None
    assert score.mean is not None
    assert base.mean is not None
    tasks = len(table.columns[-1].tasks)
    methods = sum(other.label != "zero_shot" and other.scores[AVERAGE].mean is not None for other in table.rows)
    much = (
        f"{_points(score.versus)} against zero-shot: {tenths(score.mean):.1f} % against {tenths(base.mean):.1f} % "
        f"accuracy, {f'the average over {tasks} tasks' if tasks > 1 else 'on the one task there is'}."
        + (f" The best of {methods} methods." if methods > 1 else "")
    )
    begin = {"clear": "No", "weak": "Hard to say", "noise": "It may be"}[certainty(score.versus, score.p_holm)]
    over = f" over {methods} methods" if methods > 1 else ""
    noise = f"{begin}: {significance(score.versus, score.p_holm, over)}.{_seeds(table, row)}"
    return ("By how much", much), ("Is it noise?", noise)


def _remains(table: Table, row: Row) -> tuple[tuple[str, str], ...]:
    """Return what is left of a row's gain once zero-shot, and then both, are corrected for their label bias.

    In the first average that is there for the row, by the kinds in the order of how much they need: the average of
    all tasks before those of task groups.
    """
    columns = [table.columns[-1], *(column for column in table.columns[:-1] if column.is_average)]
    lines = []
    for kind, other in table.calibrated.items():
        controls = row.controls.get(kind, {})
        column = next((column for column in columns if column.name in controls), None)
        if column is None:
            continue
        raw, control = row.scores[column.name].versus, controls[column.name]
        both = other.row(row.label).scores[column.name]
        where = "" if column.name == AVERAGE else f" {_role(table, column.name)}"
        words = f"{kind}{where}: {signed(raw.difference)} over zero-shot" if raw else f"{kind}{where}"
        words += f"; against calibrated zero-shot {signed(control.versus.difference)}"
        words += f" {signed_interval(control.versus.interval)}"
        words += f"; both calibrated {_change(both)}, {_sure(both)}" if both.versus else ""
        lines.append(words + ".")
    return (("Beside calibration", "\n".join(lines)),) if lines else ()


def _seeds(table: Table, row: Row) -> str:
    """How far seeds are in the interval, a sentence to add to others; empty for a method without randomness."""
    if not any(label == row.label and r["cell"]["seed"] is not None for label, r in table.group.records):
        return ""
    if row.seeds == 1:
        return " Only one seed was run: another may give another number, which no interval here can tell."
    return f" Over {row.seeds} seeds."


def _where(table: Table, row: Row) -> tuple[tuple[str, str], ...]:
    roles = [column for column in table.columns if column.is_average and column.name in ROLES]
    groups = [(_role(table, column.name), row.scores[column.name]) for column in roles]
    parts = [f"{name} {_change(score)}: {_sure(score)}" for name, score in groups if score.versus]
    facts = [("By task group", "\n".join(parts))] if parts else []
    known = [(column, row.scores[column.name]) for column in table.columns if not column.is_average]
    changes = [(column, score, score.versus.difference) for column, score in known if score.versus]
    if len(changes) < 2:
        return tuple(facts)
    gains = sorted((change for change in changes if change[2] > 1e-12), key=lambda change: -change[2])
    falls = sorted((change for change in changes if change[2] < -1e-12), key=lambda change: change[2])
    for title, found in (("Gains", gains), ("Falls", falls)):
        lines = [f"on {len(found)} of {len(changes)} tasks"] if found else ["on no task"]
        for sure, words in WORDS.items():
            same = [(column, score) for column, score, _ in found if _sure(score) == words]
            # One that may be noise is worth a name only if it is large; those that are not noise are all results.
            most = _MOST_NAMED if sure == "clear" else 2
            named = ", ".join(f"{column.title} {_change(score)}" for column, score in same[:most])
            rest = f" and {len(same) - most} smaller" if len(same) > most else ""
            lines += [f"{words}: {named}{rest}"] if same else []
        facts.append((title, "\n".join(lines)))
    return tuple(facts)


def _next(ranked: list[Row]) -> tuple[tuple[str, str], ...]:
    """Name the second best, zero-shot aside, and how far it is behind."""
    behind = [(row, row.behind) for row in ranked if row.behind]
    if not behind:
        return ()
    row, gap = max(behind, key=lambda pair: pair[0].scores[AVERAGE].mean or 0.0)
    pairs = f" over all pairs of {len(behind) + 1} methods" if len(behind) > 1 else ""
    text = (
        f"{display_name(row.label)} at {_mean(row)}; the lead over it is {_points(gap.versus)}, "
        f"{significance(gap.versus, gap.p_holm, pairs)}."
    )
    return (("Next best", text),)


def _implicit(leader: Row, ranked: list[Row]) -> tuple[tuple[str, str], ...]:
    """Name the best implicit method, where the winner reads demonstrations."""
    others = [row for row in ranked if row.method not in REFERENCES and not row.explicit]
    if not leader.explicit or not others:
        return ()
    best = max(others, key=lambda row: row.scores[AVERAGE].mean or 0.0)
    score = best.scores[AVERAGE]
    text = (
        f"{display_name(leader.label)} reads its examples in every prompt. The best that does not is "
        f"{display_name(best.label)} at {_mean(best)}, {_change(score)} against zero-shot: {_sure(score)}."
    )
    return (("Best implicit", text),)


def _cautions(table: Table) -> list[str]:
    group = table.group
    lines = []
    if group.demo:
        lines.append(
            "These are bundled demonstration rows: they show that everything runs, and nothing about a method."
        )
    if group.edition:
        lines.append("These results are superseded by a newer edition of the data or the task.")
    gaps = [display_name(row.label) for row in table.rows if row.scores[AVERAGE].mean is None]
    if gaps:
        several = f"{len(gaps)} methods have" if len(gaps) > 1 else f"{gaps[0]} has"
        lines.append(f"{several} missing or failed cells, so no average, and no place in this ranking.")
    lines += [*_less_than_published(table), *cautions(table)]
    return lines + overlap([record for _, record in group.records], group.clean)


def _less_than_published(table: Table) -> list[str]:
    """Name the methods that had less than their papers give them; what, and of how much, the notes below tables say."""
    less = {
        label
        for label, record in table.group.records
        if record["result"] is not None and record["result"].get("below_published")
    }
    names = [display_name(row.label) for row in table.rows if row.label in less]
    return [f"Less than the published budget: {', '.join(names)}. No verdict on them at their own."] if names else []


def _role(table: Table, role: str) -> str:
    words = _GROUPS if table.group.protocol == "in_task" else _DOMAINS
    return words.get(role, "open-ended tasks")


def _change(score: Score) -> str:
    return f"{signed(score.versus.difference)} {signed_interval(score.versus.interval)}" if score.versus else ""


def _sure(score: Score) -> str:
    return WORDS[certainty(score.versus, score.p_holm)] if score.versus and score.p_holm is not None else ""


def _points(versus: stats.Comparison) -> str:
    return f"{signed(versus.difference)} points {signed_interval(versus.interval)}"


def _mean(row: Row) -> str:
    return f"{tenths(row.scores[AVERAGE].mean or 0.0):.1f} %"


def _p(p: float) -> str:
    text = probability(p)
    return text if text.startswith("<") else f"= {text}"
