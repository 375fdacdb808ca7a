"""Written answers: what the model writes after each prompt under a method, the likeliest token at every step."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.finite import not_finite
from icrbench.backbone.prefix import expanded
from icrbench.method import Fitted
from icrbench.scoring.batching import ScoringOptions, in_batches
from icrbench.scoring.prompting import Prompt

END = "\n"
"""Where an answer ends: demonstrations are one below the other, so a new line starts the next one."""


def generated(
    backbone: Backbone,
    fitted: Fitted,
    prompts: Sequence[Prompt],
    most_tokens: int,
    options: ScoringOptions,
    progress: Callable[[int], object],
) -> list[str]:
    """Return what is written after each prompt, up to the end of the line, the model's end of text or ``most_tokens``.

    The method stays applied while tokens are decoded; which of them it changes is said in ``docs/positions.md``.

    Args:
        backbone: the model.
        fitted: the method.
        prompts: the queries.
        most_tokens: of an answer.
        options: how to compute; padding is on the left, whatever they say.
        progress: called with the number of rows finished after each batch.
    """

    def run(rows: list[int], shared: int, prefix: DynamicCache | None) -> list[str]:
        return _written(backbone, fitted, [prompts[row] for row in rows], shared, prefix, most_tokens)

    # Padding between prefix and query would count as tokens in a sliding window.
    return in_batches(backbone, fitted, [prompt.tokens for prompt in prompts], options, run, progress, alike=True)


def _written(
    backbone: Backbone,
    fitted: Fitted,
    prompts: Sequence[Prompt],
    shared: int,
    prefix: DynamicCache | None,
    most_tokens: int,
) -> list[str]:
    batch = make_batch(
        [prompt.tokens[shared:] for prompt in prompts],
        [prompt.text for prompt in prompts],
        device=backbone.device,
        padding="left",
        prefix_length=shared,
    )
    cache = DynamicCache(config=backbone.model.config) if prefix is None else expanded(prefix, len(prompts))
    ends = _ends(backbone)
    written: list[list[int]] = [[] for _ in prompts]
    open_rows = set(range(len(prompts)))
    with fitted.applied(backbone, batch):
        step = batch
        for _ in range(most_tokens):
            states = step.at_last(backbone.hidden_states(step, cache))
            tokens = _likeliest(backbone, fitted, states)
            for row in list(open_rows):
                token = int(tokens[row])
                if token not in ends:
                    written[row].append(token)
                if token in ends or END in backbone.tokenizer.decode(written[row]):
                    open_rows.remove(row)
            if not open_rows:
                break
            step = _next(step, tokens)
    texts: list[str] = backbone.tokenizer.batch_decode(written, skip_special_tokens=True)
    return [text.split(END)[0].strip() for text in texts]


def _likeliest(backbone: Backbone, fitted: Fitted, states: Tensor) -> Tensor:
    """Return the token ``[B]`` with the highest logit."""
    logits = fitted.logits(backbone, states)
    if not logits.isfinite().all():  # an arg max over nan would be the first token, silently
        raise not_finite(backbone, "the logits of the next token")
    return logits.argmax(-1)


def _next(step: Batch, tokens: Tensor) -> Batch:
    """Return the pass that reads the tokens just written."""
    rows = len(tokens)
    tokens = tokens.to(step.input_ids.device)
    seen = torch.ones(rows, 1, dtype=step.attention_mask.dtype, device=step.attention_mask.device)
    return Batch(
        input_ids=tokens[:, None],
        attention_mask=torch.cat([step.attention_mask, seen], 1),
        position_ids=step.position_ids[:, -1:] + 1,
        last=torch.zeros_like(step.last),
        texts=step.texts,
    )


def _ends(backbone: Backbone) -> set[int]:
    """Return the tokens after which a text is over: the tokenizer's, and those the model names for generation."""
    named = getattr(backbone.model.generation_config, "eos_token_id", None)
    listed = named if isinstance(named, list) else [named]
    return {int(token) for token in [*listed, backbone.tokenizer.eos_token_id] if token is not None}
