"""Which tokens of a forward pass a method means, whether it prefills, decodes or scores a continuation.

The rule is written down in ``docs/positions.md``: a token's treatment depends on its place relative to the end of the
context, never on how the pass that computes it was cut. `chosen_tokens` is that rule in code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.hooks import forward_pre_hook

Where = Literal["last", "all", "predicting"]
"""``last``: the context's last token, where the answer's first token is predicted. ``all``: every token of the context
and of what follows. ``predicting``: the context's last token and every token after it."""


@dataclass(frozen=True)
class Ends:
    """The first and the last tokens of the context, at most half of the context each.

    Attributes:
        first: how many from its start, a beginning-of-sequence token among them.
        last: how many before its end.
    """

    first: int
    last: int


@contextmanager
def chosen_tokens(backbone: Backbone, batch: Batch, where: Where | Ends) -> Iterator[Callable[[], Tensor]]:
    """Yield a function for hooks: which tokens of the forward pass under way are meant, ``[B, T]`` bool.

    Args:
        backbone: the model.
        batch: what the method is applied to; ``batch.last`` is the context's last token, in a column of ``input_ids``.
        where: which tokens.
    """
    width = batch.input_ids.shape[1]
    prefix = batch.attention_mask.shape[1] - width
    real = batch.attention_mask[:, prefix:].bool()
    ends = _ends(batch, real, where) if isinstance(where, Ends) else real
    span = (0, width)  # columns of the pass under way, counted from the first column of batch.input_ids

    def read(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        nonlocal span
        ids = args[0] if args else kwargs.get("input_ids")
        tokens = ids if ids is not None else kwargs["inputs_embeds"]
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        start = 0 if cache is None else int(cache.get_seq_length()) - prefix
        span = (start, start + tokens.shape[1])

    def chosen() -> Tensor:
        columns = torch.arange(*span, device=batch.last.device)
        inside = columns < width
        # Columns beyond the batch are decoded tokens; those inside it may be padding.
        tokens = torch.where(inside, real[:, columns.clamp(max=width - 1)], True)
        if isinstance(where, Ends):
            return tokens & inside & ends[:, columns.clamp(max=width - 1)]
        if where == "last":
            return tokens & (columns == batch.last[:, None])
        return tokens if where == "all" else tokens & (columns >= batch.last[:, None])

    with forward_pre_hook(backbone.model.get_decoder(), read):
        yield chosen


def _ends(batch: Batch, real: Tensor, ends: Ends) -> Tensor:
    """Which of a batch's own tokens are at an end of the context, ``[B, T]`` bool."""
    place = real.cumsum(1) - 1  # among the row's tokens
    last = place[batch.rows, batch.last][:, None]
    half = (last + 1) // 2
    return (place < half.clamp(max=ends.first)) | ((place > last - half.clamp(max=ends.last)) & (place <= last))
