"""A first task file, drafted from the columns of a data file."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from icrbench.data.rows import Row, read_rows
from icrbench.data.task_yaml import read_task
from icrbench.util.errors import UserError, unknown
from icrbench.util.files import write_atomic

LABEL_NAMES = ("label", "labels", "answer", "target", "class", "category", "gold")
MOST_CLASSES = 20


def draft_task(train: Path, test: Path | None, label: str | None, folder: Path) -> tuple[Path, str]:
    """Write a task file for rows of the user's own, and check that it can be read.

    Args:
        train: training rows.
        test: test rows; None for the file beside ``train`` that has test for train in its name.
        label: column of the right answer; None to guess it.
        folder: where the file goes.

    Returns:
        The file, and the task's name.

    Raises:
        UserError: if a file is missing, no label can be told, or the task file is there already.
    """
    test = train.with_name(train.name.replace("train", "test")) if test is None else test
    if test == train or not test.exists():
        raise UserError(f"no test rows beside {train}: name them with --test FILE.")
    rows = [row for _, row in read_rows(train).rows]
    column = _label(train, rows, label)
    values = sorted({row.get(column) for row in rows}, key=str)
    if not 2 <= len(values) <= MOST_CLASSES:
        raise UserError(
            f"column '{column}' of {train} has {len(values)} values, not 2 to {MOST_CLASSES}: give --label."
        )
    texts = [name for name, value in rows[0].items() if isinstance(value, str) and name != column]
    if not texts:
        raise UserError(f"{train} has no column of text beside '{column}': add one.")
    name = re.sub(r"[^a-z0-9]+", "-", (train.parent.name if train.stem == "train" else train.stem).lower()).strip("-")
    target = folder / f"{name or 'mine'}.yaml"
    if target.exists():
        raise UserError(f"{target} is there already: delete it, or give another folder with --out.")
    files = {split: os.path.relpath(file, folder) for split, file in (("train", train), ("test", test))}
    write_atomic(target, _text(name or "mine", files, texts, column, values))
    read_task(target)
    return target, name or "mine"


def _label(source: Path, rows: Sequence[Row], asked: str | None) -> str:
    columns = list(rows[0])
    if asked is not None:
        if asked not in columns:
            raise unknown(f"column of {source}", asked, columns)
        return asked
    named = [name for name in columns if name.lower() in LABEL_NAMES]
    most = min(MOST_CLASSES, len(rows) // 2)
    few = [name for name in columns if 2 <= len({str(row.get(name)) for row in rows}) <= most]
    found = named or few
    if len(found) != 1:
        raise UserError(f"which column of {source} is the right answer ({', '.join(columns)})? Say it with --label.")
    return found[0]


def _text(name: str, files: dict[str, str], texts: Sequence[str], column: str, values: Sequence[Any]) -> str:
    """Write the YAML with a comment where the user has to decide."""

    def flow(value: Any) -> str:
        text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
        return text.strip().removesuffix("...").strip()

    words = [str(value) for value in values]
    plain = all(isinstance(value, str) and value == value.strip() and " " not in value for value in values)
    options = words if plain else [chr(ord("A") + number) for number in range(len(values))]
    lines = "\n".join(f"  {text.replace('_', ' ').capitalize()}: {{{_field(text)}}}" for text in texts)
    return f"""name: {name}
title: {flow(name)}  # a heading for people
role: far_ood  # id: methods may learn from it under protocol paper; near_ood, far_ood: they may not
license: unknown  # of your data
source:
  files: {flow(files)}  # beside this file
fields:  # name in the template: column
{chr(10).join(f"  {_field(text)}: {flow(text)}" for text in texts)}
label:
  column: {flow(column)}
  values: {flow(list(values))}
template: |-  # what the model reads; it ends with the cue that the answer follows, without a space
{lines}
  Answer:
options: {flow(options)}  # what the model is to write for each of the values, in their order: different first words
"""


def _field(column: str) -> str:
    return re.sub(r"\W", "_", column)
