"""Results of one method on a batch that the next method need not compute again: states that neither of them changes."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from icrbench.backbone.batch import Batch
from icrbench.backbone.core import Backbone
from icrbench.backbone.last_token import LastTokens, prepared
from icrbench.backbone.memory import free_bytes
from icrbench.backbone.trunk import trunk_states

LEAST = 2 << 30

Kept = TypeVar("Kept", Tensor, LastTokens)


class Reused:
    """States of batches seen before, in memory, up to a number of bytes.

    When there is no room, states of another kind (another layer, say) make way, those unused for longest first; where
    all are of one kind nothing is added. Test sets are gone through in the same order again and again, where
    forgetting the oldest would forget just what comes next.

    Args:
        limit_bytes: most memory to use; a fifth of what is free if not given.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit = limit_bytes
        self._kept: dict[tuple[Any, ...], tuple[Any, int]] = {}

    def trunk(self, backbone: Backbone, layer: int, batch: Batch) -> Tensor:
        """Return the hidden states ``[B, T, d]`` of a batch that enter block ``layer``."""
        key = (id(backbone), layer, tuple(batch.input_ids.shape), _fingerprint(batch))
        return self._get(backbone, key, lambda: trunk_states(backbone, layer, batch), lambda states: states.nbytes)

    def last_tokens(self, backbone: Backbone, batch: Batch) -> LastTokens:
        """Return the batch with everything before each row's last token computed; rows keep their order."""
        key = (id(backbone), "last", tuple(batch.input_ids.shape), _fingerprint(batch))

        def compute() -> LastTokens:
            real = batch.attention_mask.bool()
            sequences = [ids[mask].tolist() for ids, mask in zip(batch.input_ids, real, strict=True)]
            return prepared(backbone, list(range(len(sequences))), sequences, batch.texts)

        found = self._get(backbone, key, compute, _cached_bytes)
        return replace(found, batch=replace(found.batch, texts=batch.texts))

    def _get(
        self, backbone: Backbone, key: tuple[Any, ...], compute: Callable[[], Kept], size: Callable[[Kept], int]
    ) -> Kept:
        if key in self._kept:
            self._kept[key] = self._kept.pop(key)  # the most recently used are last
            found: Kept = self._kept[key][0]
            return found
        made = compute()
        if self._limit is None:
            self._limit = max(LEAST, free_bytes(backbone.device) // 5)
        room = self._limit - sum(bytes_ for _, bytes_ in self._kept.values())
        for other in [other for other in self._kept if other[:2] != key[:2]]:
            if room >= size(made):
                break
            room += self._kept.pop(other)[1]
        if room >= size(made):
            self._kept[key] = (made, size(made))
        return made


def _cached_bytes(last: LastTokens) -> int:
    layers = [layer for layer in last.cache.layers if isinstance(layer, DynamicLayer)]
    return sum(part.nbytes for layer in layers for part in (layer.keys, layer.values) if part is not None)


def _fingerprint(batch: Batch) -> bytes:
    """Hash the tokens of a batch; padding and the text that fills it are told apart. Texts do not change states."""
    ids = torch.where(batch.attention_mask[:, -batch.input_ids.shape[1] :] == 1, batch.input_ids, -1)
    return hashlib.sha256(ids.cpu().numpy().tobytes()).digest()
