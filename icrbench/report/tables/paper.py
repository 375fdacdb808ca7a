"""A named table beside the one that the paper prints: its number, ours, and the difference."""

from collections.abc import Sequence
from decimal import Decimal
from statistics import mean

from icrbench import method_spec
from icrbench.experiments import ExperimentRow
from icrbench.report.costs import spread
from icrbench.report.leaderboard import AVERAGE, Column, Row
from icrbench.report.outcomes import Outcomes
from icrbench.report.published import (
    SOURCE,
    WITH_ZERO_SHOT,
    Disagreement,
    PublishedRow,
    disagreements,
    find,
    published,
    published_model,
    tenth,
)
from icrbench.report.tables.accuracy import accuracy_table
from icrbench.report.tables.cost import costs, parameters
from icrbench.report.tables.row_selection import Selection, place
from icrbench.report.tables.sheet import Sheet
from icrbench.report.text.grid import Entry, Grid
from icrbench.report.text.numbers import MISSING

_FLAG = " †"
_HOURS = "V100 GPU hours, extraction plus training; baselines averaged per task"
_FORMULA = "M demonstration tokens, d hidden size, L layers, r rank"
_PROTOCOL = "500 test rows a task (all, where there are fewer), three seeds"


def comparison_sheets(selection: Selection, outcomes: Outcomes) -> list[Sheet]:
    """One block for each of the paper's models; for ours alone where the paper has it."""
    experiment = selection.experiment
    if experiment.columns == "cost":
        return [_cost_sheet(selection)]
    if experiment.columns == "parameters":
        return [_parameter_sheet(selection)]
    models = list(dict.fromkeys(row.model for row in published() if row.table in experiment.published))
    ours = our_model(selection)
    return [_accuracy_sheet(selection, outcomes, model) for model in ([ours] if ours in models else models)]


def our_model(selection: Selection) -> str | None:
    """Return the paper's name of the model that was run; None if the paper does not have it."""
    record = next((record for _, record in selection.group.records), None)
    identity = record["identity"].get("model", {}) if record else {}
    return published_model(selection.group.model, str(identity.get("location", "")))


def _accuracy_sheet(selection: Selection, outcomes: Outcomes, model: str) -> Sheet:
    table = accuracy_table(selection, outcomes)
    theirs = [_published(selection, row, model) for row, _ in selection.rows]
    flags = [flag for flag in disagreements() if flag.row in theirs]
    names = [*(column.name for column in table.columns), "collapse"]
    entries, lines = [], []
    for (row, label), found, paper in zip(selection.rows, table.rows, theirs, strict=True):
        values = {column.name: _pair(column, found, paper) for column in table.columns}
        tasks = table.columns[-1].tasks
        collapse = None if paper is None else paper.collapse(tasks)
        values["collapse"] = (
            None if collapse is None else Decimal(collapse),
            None if found.collapse is None else Decimal(found.collapse),
        )
        flagged = {flag.column for flag in flags if flag.row is paper}
        entries += _three(selection.name(row, label), {name: (*values[name], name in flagged) for name in names})
        lines += [
            {
                **place(selection, row, label),
                "paper_model": model,
                "column": name,
                "paper": _float(values[name][0]),
                "paper_printed": paper.printed.get(name) if paper else None,
                "ours": _float(values[name][1]),
                "difference": _float(_difference(*values[name])),
            }
            for name in names
        ]
    titles = [*(column.title if column.is_average else column.name for column in table.columns), "Collapse"]
    grid = Grid(selection.experiment.title, ("method", "", *titles), tuple(entries), keys=2)
    title = f"{selection.group.title} · beside the paper's {model}"
    return Sheet(title, grid, tuple(_accuracy_notes(selection, model, theirs, flags)), (), tuple(lines))


def _published(selection: Selection, row: ExperimentRow, model: str) -> PublishedRow | None:
    name, _ = method_spec.split(row.method)
    own = find(selection.experiment.published, model, name, row.setting)
    # What a table leaves out because the main ones have it.
    return own or (None if row.setting else find(WITH_ZERO_SHOT, model, name))


def _pair(column: Column, found: Row, paper: PublishedRow | None) -> tuple[Decimal | None, Decimal | None]:
    """Return the paper's number and ours, in per cent; the paper's average is recomputed where its row allows."""
    score = found.scores[column.name]
    ours = Decimal(100 * score.mean) if score.status == "ok" and score.mean is not None else None
    if paper is None:
        return None, ours
    if column.name == AVERAGE:
        return paper.average(column.tasks), ours
    return paper.number(column.name), ours


def _difference(paper: Decimal | None, ours: Decimal | None) -> Decimal | None:
    return None if paper is None or ours is None else ours - paper


def _float(value: Decimal | None) -> float | None:
    return None if value is None else round(float(value), 10)


def _three(name: str, values: dict[str, tuple[Decimal | None, Decimal | None, bool]]) -> list[tuple[Entry, ...]]:
    """Make the lines of a row: paper, ours, difference."""
    paper = [_number(column, theirs) + (_FLAG if flag else "") for column, (theirs, _, flag) in values.items()]
    own = [_number(column, ours) for column, (_, ours, _) in values.items()]
    apart = [_signed(column, _difference(theirs, ours)) for column, (theirs, ours, _) in values.items()]
    texts = [[name, "paper", *paper], ["", "ours", *own], ["", "difference", *apart]]
    return [tuple(map(Entry, line)) for line in texts]


def _number(column: str, value: Decimal | None) -> str:
    if value is None:
        return "" if column in (AVERAGE, "collapse") else MISSING
    return str(int(value)) if column == "collapse" else str(tenth(value))


def _signed(column: str, value: Decimal | None) -> str:
    if value is None:
        return ""
    words = _number(column, abs(value))
    return ("" if not float(words) else "−" if value < 0 else "+") + words


def _accuracy_notes(
    selection: Selection, model: str, theirs: Sequence[PublishedRow | None], flags: Sequence[Disagreement]
) -> list[str]:
    tables = sorted({row.table for row in theirs if row is not None})
    listed = f"Table{'s' if len(tables) > 1 else ''} {', '.join(map(str, tables))}"
    group, same = selection.group, our_model(selection) == model
    lines = [
        f"Paper: {SOURCE}, {listed}, {model}; {_PROTOCOL}. Its averages and collapse counts are recomputed from its"
        " accuracies.",
        f"Ours: {group.model}, {group.data}; mean over the seeds that were run. Accuracy in %, differences in points.",
        f"Both are {model}: a difference is of the methods, the data and the sizes of the run."
        if same
        else f"The models differ (ours {group.model}, the paper's {model}): a difference says nothing about a method.",
        f"{MISSING}: not run, or not in the paper. A difference needs all seeds of the row.",
        *selection.form_notes,
    ]
    for flag in flags:
        row = flag.row
        lines.append(
            f"†: Table {row.table} prints {flag.column} {flag.printed} for {row.method} {row.setting}".rstrip()
            + f" on {row.model}, which does not follow from its accuracies: they give {flag.recomputed}."
        )
    return lines


def _cost_sheet(selection: Selection) -> Sheet:
    """Compare the hours of each method with ICR's: the paper's processor was another."""
    hours: list[tuple[Decimal | None, Decimal | None]] = []
    for row, label in selection.rows:
        theirs = find(selection.experiment.published, "Llama2-7B", method_spec.split(row.method)[0], _HOURS)
        seconds = costs(selection, label)["fit_seconds"]
        hours.append(
            (theirs.number("gpu_hours") if theirs else None, None if seconds is None else Decimal(seconds) / 3600)
        )
    icr = next(pair for (row, _), pair in zip(selection.rows, hours, strict=True) if row.method == "icr")
    entries, lines = [], []
    for (row, label), pair in zip(selection.rows, hours, strict=True):
        paper, ours = pair
        shares = [None if value is None or not of else value / of for value, of in zip(pair, icr, strict=True)]
        texts = [_hours(paper), _hours(ours), _hours(_difference(*pair)), *(_share(share) for share in shares)]
        entries.append((Entry(selection.name(row, label)), *map(Entry, texts)))
        numbers = {"paper": _float(paper), "ours": _float(ours), "difference": _float(_difference(*pair))}
        lines.append({**place(selection, row, label), "paper_model": "Llama2-7B", "column": "fit_hours", **numbers})
    header = ("method", "Paper, V100 h", "Ours, h", "Difference", "Paper / ICR", "Ours / ICR")
    notes = (
        f"Paper: {SOURCE}, Table 10, Llama2-7B on a V100: extraction and training, baselines averaged per task.",
        f"Ours: {selection.group.model}, one fit, the mean over tasks and seeds. Models and machines differ: compare"
        " the last two columns, each method's cost in units of ICR's.",
        f"{MISSING}: not run.",
        *selection.form_notes,
    )
    title = f"{selection.group.title} · beside the paper's Llama2-7B"
    return Sheet(title, Grid(selection.experiment.title, header, tuple(entries)), notes, (), tuple(lines))


def _parameter_sheet(selection: Selection) -> Sheet:
    entries, lines = [], []
    for row, label in selection.rows:
        paper = find(selection.experiment.published, "any", method_spec.split(row.method)[0], _FORMULA)
        theirs = paper.printed["cached_parameters"] if paper else None
        cached, formula = parameters(selection, label)
        entries.append(
            tuple(map(Entry, (selection.name(row, label), theirs or MISSING, formula or MISSING, spread(cached))))
        )
        numbers = {"paper": theirs, "ours": formula, "cached_mean": mean(cached) if cached else None}
        lines.append({**place(selection, row, label), "column": "cached", **numbers})
    notes = (
        f"Paper: {SOURCE}, Table 11, in {_FORMULA}. It gives formulas, so there is no difference to take.",
        f"Cached: numbers counted in the fits of {selection.group.model}, everything that must be kept included: for"
        " ICR its router, too. With grouped-query attention the keys and values of a token are narrower than d.",
        f"{MISSING}: not run, or not in the record.",
        *selection.form_notes,
    )
    header = ("method", "Paper", "Ours", "Cached")
    grid = Grid(selection.experiment.title, header, tuple(entries))
    return Sheet(f"{selection.group.title} · beside the paper's formulas", grid, notes, (), tuple(lines))


def _hours(value: Decimal | None) -> str:
    if value is None:
        return MISSING
    return (f"{value:.1f}" if abs(value) >= 1 else f"{value:.4f}").replace("-", "−")


def _share(value: Decimal | None) -> str:
    return MISSING if value is None else f"{value:.2f}"
