"""What the page shows, as json-able values, read off the tables; nothing is computed here but roundings.

Accuracies and differences are per cent and points, rounded as every other output prints them.
"""

import statistics
from collections.abc import Collection, Sequence
from typing import Any

from icrbench.report.by_metric import by_metric
from icrbench.report.leaderboard import ROLES, Change, Column, Row, Score, Table
from icrbench.report.metrics import METRICS
from icrbench.report.notes import budget_text, failures, notes, view_notes
from icrbench.report.origin import origin
from icrbench.report.page.costs import costs
from icrbench.report.stats import Comparison, Interval
from icrbench.report.text.names import display_name
from icrbench.report.text.numbers import probability, tenths
from icrbench.report.verdict import certainty
from icrbench.store.records import CellRecord, Result

# Facts of a row that the verdict shows, too.
_FIT, _CACHED, _PROMPT = "Time of one fit", "Cached parameters", "Prompt tokens an example"


_DOMAINS = {
    "id": "In-domain",
    "near_ood": "Near out-of-domain",
    "far_ood": "Far out-of-domain",
    "open_ended": "Open-ended",
}
_GROUPS = {"id": "Main tasks", "near_ood": "Near tasks", "far_ood": "Far tasks", "open_ended": "Open-ended tasks"}
"""Where every task gives its own training rows: none is out of a domain."""


def role_titles(protocols: Collection[str]) -> dict[str, str]:
    """Return what the groups of tasks are called under these protocols."""
    return _GROUPS if "in_task" in protocols else _DOMAINS


def table_data(table: Table, *, metrics: bool) -> dict[str, Any]:
    """One table: its group, columns, rows and footnotes, and its views.

    Args:
        table: raw accuracies.
        metrics: whether other metrics are wanted, for which every example is read.
    """
    group = table.group
    roles = {record["cell"]["task"]: record["task"]["role"] for _, record in group.records}
    records = group.by_label()
    numbers = failures(table)
    made_by = dict(table.group.origin)
    plain = {row.label: _hyperparameters(records[row.label]) for row in table.rows}
    return {
        "title": group.title,
        "setting": group.title.partition(" · ")[2],
        "model": group.model + (f" ({group.variant})" if group.variant else ""),
        "protocol": group.protocol,
        "roles": role_titles([group.protocol]),
        "reference": display_name(group.variants_of) or "zero-shot",
        "columns": [_column(column, roles) for column in table.columns],
        "rows": [
            {
                "label": row.label,
                "name": row.name,
                "method": row.method,
                "seeds": row.seeds,
                "collapse": row.collapse,
                "costs": costs(records[row.label]),
                "reference": row.label == (group.variants_of or "zero_shot"),
                "scores": [_score(table, row, column, numbers) for column in table.columns],
                "detail": {
                    **_detail(records[row.label], plain[row.label], plain.get(row.method), made_by),
                    "shares": _shares(table, row) if metrics else [],
                },
            }
            for row in table.rows
        ],
        "views": _views(table, numbers, metrics),
        "errors": list(numbers),
        "notes": notes(table),
        "provenance": list(made_by.items()),
    }


def _views(table: Table, numbers: dict[str, int], metrics: bool) -> dict[str, Any]:
    """Return the same table calibrated and in other metrics: by both names, the scores of its rows and their order."""
    found = {}
    for calibrate, own in {"none": table, **table.calibrated}.items():
        for metric in METRICS if metrics else ("accuracy",):
            if (calibrate, metric) == ("none", "accuracy"):
                continue
            view = by_metric(own, metric)
            found[f"{calibrate} {metric}"] = {
                "order": [row.label for row in view.rows],
                "scores": {
                    row.label: [_score(view, row, column, numbers) for column in view.columns] for row in view.rows
                },
                "notes": view_notes(view),
            }
    return found


def _shares(table: Table, row: Row) -> list[tuple[str, str]]:
    """By task: how often each option is answered, and how often it is right."""
    line, found = table.lines[row.label], []
    for column in table.columns:
        if not column.is_average and line.complete(*column.tasks):
            words = line.options(column.name)
            pairs = zip(words, *line.shares(column.name), strict=False)  # of letters a task may use fewer
            text = ", ".join(f"{word} {100 * own:.0f} % ({100 * gold:.0f} %)" for word, own, gold in pairs)
            found.append((column.title, text))
    return found


def cost(table: dict[str, Any], label: str) -> str:
    """List the costs of a row of ``table_data`` for the verdict; prompts beside the prompts of zero-shot."""
    facts = {row["label"]: dict(row["detail"]["facts"]) for row in table["rows"]}
    own = facts[label]
    base = facts["zero_shot"].get(_PROMPT) if "zero_shot" in facts and label != "zero_shot" else None
    beside = {_PROMPT: f" (zero-shot {base})"} if base else {}
    names = (_FIT, _CACHED, _PROMPT)
    return "\n".join(f"{name}: {own[name]}{beside.get(name, '')}" for name in names if name in own)


def _column(column: Column, roles: dict[str, str]) -> dict[str, Any]:
    role = column.name if column.name in ROLES else None if column.is_average else roles[column.name]
    return {
        "name": column.name,
        "title": column.title,
        "role": role,
        "average": column.is_average,
        "tasks": len(column.tasks),
    }


def _score(table: Table, row: Row, column: Column, numbers: dict[str, int]) -> dict[str, Any]:
    """Short keys and no empty values, because there are many: see ``script/``, which reads them."""
    score = row.scores[column.name]
    found: dict[str, Any] = {
        "status": score.status if score.status != "ok" else None,
        "mean": _tenths(score.mean),
        "ci": _interval(score.interval),
        "std": _tenths(score.std),
        "seeds": score.seeds if score.status == "partial" else None,
        "n": score.rows,
        "rank": table.rank(column.name, row) or None,
        "errors": [numbers[error] for error in score.errors] or None,
        **_versus(row.changes.get(column.name) if table.group.variants_of else score),
    }
    return {name: value for name, value in found.items() if value is not None}


def _versus(compared: Score | Change | None) -> dict[str, Any]:
    """Against the row that the table's plots and marks take as 0."""
    if compared is None or compared.versus is None or compared.p_holm is None:
        return {}
    versus: Comparison = compared.versus
    return {
        "d": tenths(versus.difference),
        "dci": _interval(versus.interval),
        "p": probability(compared.p_holm),
        "sure": certainty(versus, compared.p_holm),
    }


def _detail(
    records: list[CellRecord],
    hyperparameters: dict[str, Any],
    plain: dict[str, Any] | None,
    made_by: dict[str, str],
) -> dict[str, Any]:
    """Collect what the records of a row say beside the scores; provenance only where it is not the table's."""
    ran = [record["result"] for record in records if record["result"] is not None]
    seeds = sorted({record["cell"]["seed"] for record in records if record["cell"]["seed"] is not None})
    fits = sorted({result["seconds_fit"] for result in ran})
    cached = sorted({result["cached_parameters"] for result in ran})
    rows = sum(result["n"] for result in ran)
    facts = [
        ("Seeds", _seeds(seeds)),
        (_FIT, _range(fits, "{:,.0f} s") if any(fits) else "nothing to fit"),
        ("Training", _training(ran)),
        ("Below the published budget", budget_text(ran[0].get("below_published", {})) if ran else ""),
        (_CACHED, _range(cached, "{:,}")),
        (_PROMPT, f"{sum(r['prompt_tokens'] for r in ran) / rows:,.0f}" if rows else ""),
        (
            "Time to score",
            f"{statistics.median(r['seconds_score'] / r['n'] for r in ran):.3f} s an example" if ran else "",
        ),
        ("Cells", f"{len(ran):,} ran" + (f", {len(records) - len(ran):,} failed" if len(ran) < len(records) else "")),
    ]
    own = dict(origin(records))
    return {
        "hyperparameters": {name: _text(value) for name, value in hyperparameters.items()},
        "changed": [name for name, value in hyperparameters.items() if plain and plain.get(name) != value],
        "facts": [fact for fact in facts if fact[1]],
        "provenance": [(name, own.get(name, "")) for name, value in made_by.items() if own.get(name) != value],
    }


def _training(ran: Sequence[Result]) -> str:
    """Return steps and examples of one fit; nothing where no fit was trained by gradient."""
    steps = sorted({result.get("fit_steps", 0) for result in ran})
    examples = sorted({result.get("fit_examples", 0) for result in ran})
    if not any(steps):
        return ""
    on = f" on {_range(examples, '{:,}')} examples" if any(examples) else ""  # unknown where passes are cut in two
    return f"{_range(steps, '{:,}')} steps{on}"


def _hyperparameters(records: Sequence[CellRecord]) -> dict[str, Any]:
    for record in records:
        method = record["identity"].get("method")
        if isinstance(method, dict) and isinstance(method.get("hyperparameters"), dict):
            return dict(method["hyperparameters"])
    return {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _seeds(seeds: Sequence[int]) -> str:
    """How many, and which: "0" alone would read as none."""
    listed = ", ".join(map(str, seeds))
    return f"{len(seeds)} (seed{'s' if len(seeds) > 1 else ''} {listed})" if seeds else "none: no randomness"


def _range(values: Sequence[float], form: str) -> str:
    if not values:
        return ""
    low, high = form.format(values[0]), form.format(values[-1])
    return low if low == high else f"{low} to {high}"


def _tenths(value: float | None) -> float | None:
    return None if value is None else tenths(value)


def _interval(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (tenths(interval.low), tenths(interval.high))
