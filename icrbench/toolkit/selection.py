"""Choosing among candidates (layers, strengths) by accuracy on held-out train rows."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.batch import by_length
from icrbench.backbone.last_token import last_tokens
from icrbench.method import Fitted, Method
from icrbench.toolkit.episodes import Question
from icrbench.util.errors import UserError

BATCH_TOKENS = 2048

F = TypeVar("F", bound=Fitted)


def by_layer(
    method: Method, layer: int | None, backbone: Backbone, candidates: Sequence[F], questions: Sequence[Question]
) -> F:
    """The candidate of a given layer, or the one that answers most held-out questions; ties go to the lower layer.

    Args:
        method: whose candidates these are, for the error.
        layer: the layer asked for, from 0; None to choose.
        backbone: the model.
        candidates: one a layer, changing nothing before a prompt's last token.
        questions: held-out prompts.

    Returns:
        The candidate, the accuracies of all of them in its ``config["sweep"]`` (empty if there was no choice).

    Raises:
        UserError: if there is no such layer.
    """
    if layer is not None:
        return candidates[checked_layer(method, layer, len(candidates))]
    return by_accuracy(backbone, candidates, questions, last_token_only=True)


def checked_layer(method: Method, layer: int, layers: int) -> int:
    """The layer asked for.

    Raises:
        UserError: if the model has no such layer.
    """
    if not 0 <= layer < layers:
        raise UserError(f"{method.name}.layer must be 0 to {layers - 1} for this model, not {layer}.")
    return layer


def by_accuracy(
    backbone: Backbone, candidates: Sequence[F], questions: Sequence[Question], *, last_token_only: bool
) -> F:
    """The candidate that answers most held-out questions, of equals the first (arguments as of `accuracies`).

    Returns:
        The candidate, the accuracies of all of them in its ``config["sweep"]``.
    """
    scores = accuracies(backbone, candidates, questions, last_token_only=last_token_only)
    chosen = candidates[best(scores)]
    chosen.config["sweep"] = scores
    return chosen


def accuracies(
    backbone: Backbone, candidates: Sequence[Fitted], questions: Sequence[Question], *, last_token_only: bool
) -> list[float]:
    """Share of questions each candidate answers rightly, by the answers' first tokens (`Question.answered`).

    Args:
        backbone: the model.
        candidates: fitted methods to try.
        questions: held-out prompts.
        last_token_only: promise that the candidates change nothing before a prompt's last token. All else is then
            computed once for all of them.
    """
    right = [0] * len(candidates)
    with torch.inference_mode():
        if last_token_only:
            sequences = [question.prompt.tokens for question in questions]
            for part in last_tokens(backbone, sequences, [question.prompt.text for question in questions]):
                for number, candidate in enumerate(candidates):
                    with candidate.applied(backbone, part.batch):
                        states = part.states()
                    right[number] += _right(candidate.logits(backbone, states), [questions[row] for row in part.rows])
        else:
            for own, batch in batches(backbone, questions):
                for number, candidate in enumerate(candidates):
                    with candidate.applied(backbone, batch):
                        states = batch.at_last(backbone.hidden_states(batch))
                    right[number] += _right(candidate.logits(backbone, states), own)
    return [count / len(questions) for count in right]


def best(scores: Sequence[float]) -> int:
    """The place of the highest score; of several, the first."""
    return max(range(len(scores)), key=lambda place: (scores[place], -place))


def batches(backbone: Backbone, questions: Sequence[Question]) -> Iterator[tuple[list[Question], Batch]]:
    """Questions of similar length as padded batches."""
    for rows in by_length([len(question.prompt.tokens) for question in questions], BATCH_TOKENS):
        own = [questions[row] for row in rows]
        yield own, question_batch(backbone, own)


def question_batch(backbone: Backbone, questions: Sequence[Question]) -> Batch:
    """Questions as one padded batch."""
    return make_batch(
        [question.prompt.tokens for question in questions],
        [question.prompt.text for question in questions],
        device=backbone.device,
    )


def _right(logits: Tensor, questions: Sequence[Question]) -> int:
    return sum(question.answered(row) for row, question in zip(logits.cpu(), questions, strict=True))
