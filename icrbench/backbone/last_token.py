"""Prompts whose last token alone is computed anew: what a change at the last token costs.

A method that changes only the last token of a prompt leaves all others as they are, in every block, since no token
sees what is to its right. Their keys and values are computed once; trying a layer, a strength or a head then costs one
token a prompt instead of the whole prompt.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from icrbench.backbone.batch import Batch, by_length, make_batch
from icrbench.backbone.core import Backbone
from icrbench.backbone.prefix import expanded

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class LastTokens:
    """Some prompts, everything before their last token computed.

    Attributes:
        rows: which of the prompts these are.
        batch: their last tokens, ``input_ids`` ``[B, 1]``; the columns of the mask before it are the cached tokens.
    """

    backbone: Backbone
    rows: list[int]
    batch: Batch
    cache: DynamicCache

    def states(self) -> Tensor:
        """Compute the final hidden states ``[B, d]`` of the last tokens under the method applied; repeatable."""
        return self.backbone.hidden_states(self.batch, expanded(self.cache, len(self.rows)))[:, 0]


def last_tokens(backbone: Backbone, sequences: Sequence[Sequence[int]], texts: Sequence[str]) -> Iterator[LastTokens]:
    """Cut prompts into batches of similar length and compute everything before their last tokens.

    Args:
        backbone: the model, with nothing applied to it.
        sequences: tokens of each prompt, two at least.
        texts: zero-shot text of each prompt.
    """
    for rows in by_length([len(sequence) for sequence in sequences], BATCH_TOKENS):
        yield prepared(backbone, rows, [sequences[row] for row in rows], [texts[row] for row in rows])


def prepared(
    backbone: Backbone, rows: list[int], sequences: Sequence[Sequence[int]], texts: Sequence[str]
) -> LastTokens:
    """One batch of prompts, everything before their last tokens computed; ``rows`` are their numbers."""
    # Padding on the left puts the last tokens into one column, next to the tokens before them: a sliding window
    # counts columns.
    whole = make_batch(sequences, texts, device=backbone.device, padding="left")
    before = Batch(
        input_ids=whole.input_ids[:, :-1],
        attention_mask=whole.attention_mask[:, :-1],
        position_ids=whole.position_ids[:, :-1],
        last=whole.last - 1,
        texts=whole.texts,
    )
    cache = DynamicCache(config=backbone.model.config)
    with torch.no_grad():
        backbone.hidden_states(before, cache)
    last = Batch(
        input_ids=whole.input_ids[:, -1:],
        attention_mask=whole.attention_mask,
        position_ids=whole.position_ids[:, -1:],
        last=torch.zeros_like(whole.last),
        texts=whole.texts,
    )
    return LastTokens(backbone, rows, last, cache)
