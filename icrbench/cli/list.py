"""What there is to choose from, as tables."""

import inspect
from pathlib import Path

from tabulate import tabulate

from icrbench.backbone.load import known_models
from icrbench.data.find_tasks import load_tasks
from icrbench.experiments import experiments
from icrbench.registry import methods


def listing(what: str, tasks_dir: Path | None = None) -> str:
    """Methods, models, tasks or experiments, one a line."""
    if what == "methods":
        rows = [
            [name, method.scope, (inspect.getdoc(method) or "").splitlines()[0]] for name, method in methods().items()
        ]
        return tabulate(rows, ["method", "fitted per", "what it is"])
    if what == "models":
        rows = [
            [name, entry.get("hub") or f"pip: {entry['gguf']['package']}", entry.get("note", "")]
            for name, entry in known_models().items()
        ]
        return tabulate(rows, ["model", "from", "note"])
    if what == "experiments":
        rows = [
            [name, ", ".join(map(str, item.published)) or "-", str(len(item.rows)), item.tasks, item.title]
            for name, item in experiments().items()
        ]
        return tabulate(rows, ["experiment", "paper's table", "rows", "tasks", "what it shows"])
    rows = [
        [task.name, task.role, str(task.max_options), task.license, task.title]
        for task in load_tasks(tasks_dir).values()
    ]
    return tabulate(rows, ["task", "role", "options", "licence", "title"])
