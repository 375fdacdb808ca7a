"""Our lm-eval model with zero_shot against lm-eval's own ``hf`` model: seconds side by side, and how far values differ.

Both sides get the same weights, tokenizer and requests, which are those of the four offline tasks. At batch size
``auto`` lm-eval runs batches of the model's full length to find a size; ``MAX_LENGTH`` keeps that affordable.
"""

from collections.abc import Callable
from importlib import resources
from typing import Any

from common import backbone, options, report, side_by_side
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM

from icrbench.lm_eval import ICRBenchLM
from icrbench.model_names import local_source

ROWS = 4
MAX_LENGTH = 96
MAX_BATCH = 2
TASKS = ("icrbench_everyday", "icrbench_last_word", "icrbench_prose", "icrbench_short_answers")


def requests(name: str) -> tuple[str, list[Any]]:
    """Request type and requests of a task."""
    folder = str(resources.files("icrbench.lm_eval.example_tasks"))
    task = TaskManager(include_path=folder, include_defaults=False).load([name])["tasks"][name]
    task.set_config("num_fewshot", 0)
    task.build_all_requests(limit=ROWS)
    return task.instances[0].request_type, task.instances


def difference(kind: str, theirs: list[Any], ours: list[Any]) -> float:
    """Return the largest difference of two values; for texts, the number of those that differ."""
    if kind == "generate_until":
        return sum(a != b for a, b in zip(theirs, ours, strict=True))
    if kind == "loglikelihood":
        assert [hit for _, hit in theirs] == [hit for _, hit in ours]
        theirs, ours = [value for value, _ in theirs], [value for value, _ in ours]
    return max(abs(a - b) for a, b in zip(theirs, ours, strict=True))


def main() -> None:
    """Measure and print the ratios."""
    asked = options(__doc__)
    model = backbone(asked)
    plain = AutoModelForCausalLM.from_pretrained(
        str(local_source(asked.model)), dtype=model.dtype, trust_remote_code=False
    ).to(model.device)
    table = []
    for size in (1, 4, "auto"):
        common = {"batch_size": size, "max_batch_size": MAX_BATCH, "max_length": MAX_LENGTH}
        sides = {
            "hf": HFLM(plain, tokenizer=model.tokenizer, **common),
            "icrbench": ICRBenchLM(model, "zero_shot", **common),
        }
        for name in TASKS:
            kind, asked_for = requests(name)
            found: dict[str, list[Any]] = {}

            def timed(
                side: str, kind: str = kind, asked_for: Any = asked_for, found: Any = found
            ) -> Callable[[], None]:
                def run() -> None:
                    found[side] = getattr(sides[side], kind)(asked_for, disable_tqdm=True)  # noqa: B023

                return run

            times = side_by_side({side: timed(side) for side in sides}, asked.rounds)
            gap = difference(kind, found["hf"], found["icrbench"])
            table.append(
                [
                    name,
                    kind,
                    size,
                    times["hf"],
                    times["icrbench"],
                    times["icrbench"] / times["hf"],
                    f"{gap:.1e}" if gap else "none",
                ]
            )
    total = [sum(row[column] for row in table) for column in (3, 4)]
    table.append(["all", "", "", *total, total[1] / total[0], ""])
    report(
        f"zero_shot under lm-eval, {asked.model}, {ROWS} rows a task",
        ["task", "requests", "batch", "hf s", "icrbench s", "ratio", "difference"],
        table,
    )


if __name__ == "__main__":
    main()
