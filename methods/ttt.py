"""Test-time training: LoRA trained on the demonstrations in many orders, then asked with them in the prompt."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from icrbench.backbone import Backbone, make_batch
from icrbench.method import FitData, Fitted, Method, Scope, register
from icrbench.randomness import Randomness
from icrbench.toolkit.demonstration_text import Demonstrations
from icrbench.toolkit.distillation import COST_OF_TRAINING
from icrbench.toolkit.episodes import Episodes, Labelled, Questions, demonstration_tokens, minibatches
from icrbench.toolkit.lora import LoRAFitted, initial_lora, seeded
from icrbench.toolkit.optimisation import Schedule, optimise
from icrbench.toolkit.prefix import ShowsDemonstrations, prefix_config
from icrbench.util.bounds import Bounds, Count, NotNegative, Positive, Share

LETTERS = "qvom"  # projections that are adapted


class Order(NamedTuple):
    """Demonstrations in one order.

    Attributes:
        tokens: of all of them.
        cues: places of the tokens that predict their answers.
        answers: those answers' tokens.
    """

    tokens: tuple[int, ...]
    cues: tuple[int, ...]
    answers: tuple[int, ...]


class TTTFitted(ShowsDemonstrations, LoRAFitted):
    """Low-rank factors, and the demonstrations if they are shown at test.

    Attributes:
        config: of `LoRAFitted` and `ShowsDemonstrations`, whose tokens the adapted model computes like all others;
            ``sequences``, how many orders were trained on.
        tensors: of `LoRAFitted`.
    """

    formula: ClassVar[str] = "rΣ(d_in + d_out) + 2MLGd_k"


@register("ttt")
@dataclass(frozen=True)
class TTT(Method):
    """Test-time training (Akyürek et al. 2024, arXiv 2411.07279; defaults of the authors' code for BIG-Bench Hard).

    Low-rank matrices on the projections to queries and values, from the heads and in the feed-forward part are trained
    on the demonstrations themselves, put into many orders. In each order every answer is predicted from the
    demonstrations before it, the first one from nothing. The adapted model is then asked with the demonstrations in the
    prompt, so the method is explicit; ``shots_at_test=false`` leaves them out and is our own, implicit form.

    Choices of this implementation:
        Demonstrations: those of the few-shot baseline (the authors: 10 for a task of BIG-Bench Hard). Where they are
            too long for the model together, the first of an order are left out.
        Loss: of each answer's first token, as everywhere here.
        Leave-one-out (the authors' form for ARC): every demonstration is last in turn, behind the others in random
            order without any that has the same content. All answers are predicted, as theirs are.
        Optimiser: AdamW; gradients longer than 1 are cut.
        Voting over transformed queries, which the authors have for ARC, is left out.

    Attributes:
        per_class: demonstrations per class.
        per_task: demonstrations per in-domain task, for tasks without demonstrations of their own.
        form: ``permute`` or ``leave_one_out``.
        sequences: orders trained on.
        shots_at_test: whether the demonstrations stand in the prompt at test.
        rank: ``r``.
        alpha: of the factor ``alpha / r``.
        dropout: share of the inputs of ``A`` dropped in training.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
        batch_size: orders a step.
        epochs: passes over the orders.
        warmup: share of the steps in which the learning rate rises; then it falls along a half cosine.
    """

    per_class: Count = 5
    per_task: Count = 3
    form: Literal["permute", "leave_one_out"] = "permute"
    sequences: Count = 40
    shots_at_test: bool = True
    rank: Count = 64
    alpha: Positive = 64.0
    dropout: Annotated[float, Bounds(0, 1, open_high=True)] = 0.05
    learning_rate: Positive = 1e-4
    weight_decay: NotNegative = 0.0
    batch_size: Count = 5
    epochs: Count = 1
    warmup: Share = 0.1

    scope: ClassVar[Scope] = Scope.TASK
    trained: ClassVar[bool] = True
    budget: ClassVar[tuple[str, ...]] = ("per_class", "sequences", "epochs", "rank")
    fitted: ClassVar[type[Fitted]] = TTTFitted

    @property
    def explicit(self) -> bool:
        """With demonstrations at test."""
        return self.shots_at_test

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> TTTFitted:
        """Draw demonstrations, train on their orders."""
        shown = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task).demonstrations()
        orders = self._orders(shown, rng.python("orders"))
        sequences = [several_answers(backbone, order) for order in orders]
        initial = initial_lora(
            backbone,
            rng,
            letters=LETTERS,
            blocks=range(backbone.dims.layers),
            rank=self.rank,
            alpha=self.alpha,
            dropout=self.dropout,
        )
        texts = [own.task.demonstration(own.example) for own in shown] if self.shots_at_test else []
        config: dict[str, Any] = {
            **initial.config,
            **prefix_config(backbone, texts),
            "sequences": len(sequences),
        }
        return self._trained(backbone, TTTFitted(config, initial.tensors), sequences, rng)

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Return the orders, forward and backward, every epoch."""
        shown = demonstration_tokens(self.per_class, self.per_task, tokens, classes)
        return COST_OF_TRAINING * self.epochs * self.sequences * shown

    def _orders(self, shown: Sequence[Labelled], draw: random.Random) -> list[list[Labelled]]:
        if self.form == "permute":
            return [draw.sample(shown, len(shown)) for _ in range(self.sequences)]
        orders = []
        for number in range(self.sequences):
            last = shown[number % len(shown)]
            others = [own for own in shown if own.example.content_hash != last.example.content_hash]
            orders.append([*draw.sample(others, len(others)), last])
        return orders

    def _trained(self, backbone: Backbone, initial: TTTFitted, sequences: list[Order], rng: Randomness) -> TTTFitted:
        tensors = {name: tensor.to(backbone.device, copy=True) for name, tensor in initial.tensors.items()}
        student = TTTFitted(initial.config, tensors)
        per_epoch = -(-len(sequences) // self.batch_size)
        schedule = Schedule(per_epoch * self.epochs, self.warmup, self.weight_decay)

        def drawn() -> Iterator[list[Order]]:
            for rows in minibatches(len(sequences), self.batch_size, rng.python("training-order")):
                yield [sequences[row] for row in rows]

        with seeded(backbone, rng.number("dropout")):
            groups = [(list(tensors.values()), self.learning_rate)]
            history = optimise(
                groups, lambda own: loss(backbone, student, own), drawn(), schedule, f"training {self.name}"
            )
        epochs = [history[start : start + per_epoch] for start in range(0, len(history), per_epoch)]
        config = {**initial.config, "loss": [sum(losses) / len(losses) for losses in epochs]}
        return TTTFitted(config, {name: tensor.cpu() for name, tensor in tensors.items()})


def several_answers(backbone: Backbone, order: Sequence[Labelled]) -> Order:
    """Demonstrations in an order, with all their answers."""
    text = Demonstrations.fitting(backbone, order)
    answers = [question.answer for question in Questions(backbone).zero_shot(text.shown)]
    return Order(text.tokens, tuple(text.cues(backbone)), tuple(answers))


def loss(backbone: Backbone, student: Fitted, orders: Sequence[Order]) -> Tensor:
    """Mean cross-entropy of all answers' first tokens, over the whole vocabulary."""
    batch = make_batch([own.tokens for own in orders], [""] * len(orders), device=backbone.device)
    with student.applied(backbone, batch):
        states = backbone.hidden_states(batch)
    at = torch.cat([states[row, list(own.cues)] for row, own in enumerate(orders)])
    logits = student.logits(backbone, at)
    return cross_entropy(logits, torch.tensor([token for own in orders for token in own.answers], device=logits.device))
