"""Options scored whole: the log-probability of all tokens of each, added up or their mean."""

from collections.abc import Callable, Iterator, Sequence

import torch

from icrbench.backbone import Backbone
from icrbench.method import Fitted
from icrbench.scoring.batching import ScoringOptions, plan
from icrbench.scoring.continuations import Row, answers
from icrbench.scoring.prompting import Prompt


def whole_option_scores(
    backbone: Backbone,
    fitted: Fitted,
    prompts: Sequence[Prompt],
    mean: bool,
    options: ScoringOptions,
    progress: Callable[[int], object],
) -> list[tuple[float, ...]]:
    """Log-probability of each option after its prompt, under the method.

    Options that differ in their last token alone share a pass.

    Args:
        backbone: the model.
        fitted: the method.
        prompts: with ``continuations``.
        mean: divide by the number of the option's tokens.
        options: how to compute.
        progress: called with the number of prompts finished after each batch.
    """
    wanted: dict[Row, list[tuple[int, ...]]] = {}
    for prompt in prompts:
        for option in prompt.continuations:
            asked = wanted.setdefault(Row.of(prompt.text, prompt.tokens, option, backbone.max_length), [])
            if option not in asked:
                asked.append(option)

    def batches(rows: list[Row], shared: int) -> Iterator[list[Row]]:
        for part in plan(backbone, [len(row.tokens) for row in rows], shared, options):
            yield [rows[number] for number in part]

    found: dict[Row, dict[tuple[int, ...], float]] = {}
    finished = 0.0
    with torch.inference_mode():
        for row, own in answers(backbone, fitted, wanted, batches, prefix=options.prefix_cache):
            found[row] = {
                option: answer.log_probability / (len(option) if mean else 1)
                for option, answer in zip(wanted[row], own, strict=True)
            }
            finished += len(prompts) / len(wanted)
            progress(int(finished))
            finished -= int(finished)
    return [
        tuple(
            found[Row.of(prompt.text, prompt.tokens, option, backbone.max_length)][option]
            for option in prompt.continuations
        )
        for prompt in prompts
    ]
