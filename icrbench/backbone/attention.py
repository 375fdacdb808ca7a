"""Extra attention channels: a low-rank term added to the attention logits without ever building it.

Adding ``sum_c a_c z_q[i, c] z_k[j, c]`` to the logit of query ``i`` and key ``j`` is the same as giving queries and
keys extra channels, because a dot product adds over channels. The fused attention kernel, causal mask, sliding
window, padding mask and grouped-query layout then work unchanged, and no ``T x T`` matrix exists.

With a key/value cache the keys' extra channels are stored in the cache as part of the keys, so whatever happens to
the cache (growing, sliding, copying, reordering of beams) happens to them too.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from icrbench.backbone.anatomy import tensor_of
from icrbench.backbone.hooks import forward_hook, forward_pre_hook

if TYPE_CHECKING:
    from icrbench.backbone.core import Backbone

ATTENTION_NAME = "icrbench"

Position = Literal["pre_rope", "post_rope"]


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
_PENDING = "_icrbench_channels"  # channels of the forward pass under way
_ROTATED = "_icrbench_rotated"  # what to call with queries and keys after rotary embedding
_WATCHED = "_icrbench_watched"  # what to call with the last token's attention


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
    """The library's scaled dot-product attention; with extra channels where a method asked for them."""
    watched = getattr(module, _WATCHED, None)
    rotated = getattr(module, _ROTATED, None)
    channels: Channels | None = getattr(module, _PENDING, None)
    if rotated is not None:
        channels = rotated(_flat(query), _flat(key))
    elif channels is not None:
        setattr(module, _PENDING, None)
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


class _WideningCache:
    """Stands in for a key/value cache while one attention layer runs: widens the keys on their way in."""

    def __init__(self, cache: Any, module: nn.Module) -> None:
        self._cache = cache
        self._module = module

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        wide = _widen(keys, getattr(self._module, _PENDING))
        updated: tuple[Tensor, Tensor] = self._cache.update(wide, values, *args, **kwargs)
        return updated


@contextmanager
def queries_and_keys(
    backbone: "Backbone",
    layers: list[int],
    receive: Callable[[int, Tensor, Tensor], Any],
    position: Position = "pre_rope",
) -> Iterator[None]:
    """Call ``receive(layer, queries, keys)`` in each forward pass, before the attention of each given layer.

    Queries are ``[B, T, H*d_k]`` and keys ``[B, T, G*d_k]``, with projection bias and q/k normalisation; before
    rotary position embedding, or after it, where the keys are all those attended to, cached ones too. What
    ``receive`` returns is used as the layer's extra channels when it is not None.
    """
    anatomy, dims = backbone.anatomy, backbone.dims
    waiting: dict[int, Tensor] = {}

    def on_query(layer: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            waiting[layer] = anatomy.query.read(tensor_of(output), dims)

        return hook

    def on_key(layer: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            keys = anatomy.key.read(tensor_of(output), dims)
            setattr(backbone.attention(layer), _PENDING, receive(layer, waiting.pop(layer), keys))

        return hook

    def rotated(layer: int) -> Callable[[Tensor, Tensor], Any]:
        return lambda queries, keys: receive(layer, queries, keys)

    with ExitStack() as stack:
        for layer in layers:
            attention = backbone.attention(layer)
            if position == "post_rope":
                setattr(attention, _ROTATED, rotated(layer))
                stack.callback(delattr, attention, _ROTATED)
            else:
                setattr(attention, _PENDING, None)
                stack.callback(delattr, attention, _PENDING)
                # The query hook comes first: in fused projections both hang on one module.
                stack.enter_context(forward_hook(backbone.part(layer, anatomy.query.module), on_query(layer)))
                stack.enter_context(forward_hook(backbone.part(layer, anatomy.key.module), on_key(layer)))
        yield


@contextmanager
def extra_channels(
    backbone: "Backbone",
    layers: list[int],
    channels: Callable[[int, Tensor, Tensor], Channels],
    position: Position = "pre_rope",
) -> Iterator[None]:
    """Within the context, every forward pass adds ``channels(layer, queries, keys)`` to the given layers' logits.

    Args:
        backbone: the model.
        layers: 0-based block numbers; an empty list leaves the model exactly as it is.
        channels: called with the layer, its queries ``[B, T, H*d_k]`` and its keys ``[B, T, G*d_k]``.
        position: whether those are the vectors before or after rotary embedding.
    """
    name = backbone.anatomy.cache_argument
    chosen = backbone.model.config.get_text_config()._attn_implementation
    assert chosen == ATTENTION_NAME, f"attention '{chosen}' would ignore extra channels"

    def widen_cache(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        cache = kwargs.get(name)
        return args, kwargs if cache is None else {**kwargs, name: _WideningCache(cache, module)}

    with ExitStack() as stack:
        stack.enter_context(queries_and_keys(backbone, layers, channels, position))
        if position == "pre_rope":  # rotated keys come out of the cache, so their channels follow from them
            for layer in layers:
                stack.enter_context(forward_pre_hook(backbone.attention(layer), widen_cache))
        yield


@contextmanager
def last_attention(backbone: "Backbone", receive: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call ``receive(layer, weights)`` in each forward pass with the last token's attention ``[B, H, S]``.

    These are the weights that the fused kernel uses and never returns: extra channels are in them, and keys from a
    cache or of virtual tokens have columns of their own, in front.
    """
    with ExitStack() as stack:
        for layer in range(backbone.dims.layers):
            attention = backbone.attention(layer)
            setattr(attention, _WATCHED, partial(receive, layer))
            stack.callback(delattr, attention, _WATCHED)
        yield
