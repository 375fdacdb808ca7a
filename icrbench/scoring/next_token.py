"""One scorer for every method: prompts in, answers out.

What makes it fast never changes a result: prompts are batched by length, only the last position goes through the
output head and only for the options' rows, demonstrations shared by all queries are computed once, and what a method
leaves as it is (the blocks below it, the tokens before the last) is reused. A task whose options are scored whole, or
whose answers are written, is handed to `whole_options` or `generation`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.finite import not_finite
from icrbench.backbone.prefix import expanded
from icrbench.backbone.reuse import Reused
from icrbench.backbone.trunk import continue_from
from icrbench.data.task import Example, Task
from icrbench.method import Fitted
from icrbench.scoring.batching import AUTOMATIC, ScoringOptions, in_batches
from icrbench.scoring.generation import generated
from icrbench.scoring.prompting import Prompt, Prompter
from icrbench.scoring.whole_options import whole_option_scores
from icrbench.scoring.written import exact_match, token_f1
from icrbench.util.errors import UserError


@dataclass(frozen=True)
class Scored:
    """The outcome for one query.

    Attributes:
        prediction: index of the option with the highest score; of a written answer 0 if it is the right one, else -1.
        option_logits: one score an option: the logit of its first token, or the log-probability of all of its tokens
            (``answer: sum``) or its mean a token (``answer: mean``); none where answers are written.
        prompt: what was asked.
        text: the written answer; None where answers are chosen.
        f1: how far its words are those of the right answer; None where answers are chosen.
    """

    prediction: int
    option_logits: tuple[float, ...]
    prompt: Prompt
    text: str | None = None
    f1: float | None = None


def score(
    backbone: Backbone,
    fitted: Fitted,
    task: Task,
    examples: Sequence[Example],
    options: ScoringOptions = AUTOMATIC,
    reused: Reused | None = None,
    progress: Callable[[int], object] = lambda rows: None,
) -> list[Scored]:
    """Score every example under a fitted method.

    Args:
        backbone: the model.
        fitted: the method.
        task: the examples' task.
        examples: the queries; results come in their order.
        options: how to compute.
        reused: what earlier calls computed that no method of a kind changes; used and added to.
        progress: called with the number of rows finished after each batch.
    """
    prompter = Prompter(backbone, task)
    prompts = [prompter(example, fitted.prefix(task, example)) for example in examples]
    if task.answer_form == "generate":
        texts = generated(backbone, fitted, prompts, task.max_new_tokens, options, progress)
        return [
            Scored(0 if exact_match(text, gold) else -1, (), prompt, text, token_f1(text, gold))
            for text, gold, prompt in zip(texts, map(task.answer, examples), prompts, strict=True)
        ]
    if task.answer_form == "first_token":
        logits = _option_logits(backbone, fitted, prompts, options, reused, progress)
    else:
        logits = whole_option_scores(backbone, fitted, prompts, task.answer_form == "mean", options, progress)
    return [
        Scored(max(range(len(row)), key=row.__getitem__), row, prompt)
        for row, prompt in zip(logits, prompts, strict=True)
    ]


def _option_logits(
    backbone: Backbone,
    fitted: Fitted,
    prompts: Sequence[Prompt],
    options: ScoringOptions,
    reused: Reused | None,
    progress: Callable[[int], object],
) -> list[tuple[float, ...]]:
    """Logits of the options' first tokens, row by row."""

    def run(rows: list[int], shared: int, prefix: DynamicCache | None) -> list[tuple[float, ...]]:
        return _score_batch(backbone, fitted, [prompts[row] for row in rows], shared, prefix, options, reused)

    return in_batches(backbone, fitted, [prompt.tokens for prompt in prompts], options, run, progress)


def _score_batch(
    backbone: Backbone,
    fitted: Fitted,
    prompts: Sequence[Prompt],
    shared: int,
    prefix: DynamicCache | None,
    options: ScoringOptions,
    reused: Reused | None,
) -> list[tuple[float, ...]]:
    batch = make_batch(
        [prompt.tokens[shared:] for prompt in prompts],
        [prompt.text for prompt in prompts],
        device=backbone.device,
        padding=options.padding if not shared else "right",
        prefix_length=shared,
    )
    cache = None if prefix is None else expanded(prefix, len(prompts))
    states = _last_states(backbone, fitted, batch, cache, reused)
    wanted = sorted({token for prompt in prompts for token in prompt.options})
    logits = fitted.logits(backbone, states, torch.tensor(wanted, device=states.device)).cpu()
    if logits.shape != (len(prompts), len(wanted)):
        raise UserError(f"the method gives logits of shape {list(logits.shape)}, not {[len(prompts), len(wanted)]}.")
    if not logits.isfinite().all():  # an arg max over nan would be the first option, silently
        raise not_finite(backbone, "the options' logits")
    column = {token: index for index, token in enumerate(wanted)}
    return [
        tuple(float(row[column[token]]) for token in prompt.options)
        for row, prompt in zip(logits, prompts, strict=True)
    ]


def _last_states(
    backbone: Backbone, fitted: Fitted, batch: Batch, cache: DynamicCache | None, reused: Reused | None
) -> Tensor:
    """Return final hidden states ``[B, d]`` where the answers are predicted."""
    layer = fitted.first_layer
    if reused is not None and cache is None:
        if fitted.last_token_only and batch.input_ids.shape[1] > 1:
            last = reused.last_tokens(backbone, batch)
            with fitted.applied(backbone, last.batch):
                return last.states()
        if layer is not None:
            below = reused.trunk(backbone, layer, batch).clone()  # the method may write into what enters its block
            with fitted.applied(backbone, batch):
                return batch.at_last(continue_from(backbone, layer, below, batch))
    with fitted.applied(backbone, batch):
        return batch.at_last(backbone.hidden_states(batch, cache))
