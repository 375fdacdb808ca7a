"""What lm-eval's requests leave out: whether lm-eval shows demonstrations itself."""

import inspect

from lm_eval import evaluator

from icrbench.util.errors import UserError


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
