"""The tasks of this project as multiple-choice tasks of lm-evaluation-harness."""

from typing import Any

from datasets import Dataset, DatasetDict

from icrbench.data.sources import Source, load
from icrbench.data.task import Task
from icrbench.util.errors import UserError


def multiple_choice(task: Task, source: Source) -> dict[str, Any]:
    """Return a task for ``simple_evaluate(tasks=[...])``: the same prompts, options and test rows as in `icrbench run`.

    lm-eval compares log-probabilities of whole options where `icrbench run` compares their first tokens. Where every
    option is one token, both choose alike.

    Args:
        task: one of `load_tasks`.
        source: where its rows come from.

    Raises:
        UserError: if the task has no options, or its rows cannot be loaded.
    """
    if task.answer_form == "generate":
        raise UserError(f"task {task.name} has written answers, no options: it is no multiple-choice task.")
    rows = [
        {
            "id": example.id,
            "prompt": task.prompt(example),
            "options": list(example.options),
            "label": example.label,
        }
        for example in load(task, source).test
    ]
    return {
        "task": f"icrbench_{task.name}",
        "custom_dataset": lambda **_: DatasetDict({"test": Dataset.from_list(rows)}),
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "prompt",
        "doc_to_choice": "options",
        "doc_to_target": "label",
        "num_fewshot": 0,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": float(task.version)},
    }
