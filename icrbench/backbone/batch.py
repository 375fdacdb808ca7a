"""Token sequences to padded tensors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

PaddingSide = Literal["left", "right"]


@dataclass(frozen=True)
class Batch:
    """Prompts that go through the model together.

    Attributes:
        input_ids: ``[B, T]``; padding holds an arbitrary token.
        attention_mask: ``[B, P + T]``, 1 for real tokens; the first ``P`` columns are a shared, cached prefix.
        position_ids: ``[B, T]``, counted from the first real token of the prefix or row.
        last: ``[B]``, the column of ``input_ids`` holding each row's last context token: where the answer is predicted.
        texts: the zero-shot prompt of every row, what per-query methods condition on (never the demonstrations).
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    last: Tensor
    texts: tuple[str, ...]

    @property
    def rows(self) -> Tensor:
        """``[B]`` row numbers, for picking ``last`` out of per-token tensors."""
        return torch.arange(self.input_ids.shape[0], device=self.input_ids.device)

    def at_last(self, states: Tensor) -> Tensor:
        """``[B, T, n]`` to ``[B, n]``: the vector at each row's last real token."""
        return states[self.rows.to(states.device), self.last.to(states.device)]


def by_length(lengths: Sequence[int], most_tokens: int) -> Iterator[list[int]]:
    """Cut sequences into batches of similar length, longest first; yields their numbers.

    Args:
        lengths: tokens of each sequence.
        most_tokens: of a batch, padding included; a longer sequence has one to itself.
    """
    return least_padding(lengths, lambda longest: most_tokens // longest, most_tokens)


def least_padding(lengths: Sequence[int], most_rows: Callable[[int], int], most_tokens: int) -> Iterator[list[int]]:
    """Cut sequences into the batches that take least time together, longest first; yields their numbers.

    A batch is reckoned to take its longest sequence times its rows, and for the pass itself as much as a 64th of the
    most tokens. Among sequences sorted by length the best cuts are found exactly, from the end (dynamic programming).

    Args:
        lengths: tokens of each sequence that are computed.
        most_rows: rows that fit beside a longest sequence of some tokens; one always does.
        most_tokens: of a batch.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    a_pass = most_tokens // 64
    cost = np.zeros(len(order) + 1, dtype=np.int64)  # of the sequences from here on
    rows = [0] * len(order)
    for start in range(len(order) - 1, -1, -1):
        longest = lengths[order[start]]
        most = min(max(1, most_rows(longest)), len(order) - start)
        counts = np.arange(most, 0, -1)  # of equally good cuts the one with the most rows is taken
        costs = longest * counts + a_pass + cost[start + counts]
        best = costs.argmin()
        cost[start], rows[start] = costs[best], int(counts[best])
    start = 0
    while start < len(order):
        yield order[start : start + rows[start]]
        start += rows[start]


def make_batch(
    sequences: Sequence[Sequence[int]],
    texts: Sequence[str],
    *,
    device: torch.device | str = "cpu",
    padding: PaddingSide = "right",
    prefix_length: int = 0,
) -> Batch:
    """Pad token sequences to one rectangle, with explicit mask and positions.

    Right padding is the default: it is exact for models with sliding windows behind a cached prefix, since those
    count distance in columns. Generation needs left padding.

    Args:
        sequences: tokens of each row, without the prefix; none may be empty.
        texts: zero-shot prompt text of each row.
        device: where the tensors go.
        padding: the side on which short rows are filled.
        prefix_length: number of cached tokens before every row.
    """
    width = max(len(sequence) for sequence in sequences)
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    mask = torch.zeros(len(sequences), width, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        columns = slice(0, len(sequence)) if padding == "right" else slice(width - len(sequence), width)
        ids[row, columns] = torch.tensor(sequence, dtype=torch.long)
        mask[row, columns] = 1
    lengths = mask.sum(1)
    last = lengths - 1 if padding == "right" else torch.full_like(lengths, width - 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0) + prefix_length
    prefix = torch.ones(len(sequences), prefix_length, dtype=torch.long)
    return Batch(
        input_ids=ids.to(device),
        attention_mask=torch.cat([prefix, mask], 1).to(device),
        position_ids=positions.to(device),
        last=last.to(device),
        texts=tuple(texts),
    )
