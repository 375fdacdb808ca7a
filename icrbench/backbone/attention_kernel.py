"""The attention function of every backbone: the library's own, which adds channels and reports weights when asked.

What it is asked stands on the attention module, as attributes that the context managers of `attention` set and delete.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ATTENTION_NAME = "icrbench"


@dataclass(frozen=True)
class Channels:
    """What one layer adds in one forward pass.

    Attributes:
        query: ``[B, H, T, c]``, already divided by the attention scale, which the kernel multiplies in again.
        key: ``[B, T, c]``, shared by the heads.
    """

    query: Tensor
    key: Tensor


# Attributes of an attention module, set only inside the context managers below.
PENDING = "_icrbench_channels"  # channels of the forward pass under way
ROTATED = "_icrbench_rotated"  # what to call with queries and keys after rotary embedding
WATCHED = "_icrbench_watched"  # what to call with the last token's attention


def _flat(heads: Tensor) -> Tensor:
    """``[B, n, T, d_k]`` to ``[B, T, n*d_k]``."""
    return heads.transpose(1, 2).flatten(2)


def _widen(keys: Tensor, channels: Channels) -> Tensor:
    """Keys ``[B, G, T, d_k]`` and their channels to ``[B, G, T, d_k + c]``."""
    extra = channels.key.unsqueeze(1).expand(-1, keys.shape[1], -1, -1).to(keys.dtype)
    return torch.cat([keys, extra], dim=-1)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Run the library's scaled dot-product attention, with extra channels where a method asked for them."""
    watched = getattr(module, WATCHED, None)
    rotated = getattr(module, ROTATED, None)
    channels: Channels | None = getattr(module, PENDING, None)
    if rotated is not None:
        channels = rotated(_flat(query), _flat(key))
    elif channels is not None:
        setattr(module, PENDING, None)
    width = query.shape[-1]
    if channels is None:
        if watched is not None:
            watched(_last_weights(query, key, attention_mask, scaling or width**-0.5))
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if key.shape[-1] == width:  # no cache has widened the keys
        key = _widen(key, channels)
    query = torch.cat([query, channels.query.to(query.dtype)], dim=-1)
    # Fused kernels want one width for queries, keys and values: the values get zeros, cut off again below.
    value = nn.functional.pad(value, (0, key.shape[-1] - width))
    scaling = width**-0.5 if scaling is None else scaling
    if watched is not None:
        watched(_last_weights(query, key, attention_mask, scaling))
    output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    return output[..., :width], None


def _last_weights(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Attention ``[B, H, S]`` of the last query over all keys; without a mask it sees every one."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    logits = scaling * (key.float() @ query[:, :, -1, :, None].float())[..., 0]
    return (logits if mask is None else logits.masked_fill(~mask[:, :, -1], -torch.inf)).softmax(-1)


def register_attention() -> None:
    """Make the attention known to transformers, together with its mask function.

    Registered alone, an attention function would get no mask from transformers and silently lose padding, so the two
    are never registered apart.
    """
    AttentionInterface.register(ATTENTION_NAME, _attention)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


class WideningCache:
    """Stands in for a key/value cache while one attention layer runs: widens the keys on their way in."""

    def __init__(self, cache: Any, module: nn.Module) -> None:
        self._cache = cache
        self._module = module

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store the widened keys; returns what the cache returns."""
        wide = _widen(keys, getattr(self._module, PENDING))
        updated: tuple[Tensor, Tensor] = self._cache.update(wide, values, *args, **kwargs)
        return updated
