"""Seconds a query against the length of its prompt, for methods side by side."""

import time
from collections.abc import Mapping, Sequence
from statistics import median

import torch

from icrbench.backbone import Backbone, make_batch
from icrbench.backbone.prefix import expanded
from icrbench.method import Fitted
from icrbench.scoring.batching import shared_keys

ROUNDS = 3


def latency(
    backbone: Backbone, methods: Mapping[str, tuple[Fitted, int]], lengths: Sequence[int], text: str
) -> dict[str, list[float]]:
    """Median seconds of one query at a time.

    Methods take turns within a round, so that what else the machine does falls on all of them.

    Args:
        backbone: the model.
        methods: by name, a fit and how many demonstration tokens stand before its queries; their keys and values are
            computed once and not timed where the method allows it, as in scoring.
        lengths: tokens of the query.
        text: what per-query methods are conditioned on.
    """
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    words = backbone.encode(text)
    with torch.inference_mode():
        for length in lengths:
            tokens = (words * (length // len(words) + 1))[:length]
            taken: dict[str, list[float]] = {name: [] for name in methods}
            for _ in range(ROUNDS):
                for name, (fitted, shown) in methods.items():
                    taken[name].append(_once(backbone, fitted, tokens, shown, text))
            for name in methods:
                seconds[name].append(median(taken[name]))
    return seconds


def _once(backbone: Backbone, fitted: Fitted, tokens: list[int], shown: int, text: str) -> float:
    demonstrations = (tokens * (shown // len(tokens) + 1))[:shown]
    cached = bool(shown) and fitted.shares_prefix
    prefix = shared_keys(backbone, fitted, demonstrations) if cached else None
    own = tokens if cached else demonstrations + tokens
    batch = make_batch([own], [text], device=backbone.device, prefix_length=shown if cached else 0)
    begin = time.perf_counter()
    with fitted.applied(backbone, batch):
        states = backbone.hidden_states(batch, None if prefix is None else expanded(prefix, 1))
    float(backbone.logits(batch.at_last(states))[0, 0])  # waits for a GPU
    return time.perf_counter() - begin
