"""One block of a named table, and its Markdown, CSV and LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from icrbench.report.text.grid import Grid, blocks
from icrbench.report.text.latex import PREAMBLE, escape_latex, floats, latex_comment, latex_sentence
from icrbench.report.text.render import (
    TERMINAL,
    csv_value,
    escape_markdown,
    markdown_grid,
    markdown_notes,
    terminal_grid,
    terminal_notes,
    terminal_title,
)


@dataclass(frozen=True)
class Sheet:
    """What compares with each other: one model, one kind of data.

    Attributes:
        title: model, protocol and data.
        grid: entries as text; the first column holds the names of the rows.
        notes: footnotes, without markup.
        origin: what made the numbers: names and values.
        numbers: the same as one line a number, for the CSV.
    """

    title: str
    grid: Grid
    notes: tuple[str, ...]
    origin: tuple[tuple[str, str], ...]
    numbers: tuple[dict[str, object], ...]


def markdown(title: str, sheets: Sequence[Sheet]) -> str:
    """All blocks as GitHub Markdown."""
    parts = [f"# {title}"]
    for sheet in sheets:
        parts += [f"## {escape_markdown(sheet.title)}", markdown_grid(sheet.grid, code=False)]
        parts += markdown_notes(sheet.notes, sheet.origin)
    return "\n\n".join(parts) + "\n"


def terminal(title: str, sheets: Sequence[Sheet]) -> str:
    """All blocks with the marks of a terminal."""
    parts = []
    for sheet in sheets:
        parts.append(terminal_title(f"{title} · {sheet.title}"))
        parts += [terminal_grid(part) for part in blocks(sheet.grid, TERMINAL)]
        parts.append(terminal_notes(sheet.notes))
    return "\n\n".join(parts) + "\n"


def csv(sheets: Sequence[Sheet]) -> str:
    """All blocks as one long table: one line a number."""
    frame = pd.DataFrame([line for sheet in sheets for line in sheet.numbers])
    whole = {name: "Int64" for name in ("seed", "seeds", "row_seeds", "test_rows") if name in frame}
    return frame.map(csv_value).astype(whole).to_csv(index=False, lineterminator="\n")


def latex(name: str, title: str, sheets: Sequence[Sheet]) -> str:
    r"""Floats for each block; the document needs ``\usepackage{booktabs}``."""
    parts = [PREAMBLE]
    for number, sheet in enumerate(sheets, 1):
        parts += [latex_comment(f"{key}: {value}") for key, value in sheet.origin]
        caption = f"{escape_latex(title)} --- {escape_latex(sheet.title)}"
        label = f"tab:{name}{'' if number == 1 else f'-{number}'}"
        parts += floats(sheet.grid, caption, " ".join(map(latex_sentence, sheet.notes)), label)
    return "\n".join(parts)
