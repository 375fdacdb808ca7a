"""Attention heads in float64 whose outputs a test writes down itself, from queries, logits and values in full."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from icrbench.method import Fitted
from icrbench.toolkit.episodes import Question
from method_setup import logits
from slow_attention import kv_heads, softmax_scale
from tiny import LAYERS, tiny_backbone, tiny_model

NAME = "slow_heads"

Heads = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From layer, queries ``[B, H, T, d_k]``, logits ``[B, H, T, S]`` (-inf where a key is not seen) and values
``[B, H, S, d_k]`` to outputs ``[B, H, T, d_k]``."""


def plain(_layer: int, _queries: Tensor, logits: Tensor, values: Tensor) -> Tensor:
    return logits.softmax(-1) @ values


def slow_logits(family: str, tokens: list[int], heads: Heads = plain) -> Tensor:
    """Next-token logits ``[T, V]`` of one sequence."""
    model = _model(family)
    attentions: list[Any] = [part for part in model.modules() if type(part).__name__.endswith("Attention")]
    assert len(attentions) == LAYERS
    with ExitStack() as stack:
        for layer, attention in enumerate(attentions):
            attention.slow_heads = family, layer, heads
            stack.callback(delattr, attention, "slow_heads")
        found: Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return found


def assert_heads(family: str, fitted: Fitted, questions: Sequence[Question], heads: Heads) -> None:
    """A method gives the logits of heads written out, whatever the padding."""
    for padding in ("left", "right"):
        found = logits(tiny_backbone(family), fitted, questions, padding)
        for row, question in zip(found, questions, strict=True):
            wanted = slow_logits(family, list(question.prompt.tokens), heads)[-1]
            torch.testing.assert_close(row.double(), wanted, rtol=1e-3, atol=2e-3)


@cache
def _model(family: str) -> PreTrainedModel:
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, eager_mask)
    model = tiny_model(family, torch.float64).requires_grad_(False)
    model.set_attn_implementation(NAME)
    return model


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **_: Any
) -> tuple[Tensor, None]:
    family, layer, heads = module.slow_heads
    repeat = query.shape[1] // kv_heads(family)
    key, value = (vectors.repeat_interleave(repeat, 1) for vectors in (key, value))
    logits = softmax_scale(family, layer) * query @ key.transpose(2, 3)
    outputs = heads(layer, query, logits.masked_fill(attention_mask != 0, -torch.inf), value)
    return outputs.transpose(1, 2).contiguous(), None
