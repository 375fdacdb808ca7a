"""Tasks and their examples: the text a model reads, and the registry of the YAML files that define it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from icrbench.errors import UserError, unknown

Role = Literal["id", "near_ood", "far_ood"]
ROLES: tuple[Role, ...] = ("id", "near_ood", "far_ood")

DEMONSTRATION_SEPARATOR = "\n"
"""What stands between two demonstrations, and between the last one and the query."""

CHOICES_FIELD = "choices"
"""Template field of a multiple-choice task: its answers, one a line, as ``A. first``."""

LETTERS_FIELD = "letters"
"""Template field of a multiple-choice task: the letters of its answers, as ``A/B/C``."""


@dataclass(frozen=True)
class Example:
    """One row of a split, ready to be put into its task's template."""

    id: str
    """``sst2/test/17``: task, split and row number, counted from 0 in the source file."""
    fields: Mapping[str, str] = field(hash=False)
    """The template's fields; for multiple choice also ``choices`` and ``letters``."""
    options: tuple[str, ...]
    """The answers to choose from, as the model is to write them."""
    label: int
    """Index of the right answer in ``options``."""
    content_hash: str
    """16 hex digits of the normalised content; equal for the same text in another row, split or task."""


@dataclass(frozen=True)
class HubSource:
    """A dataset on the Hugging Face Hub."""

    id: str
    config: str | None
    revision: str
    train: str
    """Name of the split used as train."""
    test: str
    """Name of the split used as test."""


@dataclass(frozen=True)
class FileSource:
    """Two files of the user's own, ``.jsonl`` or ``.parquet``."""

    train: Path
    test: Path


@dataclass(frozen=True)
class Task:
    """A dataset, the question asked about each row and the answers allowed; see ``tasks/*.yaml``."""

    name: str
    title: str
    role: Role
    version: int
    """Raised whenever the template, the options or the data change: results of two versions never meet."""
    license: str
    citation: str
    template: str
    options: tuple[str, ...]
    """For multiple choice the letters, of which a row uses as many as it has answers."""
    fields: Mapping[str, str] = field(hash=False)
    """Template field -> column of the data (dotted path)."""
    choices: tuple[str, ...] | str | None
    """Multiple choice: the columns of the answers, or the one column that lists them (dotted path)."""
    label_column: str
    label_values: tuple[int | str | bool, ...] | str
    """Label values in the order of the options, or the column that lists the row's own (dotted path)."""
    source: HubSource | FileSource
    note: str | None = None

    @property
    def max_options(self) -> int:
        """The number of classes, for balanced sampling: the most options a row can have."""
        return len(self.options)

    def prompt(self, example: Example) -> str:
        """The zero-shot text; it ends with the answer cue (``Sentiment:``) and no white space."""
        return self.template.format_map(example.fields).rstrip()

    def answer(self, example: Example) -> str:
        """The right option's text."""
        return example.options[example.label]

    def demonstration(self, example: Example) -> str:
        """The prompt followed by its right answer."""
        return f"{self.prompt(example)} {self.answer(example)}"

    def identity(self) -> dict[str, Any]:
        """All that can change a result, as JSON values; the data has its own hash (`data.Provenance`)."""
        return {
            "name": self.name,
            "role": self.role,
            "version": self.version,
            "template": self.template,
            "options": list(self.options),
            "fields": dict(self.fields),
            "choices": list(self.choices) if isinstance(self.choices, tuple) else self.choices,
            "label_column": self.label_column,
            "label_values": list(self.label_values) if isinstance(self.label_values, tuple) else self.label_values,
        }


def builtin_folder() -> Path:
    """The folder of the built-in YAML files, in a checkout and in an installed wheel alike."""
    return Path(str(resources.files("icrbench.tasks")))


def load_tasks(extra_dir: Path | None = None) -> dict[str, Task]:
    """Read the built-in tasks and those of a user's folder, ordered by role, then by name.

    Args:
        extra_dir: folder of further YAML files, one dataset each.

    Raises:
        UserError: if a file is broken (naming file, line and key), a name occurs twice, or the folder is
            missing or holds no YAML file.
    """
    from icrbench.task_yaml import read_task  # it needs the classes above

    tasks = dict(_builtin_tasks(builtin_folder()))
    if extra_dir is not None:
        origin: dict[str, Path] = {}
        for path in _yaml_files(extra_dir):
            task = read_task(path)
            if task.name in origin:
                raise UserError(f"{path} and {origin[task.name]} both name the task '{task.name}': rename one.")
            if task.name in tasks:
                raise UserError(f"{path}: '{task.name}' is a built-in task: choose another name.")
            origin[task.name] = path
            tasks[task.name] = task
    return {task.name: task for task in sorted(tasks.values(), key=lambda task: (ROLES.index(task.role), task.name))}


@cache
def _builtin_tasks(folder: Path) -> Mapping[str, Task]:
    from icrbench.task_yaml import read_task

    return {path.stem: read_task(path) for path in sorted(folder.glob("*.yaml"))}


def get_tasks(names: str, extra_dir: Path | None = None) -> list[Task]:
    """The tasks a user asked for, each once, in the order asked.

    Args:
        names: ``all``, or a comma list of task names and roles (``id``, ``near_ood``, ``far_ood``).
        extra_dir: as for `load_tasks`.

    Raises:
        UserError: for an unknown name (with the nearest known ones), an empty list, or as `load_tasks` does.
    """
    tasks = load_tasks(extra_dir)
    chosen: dict[str, Task] = {}
    for name in re.split(r"[,\s]+", names.strip()):
        if name == "all":
            chosen |= tasks
        elif name in ROLES:
            chosen |= {task.name: task for task in tasks.values() if task.role == name}
        elif name in tasks:
            chosen[name] = tasks[name]
        elif name:
            raise unknown("task", name, [*tasks, *ROLES, "all"])
    if not chosen:
        raise UserError(f"no task in '{names}': name some of {', '.join(tasks)}, a role, or all.")
    return list(chosen.values())


def _yaml_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"the folder of tasks {folder} does not exist: check --tasks-dir.")
    found = sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"})
    if not found:
        raise UserError(f"{folder} holds no .yaml file: put one YAML file per dataset there.")
    return found
