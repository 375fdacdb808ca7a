"""Grids and sentences as LaTeX (booktabs): floats that fit the text, and any text with the default fonts."""

import re
import unicodedata
from functools import cache

from icrbench.report.text.grid import Grid, blocks

# Characters, about 4 pt each as figures of \scriptsize, that fit the 345 pt of LaTeX's own article class.
_PAGE = 100
_HIGH = 40  # lines that leave room on a page for a caption with notes
PREAMBLE = r"""% Needs \usepackage{booktabs}; with \usepackage{graphicx} a table that is too wide is scaled to the text.
\providecommand{\fittedtable}[1]{\sbox0{#1}\ifdim\wd0>\textwidth
  \ifcsname resizebox\endcsname\resizebox{\textwidth}{!}{\usebox0}\else
  {\tiny\setlength{\tabcolsep}{1pt}\makebox[\textwidth]{#1}}\fi
\else\usebox0\fi}
"""


def floats(grid: Grid, caption: str, notes: str = "", label: str = "") -> list[str]:
    r"""Write a grid as one float, in parts one below the other where it is wider than a page; after ``PREAMBLE``.

    Parts that are too high for one page together are floats of their own.

    Args:
        grid: what to print.
        caption: LaTeX, without a full stop.
        notes: LaTeX, stands below the first float's caption.
        label: for ``\ref`` to the first float; none if empty.
    """
    tabulars = [rf"\fittedtable{{{latex_grid(part)}}}" for part in blocks(grid, _PAGE)]
    together = max(_HIGH // (len(grid.rows) + 3), 1)
    pages = [tabulars[start : start + together] for start in range(0, len(tabulars), together)]
    lines = []
    for number, page in enumerate(pages, 1):
        where = f" ({number} of {len(pages)})" if len(pages) > 1 else ""
        lines += [
            r"\begin{table*}[tp]",
            r"\centering\scriptsize\setlength{\tabcolsep}{2.5pt}",
            "\n\\par\\medskip\n".join(page),
            rf"\caption{{{caption}{where}.}}",
            *([rf"\label{{{label}}}"] if number == 1 and label else []),
            *([rf"\par\medskip{{\raggedright {notes}\par}}"] if number == 1 and notes else []),
            r"\end{table*}",
            "",
        ]
    return lines


def latex_grid(grid: Grid) -> str:
    """One grid as a ``tabular`` with the rules of booktabs."""
    marks = ("{}", r"\textbf{{{}}}", r"\underline{{{}}}")
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(grid.header) - 1)}}}", r"\toprule"]
    lines += [" & ".join(map(escape_latex, grid.header)) + r" \\", r"\midrule"]
    for row in grid.rows:
        fields = [marks[entry.rank].format(escape_latex(entry.text)) for entry in row]
        # Spreads as small figures below the line, as papers print them: half as wide.
        lines.append(re.sub(r" \$\\pm\$([\d.]+)", r"$_{\\pm \1}$", " & ".join(fields)) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def latex_sentence(text: str) -> str:
    """Write a note in running text."""
    return escape_latex(text if text.endswith(".") else text + ".")


def latex_comment(text: str) -> str:
    """Return a line that LaTeX does not read, whatever characters end lines in the text."""
    return f"% {' '.join(text.split())}"


_LATEX = {
    **{character: f"\\{character}" for character in "%_&#${}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "[": "{[}",  # a line of a table that begins with a bracket would be read as an argument of the one before
    "]": "{]}",
    "*": "{*}",
    '"': "''",
    "—": "---",
    "–": "--",
    "−": "$-$",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "α": r"$\alpha$",
    "γ": r"$\gamma$",
    "…": r"\dots{}",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "␣": r"\textvisiblespace{}",
    "▁": r"\textvisiblespace{}",
    "\N{WORD JOINER}": "{}",
}
_ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030c": "v", "\u0327": "c"}


def escape_latex(text: str) -> str:
    """Any text for LaTeX with its default fonts; a sign they lack is written as its number."""
    apart = text.replace("--", "-\N{WORD JOINER}-").replace("--", "-\N{WORD JOINER}-")  # else a dash is drawn
    return "".join(map(_latex_character, apart))


@cache
def _latex_character(character: str) -> str:
    if character in _LATEX:
        return _LATEX[character]
    if character.isspace() or not character.isprintable():
        return " "
    if character.isascii():
        return character
    apart = unicodedata.normalize("NFD", character)
    if len(apart) == 2 and apart[0].isascii() and apart[1] in _ACCENTS:
        return rf"\{_ACCENTS[apart[1]]}{{{apart[0]}}}"
    return rf"\texttt{{U+{ord(character):04X}}}"
