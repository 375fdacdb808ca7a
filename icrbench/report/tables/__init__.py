"""Named tables in the paper's style: the rows of an experiment, looked up in a results folder.

A table has one block for each set of records that compare with each other. What was not run stays visible.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from icrbench import method_spec
from icrbench.experiments import Experiment, experiments, get_experiments
from icrbench.report.groups import Group, comparable_groups
from icrbench.report.outcomes import Calibration, Outcomes
from icrbench.report.tables import sheet
from icrbench.report.tables.accuracy import accuracy_sheet
from icrbench.report.tables.calibration import calibration_sheets
from icrbench.report.tables.cost import cost_sheet, parameter_sheet
from icrbench.report.tables.iclness import iclness_sheets
from icrbench.report.tables.paper import comparison_sheets
from icrbench.report.tables.row_selection import Selection, fullest, select
from icrbench.report.tables.sensitivity import sensitivity_sheets
from icrbench.report.tables.sheet import Sheet
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from icrbench.util.files import write_atomic


def write_tables(
    folder: Path, out: Path, names: str, settings: Sequence[str], calibrate: Calibration = "none", *, compare: bool
) -> list[Path]:
    """Write ``tables/NAME.md``, ``.csv`` and ``.tex`` below ``out``, and print the tables; returns the paths.

    Args:
        folder: results of a run.
        out: folder to write to.
        names: experiments joined by commas; ``all`` for those with at least one cell.
        settings: the run's ``--set``, which are part of its labels.
        calibrate: what answers are corrected by; tables of accuracies alone are then written, as ``NAME-CALIBRATION``.
        compare: also write ``tables/NAME-vs-paper.*``, where the paper has numbers.

    Raises:
        UserError: for an unknown name, a folder without results, a damaged file, or nothing to write.
    """
    store, common = Store(folder), method_spec.settings(settings)
    groups = comparable_groups(store.records())
    outcomes = Outcomes(store)
    made: list[tuple[str, str, list[Sheet]]] = []
    no_analysis = ""
    named = names.strip() != "all"
    for experiment in get_experiments(names) if named else experiments().values():
        if calibrate != "none" and experiment.columns not in ("tasks", "roles"):
            continue
        selections = _selections(experiment, groups, common, keep_empty=named)
        blocks = _sheets(experiment, selections, folder, store, outcomes, calibrate)
        if not blocks and experiment.vary is not None and named:
            raise UserError(
                f"no complete cells of experiment {experiment.name} in {folder}: `icrbench run --experiment"
                f" {experiment.name} --models MODEL --out {folder}` makes them."
            )
        if not blocks and experiment.columns == "iclness":
            no_analysis = _no_analysis(folder)
            if named:
                raise UserError(no_analysis)
        if not blocks:
            continue
        suffix = "" if calibrate == "none" else f"-{calibrate}"
        made.append((experiment.name + suffix, _title(experiment), blocks))
        if compare and calibrate == "none" and experiment.published and experiment.columns != "iclness":
            beside = [block for selection in selections for block in comparison_sheets(selection, outcomes)]
            made.append((f"{experiment.name}-vs-paper", f"{_title(experiment)}, beside the paper", beside))
    if not made:
        raise UserError(f"no cell in {folder} belongs to a table: `icrbench run --experiment NAME` runs one.")
    if no_analysis:
        print(no_analysis, file=sys.stderr)
    paths = []
    for name, title, blocks in made:
        contents = {
            "md": sheet.markdown(title, blocks),
            "csv": sheet.csv(blocks),
            "tex": sheet.latex(name, title, blocks),
        }
        for ending, content in contents.items():
            paths.append(out / "tables" / f"{name}.{ending}")
            write_atomic(paths[-1], content)
        print(sheet.terminal(title, blocks) if sys.stdout.isatty() else contents["md"])
    return paths


def _title(experiment: Experiment) -> str:
    numbers = " and ".join(map(str, experiment.published))
    plural = "s" if len(experiment.published) > 1 else ""
    return experiment.title + (f" (the ICR paper's Table{plural} {numbers})" if numbers else "")


def _selections(
    experiment: Experiment, groups: Sequence[Group], common: dict[str, dict[str, str]], *, keep_empty: bool
) -> list[Selection]:
    """Return the blocks that have a cell; where none has and the table was asked for by name, the newest blocks."""
    found = [select(experiment, group, common) for group in groups]
    filled = [selection for selection in found if not selection.empty]
    if filled or not keep_empty:
        return fullest(filled)
    return [selection for selection in found if selection.group.edition == 0]


def _no_analysis(folder: Path) -> str:
    command = f"icrbench analyse --experiment iclness --models MODEL --out {folder}"
    return f"no analysis of tokens in {folder / 'analysis'}: `{command}`, with the run's other options, makes it."


def _sheets(
    experiment: Experiment,
    selections: Sequence[Selection],
    folder: Path,
    store: Store,
    outcomes: Outcomes,
    calibrate: Calibration,
) -> list[Sheet]:
    if experiment.columns == "iclness":
        return iclness_sheets(experiment, folder)
    if experiment.columns == "sensitivity":
        return sensitivity_sheets(experiment, store)
    if experiment.columns == "cost":
        return [cost_sheet(selection) for selection in selections]
    if experiment.columns == "parameters":
        return [parameter_sheet(selection) for selection in selections]
    if experiment.columns == "calibration":
        return [sheet for selection in selections for sheet in calibration_sheets(selection, outcomes)]
    return [accuracy_sheet(selection, outcomes, calibrate) for selection in selections]
