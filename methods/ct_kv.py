"""Context tuning: the keys and values of the demonstrations, trained on the demonstrations' own answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.backbone.virtual import Virtual, attending, virtual_tokens
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.demonstration_text import Demonstrations
from icrbench.toolkit.distillation import TrainedOnDemonstrations, answer_loss
from icrbench.toolkit.episodes import Episodes, Question, Questions, demonstration_tokens, minibatches
from icrbench.toolkit.optimisation import epoch_means, optimise
from icrbench.toolkit.prefix_fit import PrefixFitted
from icrbench.toolkit.selection import question_batch
from icrbench.util.bounds import Bounds, Count, NotNegative, Share


class CTKVFitted(PrefixFitted):
    """The demonstrations' keys and values after training; ``config["loss"]``: mean training loss by epoch."""

    formula: ClassVar[str] = "2MLGd_k"


@register("ct_kv")
@dataclass(frozen=True)
class CTKV(TrainedOnDemonstrations):
    """CT-KV, context tuning of keys and values (arXiv 2507.04221; defaults of the authors' code).

    The demonstrations run once. Their keys and values, in all layers, then are free parameters, which every query sees
    as a prefix; queries go on at the place behind them. They are trained on the demonstrations themselves, asked
    without their answers, by the cross-entropy of the answer's first token. A query does not see the tokens of its own
    demonstration, nor a random share ``dropout`` of the others, drawn anew for each row and step; nothing is hidden
    once it is trained. It costs a query what few-shot does, and as many cached numbers.

    Hiding a demonstration keeps its query from looking the answer up there; the demonstrations after it have read it,
    and are seen. With a single demonstration there is nothing left to train.

    Choices of this implementation:

    - A beginning-of-sequence token is never hidden (the authors' GPT-2 has none). The separator behind a demonstration
      is hidden with it; in the authors' code it is the one before.
    - Keys and values are trained in float32, and rounded where the model is narrower; the authors train them in
      bfloat16.
    - Rows are those that few-shot shows. Demonstrations that leave too little room for a query are dropped, the first
      ones first. Queries are tokenised apart from the demonstrations.
    - Of longer answers the first token alone is trained, as everywhere here.

    Attributes:
        dropout: share of the tokens hidden in training, beside the query's own demonstration.
    """

    learning_rate: NotNegative = 0.001
    weight_decay: NotNegative = 0.0
    batch_size: Count = 16
    epochs: Count = 200
    warmup: Share = 0.0
    dropout: Annotated[float, Bounds(0, 1, open_high=True)] = 0.05

    fitted: ClassVar[type[Fitted]] = CTKVFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> CTKVFitted:
        """Run the demonstrations, then train their keys and values."""
        shown = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task).demonstrations()
        demonstrations = Demonstrations.fitting(backbone, shown)
        with torch.no_grad():
            virtual = virtual_tokens(backbone, demonstrations.tokens)
        questions = Questions(backbone).zero_shot(demonstrations.shown)
        return self._tuned(backbone, virtual, questions, demonstrations.spans(backbone), rng)

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Return the demonstrations once, then asked, forward and backward, every epoch."""
        shown = demonstration_tokens(self.per_class, self.per_task, tokens, classes)
        return shown + super().fit_tokens(tokens, classes)

    def _tuned(
        self,
        backbone: Backbone,
        virtual: Virtual,
        questions: Sequence[Question],
        spans: Sequence[tuple[int, int]],
        rng: Randomness,
    ) -> CTKVFitted:
        """Train a prefix on questions of which each does not see one span of it."""
        count = len(virtual.positions)
        own = torch.zeros(len(questions), count, dtype=torch.bool)
        for row, (start, end) in enumerate(spans):
            own[row, start:end] = True
        drawn = rng.torch("dropout")
        fitted = CTKVFitted.of(virtual)
        tensors = {name: tensor.to(backbone.device, copy=True) for name, tensor in fitted.tensors.items()}
        student = CTKVFitted(fitted.config, tensors)

        def loss(rows: list[int]) -> Tensor:
            asked = [questions[row] for row in rows]
            batch = question_batch(backbone, asked)
            hidden = torch.rand(len(rows), count, generator=drawn) < self.dropout
            if virtual.has_bos:
                hidden[:, 0] = False
            with attending(backbone, batch, student.virtual(backbone), own[rows] | hidden):
                states = batch.at_last(backbone.hidden_states(batch))
            return answer_loss(backbone.logits(states), asked)

        per_epoch = -(-len(questions) // self.batch_size)
        history = optimise(
            [(list(tensors.values()), self.learning_rate)],
            loss,
            minibatches(len(questions), self.batch_size, rng.python("training-order")),
            self.schedule(per_epoch),
            f"training {self.name}",
        )
        config = {**fitted.config, "loss": epoch_means(history, per_epoch)}
        return CTKVFitted(config, {name: tensor.cpu() for name, tensor in tensors.items()})
