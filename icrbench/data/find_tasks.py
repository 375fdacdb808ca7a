"""The tasks there are, by name: the built-in YAML files and those of a user's folder."""

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from icrbench.data.task import OPEN_ENDED, ROLES, Task
from icrbench.data.task_yaml import read_task
from icrbench.util.errors import UserError, unknown


def builtin_folder() -> Path:
    """Return the folder of the built-in YAML files, in a checkout and in an installed wheel alike."""
    return Path(str(resources.files("icrbench.tasks")))


def load_tasks(extra_dir: Path | None = None) -> dict[str, Task]:
    """Read the built-in tasks and those of a user's folder, ordered by role, then by name.

    Args:
        extra_dir: folder of further YAML files, one dataset each.

    Raises:
        UserError: if a file is broken (naming file, line and key), a name occurs twice, or the folder is
            missing or holds no YAML file.
    """
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
    return {path.stem: read_task(path) for path in sorted(folder.glob("*.yaml"))}


def get_tasks(names: str, extra_dir: Path | None = None) -> list[Task]:
    """Return the tasks a user asked for, each once, in the order asked.

    Args:
        names: ``all`` (tasks whose answers are chosen), or a comma list of task names and roles (``id``, ``near_ood``,
            ``far_ood``, ``open_ended``).
        extra_dir: as for `load_tasks`.

    Raises:
        UserError: for an unknown name (with the nearest known ones), an empty list, or as `load_tasks` does.
    """
    tasks = load_tasks(extra_dir)
    chosen: dict[str, Task] = {}
    for name in re.split(r"[,\s]+", names.strip()):
        if name == "all":
            chosen |= {task.name: task for task in tasks.values() if task.role != OPEN_ENDED}
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
    found = sorted(path for path in folder.iterdir() if path.suffix in {".yaml", ".yml"} and path.name[0] != ".")
    if not found:
        raise UserError(f"{folder} holds no .yaml file: put one YAML file per dataset there.")
    return found
