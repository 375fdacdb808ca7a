"""Log-likelihoods of continuations under a method, in as few forward passes and logits as are exact."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import DynamicCache

from icrbench.backbone import Backbone, make_batch
from icrbench.backbone.finite import not_finite
from icrbench.backbone.prefix import SHORTEST_PREFIX, expanded, shared_prefix
from icrbench.method import Fitted
from icrbench.scoring.batching import shared_keys

LOGITS = 2**26  # entries of [positions, vocabulary] held at once
# Fewer rows than this go through another matrix kernel, which rounds differently: lm-eval's own model sends whole
# sequences through the output head, and values are to be the same.
HEAD_ROWS = 8


@dataclass(frozen=True)
class Row:
    """One sequence through the model; requests that differ only in their last token share it.

    Attributes:
        text: what a per-query method is conditioned on: the context without demonstrations.
        tokens: context and continuation without its last token, cut from the front to what the model takes.
        last: index of the context's last token; from there on every token predicts one of the continuation.
    """

    text: str
    tokens: tuple[int, ...]
    last: int

    @classmethod
    def of(cls, text: str, context: Sequence[int], continuation: Sequence[int], limit: int) -> "Row":
        """Return the row of a request, at most ``limit`` tokens long."""
        tokens = tuple([*context, *continuation][-(limit + 1) :][:-1])
        return cls(text, tokens, len(tokens) - len(continuation))


@dataclass(frozen=True)
class Answer:
    """The outcome for one request.

    Attributes:
        log_probability: of the whole continuation.
        greedy: whether every token of it is the most likely one.
    """

    log_probability: float
    greedy: bool


def answers(
    backbone: Backbone,
    fitted: Fitted,
    rows: dict[Row, list[tuple[int, ...]]],
    batches: Callable[[list[Row], int], Iterator[list[Row]]],
    *,
    prefix: bool = True,
) -> Iterator[tuple[Row, list[Answer]]]:
    """Answers to all continuations of all rows, batch by batch.

    Demonstrations that all rows start with are computed once, where the method says that this is exact.

    Args:
        backbone: the model.
        fitted: the method.
        rows: the tokens of the continuations to be read off each row.
        batches: cuts rows, sorted by length, into batches; its second argument is the number of shared tokens.
        prefix: False computes the demonstrations with every row.
    """
    shared = _shared(list(rows)) if prefix and fitted.shares_prefix else 0
    order = sorted(rows, key=lambda row: (-len(row.tokens), row.tokens))
    cached = shared_keys(backbone, fitted, order[0].tokens[:shared]) if shared else None
    for batch in batches(order, shared):
        yield from zip(
            batch, _batch(backbone, fitted, batch, [rows[row] for row in batch], shared, cached), strict=True
        )


def _shared(rows: list[Row]) -> int:
    """Count the leading tokens common to all rows that predict nothing asked for."""
    if len(rows) < 2:
        return 0
    shared = min(shared_prefix([row.tokens for row in rows]), *(row.last for row in rows))
    return shared if shared >= SHORTEST_PREFIX else 0


def _batch(
    backbone: Backbone,
    fitted: Fitted,
    rows: Sequence[Row],
    continuations: Sequence[list[tuple[int, ...]]],
    shared: int,
    prefix: DynamicCache | None,
) -> list[list[Answer]]:
    batch = make_batch(
        [row.tokens[shared:] for row in rows],
        [row.text for row in rows],
        device=backbone.device,
        prefix_length=shared,
    )
    last = torch.tensor([row.last - shared for row in rows], device=backbone.device)
    batch = replace(batch, last=last)
    # No token sees what is to its right, so padding there needs no mask; without one the kernels are faster, and
    # the same that lm-eval's own model gets, which passes none.
    unmasked = replace(batch, attention_mask=torch.ones_like(batch.attention_mask))
    cache = None if prefix is None else expanded(prefix, len(rows))
    with fitted.applied(backbone, batch):
        states = backbone.hidden_states(unmasked, cache)
    predicting = [states[number, row.last - shared : len(row.tokens) - shared] for number, row in enumerate(rows)]
    values, hits = _read(backbone, fitted, torch.cat(predicting), _wanted(rows, continuations))
    if not values.isfinite().all():  # lm-eval would count on
        raise not_finite(backbone, "the log-probabilities")
    found: list[list[Answer]] = []
    start = 0
    for own in continuations:
        found.append([])
        for continuation in own:
            span = slice(start, start + len(continuation))
            found[-1].append(Answer(float(values[span].sum()), bool(hits[span].all())))
            start += len(continuation)
    return found


def _wanted(rows: Sequence[Row], continuations: Sequence[list[tuple[int, ...]]]) -> list[tuple[int, int]]:
    """For every token of every continuation: which predicting token to look at, and which word it is."""
    wanted = []
    start = 0
    for row, own in zip(rows, continuations, strict=True):
        for continuation in own:
            wanted += [(start + place, token) for place, token in enumerate(continuation)]
        start += len(row.tokens) - row.last
    return wanted


def _read(
    backbone: Backbone, fitted: Fitted, states: Tensor, wanted: Sequence[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the wanted words, and whether each is the most likely; a piece of the logits at a time."""
    places, tokens = torch.tensor(wanted, device=states.device).T
    values = torch.empty(len(wanted), device=states.device)
    hits = torch.empty(len(wanted), dtype=torch.bool, device=states.device)
    vocabulary = backbone.model.get_output_embeddings().weight.shape[0]
    size = max(1, LOGITS // int(vocabulary) // HEAD_ROWS) * HEAD_ROWS
    states = torch.cat([states, states[-1:].expand(-states.shape[0] % HEAD_ROWS, -1)])
    for start in range(0, states.shape[0], size):
        logits = torch.log_softmax(fitted.logits(backbone, states[start : start + size]), dim=-1)
        here = (places >= start) & (places < start + size)
        values[here] = logits[places[here] - start, tokens[here]]
        hits[here] = logits.argmax(-1)[places[here] - start] == tokens[here]
    return values, hits
