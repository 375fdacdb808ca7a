"""What the user asked for, checked before any work is done."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from icrbench import method_spec
from icrbench.data.sources import Source
from icrbench.data.task import Task
from icrbench.protocol import Rules
from icrbench.registry import make_method, methods
from icrbench.run.plan import Cell, LabelledMethod, cells
from icrbench.run.presets import Preset
from icrbench.scoring.next_token import ScoringOptions
from icrbench.util.errors import UserError, unknown


@dataclass(frozen=True)
class Request:
    """A run, as asked for on the command line or from Python.

    Attributes:
        methods: in the order of the table's work.
        models: names, hub ids, folders or GGUF files.
        tasks: to score.
        known_tasks: all tasks there are, in-domain ones among them.
        seeds: for methods with randomness.
        source: where data comes from.
        rules: protocol, cleaning, test rows.
        out: results folder.
        workspace: folder for intermediate artefacts.
        scoring: how to compute.
        device, dtype, device_map: how to load models; None for the default.
        command: the command line that asked for it, for the records.
        only: the tasks that some labels are confined to; all of them for a label that is not here.
    """

    methods: Sequence[LabelledMethod]
    models: Sequence[str]
    tasks: Sequence[Task]
    known_tasks: Sequence[Task]
    seeds: Sequence[int]
    source: Source
    rules: Rules
    out: Path
    workspace: Path
    scoring: ScoringOptions
    device: str | None = None
    dtype: str | None = None
    device_map: str | None = None
    command: str = ""
    only: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def cells(self) -> list[Cell]:
        """The cells of one model in working order."""
        everywhere = frozenset(task.name for task in self.tasks)
        grid = cells(self.methods, [task.name for task in self.tasks], self.seeds)
        return [cell for cell in grid if cell.task in self.only.get(cell.method.label, everywhere)]


def parse_methods(text: str, settings: Sequence[str], preset: Preset) -> list[LabelledMethod]:
    """Methods from ``all`` or ``name[:hyperparameter=value...],...`` and from ``name.hyperparameter=value`` settings.

    The preset's values go first, then the settings, then what stands in the method's own text. A label keeps
    everything that was asked for beside the preset.

    Raises:
        UserError: for unknown names, values of the wrong type, or text that cannot be read.
    """
    specs = list(methods()) if text == "all" else [part.strip() for part in text.split(",") if part.strip()]
    if not specs:
        raise UserError("no method asked for: name some with --methods, or all of them with --methods all.")
    common = method_spec.settings(settings)
    found = {item.label: item for item in (_labelled(text, common, preset) for text in specs)}
    _check_settings(common, found.values())
    return list(found.values())


def experiment_methods(
    rows: Sequence[str], settings: Sequence[str], preset: Preset
) -> tuple[list[LabelledMethod], dict[str, str]]:
    """The methods of experiments' rows, and the label of each row; rows that are equal get one method.

    A label keeps only what changes the method: with ``rank`` 8 by default, ``icr:rank=8`` is ``icr``, which other
    experiments have as well.

    Raises:
        UserError: as ``parse_methods``.
    """
    common = method_spec.settings(settings)
    made = {row: _shortest(row, common, preset) for row in rows}
    found = {item.label: item for item in made.values()}
    _check_settings(common, found.values())
    return list(found.values()), {row: item.label for row, item in made.items()}


def _labelled(text: str, common: Mapping[str, Mapping[str, str]], preset: Preset) -> LabelledMethod:
    name, pairs = method_spec.split(text)
    asked = {**common.get(name, {}), **pairs}
    return LabelledMethod(method_spec.label(name, asked), make_method(name, {**preset.methods.get(name, {}), **asked}))


def _shortest(text: str, common: Mapping[str, Mapping[str, str]], preset: Preset) -> LabelledMethod:
    """The method of a row with the shortest label that gives it."""
    whole = _labelled(text, common, preset)
    name, pairs = method_spec.split(text)
    for key in list(pairs):
        fewer = {other: value for other, value in pairs.items() if other != key}
        shorter = _labelled(method_spec.label(name, fewer), common, preset)
        if shorter.method == whole.method:
            whole, pairs = shorter, fewer
    return whole


def _check_settings(common: Mapping[str, object], found: Iterable[LabelledMethod]) -> None:
    for name in sorted(set(common) - {item.method.name for item in found}):
        if name not in methods():
            raise unknown("method in --set", name, methods())
        raise UserError(f"--set {name}.… sets a method that is not run: add it to --methods.")
