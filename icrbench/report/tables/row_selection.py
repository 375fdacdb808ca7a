"""Which records an experiment's rows are, in one group of a results folder.

A row is found by its label; hyperparameters that are the run's own default need not stand in it, as in a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icrbench import method_spec
from icrbench.experiments import Experiment, ExperimentRow
from icrbench.report.groups import Group
from icrbench.report.text.names import explicit_notes, form_notes, marked
from icrbench.store.records import CellRecord


@dataclass(frozen=True)
class Selection:
    """The rows of an experiment in one group of records.

    Attributes:
        group: with the records of these rows, and of zero-shot, alone.
        rows: each with the label it has, or would have, in the group.
        fewer: titles of groups of the same model that have only some of the rows this one has.
    """

    experiment: Experiment
    group: Group
    rows: tuple[tuple[ExperimentRow, str], ...]
    fewer: tuple[str, ...] = ()

    @property
    def records(self) -> dict[str, list[CellRecord]]:
        """The records of each label."""
        there = self.group.by_label()
        return {label: there.get(label, []) for _, label in self.rows}

    def name(self, row: ExperimentRow, label: str) -> str:
        """Return what the table calls a row; an explicit one is marked."""
        return marked(row.name, self._explicit(label))

    @property
    def form_notes(self) -> list[str]:
        """A sentence for each method among the rows that is a form of our own, and one on the explicit ones."""
        labels = [label for _, label in self.rows]
        return [*form_notes(labels), *explicit_notes(map(self._explicit, labels))]

    def _explicit(self, label: str) -> bool:
        return any(record["cell"].get("explicit", False) for record in self.records[label])

    @property
    def filled(self) -> set[str]:
        """Names of the rows with a record."""
        records = self.records
        return {row.name for row, label in self.rows if records[label]}

    @property
    def empty(self) -> bool:
        """Whether no row has a record."""
        return not self.filled


def select(experiment: Experiment, group: Group, settings: Mapping[str, Mapping[str, str]]) -> Selection:
    """Find an experiment's rows in a group; ``settings`` are those of the run's ``--set``."""
    there = dict(reversed(group.records))
    rows = tuple((row, _label(row.method, there, settings)) for row in experiment.rows)
    wanted = {label for _, label in rows} | {"zero_shot"}
    chosen = tuple((label, record) for label, record in group.records if label in wanted)
    return Selection(experiment, replace(group, records=chosen), rows)


def fullest(selections: Sequence[Selection]) -> list[Selection]:
    """Without those that have only some rows of another of the same model, which names them instead.

    A run under a second protocol has plain ICR in it, which alone would be a block of every ablation table.
    """
    filled = [selection.filled for selection in selections]
    fewer: list[list[str]] = [[] for _ in selections]
    left_out = set()
    for own, selection in enumerate(selections):
        for place, other in enumerate(selections):
            if filled[own] < filled[place] and selection.group.model == other.group.model:
                fewer[place].append(selection.group.title)
                left_out.add(own)
    return [
        replace(selection, fewer=tuple(fewer[place]))
        for place, selection in enumerate(selections)
        if place not in left_out
    ]


def _label(text: str, there: Mapping[str, CellRecord], settings: Mapping[str, Mapping[str, str]]) -> str:
    name, pairs = method_spec.split(text)
    common = settings.get(name, {})
    exact = method_spec.label(name, {**common, **pairs})
    plain = there.get(method_spec.label(name, common))
    if exact in there or plain is None:
        return exact
    values: dict[str, Any] = plain["identity"].get("method", {}).get("hyperparameters", {})
    changed = {key: value for key, value in pairs.items() if key not in values or not _same(value, values[key])}
    return method_spec.label(name, {**common, **changed})


def _same(text: str, value: Any) -> bool:
    """Whether a hyperparameter's text means the recorded value."""
    if isinstance(value, bool) or value is None:
        return text.lower() in ({True: ("true",), False: ("false",), None: ("none", "null")}[value])
    try:
        return float(text) == float(value)
    except ValueError:
        return text == str(value)


def place(selection: Selection, row: ExperimentRow, label: str) -> dict[str, object]:
    """Where a number of the CSV stands."""
    return {**selection.group.place(), "row": row.name, "method": label}


def row_notes(selection: Selection) -> list[str]:
    """Return the rows, what to know about them, and the command that makes missing rows."""
    experiment, records = selection.experiment, selection.records
    same = [f"{row.name} = {label}" for row, label in selection.rows]
    lines = ["Rows: " + ", ".join(same) + "."]
    lines += [experiment.note] if experiment.note else []
    lines += selection.form_notes
    if not all(records.values()):
        lines.append(
            f"Rows without a number are run by: icrbench run --experiment {experiment.name} --models"
            f" {selection.group.model}, with the other options of the run."
        )
    lines += [f"Only some of these rows are there, and are not shown, in: {title}." for title in selection.fewer]
    return lines
