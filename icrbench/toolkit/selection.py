"""Choosing among candidates (layers, strengths) by accuracy on held-out train rows."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.batch import by_length
from icrbench.backbone.last_token import last_tokens
from icrbench.method import Fitted, Method
from icrbench.scoring.prior import corrected, log_prior
from icrbench.toolkit.episodes import Question
from icrbench.util.errors import UserError

BATCH_TOKENS = 2048
ChooseBy = Literal["raw", "calibrated"]
"""What candidates are compared by: accuracy, or accuracy of answers corrected for the candidate's own preferences."""


class _Answer(NamedTuple):
    """How a candidate answers a question: whether rightly, and the logits of the options where there are some."""

    right: bool
    logits: tuple[float, ...]


F = TypeVar("F", bound=Fitted)


def by_layer(
    method: Method,
    layer: int | None,
    backbone: Backbone,
    candidates: Sequence[F],
    questions: Sequence[Question],
    choose_by: ChooseBy = "raw",
) -> F:
    """Choose the candidate of a given layer, or the best on held-out questions; ties go to the lower layer.

    Args:
        method: whose candidates these are, for the error.
        layer: the layer asked for, from 0; None to choose.
        backbone: the model.
        candidates: one a layer, changing nothing before a prompt's last token.
        questions: held-out prompts.
        choose_by: as of `accuracies`.

    Returns:
        The candidate, as of `by_accuracy`; unchanged if there was no choice.

    Raises:
        UserError: if there is no such layer.
    """
    if layer is not None:
        return candidates[checked_layer(method, layer, len(candidates))]
    return by_accuracy(backbone, candidates, questions, choose_by, last_token_only=True)


def checked_layer(method: Method, layer: int, layers: int) -> int:
    """Return the layer asked for.

    Raises:
        UserError: if the model has no such layer.
    """
    if not 0 <= layer < layers:
        raise UserError(f"{method.name}.layer must be 0 to {layers - 1} for this model, not {layer}.")
    return layer


def by_accuracy(
    backbone: Backbone,
    candidates: Sequence[F],
    questions: Sequence[Question],
    choose_by: ChooseBy = "raw",
    *,
    last_token_only: bool,
) -> F:
    """Choose the candidate that answers most held-out questions, of equals the first (arguments as `accuracies`).

    Returns:
        The candidate, the accuracies of all of them in its ``config["sweep"]``, and what they are in ``"chosen_by"``.
    """
    scores = accuracies(backbone, candidates, questions, choose_by, last_token_only=last_token_only)
    chosen = candidates[best(scores)]
    chosen.config |= {"sweep": scores, "chosen_by": choose_by}
    return chosen


def accuracies(
    backbone: Backbone,
    candidates: Sequence[Fitted],
    questions: Sequence[Question],
    choose_by: ChooseBy = "raw",
    *,
    last_token_only: bool,
) -> list[float]:
    """Share of questions each candidate answers rightly, by the answers' first tokens (`Question.answered`).

    Args:
        backbone: the model.
        candidates: fitted methods to try.
        questions: held-out prompts.
        choose_by: ``calibrated`` corrects the answers by batch calibration, each candidate's prior being taken from its
            answers to these same questions; a set of options that a single question has is
            left as it is, and so are written answers.
        last_token_only: promise that the candidates change nothing before a prompt's last token. All else is then
            computed once for all of them.
    """
    answers: list[dict[int, _Answer]] = [{} for _ in candidates]
    with torch.inference_mode():
        if last_token_only:
            sequences = [question.prompt.tokens for question in questions]
            for part in last_tokens(backbone, sequences, [question.prompt.text for question in questions]):
                for candidate, found in zip(candidates, answers, strict=True):
                    with candidate.applied(backbone, part.batch):
                        states = part.states()
                    found |= _answers(candidate.logits(backbone, states), part.rows, questions)
        else:
            for rows, batch in _row_batches(backbone, questions):
                for candidate, found in zip(candidates, answers, strict=True):
                    with candidate.applied(backbone, batch):
                        states = batch.at_last(backbone.hidden_states(batch))
                    found |= _answers(candidate.logits(backbone, states), rows, questions)
    return [_accuracy([found[row] for row in range(len(questions))], questions, choose_by) for found in answers]


def best(scores: Sequence[float]) -> int:
    """Return the place of the highest score; of several, the first."""
    return max(range(len(scores)), key=lambda place: (scores[place], -place))


def batches(backbone: Backbone, questions: Sequence[Question]) -> Iterator[tuple[list[Question], Batch]]:
    """Questions of similar length as padded batches."""
    for rows, batch in _row_batches(backbone, questions):
        yield [questions[row] for row in rows], batch


def _row_batches(backbone: Backbone, questions: Sequence[Question]) -> Iterator[tuple[list[int], Batch]]:
    for rows in by_length([len(question.prompt.tokens) for question in questions], BATCH_TOKENS):
        yield rows, question_batch(backbone, [questions[row] for row in rows])


def question_batch(backbone: Backbone, questions: Sequence[Question]) -> Batch:
    """Questions as one padded batch."""
    return make_batch(
        [question.prompt.tokens for question in questions],
        [question.prompt.text for question in questions],
        device=backbone.device,
    )


def _answers(logits: Tensor, rows: Sequence[int], questions: Sequence[Question]) -> dict[int, _Answer]:
    """How some questions are answered, by the questions' place."""
    own = logits.cpu()
    return {
        row: _Answer(
            questions[row].answered(own[place]),
            () if questions[row].prompt.written else tuple(own[place, list(questions[row].prompt.options)].tolist()),
        )
        for place, row in enumerate(rows)
    }


def _accuracy(answers: Sequence[_Answer], questions: Sequence[Question], choose_by: ChooseBy) -> float:
    if choose_by == "raw":
        return sum(answer.right for answer in answers) / len(questions)
    by_options: dict[tuple[int, ...], list[int]] = {}
    for row, question in enumerate(questions):
        by_options.setdefault(() if question.prompt.written else question.prompt.options, []).append(row)
    right = 0
    for options, rows in by_options.items():
        if len(rows) == 1 or not options:
            right += sum(answers[row].right for row in rows)
            continue
        scores = np.array([answers[row].logits for row in rows])
        chosen = corrected(scores, log_prior(scores, "bc")).argmax(axis=1)
        right += sum(options[own] == questions[row].answer for own, row in zip(chosen, rows, strict=True))
    return right / len(questions)
