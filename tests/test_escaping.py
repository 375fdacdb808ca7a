"""Names and messages of others stay data in every format a report writes."""

import csv
import io

import pytest

from icrbench.report.text.grid import Entry, Grid
from icrbench.report.text.latex import escape_latex, latex_comment
from icrbench.report.text.render import csv_value, escape_markdown, markdown_grid

HOSTILE = [
    "a\n\\input{/etc/passwd}",
    "a\r\nb",
    "a\u2028b",
    "a\x0bb",
    "x\n# heading",
    "`code`",
    "[a](javascript:1)",
    "a|b",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_comment_of_latex_is_one_line(text: str) -> None:
    assert len(latex_comment(text).splitlines()) == 1
    assert latex_comment(text).startswith("% ")
    assert "\n" not in escape_latex(text)
    assert "\\input" not in escape_latex(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_title_or_label_in_markdown_is_one_line_without_markup(text: str) -> None:
    title = escape_markdown(text)
    assert len(title.splitlines()) == 1
    assert "`" not in title.replace("\\`", "")
    assert "[" not in title.replace("\\[", "")
    row = markdown_grid(Grid("t", ("method", "n"), ((Entry(text), Entry("1")),))).splitlines()
    assert len(row) == 3
    assert row[2].count("`") == 2
    assert row[2].replace("\\|", "").count("|") == 3


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3", " =x", "\t=x"])
def test_no_spreadsheet_takes_a_text_for_a_formula(text: str) -> None:
    assert csv_value(text) == f"'{text}"


@pytest.mark.parametrize("value", [0.5, -1, None, True, "icr:rank=4", "-1.5", "+4.4", "−4.4", "—", "a=b", ""])
def test_other_values_of_a_csv_stay_as_they_are(value: object) -> None:
    assert csv_value(value) == value
    text = io.StringIO()
    csv.writer(text).writerow([csv_value(value), "end"])
    assert next(csv.reader(io.StringIO(text.getvalue())))[1] == "end"
