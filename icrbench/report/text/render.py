"""A leaderboard as Markdown, LaTeX (booktabs), CSV, or on the terminal.

Each table is shown as several grids, so that none is wider than a page: averages with the comparison to
zero-shot, the comparison to calibrated zero-shot where there are priors, accuracy by task, and the 95 % intervals;
in Markdown a last one says what the methods cost. The renderers only differ in how they write a grid.
"""

import io
import textwrap
from collections.abc import Sequence
from csv import DictWriter
from dataclasses import replace

from tabulate import tabulate

from icrbench.report.costs import COST_NOTE, COSTS, cached, cost_text, costs, spread
from icrbench.report.leaderboard import AVERAGE, Column, Row, Score, Table
from icrbench.report.metrics import METRICS
from icrbench.report.notes import failures, notes
from icrbench.report.text.control import (
    beside,
    besides,
    calibrated_numbers,
    control_grid,
    control_notes,
    controlled,
    versus,
)
from icrbench.report.text.grid import Entry, Grid, blocks
from icrbench.report.text.latex import PREAMBLE, escape_latex, floats, latex_comment, latex_sentence
from icrbench.report.text.names import display_name
from icrbench.report.text.numbers import MISSING
from icrbench.store.records import CellRecord

TERMINAL = 110  # characters of a line
_BOLD = "\033[1m{}\033[0m"
_TERMINAL = ("{}", _BOLD, "\033[4m{}\033[0m")


def grids(table: Table) -> list[Grid]:
    """Return the views of a table, the same for every output; a fourth where answers are written."""
    if table.metric != "accuracy":
        return _metric_grids(table)
    tasks = [column for column in table.columns if not column.is_average]
    averages = [column for column in table.columns if column.is_average]
    numbers = failures(table)
    plain = [table.group.variants_of] if table.group.variants_of else []
    summary = tuple(
        (
            Entry(row.name),
            *(Entry(accuracy(row, column, numbers), table.rank(column.name, row)) for column in averages),
            *beside(table, row),
            Entry("" if row.collapse is None else str(row.collapse)),
            Entry(versus(row.scores[AVERAGE])),
            *(Entry(versus(row.change)) for _ in plain),
        )
        for row in table.rows
    )
    by_task = tuple(
        (
            Entry(row.name),
            *(Entry(accuracy(row, column, numbers), table.rank(column.name, row)) for column in tasks),
        )
        for row in table.rows
    )
    intervals = tuple(
        (
            Entry(row.name),
            *(Entry(_interval(row.scores[column.name])) for column in (*tasks, averages[-1])),
        )
        for row in table.rows
    )
    names = tuple(column.name for column in tasks)
    measured = "Exact match" if table.group.written else "Accuracy"
    against = [f"vs {display_name(label)} [95 %] p" for label in ("zero-shot", *plain)]
    return [
        Grid("Averages", ("method", *(c.title for c in averages), *besides(table), "Collapse", *against), summary),
        *(control_grid(table, other) for other in controlled(table)),
        Grid(f"{measured} by task", ("method", *names), by_task),
        *([_f1_grid(table)] if table.group.written else []),
        Grid("95 % intervals", ("method", *names, "Average"), intervals),
    ]


def _f1_grid(table: Table) -> Grid:
    """Mean token F1 of written answers."""
    columns = [column for column in table.columns if not column.is_average] + [table.columns[-1]]
    rows = tuple((Entry(display_name(row.label)), *(_f1(row.scores[c.name]) for c in columns)) for row in table.rows)
    return Grid("Token F1 by task", ("method", *(c.title if c.is_average else c.name for c in columns)), rows)


def _f1(score: Score) -> Entry:
    return Entry("" if score.f1 is None else f"{100 * score.f1:.1f}")


def _metric_grids(table: Table) -> list[Grid]:
    """Averages and tasks of a table in another metric than accuracy."""
    title, numbers = METRICS[table.metric].title, failures(table)
    averages = [column for column in table.columns if column.is_average]
    tasks = [column for column in table.columns if not column.is_average]
    return [
        Grid(
            name,
            ("method", *(column.title if column.is_average else column.name for column in columns)),
            tuple(
                (
                    Entry(row.name),
                    *(Entry(accuracy(row, column, numbers), table.rank(column.name, row)) for column in columns),
                )
                for row in table.rows
            ),
        )
        for name, columns in ((f"{title}, averages", averages), (f"{title} by task", tasks))
    ]


def every_note(table: Table) -> list[str]:
    """Return the footnotes of a table and of the grids that are shown of it."""
    return [*notes(table), *control_notes(table)]


def cost_grid(table: Table) -> Grid:
    """Make the grid of what every row of a leaderboard costs."""
    by_label = table.group.by_label()
    rows = []
    for row in table.rows:
        own = by_label[row.label]
        numbers, formula = cached(own)
        found = costs(own)
        rows.append(
            (
                Entry(row.name),
                Entry(spread(numbers)),
                Entry(formula or MISSING),
                *(Entry(cost_text(name, found[name])) for name in COSTS),
            )
        )
    return Grid("What it costs", ("method", "Cached", "Formula", *COSTS.values()), tuple(rows))


def markdown(tables: Sequence[Table]) -> str:
    """All tables as GitHub Markdown."""
    parts = ["# Leaderboard"]
    for table in tables:
        parts.append(f"## {escape_markdown(table.title)}")
        plain = table.metric == "accuracy" and table.calibrate == "none"
        for grid in [*grids(table), *([cost_grid(table)] if plain else [])]:
            parts += [f"### {grid.title}", markdown_grid(grid)]
        parts += markdown_notes([*every_note(table), *([COST_NOTE] if plain else [])], table.group.origin)
    return "\n\n".join(parts) + "\n"


def latex(tables: Sequence[Table]) -> str:
    r"""All tables as LaTeX floats, each followed by its notes; the document needs ``\usepackage{booktabs}``."""
    parts = [PREAMBLE]
    for table in tables:
        parts.append(latex_comment(table.title))
        parts += [latex_comment(f"{name}: {value}") for name, value in table.group.origin]
        for grid in grids(table):
            parts += floats(grid, f"{escape_latex(table.title)}. {escape_latex(grid.title)}")
        words = " ".join(map(latex_sentence, every_note(table)))
        parts += [rf"{{\scriptsize\sloppy\noindent {escape_latex(table.title)}. {words}\par}}", ""]
    return "\n".join(parts)


def csv(tables: Sequence[Table]) -> str:
    """All tables as one long table: a row for each method and column; accuracies are fractions."""
    rows = [
        {
            **table.group.place(),
            "calibrate": table.calibrate,
            "method": row.label,
            "explicit": row.explicit,
            "column": column.name,
            "is_average": column.is_average,
            **_numbers(table, row, column),
            **costs(_records(by_label[row.label], column)),
            "error": " | ".join(row.scores[column.name].errors) or None,
        }
        for table in tables
        for by_label in [table.group.by_label()]
        for row in table.rows
        for column in table.columns
    ]
    text = io.StringIO()
    writer = DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_value(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def csv_value(value: object) -> object:
    """Return a value for a CSV; a text that a spreadsheet would take for a formula gets an apostrophe before it."""
    if not isinstance(value, str) or not value.lstrip().startswith(("=", "+", "-", "@")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def terminal(tables: Sequence[Table]) -> str:
    """Averages, accuracies and footnotes with the marks of a terminal."""
    parts = []
    for table in tables:
        shown = [grid for grid in grids(table) if not grid.title.startswith("95 %")]
        parts.append(terminal_title(table.title))
        parts += [terminal_grid(part) for grid in shown for part in blocks(grid, TERMINAL)]
        parts.append(terminal_notes(every_note(table)))
    return "\n\n".join(parts) + "\n"


def accuracy(row: Row, column: Column, numbers: dict[str, int]) -> str:
    """Write a score; ``numbers`` are the numbers of the footnotes with the errors."""
    score = row.scores[column.name]
    if score.status == "failed":
        return f"failed ({', '.join(str(numbers[error]) for error in score.errors)})"
    if score.mean is None:
        return "" if column.is_average else MISSING
    spread = f" ±{100 * score.std:.1f}" if score.std is not None else ""
    part = f" ({score.seeds}/{row.seeds})" if score.status == "partial" else ""
    return f"{100 * score.mean:.1f}{spread}{part}"


def _interval(score: Score) -> str:
    if score.interval is None:
        return ""
    return f"{100 * score.interval.low:.1f}–{100 * score.interval.high:.1f}"


def _numbers(table: Table, row: Row, column: Column) -> dict[str, object]:
    score = row.scores[column.name]
    versus_zero = score.versus
    change = row.change if column.name == AVERAGE else None
    return {
        "status": score.status,
        table.metric: score.mean,
        "f1": score.f1,
        "std": score.std,
        "ci_low": score.interval.low if score.interval else None,
        "ci_high": score.interval.high if score.interval else None,
        "se_seeds": score.spread.seeds if score.spread else None,
        "se_examples": score.spread.examples if score.spread else None,
        "seeds": score.seeds or None,
        "row_seeds": row.seeds,
        "test_rows": score.rows,
        "vs_zero_shot": versus_zero.difference if versus_zero else None,
        "vs_low": versus_zero.interval.low if versus_zero else None,
        "vs_high": versus_zero.interval.high if versus_zero else None,
        "test": versus_zero.test if versus_zero else None,
        "p": versus_zero.p if versus_zero else None,
        "p_holm": score.p_holm,
        "vs_plain": change.versus.difference if change else None,
        "vs_plain_low": change.versus.interval.low if change else None,
        "vs_plain_high": change.versus.interval.high if change else None,
        "vs_plain_p_holm": change.p_holm if change else None,
        "collapse": row.collapse if column.name == AVERAGE else None,
        **calibrated_numbers(table, row, column),
    }


def _records(own: Sequence[CellRecord], column: Column) -> Sequence[CellRecord]:
    """Those whose costs stand beside a score: of one task, or of all beside the average over all."""
    if column.name == AVERAGE:
        return own
    return [record for record in own if not column.is_average and record["cell"]["task"] == column.name]


def _plain(grid: Grid, marks: Sequence[str], style: str) -> str:
    body = [[marks[entry.rank].format(entry.text) for entry in row] for row in grid.rows]
    aligned = ["left"] + ["right"] * (len(grid.header) - 1)
    return tabulate(body, list(grid.header), style, disable_numparse=True, colalign=aligned)


def terminal_title(text: str) -> str:
    """Write a heading with the marks of a terminal."""
    return _BOLD.format(text)


def terminal_grid(grid: Grid) -> str:
    """One grid with the marks of a terminal."""
    return _plain(grid, _TERMINAL, "simple")


def terminal_notes(lines: Sequence[str]) -> str:
    """Footnotes, broken at the end of the line."""
    return "\n".join(textwrap.fill(line, TERMINAL, subsequent_indent="  ") for line in lines)


def markdown_grid(grid: Grid, *, code: bool = True) -> str:
    """One grid as a table of GitHub Markdown; the first column is code (labels), or plain text."""
    names = [_code(row[0].text) if code else escape_markdown(row[0].text) for row in grid.rows]
    named = tuple((Entry(name.replace("|", r"\|")), *row[1:]) for name, row in zip(names, grid.rows, strict=True))
    return _plain(replace(grid, rows=named), ("{}", "**{}**", "<u>{}</u>"), "pipe")


def _code(text: str) -> str:
    """Return a text as code in one line; a back tick inside would end it."""
    return f"`{' '.join(text.replace('`', chr(0x27)).split())}`"


def markdown_notes(lines: Sequence[str], origin: Sequence[tuple[str, str]] = ()) -> list[str]:
    """Write what stands below a table: footnotes, and under a heading what made its numbers."""
    parts = ["\n".join(f"- {escape_markdown(line)}" for line in lines)]
    made = [f"- {name}: {escape_markdown(value)}" for name, value in origin]
    return parts + (["### Provenance", "\n".join(made)] if made else [])


def escape_markdown(text: str) -> str:
    """Keep what a name or an error message holds from being read as markup, or as more than one line."""
    line = " ".join(text.split())
    return "".join({"<": "&lt;"}.get(c, f"\\{c}" if c in "\\*`[]" else c) for c in line)
