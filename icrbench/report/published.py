"""The numbers that the ICR paper prints, and what follows from them.

Source: arXiv 2509.22854, Tables 1-5 and 7-15, typed in as they stand: ``published.csv`` holds one number a line
(version of the paper, table, model, method, setting, column, value). The version of all of them is an anonymous
manuscript under the title of v2 (docs/fidelity.md). Accuracies are in per cent. Table 16, a list of tokens, is not in
it.

Averages and collapse counts are recomputed here from the rows and never taken over: some of those printed do not
follow from the accuracies beside them.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from importlib.resources import files

from icrbench.report.leaderboard import PAPER

SOURCE = "arXiv 2509.22854 (anonymous v2)"
ROUNDING = Decimal("0.1")
"""How far rounding alone can take a printed average from its row: accuracies and average are each given to a tenth, so
each is off by up to 0.05, and so is a mean of such accuracies."""

WITH_ZERO_SHOT = (1, 7, 9)
"""The tables with a zero-shot row; no two of them have the same model."""

MODELS = {
    "Llama2-7B": ("llama2", "meta-llama/Llama-2-7b-hf"),
    "Qwen2.5-7B": ("qwen", "Qwen/Qwen2.5-7B"),
    "Llama3.1-8B": ("llama", "meta-llama/Llama-3.1-8B"),
    "Qwen3-32B": ("qwen3-32b", "Qwen/Qwen3-32B"),
    "Llama3.1-70B": ("llama-70b", "meta-llama/Llama-3.1-70B"),
}
"""The paper's models as this project names them."""


@dataclass(frozen=True)
class PublishedRow:
    """One row of a published table.

    Attributes:
        table: its number in the paper.
        model: the paper's name of the model; "any" where the table is about none.
        method: as in this project.
        setting: what sets the row apart from others of its method, in the table's words.
        printed: the entries as text, by column.
    """

    table: int
    model: str
    method: str
    setting: str
    printed: dict[str, str]

    def number(self, column: str) -> Decimal | None:
        """Return an entry as printed; None where there is none."""
        return Decimal(self.printed[column]) if column in self.printed else None

    def average(self, tasks: Sequence[str]) -> Decimal | None:
        """Return the macro average over tasks, recomputed; None unless all of them are in the row."""
        values = [Decimal(self.printed[task]) for task in tasks if task in self.printed]
        return sum(values, Decimal(0)) / len(values) if values and len(values) == len(tasks) else None

    def collapse(self, tasks: Sequence[str]) -> int | None:
        """Count tasks below the model's published zero-shot; None if the paper does not have all tasks.

        None for zero-shot itself, too.
        """
        base = find(WITH_ZERO_SHOT, self.model, "zero_shot")
        if base is None or self.method == "zero_shot":
            return None
        pairs = [(self.number(task), base.number(task)) for task in tasks]
        if any(own is None or zero is None for own, zero in pairs):
            return None
        return sum(own < zero for own, zero in pairs if own is not None and zero is not None)


@dataclass(frozen=True)
class Disagreement:
    """A printed average or collapse count that does not follow from the accuracies of its row."""

    row: PublishedRow
    column: str
    printed: str
    recomputed: str


@cache
def published() -> tuple[PublishedRow, ...]:
    """Every row, in the order of the file."""
    rows: dict[tuple[int, str, str, str], dict[str, str]] = {}
    with files("icrbench.report").joinpath("published.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            key = (int(line["table"]), line["model"], line["method"], line["setting"])
            rows.setdefault(key, {})[line["column"]] = line["value"]
    return tuple(PublishedRow(*key, printed) for key, printed in rows.items())


def find(tables: Sequence[int], model: str, method: str, setting: str = "") -> PublishedRow | None:
    """Return the row of a method in the first of some tables that has it."""
    rows = {(row.table, row.model, row.method, row.setting): row for row in published()}
    found = (rows.get((table, model, method, setting)) for table in tables)
    return next((row for row in found if row is not None), None)


def tenth(value: Decimal) -> Decimal:
    """Round as the paper does: to a tenth, halves up."""
    return value.quantize(Decimal("0.1"), ROUND_HALF_UP)


def disagreements() -> list[Disagreement]:
    """List printed averages that rounding does not explain, and wrong counts of collapse."""
    found = []
    for row in published():
        tasks = [task for task in PAPER if task in row.printed]
        average, printed = row.average(tasks), row.number("average")
        if average is not None and printed is not None and abs(average - printed) > ROUNDING:
            found.append(Disagreement(row, "average", row.printed["average"], str(tenth(average))))
        count = row.collapse(tasks)
        if count is not None and "collapse" in row.printed and count != int(row.printed["collapse"]):
            found.append(Disagreement(row, "collapse", row.printed["collapse"], str(count)))
    return found


def published_model(name: str, location: str) -> str | None:
    """Return the paper's model that a name or hub id of ours stands for; None if the paper has no such model."""
    ours = {name, location.split("@")[0]}
    return next((model for model, names in MODELS.items() if ours & set(names)), None)
