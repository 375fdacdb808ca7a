"""What lm-eval's requests leave out: which text is the query, and whether lm-eval shows demonstrations itself."""

import inspect
from pathlib import Path

from lm_eval import evaluator

from icrbench.data.task import Example, FileSource, Task
from icrbench.util.errors import UserError


def query(text: str) -> tuple[Task, Example]:
    """A context of lm-eval as a query of ours, for methods that choose demonstrations by its text."""
    task = Task(
        name="lm-eval",
        title="lm-eval",
        role="far_ood",
        version=1,
        license="",
        citation="",
        template="{text}",
        options=(),
        fields={"text": "text"},
        choices=None,
        label_column="",
        label_values=(),
        source=FileSource(Path(), Path()),
    )
    return task, Example(id="", fields={"text": text}, options=(), label=0, content_hash="")


def refuse_second_demonstrations(method: str) -> None:
    """Raise a UserError if lm-eval puts demonstrations of its own before the queries it is asking about.

    lm-eval does not tell its models, neither in requests nor by a call, so the evaluation under way is looked up among
    the callers. Called from anywhere else, there is nothing to refuse.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") != evaluator.__name__:
        frame = frame.f_back
    if frame is None:
        return
    for name, task in frame.f_locals["eval_tasks"].items():
        shots = task.get_config("num_fewshot")
        if shots:
            raise UserError(
                f"task '{name}' asks for {shots} demonstrations of lm-eval's, and {method} puts its own before the"
                " query: use --num_fewshot 0, or method zero_shot for lm-eval's."
            )
