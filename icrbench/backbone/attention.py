"""Extra attention channels: a low-rank term added to the attention logits without ever building it.

Adding ``sum_c a_c z_q[i, c] z_k[j, c]`` to the logit of query ``i`` and key ``j`` is the same as giving queries and
keys extra channels, because a dot product adds over channels. The fused attention kernel, causal mask, sliding
window, padding mask and grouped-query layout then work unchanged, and no ``T x T`` matrix exists.

With a key/value cache the keys' extra channels are stored in the cache as part of the keys, so whatever happens to
the cache (growing, sliding, copying, reordering of beams) happens to them too.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from icrbench.backbone.anatomy import tensor_of
from icrbench.backbone.attention_kernel import ATTENTION_NAME, PENDING, ROTATED, WATCHED, Channels, WideningCache
from icrbench.backbone.core import Backbone
from icrbench.backbone.hooks import forward_hook, forward_pre_hook

Position = Literal["pre_rope", "post_rope"]


@contextmanager
def queries_and_keys(
    backbone: Backbone,
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
            setattr(backbone.attention(layer), PENDING, receive(layer, waiting.pop(layer), keys))

        return hook

    def rotated(layer: int) -> Callable[[Tensor, Tensor], Any]:
        return lambda queries, keys: receive(layer, queries, keys)

    with ExitStack() as stack:
        for layer in layers:
            attention = backbone.attention(layer)
            if position == "post_rope":
                setattr(attention, ROTATED, rotated(layer))
                stack.callback(delattr, attention, ROTATED)
            else:
                setattr(attention, PENDING, None)
                stack.callback(delattr, attention, PENDING)
                # The query hook comes first: in fused projections both hang on one module.
                stack.enter_context(forward_hook(backbone.part(layer, anatomy.query.module), on_query(layer)))
                stack.enter_context(forward_hook(backbone.part(layer, anatomy.key.module), on_key(layer)))
        yield


@contextmanager
def extra_channels(
    backbone: Backbone,
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
        return args, kwargs if cache is None else {**kwargs, name: WideningCache(cache, module)}

    with ExitStack() as stack:
        stack.enter_context(queries_and_keys(backbone, layers, channels, position))
        if position == "pre_rope":  # rotated keys come out of the cache, so their channels follow from them
            for layer in layers:
                stack.enter_context(forward_pre_hook(backbone.attention(layer), widen_cache))
        yield


@contextmanager
def last_attention(backbone: Backbone, receive: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call ``receive(layer, weights)`` in each forward pass with the last token's attention ``[B, H, S]``.

    These are the weights that the fused kernel uses and never returns: extra channels are in them, and keys from a
    cache or of virtual tokens have columns of their own, in front.
    """
    with ExitStack() as stack:
        for layer in range(backbone.dims.layers):
            attention = backbone.attention(layer)
            setattr(attention, WATCHED, partial(receive, layer))
            stack.callback(delattr, attention, WATCHED)
        yield
