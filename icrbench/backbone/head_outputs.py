"""Changing what attention heads put out, knowing how strongly they attend: what attention to further keys would do.

Attention over the keys of a text and some further keys is the text's own attention, scaled by the share of the softmax
that its own keys keep, plus what the further keys contribute: the identity that MimIC and HiFICL start from. That
share follows from the log-normaliser of the own attention. The fused attention kernels do not return it, so it is
computed here, from the very queries, keys and mask that the kernel is given: it is then causal, windowed and blind to
padding as the attention itself is, and the same whether earlier keys come out of a cache or not.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.attention import queries_and_keys
from icrbench.backbone.hooks import forward_pre_hook
from icrbench.backbone.positions import Where
from icrbench.backbone.sites import Edit, Site
from icrbench.backbone.steering import steered


@dataclass(frozen=True)
class HeadOutputs:
    """What the heads of one layer do in the forward pass under way; float32.

    Attributes:
        queries: ``[B, T, H, d_k]``, after rotary embedding.
        log_normaliser: ``[B, T, H]``, the log of the sum of exponentiated attention logits over the keys attended to.
        outputs: ``[B, T, H, d_k]``, before the output projection.
    """

    queries: Tensor
    log_normaliser: Tensor
    outputs: Tensor

    def share(self, log_further: Tensor) -> Tensor:
        """``Z' / (Z' + Z)``, the share of attention that further keys would get, from ``log Z'`` ``[B, T, H]``."""
        return torch.sigmoid(log_further - self.log_normaliser)


@contextmanager
def changed_heads(
    backbone: Backbone, batch: Batch, change: Callable[[int, HeadOutputs], Tensor], where: Where = "all"
) -> Iterator[None]:
    """Within the context, the heads of every layer put out what ``change(layer, heads)`` returns, at some tokens.

    Args:
        backbone: the model.
        batch: what the method is applied to.
        change: from a layer's heads to the outputs ``[B, T, H, d_k]`` that take the place of theirs.
        where: which tokens.
    """
    layers = list(range(backbone.dims.layers))
    masks: dict[int, Tensor | None] = {}
    waiting: dict[int, tuple[Tensor, Tensor]] = {}

    def keep_mask(layer: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
            masks[layer] = kwargs["attention_mask"]

        return hook

    def receive(layer: int, queries: Tensor, keys: Tensor) -> None:
        split = [vectors.float().unflatten(-1, (-1, backbone.dims.head_dim)) for vectors in (queries, keys)]
        scale = backbone.attention_scale(layer)
        waiting[layer] = split[0], log_normaliser(split[0], split[1], masks.pop(layer), scale)

    def edit(layer: int) -> Edit:
        def changed(flat: Tensor) -> Tensor:
            queries, normaliser = waiting.pop(layer)
            return change(
                layer, HeadOutputs(queries, normaliser, flat.unflatten(-1, (-1, backbone.dims.head_dim)))
            ).flatten(2)

        return changed

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(forward_pre_hook(backbone.attention(layer), keep_mask(layer)))
        stack.enter_context(queries_and_keys(backbone, layers, receive, "post_rope"))
        edits = {Site("heads", layer): edit(layer) for layer in layers}
        stack.enter_context(steered(backbone, batch, edits, where))
        yield


def log_normaliser(queries: Tensor, keys: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return the log of what attention divides by, ``[B, T, H]``.

    Args:
        queries: ``[B, T, H, d_k]``.
        keys: ``[B, S, G, d_k]``; ``H / G`` successive query heads share a key head.
        mask: ``[B, 1, T, S]``, true where a query sees a key; None where it sees all keys up to its own, which is the
            last but as many as there are queries after it.
        scale: factor on the dot products.
    """
    tokens, among = queries.shape[1], keys.shape[1]
    if mask is None:
        mask = torch.ones(tokens, among, dtype=torch.bool, device=queries.device).tril(among - tokens)[None, None]
    assert mask.dtype == torch.bool, "attention masks say which keys are seen"
    grouped = queries.unflatten(2, (keys.shape[2], -1))  # [B, T, G, H/G, d_k]
    logits = scale * torch.einsum("btghc,bsgc->bghts", grouped, keys).flatten(1, 2)
    # A finite number: rows of padding see no key at all, and the gradient at -inf is not a number.
    seen = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    return seen.logsumexp(-1).transpose(1, 2)
