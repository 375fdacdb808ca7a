"""Tokens that many prompts start with: their keys and values computed once."""

import copy
from collections.abc import Sequence

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from icrbench.backbone.batch import make_batch
from icrbench.backbone.core import Backbone

SHORTEST_PREFIX = 16  # tokens; below this, computing a shared prefix apart costs more than it saves


def shared_prefix(sequences: Sequence[tuple[int, ...]], own: int = 1) -> int:
    """Number of leading tokens common to all sequences that are worth computing once, else 0.

    Args:
        sequences: token sequences.
        own: tokens that every sequence must keep to itself.
    """
    first, last = min(sequences), max(sequences)  # the two that differ earliest
    shortest = min(len(sequence) for sequence in sequences)
    shared = next((i for i in range(shortest) if first[i] != last[i]), shortest)
    shared = min(shared, shortest - own)
    return shared if shared >= SHORTEST_PREFIX else 0


def prefix_cache(backbone: Backbone, tokens: Sequence[int]) -> DynamicCache:
    """Keys and values of a prefix, ``[1, G, P, d_k]`` a layer."""
    cache = DynamicCache(config=backbone.model.config)
    backbone.hidden_states(make_batch([tokens], [""], device=backbone.device), cache=cache)
    return cache


def expanded(prefix: DynamicCache, rows: int) -> DynamicCache:
    """The prefix for a batch of rows: views, not copies. Using it leaves the original as it was."""
    cache = copy.copy(prefix)
    cache.layers = [copy.copy(layer) for layer in prefix.layers]
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer), "attention layers alone have keys"
        assert layer.keys is not None, "a prefix has been run"
        assert layer.values is not None
        layer.keys = layer.keys.expand(rows, -1, -1, -1)
        layer.values = layer.values.expand(rows, -1, -1, -1)
    return cache
