"""One scorer for every method: prompts in, option logits out.

What makes it fast never changes a result: prompts are batched by length, only the last position goes through the
output head and only for the options' rows, demonstrations shared by all queries are computed once, and what a method
leaves as it is (the blocks below it, the tokens before the last) is reused.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.batch import PaddingSide
from icrbench.backbone.memory import activation_bytes, free_bytes
from icrbench.backbone.prefix import expanded, prefix_cache, shared_prefix
from icrbench.backbone.reuse import Reused
from icrbench.backbone.trunk import continue_from
from icrbench.data.task import Example, Task
from icrbench.method import Fitted
from icrbench.scoring.prompting import Prompt, Prompter
from icrbench.util.errors import UserError

CPU_TOKENS = 2048  # tokens a batch; more gives a CPU nothing
GPU_TOKENS = 65536


@dataclass(frozen=True)
class Scored:
    """The outcome for one query.

    Attributes:
        prediction: index of the option with the highest logit.
        option_logits: one logit per option.
        prompt: what was asked.
    """

    prediction: int
    option_logits: tuple[float, ...]
    prompt: Prompt


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


def score(
    backbone: Backbone,
    fitted: Fitted,
    task: Task,
    examples: Sequence[Example],
    options: ScoringOptions = ScoringOptions(),
    reused: Reused | None = None,
    progress: Callable[[int], object] = lambda rows: None,
) -> list[Scored]:
    """Score every example under a fitted method.

    Args:
        backbone: the model.
        fitted: the method.
        task: the examples' task.
        examples: the queries; results come in their order.
        options: how to compute.
        reused: what earlier calls computed that no method of a kind changes; used and added to.
        progress: called with the number of rows finished after each batch.
    """
    prompter = Prompter(backbone, task)
    prompts = [prompter(example, fitted.prefix(task, example)) for example in examples]
    cacheable = options.prefix_cache and fitted.shares_prefix
    shared = shared_prefix([prompt.tokens for prompt in prompts]) if cacheable else 0
    results: dict[int, Scored] = {}
    with torch.inference_mode():
        prefix = shared_keys(backbone, fitted, prompts[0].tokens[:shared]) if shared else None
        for rows in _plan(backbone, prompts, shared, options):
            logits = _retry_in_halves(
                lambda part: _score_batch(
                    backbone, fitted, [prompts[row] for row in part], shared, prefix, options, reused
                ),
                rows,
            )
            for row, row_logits in zip(rows, logits, strict=True):
                prediction = max(range(len(row_logits)), key=row_logits.__getitem__)
                results[row] = Scored(prediction, row_logits, prompts[row])
            progress(len(rows))
    return [results[row] for row in range(len(prompts))]


def shared_keys(backbone: Backbone, fitted: Fitted, tokens: Sequence[int]) -> DynamicCache:
    """Keys and values of tokens that many prompts start with, under a method that promises `Fitted.shares_prefix`."""
    with fitted.applied(backbone, make_batch([tokens], [""], device=backbone.device)):
        return prefix_cache(backbone, tokens)


def _plan(backbone: Backbone, prompts: Sequence[Prompt], shared: int, options: ScoringOptions) -> Iterator[list[int]]:
    """Row numbers batch by batch: longest prompts first, so that memory runs out at once or never."""
    order = sorted(range(len(prompts)), key=lambda row: (-len(prompts[row].tokens), row))
    budget = _token_budget(backbone)
    while order:
        longest = len(prompts[order[0]].tokens)
        # Rows of a shared prefix cost their own tokens in time but the whole sequence in memory.
        rows = max(1, budget // max(longest - shared, longest // 8))
        if options.batch_size is not None:
            rows = options.batch_size
        yield order[:rows]
        order = order[rows:]


def _token_budget(backbone: Backbone) -> int:
    """Tokens a batch may hold, from the free memory: a tenth of it for the widest activations of one block."""
    most = GPU_TOKENS if backbone.device.type == "cuda" else CPU_TOKENS
    return min(most, max(1, free_bytes(backbone.device) // 10 // activation_bytes(backbone)))


def _retry_in_halves(run: Callable[[list[int]], list[tuple[float, ...]]], rows: list[int]) -> list[tuple[float, ...]]:
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
    return _retry_in_halves(run, rows[:middle]) + _retry_in_halves(run, rows[middle:])


def _score_batch(
    backbone: Backbone,
    fitted: Fitted,
    prompts: Sequence[Prompt],
    shared: int,
    prefix: DynamicCache | None,
    options: ScoringOptions,
    reused: Reused | None,
) -> list[tuple[float, ...]]:
    batch = make_batch(
        [prompt.tokens[shared:] for prompt in prompts],
        [prompt.text for prompt in prompts],
        device=backbone.device,
        padding=options.padding if not shared else "right",
        prefix_length=shared,
    )
    cache = None if prefix is None else expanded(prefix, len(prompts))
    states = _last_states(backbone, fitted, batch, cache, reused)
    wanted = sorted({token for prompt in prompts for token in prompt.options})
    logits = fitted.logits(backbone, states, torch.tensor(wanted, device=states.device)).cpu()
    if not logits.isfinite().all():  # an arg max over nan would be the first option, silently
        raise UserError(
            f"model '{backbone.revision.name}' gives logits that are not finite in {backbone.dtype}:"
            " try --dtype float32."
        )
    column = {token: index for index, token in enumerate(wanted)}
    return [
        tuple(float(row[column[token]]) for token in prompt.options)
        for row, prompt in zip(logits, prompts, strict=True)
    ]


def _last_states(
    backbone: Backbone, fitted: Fitted, batch: Batch, cache: DynamicCache | None, reused: Reused | None
) -> Tensor:
    """Final hidden states ``[B, d]`` where the answers are predicted."""
    layer = fitted.first_layer
    if reused is not None and cache is None:
        if fitted.last_token_only and batch.input_ids.shape[1] > 1:
            last = reused.last_tokens(backbone, batch)
            with fitted.applied(backbone, last.batch):
                return last.states()
        if layer is not None:
            below = reused.trunk(backbone, layer, batch)
            with fitted.applied(backbone, batch):
                return batch.at_last(continue_from(backbone, layer, below, batch))
    with fitted.applied(backbone, batch):
        return batch.at_last(backbone.hidden_states(batch, cache))
