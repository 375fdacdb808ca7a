"""Tokens that many prompts start with: their keys and values computed once."""

import copy
from collections.abc import Iterator, Sequence

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from icrbench.backbone.batch import Batch, by_length, make_batch
from icrbench.backbone.core import Backbone

SHORTEST_PREFIX = 16  # tokens; below this, computing a shared prefix apart costs more than it saves
BATCH_TOKENS = 4096


def shared_prefix(sequences: Sequence[tuple[int, ...]], own: int = 1) -> int:
    """Count the leading tokens common to all sequences that are worth computing once, else 0.

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
    """Return the prefix for a batch of rows as views, not copies; using them leaves the original as it was."""
    cache = copy.copy(prefix)
    cache.layers = [copy.copy(layer) for layer in prefix.layers]
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer), "attention layers alone have keys"
        assert layer.keys is not None, "a prefix has been run"
        assert layer.values is not None
        layer.keys = layer.keys.expand(rows, -1, -1, -1)
        layer.values = layer.values.expand(rows, -1, -1, -1)
    return cache


def prompt_batches(
    backbone: Backbone, sequences: Sequence[tuple[int, ...]], texts: Sequence[str], own: int = 1
) -> Iterator[tuple[list[int], Batch, DynamicCache | None]]:
    """Cut prompts into batches; what successive prompts share (their demonstrations) is computed once.

    Args:
        backbone: the model, with nothing applied to it.
        sequences: tokens of each prompt.
        texts: zero-shot text of each prompt.
        own: last tokens of every prompt that are to be in its batch, whatever it shares with others.

    Yields:
        Numbers of the prompts, the batch, and the cache of what they share, for `Backbone.hidden_states`.
    """
    alone: list[int] = []
    for run in _runs(sequences):
        if len(run) == 1:
            alone += run
            continue
        shared = shared_prefix([sequences[row] for row in run], own)
        if not shared:
            alone += run
            continue
        prefix = prefix_cache(backbone, sequences[run[0]][:shared])
        for places in by_length([len(sequences[row]) - shared for row in run], BATCH_TOKENS):
            rows = [run[place] for place in places]
            ends = [sequences[row][shared:] for row in rows]
            batch = make_batch(ends, [texts[row] for row in rows], device=backbone.device, prefix_length=shared)
            yield rows, batch, expanded(prefix, len(rows))
    for places in by_length([len(sequences[row]) for row in alone], BATCH_TOKENS):
        rows = [alone[place] for place in places]
        whole = [sequences[row] for row in rows]
        yield rows, make_batch(whole, [texts[row] for row in rows], device=backbone.device), None


def _runs(sequences: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Successive sequences that share more than half of each with the first of their run."""
    runs: list[list[int]] = []
    for row, sequence in enumerate(sequences):
        if runs:
            first = sequences[runs[-1][0]]
            if 2 * shared_prefix([first, sequence]) > max(len(first), len(sequence)):
                runs[-1].append(row)
                continue
        runs.append([row])
    return runs
