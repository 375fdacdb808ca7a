"""Training on the answers of a few rows with minibatches that stay the same in every epoch.

What does not change while a method is trained is then computed once. A method that leaves everything before a prompt's
last token as it is trains at the price of one token a prompt and step, with exact gradients: no key or value before
that token depends on its parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.last_token import prepared
from icrbench.method import Fitted
from icrbench.randomness import Randomness
from icrbench.toolkit.distillation import answer_loss
from icrbench.toolkit.episodes import Question, minibatches
from icrbench.toolkit.optimisation import Schedule, epoch_means, optimise
from icrbench.toolkit.selection import question_batch

F = TypeVar("F", bound=Fitted)


@dataclass(frozen=True)
class Minibatch:
    """Some rows.

    Attributes:
        questions: the rows.
        batch: their prompts, or their last tokens behind the keys and values of all others.
        states: runs them under what is applied to the model; final hidden states ``[B, d]`` at the prompts' ends.
    """

    questions: Sequence[Question]
    batch: Batch
    states: Callable[[], Tensor]


def fixed_minibatches(
    backbone: Backbone, questions: Sequence[Question], size: int, rng: Randomness, *, last_token_only: bool
) -> list[Minibatch]:
    """Cut rows into minibatches at random.

    Args:
        backbone: the model, with nothing applied to it.
        questions: the rows.
        size: of a minibatch; the last may be smaller.
        rng: the fit's randomness.
        last_token_only: promise that nothing before a prompt's last token will be changed.
    """
    order = rng.python("minibatches").sample(list(questions), len(questions))
    found = []
    for start in range(0, len(order), size):
        own = order[start : start + size]
        if last_token_only:
            sequences = [question.prompt.tokens for question in own]
            ends = prepared(backbone, list(range(len(own))), sequences, [one.prompt.text for one in own])
            found.append(Minibatch(own, ends.batch, ends.states))
        else:
            batch = question_batch(backbone, own)
            found.append(Minibatch(own, batch, partial(_end_states, backbone, batch)))
    return found


def train_on_answers(
    backbone: Backbone,
    fitted: F,
    rates: Mapping[str, float],
    own: Sequence[Minibatch],
    schedule: Schedule,
    rng: Randomness,
    description: str,
) -> F:
    """Train some tensors of a fitted method by the cross-entropy of the answers' first tokens.

    Args:
        backbone: the model.
        fitted: the method with its initial values; not changed.
        rates: learning rate by the name of the tensor.
        own: minibatches; every epoch runs them all, in an order of its own.
        schedule: how.
        rng: the fit's randomness.
        description: for the progress bar.

    Returns:
        The trained method, with the mean loss of each epoch in ``config["loss"]``.
    """
    tensors = {name: tensor.to(backbone.device, copy=True) for name, tensor in fitted.tensors.items()}
    student = type(fitted)(fitted.config, tensors)

    def loss(minibatch: Minibatch) -> Tensor:
        with student.applied(backbone, minibatch.batch):
            states = minibatch.states()
        return answer_loss(student.logits(backbone, states), minibatch.questions)

    groups = [([tensors[name]], rate) for name, rate in rates.items()]
    order = minibatches(len(own), 1, rng.python("training-order"))
    history = optimise(groups, loss, (own[place] for (place,) in order), schedule, description)
    config = {**fitted.config, "loss": epoch_means(history, len(own))}
    return type(fitted)(config, {name: tensor.cpu() for name, tensor in tensors.items()})


def _end_states(backbone: Backbone, batch: Batch) -> Tensor:
    return batch.at_last(backbone.hidden_states(batch))
