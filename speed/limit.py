"""Zero-shot scoring against the least it can take: the model's own linear layers on the real tokens alone.

    python speed/limit.py --data-dir DIR --tasks sst2,mr --rows 64

The other side has no attention, no norms and no padding: every linear layer of every block on as many rows as there
are tokens to compute, in pieces as large as a batch may be. What all prompts start with is computed and counts once.
"""

from collections.abc import Callable

import torch
from common import backbone, parser, report, rows, side_by_side
from torch import nn

from icrbench.backbone import Backbone
from icrbench.backbone.prefix import shared_prefix
from icrbench.data.find_tasks import get_tasks
from icrbench.registry import make_method
from icrbench.scoring.batching import AUTOMATIC, plan, token_budget
from icrbench.scoring.next_token import score
from icrbench.scoring.prompting import Prompter


def linear_layers(model: Backbone, tokens: int) -> Callable[[], None]:
    """Return the matrix products of all blocks for a number of tokens."""
    layers = [module for block in model.blocks for module in block.modules() if isinstance(module, nn.Linear)]
    most = token_budget(model)
    widths = {layer.in_features for layer in layers}
    inputs = {width: torch.randn(most, width, dtype=model.dtype, device=model.device) for width in widths}

    def run() -> None:
        with torch.inference_mode():
            for start in range(0, tokens, most):
                for layer in layers:
                    layer(inputs[layer.in_features][: min(most, tokens - start)])

    return run


def main() -> None:
    """Measure task by task and print the ratios."""
    made = parser(__doc__)
    made.add_argument("--tasks", default="all")
    made.add_argument("--rows", type=int, default=200)
    asked = made.parse_args()
    model = backbone(asked)
    zero_shot = make_method("zero_shot", {}).fitted({}, {})
    table: list[list[object]] = []
    sums = [0, 0, 0.0, 0.0]
    for task in get_tasks(asked.tasks):
        _, examples = rows(asked, task.name, asked.rows)
        prompter = Prompter(model, task)
        prompts = [prompter(example).tokens for example in examples]
        shared = shared_prefix(prompts)
        lengths = [len(tokens) for tokens in prompts]
        real = shared + sum(length - shared for length in lengths)
        padded = shared
        for batch in plan(model, lengths, shared, AUTOMATIC):
            padded += len(batch) * (max(lengths[row] for row in batch) - shared)

        def scoring(task=task, examples=examples) -> None:
            score(model, zero_shot, task, examples)

        times = side_by_side({"scoring": scoring, "products": linear_layers(model, real)}, asked.rounds)
        measured = [real, padded, times["scoring"], times["products"]]
        sums = [total + value for total, value in zip(sums, measured, strict=True)]
        table.append([task.name, *line(*measured)])
    table.append(["all", *line(*sums)])
    report(
        f"zero-shot scoring against the matrix products of the real tokens, {asked.model}, {asked.rows} rows a task",
        ["task", "tokens", "padding %", "scoring s", "products s", "ratio"],
        table,
    )


def line(real: float, padded: float, scoring: float, products: float) -> list[float]:
    """Return the numbers of a line of the table."""
    return [real, 100 * (1 - real / padded), scoring, products, scoring / products]


if __name__ == "__main__":
    main()
