"""What stands below a table: how to read it, and what is missing from it."""

from collections.abc import Iterable, Mapping, Sequence

from icrbench.report.cautions import cautions
from icrbench.report.leaderboard import AVERAGE, Row, Table
from icrbench.report.metrics import METRICS
from icrbench.report.origin import compact, one_line
from icrbench.report.outcomes import Calibration
from icrbench.report.text.names import display_name, explicit_notes, form_notes
from icrbench.store.records import CellRecord

_KINDS: dict[Calibration, str] = {
    "cc": "from three texts without content (Zhao et al. 2021)",
    "dc": "from random words of the task's train inputs (Fei et al. 2023)",
    "bc": "from at most 64 train inputs of the task, without their labels (after Zhou et al. 2023)",
    "transductive": "from the test rows themselves (Zhou et al. 2023)",
}


def failures(table: Table) -> dict[str, int]:
    """Every distinct error of the table with the number of its footnote, in the order of reading."""
    numbers: dict[str, int] = {}
    for row in table.rows:
        for column in table.columns:
            for error in row.scores[column.name].errors:
                numbers.setdefault(error, len(numbers) + 1)
    return numbers


def notes(table: Table) -> list[str]:
    """Return the footnotes, one sentence or two each, without markup."""
    lines = [_data_note(table), *view_notes(table)]
    lines += [_test_note()] if any(row.scores[AVERAGE].versus for row in table.rows) else []
    lines += [_change_note(table)] if any(row.change for row in table.rows) else []
    lines += [_seed_note(table.rows), *form_notes(row.label for row in table.rows)]
    lines += explicit_notes(row.explicit for row in table.rows)
    lines += _not_applicable(table)
    statuses = {score.status for row in table.rows for score in row.scores.values()}
    if "missing" in statuses or "failed" in statuses:
        lines.append("—: not run. An average needs all its tasks with all seeds, otherwise it is left empty.")
    if "partial" in statuses:
        lines.append("(k/n): only k of the row's n seeds are there.")
    lines += [f"failed ({number}): {error}" for error, number in failures(table).items()]
    records = [record for _, record in table.group.records]
    lines += [*_budgets(table), *overlap(records, table.group.clean), *_truncated(table), *cautions(table)]
    return [one_line(line) for line in lines]


def _not_applicable(table: Table) -> list[str]:
    """Which rows have no cells on some tasks, since they learn from labelled rows of the task itself."""
    if table.group.protocol != "paper":
        return []
    by_label = table.group.by_label()
    rows = [
        row
        for row in table.rows
        if any(record["cell"].get("own_rows", False) for record in by_label.get(row.label, []))
    ]
    roles = {record["cell"]["task"]: record["task"]["role"] for _, record in table.group.records}
    without = [column.title for column in table.columns if roles.get(column.name, "id") != "id"]
    if not rows or not without:
        return []
    names = ", ".join(row.name for row in rows)
    return [
        f"Not applicable to {', '.join(without)}: {names}. They need labelled rows of the task itself, which this "
        "protocol keeps from methods."
    ]


def view_notes(table: Table) -> list[str]:
    """Return the footnotes that depend on metric and calibration."""
    return [_reading_note(table), *_metric_notes(table), *_calibration_notes(table)]


def _data_note(table: Table) -> str:
    sizes = {
        column.name: max((row.scores[column.name].rows or 0) for row in table.rows)
        for column in table.columns
        if not column.is_average
    }
    listed = ", ".join(f"{name} {size:,}" for name, size in sizes.items() if size)
    warning = " It shows that everything runs; its numbers say nothing about a method." if table.group.demo else ""
    return f"Data: {table.group.data}.{warning}" + (f" Test rows: {listed}." if listed else "")


def _reading_note(table: Table) -> str:
    n_tasks = len(table.columns[-1].tasks)
    words = "Accuracy in %" if table.metric == "accuracy" else f"{METRICS[table.metric].title}, times 100"
    collapse = " Collapse: number of tasks below zero-shot." if table.metric == "accuracy" else ""
    if table.group.written:
        words = (
            "Answers are written, greedily, and end with the line. Exact match: the same words as the right answer, in"
            " lower case, without articles and without punctuation at their ends; token F1: the overlap of the words."
            " Exact match in %"
        )
    return (
        f"{words}, mean ± sample standard deviation over seeds. Bold: best of a column; "
        "underlined: second best; what prints alike ties. Average: mean over the "
        f"{n_tasks} task{'s' if n_tasks > 1 else ''}, each counting the same.{collapse}"
    )


def _metric_notes(table: Table) -> list[str]:
    metric = METRICS[table.metric]
    if table.metric == "accuracy":
        return []
    lines = ["Lower is better."] if metric.lower_is_better else []
    lines.append("This metric is no mean over examples, so it has no interval and no test here.")
    known = [(record["cell"]["task"], record["identity"].get("task")) for _, record in table.group.records]
    lettered = sorted({name for name, task in known if isinstance(task, dict) and task.get("choices") is not None})
    if metric.by_class and lettered:
        names = ", ".join(lettered)
        lines.append(f"{names}: the options are letters before changing answers, so this is about positions there.")
    if table.metric in ("ece", "ece_mass", "brier"):
        lines.append(
            "Probabilities are over the options; with fewer options confidence starts higher: compare no tasks."
        )
    return lines


def _calibration_notes(table: Table) -> list[str]:
    if table.calibrate != "none":
        lines = [f"Every answer is corrected by the method's own prior: {_KINDS[table.calibrate]}."]
    elif table.calibrated:
        lines = [f"{kind}: corrected by the method's own prior, {_KINDS[kind]}." for kind in table.calibrated]
    else:
        return []
    if table.group.protocol == "paper" and {"dc", "bc"} & {table.calibrate, *table.calibrated}:
        lines.append("Out of domain, protocol paper gives no inputs to take bc and dc from: they are blank there.")
    return lines


def _test_note() -> str:
    return (
        "vs zero-shot: difference of the averages in points, its 95 % interval, and a two-sided p corrected over the "
        "rows by Holm's method. With several seeds both count seeds and examples (two-way analysis of variance, "
        "t-test). With one seed the interval is a paired bootstrap over examples, p is a paired t-test (exact McNemar "
        "for one task), and neither says anything about other seeds."
    )


def _change_note(table: Table) -> str:
    name = display_name(table.group.variants_of)
    return f"vs {name}: the same against plain {name}, p corrected over the rows."


def _seed_note(rows: Iterable[Row]) -> str:
    return "Seeds: " + ", ".join(f"{display_name(row.label)} {row.seeds}" for row in rows if row.seeds) + "."


def overlap(records: list[CellRecord], clean: bool) -> list[str]:
    """Return the contamination the records report, if any."""
    found: dict[str, str] = {}
    shared = {id(record["data"]): record["data"] for record in records}
    for data in shared.values():
        own = data["contamination"].get("pairs", {})
        if isinstance(own, dict):
            found.update({str(pair): compact(count) for pair, count in own.items() if count})
    if not found:
        return []
    pairs = [(*pair.split("->"), count) for pair, count in sorted(found.items())]
    listed = ", ".join(f"{count} of {train} in {test}" for train, test, count in pairs)
    state = "removed from the training data" if clean else "left in the training data"
    return [f"Training texts that are also test texts ({state}): {listed}."]


def _budgets(table: Table) -> list[str]:
    """Which methods had less than their papers give them, and of what."""
    found: dict[str, str] = {}
    for label, record in table.group.records:
        result = record["result"]
        if result and (below := result.get("below_published")):
            found[display_name(label)] = budget_text(below)
    listed = "; ".join(f"{name} ({text})" for name, text in sorted(found.items()))
    return [f"Less than the published budget, so no verdict on the method at its own: {listed}."] if found else []


def budget_text(below: Mapping[str, Sequence[float | None]]) -> str:
    """Return the sizes below those published: ``queries 48 of 256, most_steps 100 of no limit``."""
    return ", ".join(
        f"{name} {value:,} of {'no limit' if published is None else format(published, ',')}"
        for name, (value, published) in below.items()
    )


def _truncated(table: Table) -> list[str]:
    counts: dict[str, list[int]] = {}
    for label, record in table.group.records:
        result = record["result"]
        if result and result["truncated"]:
            count = counts.setdefault(f"{display_name(label)} on {record['cell']['task']}", [0, 0])
            count[0] += result["truncated"]
            count[1] += result["n"]
    listed = ", ".join(f"{where} {cut:,} of {n:,}" for where, (cut, n) in sorted(counts.items()))
    return [f"Prompts cut to fit the model, over all seeds: {listed}."] if counts else []
