"""How the scorers cut rows into batches; nothing here may change a result."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from transformers import DynamicCache

from icrbench.backbone import Backbone, make_batch
from icrbench.backbone.batch import PaddingSide, least_padding
from icrbench.backbone.memory import activation_bytes, free_bytes
from icrbench.backbone.prefix import prefix_cache, shared_prefix
from icrbench.method import Fitted

CPU_TOKENS = 2048  # tokens a batch; more gives a CPU nothing
GPU_TOKENS = 65536

Result = TypeVar("Result")


@dataclass(frozen=True)
class ScoringOptions:
    """How to compute; none of these may change a prediction.

    Attributes:
        batch_size: most rows in a batch; None picks it from the free memory.
        padding: side on which short rows are filled.
        prefix_cache: compute demonstrations shared by all queries once.
    """

    batch_size: int | None = None
    padding: PaddingSide = "right"
    prefix_cache: bool = True


AUTOMATIC = ScoringOptions()


def plan(backbone: Backbone, lengths: Sequence[int], shared: int, options: ScoringOptions) -> Iterator[list[int]]:
    """Row numbers batch by batch: longest rows first, so that lack of memory shows early.

    Args:
        backbone: the model.
        lengths: tokens of each row, the shared ones among them.
        shared: leading tokens that are computed once for all rows.
        options: how to compute.
    """
    budget = token_budget(backbone)

    def most_rows(own: int) -> int:
        # Rows of a shared prefix cost their own tokens in time but the whole sequence in memory.
        return options.batch_size or budget // max(own, (shared + own) // 8)

    return least_padding([length - shared for length in lengths], most_rows, budget)


def token_budget(backbone: Backbone) -> int:
    """Tokens a batch may hold, from the free memory: a tenth of it for the widest activations of one block."""
    most = GPU_TOKENS if backbone.device.type == "cuda" else CPU_TOKENS
    return min(most, max(1, free_bytes(backbone.device) // 10 // activation_bytes(backbone)))


def shared_keys(backbone: Backbone, fitted: Fitted, tokens: Sequence[int]) -> DynamicCache:
    """Keys and values of tokens that many prompts start with, under a method that promises `Fitted.shares_prefix`."""
    with fitted.applied(backbone, make_batch([tokens], [""], device=backbone.device)):
        return prefix_cache(backbone, tokens)


def in_batches(
    backbone: Backbone,
    fitted: Fitted,
    prompts: Sequence[tuple[int, ...]],
    options: ScoringOptions,
    run: Callable[[list[int], int, DynamicCache | None], list[Result]],
    progress: Callable[[int], object],
    *,
    alike: bool = False,
) -> list[Result]:
    """Run prompts batch by batch, with what all of them start with computed once where the method promises it.

    Args:
        backbone: the model.
        fitted: the method.
        prompts: tokens of each.
        options: how to compute.
        run: gives the results of some prompts, by number; takes how many leading tokens are shared, and their keys and
            values.
        progress: called with the number of prompts finished after each batch.
        alike: behind a shared prefix, put prompts of one length alone into a batch.

    Returns:
        The results, in the order of the prompts.
    """
    shared = shared_prefix(prompts) if options.prefix_cache and fitted.shares_prefix else 0
    groups: dict[int, list[int]] = {}
    for number, tokens in enumerate(prompts):
        groups.setdefault(len(tokens) if alike and shared else 0, []).append(number)
    results: dict[int, Result] = {}
    with torch.inference_mode():
        prefix = shared_keys(backbone, fitted, prompts[0][:shared]) if shared else None
        for group in groups.values():
            for part in plan(backbone, [len(prompts[number]) for number in group], shared, options):
                numbers = [group[place] for place in part]
                found = retry_in_halves(lambda own: run(own, shared, prefix), numbers)
                results.update(zip(numbers, found, strict=True))
                progress(len(numbers))
    return [results[number] for number in range(len(prompts))]


def retry_in_halves(run: Callable[[list[int]], list[Result]], rows: list[int]) -> list[Result]:
    """Run a batch; when memory runs out, run its halves."""
    try:
        return run(rows)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        memory = isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)
        if not memory or len(rows) == 1:
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = math.ceil(len(rows) / 2)
    return retry_in_halves(run, rows[:middle]) + retry_in_halves(run, rows[middle:])
