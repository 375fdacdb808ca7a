"""One block of a named table, and its Markdown, CSV and LaTeX."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from icrbench.report.render import (
    Grid,
    escape_latex,
    escape_markdown,
    latex_grid,
    markdown_grid,
    terminal_grid,
    terminal_title,
)

_FIT = r"""% Needs \usepackage{booktabs}; with \usepackage{graphicx} a table that is too wide is scaled to the text.
\providecommand{\fittedtable}[1]{\sbox0{#1}\ifdim\wd0>\textwidth
  \ifcsname resizebox\endcsname\resizebox{\textwidth}{!}{\usebox0}\else%
  {\tiny\setlength{\tabcolsep}{1pt}\makebox[\textwidth]{#1}}\fi
\else\usebox0\fi}
"""


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
        parts += [f"## {sheet.title}", markdown_grid(sheet.grid, code=False)]
        parts.append("\n".join(f"- {escape_markdown(note)}" for note in sheet.notes))
        if sheet.origin:
            origin = [f"- {name}: {escape_markdown(value)}" for name, value in sheet.origin]
            parts += ["### Provenance", "\n".join(origin)]
    return "\n\n".join(parts) + "\n"


def terminal(title: str, sheets: Sequence[Sheet]) -> str:
    """All blocks with the marks of a terminal."""
    parts = []
    for sheet in sheets:
        parts += [terminal_title(f"{title} · {sheet.title}"), terminal_grid(sheet.grid)]
        parts.append("\n".join(textwrap.fill(note, 110, subsequent_indent="  ") for note in sheet.notes))
    return "\n\n".join(parts) + "\n"


def csv(sheets: Sequence[Sheet]) -> str:
    """All blocks as one long table: one line a number."""
    frame = pd.DataFrame([line for sheet in sheets for line in sheet.numbers])
    whole = {name: "Int64" for name in ("seed", "seeds", "row_seeds", "test_rows") if name in frame}
    return frame.astype(whole).to_csv(index=False, lineterminator="\n")


def latex(name: str, title: str, sheets: Sequence[Sheet]) -> str:
    r"""A float a block; the document needs ``\usepackage{booktabs}``, and with ``graphicx`` wide ones are scaled."""
    parts = [_FIT]
    for number, sheet in enumerate(sheets, 1):
        caption = " ".join(escape_latex(note if note.endswith(".") else note + ".") for note in sheet.notes)
        # Spreads as small figures below the line, as papers print them: half as wide.
        tabular = re.sub(r" \$\\pm\$([\d.]+)", r"$_{\\pm \1}$", latex_grid(sheet.grid))
        parts += [
            *(f"% {key}: {value}" for key, value in sheet.origin),
            r"\begin{table*}[p]",
            r"\centering\scriptsize\setlength{\tabcolsep}{2.5pt}",
            rf"\fittedtable{{{tabular}}}",
            rf"\caption{{{escape_latex(title)} --- {escape_latex(sheet.title)}. {caption}}}",
            rf"\label{{tab:{name}{'' if number == 1 else f'-{number}'}}}",
            r"\end{table*}",
            "",
        ]
    return "\n".join(parts)
