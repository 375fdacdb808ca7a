"""Keys and values that a batch attends to beside its own, as if virtual tokens stood before it.

The batch keeps its tokens, so nothing that counts them needs to know: neither scoring, nor a key/value cache, nor
generation. In every layer the virtual keys are put before the batch's own on their way out of the cache, the attention
mask gets columns for them, and the tokens move on by the places that the virtual ones take. If those are the keys and
values of a text, the outcome is that of the text and the batch run together.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from icrbench.backbone.batch import Batch, make_batch
from icrbench.backbone.core import Backbone
from icrbench.backbone.hooks import forward_pre_hook


@dataclass(frozen=True)
class Virtual:
    """Virtual tokens: some or all of a text's, or vectors that stand for no text.

    Attributes:
        keys: ``[L, G, n, d_k]``, as a cache holds them: after rotary embedding.
        values: ``[L, G, n, d_k]``.
        positions: ``[n]``, the places in the sequence that they were computed at.
        length: the place that comes after them, where the batch goes on; ``n``, or more where tokens were left out.
        has_bos: whether a beginning-of-sequence token was among those they were computed with. It is the only one then:
            no token sees the batch's own, and what follows that one goes on at ``length``.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    length: int
    has_bos: bool

    def kept(self, tokens: Sequence[int]) -> "Virtual":
        """Only some of them, at their old places."""
        chosen = torch.tensor(tokens, dtype=torch.long, device=self.positions.device)
        return Virtual(
            self.keys[:, :, chosen], self.values[:, :, chosen], self.positions[chosen], self.length, self.has_bos
        )


def virtual_tokens(backbone: Backbone, tokens: Sequence[int]) -> Virtual:
    """Turn the tokens of a text into virtual tokens."""
    bos = backbone.adds_bos and tokens[0] == backbone.tokenizer.bos_token_id
    return _run(backbone, make_batch([tokens], [""], device=backbone.device), None, bos)


def virtual_embeddings(backbone: Backbone, embeddings: Tensor) -> Virtual:
    """Vectors ``[n, d]`` that take the place of token embeddings, as virtual tokens; gradients flow back to them."""
    batch = make_batch([[0] * len(embeddings)], [""], device=backbone.device)
    return _run(backbone, batch, embeddings.to(backbone.device, backbone.dtype)[None], False)


def _run(backbone: Backbone, batch: Batch, embeddings: Tensor | None, has_bos: bool) -> Virtual:
    cache = DynamicCache()  # without the model's configuration: layers with a window then keep what is outside of it
    backbone.hidden_states(batch, cache, embeddings)
    device = backbone.device
    keys, values = (
        torch.stack([getattr(layer, kind)[0].to(device) for layer in cache.layers]) for kind in ("keys", "values")
    )
    return Virtual(keys, values, batch.position_ids[0], batch.input_ids.shape[1], has_bos)


@contextmanager
def attending(
    backbone: Backbone, batch: Batch, virtual: Virtual, hidden: Tensor | None = None
) -> Iterator[Callable[[int], Tensor]]:
    """Within the context every token of ``batch`` (and of its decoding) sees the virtual ones.

    In layers with a sliding window it sees those that are near enough. A row that would end beyond the last place the
    model knows starts as much earlier.

    Args:
        backbone: the model.
        batch: what the virtual tokens stand before.
        virtual: the virtual tokens; none at all leave the model as it is, bit for bit.
        hidden: ``[B, n]`` bool, virtual tokens that a row does not see; the places of its own tokens stay the same.

    Yields:
        A function for hooks: which virtual tokens each token of the pass under way sees at a layer, ``[B, T, n]`` bool.
    """
    count = len(virtual.positions)
    first = batch.attention_mask.argmax(1)  # [B], columns of the mask
    twice = _starts_with_bos(backbone, batch, first) if virtual.has_bos else torch.zeros_like(first, dtype=torch.bool)
    room = backbone.max_length - batch.attention_mask.sum(1)
    moved = (virtual.length - twice.long()).clamp(min=0).minimum(room.clamp(min=0))[:, None]
    places = batch.position_ids  # of the tokens of the pass under way
    windows = [getattr(layer, "sliding_window", None) for layer in DynamicCache(config=backbone.model.config).layers]

    def move(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        nonlocal places
        assert kwargs.get("position_ids") is not None, "places are given, since padding would count otherwise"
        places = kwargs["position_ids"] + moved
        return args, {**kwargs, "position_ids": places}

    def sees(layer: int) -> Tensor:
        window = windows[layer]
        near = places[:, :, None] - virtual.positions.to(places.device)
        seen = torch.ones_like(near, dtype=torch.bool) if window is None else near < window
        return seen if hidden is None else seen & ~hidden[:, None].to(seen.device)

    def before(layer: int) -> Callable[..., tuple[Any, dict[str, Any]]]:
        name = backbone.anatomy.cache_argument

        def hook(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            cache, mask = kwargs.get(name), kwargs["attention_mask"]
            rows, tokens = places.shape
            own, start = (tokens, 0) if cache is None else cache.get_mask_sizes(tokens, layer)
            if mask is None:
                mask = torch.ones(tokens, own, dtype=torch.bool, device=places.device).tril(own - tokens)
            assert mask.dtype == torch.bool, "attention masks say which keys are seen"
            columns = torch.arange(start, start + own, device=mask.device)
            second_bos = (columns == first.to(mask.device)[:, None]) & twice.to(mask.device)[:, None]
            mask = mask & ~second_bos[:, None, None]
            mask = torch.cat([sees(layer)[:, None].to(mask.device), mask.expand(rows, 1, tokens, own)], -1)
            prepending = _Prepending(cache, virtual.keys[layer], virtual.values[layer])
            return args, {**kwargs, name: prepending, "attention_mask": mask}

        return hook

    with ExitStack() as stack:
        if count:
            stack.enter_context(forward_pre_hook(backbone.model.get_decoder(), move))
            for layer in range(backbone.dims.layers):
                stack.enter_context(forward_pre_hook(backbone.attention(layer), before(layer)))
        yield sees


def _starts_with_bos(backbone: Backbone, batch: Batch, first: Tensor) -> Tensor:
    """``[B]``: rows whose first token is BOS. Behind cached tokens it is, if the model has one."""
    cached = batch.attention_mask.shape[1] - batch.input_ids.shape[1]
    column = (first - cached).clamp(min=0)
    bos = batch.input_ids[batch.rows, column] == (backbone.tokenizer.bos_token_id if backbone.adds_bos else -1)
    return torch.where(first >= cached, bos, torch.full_like(bos, backbone.adds_bos))


class _Prepending:
    """Stands in for a layer's key/value cache, if there is one: what comes out has the virtual tokens in front."""

    def __init__(self, cache: Any, keys: Tensor, values: Tensor) -> None:
        self._cache = cache
        self._virtual = keys, values

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if self._cache is not None:
            keys, values = self._cache.update(keys, values, *args, **kwargs)
        first, second = (
            torch.cat([virtual.to(own).expand(len(own), -1, -1, -1), own], dim=-2)
            for virtual, own in zip(self._virtual, (keys, values), strict=True)
        )
        return first, second
