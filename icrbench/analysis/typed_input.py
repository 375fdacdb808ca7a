"""An input that a user types: the words for a task's template, as an example of the task."""

from collections.abc import Sequence
from typing import Any

from icrbench.data.rows import canonical_rows, to_examples
from icrbench.data.task import Example, Task
from icrbench.util.errors import UserError, unknown

CHOICE = "choice"
"""What an answer is called where a task's data lists them in one column; given once for each answer."""


def given_example(task: Task, text: str | None, fields: Sequence[str]) -> Example:
    """Make an example of a task from the input; its label, which nobody gave, is the first option.

    Args:
        task: whose template it goes into.
        text: for the one field of the template that ``fields`` leave out.
        fields: ``NAME=TEXT``; the names are those of the template and the columns of the answers.

    Raises:
        UserError: for a task with answers of several tokens; for a name that the task does not have, one given twice,
            or one that is missing.
    """
    if task.answer_form != "first_token":
        raise UserError(
            f"task {task.name} has answers of several tokens: explain takes a task whose options are told apart by"
            " their first token."
        )
    given = _pairs(task, fields)
    left = [name for name in task.fields if name not in given]
    if text is not None:
        if len(left) != 1:
            names = " ".join(f"--field {name}=TEXT" for name in task.fields)
            raise UserError(f"task {task.name} has {len(task.fields)} fields: instead of one text give {names}.")
        given[left.pop()] = [text]
    listed = isinstance(task.choices, str)
    answers = list(task.choices) if isinstance(task.choices, tuple) else [CHOICE] * listed
    missing = left + [name for name in answers if name not in given]
    if missing:
        more = ", once for each answer" if missing[-1] == CHOICE else ""
        wanted = " ".join(f"--field {name}=TEXT" for name in missing)
        raise UserError(f"task {task.name} needs {', '.join(missing)}: add {wanted}{more}.")
    row: dict[str, Any] = {column: given[name][0] for name, column in task.fields.items()}
    count = len(task.options)
    if isinstance(task.choices, str):
        row[task.choices] = given[CHOICE]
        count = len(given[CHOICE])
    elif task.choices is not None:
        row |= {column: given[column][0] for column in task.choices}
    if isinstance(task.label_values, str):
        row[task.label_values] = list(task.options[:count])
        row[task.label_column] = task.options[0]
    else:
        row[task.label_column] = task.label_values[0]
    return to_examples(task, "given", canonical_rows("--field", [row]))[0]


def _pairs(task: Task, fields: Sequence[str]) -> dict[str, list[str]]:
    answers = [CHOICE] if isinstance(task.choices, str) else list(task.choices or ())
    known = [*task.fields, *answers]
    given: dict[str, list[str]] = {}
    for pair in fields:
        name, sign, value = pair.partition("=")
        if not sign:
            raise UserError(f"--field must be NAME=TEXT, not '{pair}'; {task.name} has {', '.join(known)}.")
        if name not in known:
            raise unknown(f"field of {task.name}", name, known)
        if name in given and not (name == CHOICE and isinstance(task.choices, str)):
            raise UserError(f"--field {name} is given twice: once is enough.")
        given.setdefault(name, []).append(value)
    return given
