"""LoRA: low-rank matrices added to the model's own, trained on the demonstrations' answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from icrbench.backbone import Backbone
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.distillation import Attempt, Lesson, TrainedOnDemonstrations
from icrbench.toolkit.episodes import Episodes, Question, Questions
from icrbench.toolkit.lora import HEAD, LoRAFitted, initial_lora, seeded
from icrbench.toolkit.selection import ChooseBy, by_accuracy
from icrbench.util.bounds import Bounds, Count, NotNegative

Targets = Literal["qkvo", "o", "last_block", "head"]

RATES = (1e-4, 5e-4, 1e-3)


@register("lora")
@dataclass(frozen=True)
class LoRA(TrainedOnDemonstrations):
    """LoRA (Hu et al. 2021) through the peft library, as a baseline trained on as many rows as few-shot shows.

    ``B A`` of rank ``r``, times ``alpha / r``, is added to the projections to queries, keys, values and from the heads
    in every block; ``B`` starts at 0. Rank, alpha, dropout and targets are those of the LoRA baseline in the code of
    MimIC and HiFICL. That code adds up the gradients of several batches of 2 before a step, 4 to 64 rows in all, and
    runs 5 to 15 epochs over some hundred rows; here, with some ten rows, a step is one batch of 2, and there are 20
    epochs. The loss is the cross-entropy of the answer's first token. Projections that a family fuses (GPT-2,
    GPT-NeoX) are one matrix with one ``A``.

    The ICR paper compares with "LoRA on the token classification head of the last layer, rank 32", trained on as many
    examples as one prompt shows. That may mean the output head (``targets=head:rank=32``) or the last block
    (``targets=last_block:rank=32``), whose attention projections are adapted here; its learning rate, alpha and number
    of epochs are not stated. Neither is the default.

    Choices of this implementation: the learning rate is that of three (1e-4, 5e-4, 1e-3) that answers most held-out
    train rows, MimIC's being the middle one; all epochs are run.

    Attributes:
        targets: matrices: ``qkvo`` or ``o`` alone (the "mini" variant of that code) of every block, ``qkvo`` of the
            ``last_block``, or the output ``head``. An input embedding that shares the head's weights stays as it is.
        rank: ``r``.
        alpha: of the factor ``alpha / r``.
        dropout: share of the inputs of ``A`` dropped in training.
        learning_rate: of AdamW; 0 for the best on held-out rows.
        held_out: train rows held out to choose it by.
        choose_by: whether by raw or by calibrated accuracy there (`icrbench.toolkit.selection`).
    """

    learning_rate: NotNegative = 0.0
    batch_size: Count = 2
    epochs: Count = 20
    targets: Targets = "qkvo"
    rank: Count = 16
    alpha: NotNegative = 32.0
    dropout: Annotated[float, Bounds(0, 1, open_high=True)] = 0.05
    held_out: Count = 32
    choose_by: ChooseBy = "raw"

    fitted: ClassVar[type[Fitted]] = LoRAFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> LoRAFitted:
        """Train once for every learning rate to be tried, and take the best."""
        episodes = Episodes(
            data,
            rng,
            per_class=self.per_class,
            per_task=self.per_task,
            held_out=0 if self.learning_rate else self.held_out,
        )
        questions = Questions(backbone)
        lessons = [Lesson(question) for question in questions.zero_shot(episodes.demonstrations())]
        rates = (self.learning_rate,) if self.learning_rate else RATES
        initial = self._initial(backbone, rng)
        candidates = []
        for rate in rates:
            with seeded(backbone, rng.number("dropout")):
                candidates.append(
                    self.train(
                        backbone, initial, dict.fromkeys(initial.tensors, rate), lessons, Attempt.cross_entropy, rng
                    )
                )
        return self._chosen(backbone, candidates, questions.zero_shot(episodes.held_out))

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Count the rows, forward and backward, in every epoch and for every learning rate tried."""
        tried = 1 if self.learning_rate else len(RATES)
        return tried * super().fit_tokens(tokens, classes)

    def _chosen(self, backbone: Backbone, candidates: list[LoRAFitted], questions: list[Question]) -> LoRAFitted:
        if len(candidates) == 1:
            return candidates[0]
        return by_accuracy(backbone, candidates, questions, self.choose_by, last_token_only=False)

    def _initial(self, backbone: Backbone, rng: Randomness) -> LoRAFitted:
        layers = range(backbone.dims.layers)
        blocks = {HEAD: [], "last_block": [layers[-1]]}.get(self.targets, list(layers))
        letters = "o" if self.targets == "o" else "qkvo" if blocks else ""
        return initial_lora(
            backbone, rng, letters=letters, blocks=blocks, rank=self.rank, alpha=self.alpha, dropout=self.dropout
        )
