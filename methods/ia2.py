"""IA2: LoRA that first learns the attention outputs of the few-shot model, then answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from icrbench.backbone import Backbone
from icrbench.backbone.sites import Site
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.distillation import Attempt, Lesson, TrainedOnDemonstrations, taught
from icrbench.toolkit.episodes import Episode, Episodes, Labelled, Questions, demonstration_tokens
from icrbench.toolkit.lora import LoRAFitted, initial_lora
from icrbench.toolkit.optimisation import Decay
from icrbench.toolkit.selection import ChooseBy, by_accuracy
from icrbench.util.bounds import Count, NotNegative, Share

RATES = (1e-4, 3e-4, 1e-3)

Stages = Literal["a2t", "act", "tok", "tna"]


@register("ia2")
@dataclass(frozen=True)
class IA2(TrainedOnDemonstrations):
    """IA2, activation alignment before fine-tuning (arXiv 2509.22621; sizes of the authors' code).

    The teacher is the frozen model: each row follows all other rows as demonstrations, in a random order of its own.
    The student is the model with LoRA, given the row alone. Both are compared at the prompt's last token:

    - ``act``: what attention adds to the residual stream is to be the teacher's; the loss is the mean squared
      difference over blocks, rows and entries, times the number of blocks.
    - ``tok``: cross-entropy of the teacher's most likely token (``targets=teacher``) or of the answer's first
      (``targets=gold``).
    - ``a2t``, the method: ``act``, then ``tok`` from the factors that came out, with a fresh optimiser.
    - ``tna``: ``(1 - w_answer) * act + w_answer * tok`` at once.

    Projections to queries, keys and from the heads are adapted (``qko``); where a family fuses the first two with that
    to values (GPT-2, GPT-NeoX), the fused one is.

    Choices of this implementation: rows are those that few-shot shows. The learning rate is that of three which answers
    most held-out train rows. All epochs are run: the authors stop early by the loss on further rows, but what they keep
    is the last state, not the best, since their copy of the best holds the tensors that go on being trained. Attention
    is read where it reaches the residual stream, so after the norm that Gemma 3 puts there; the authors read it before.
    Gradients longer than 1 are cut.

    Attributes:
        stages: what is trained, as above.
        targets: what ``tok`` learns; ``config["teacher"]`` says how many of its tokens are the right ones.
        w_answer: of ``tna``.
        projections: adapted ones, by letter: ``qko``, or ``qkv`` as in the authors' README.
        rank: ``r``.
        alpha: of the factor ``alpha / r``.
        learning_rate: of AdamW; 0 for the best on held-out rows.
        epochs: of each stage.
        held_out: train rows held out to choose it by.
        choose_by: whether by raw or by calibrated accuracy there (`icrbench.toolkit.selection`).
    """

    learning_rate: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    batch_size: Count = 4
    warmup: Share = 0.0
    decay: Decay = "constant"
    stages: Stages = "a2t"
    targets: Literal["teacher", "gold"] = "teacher"
    w_answer: Share = 0.001
    projections: Literal["qko", "qkv"] = "qko"
    rank: Count = 8
    alpha: NotNegative = 8.0
    held_out: Count = 32
    choose_by: ChooseBy = "raw"

    fitted: ClassVar[type[Fitted]] = LoRAFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> LoRAFitted:
        """Run the teacher once, train for every learning rate to be tried, and take the best."""
        held_out = 0 if self.learning_rate else self.held_out
        episodes = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task, held_out=held_out)
        sites = [Site("attention", layer) for layer in range(backbone.dims.layers)]
        lessons = taught(backbone, _one_after_the_others(episodes.demonstrations(), rng), sites, most=1)
        initial = initial_lora(
            backbone,
            rng,
            letters=self.projections,
            blocks=range(backbone.dims.layers),
            rank=self.rank,
            alpha=self.alpha,
            dropout=0.0,
        )
        initial.config["teacher"] = _share_right(backbone, lessons)
        rates = (self.learning_rate,) if self.learning_rate else RATES
        candidates = [self._trained(backbone, initial, rate, lessons, rng, sites) for rate in rates]
        if self.learning_rate:
            return candidates[0]
        questions = Questions(backbone).zero_shot(episodes.held_out)
        return by_accuracy(backbone, candidates, questions, self.choose_by, last_token_only=False)

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Return a few-shot prompt a row, then the rows, forward and backward, every epoch of every stage and rate."""
        shown = demonstration_tokens(self.per_class, self.per_task, tokens, classes)
        rows = shown * len(tokens) / sum(tokens.values())
        tried = 1 if self.learning_rate else len(RATES)
        return rows * shown + tried * (2 if self.stages == "a2t" else 1) * super().fit_tokens(tokens, classes)

    def _trained(
        self,
        backbone: Backbone,
        fitted: LoRAFitted,
        rate: float,
        lessons: Sequence[Lesson],
        rng: Randomness,
        sites: Sequence[Site],
    ) -> LoRAFitted:
        """One stage after the other; their mean losses by epoch follow each other in ``config["loss"]``."""
        history: list[float] = []
        for objective, own in self._objectives(sites):
            rates = dict.fromkeys(fitted.tensors, rate)
            fitted = self.train(backbone, fitted, rates, lessons, objective, rng, own)
            history += fitted.config["loss"]
        return LoRAFitted({**fitted.config, "loss": history}, fitted.tensors)

    def _objectives(self, sites: Sequence[Site]) -> list[tuple[Callable[[Attempt], Tensor], Sequence[Site]]]:
        """Return the loss of each stage, and the sites that it reads."""
        tokens = _teacher_s_token if self.targets == "teacher" else Attempt.cross_entropy

        def both(attempt: Attempt) -> Tensor:
            return (1 - self.w_answer) * activations(attempt) + self.w_answer * tokens(attempt)

        known: dict[Stages, list[tuple[Callable[[Attempt], Tensor], Sequence[Site]]]] = {
            "act": [(activations, sites)],
            "tok": [(tokens, ())],
            "a2t": [(activations, sites), (tokens, ())],
            "tna": [(both, sites)],
        }
        return known[self.stages]


def activations(attempt: Attempt) -> Tensor:
    """Squared difference from the teacher's attention outputs: mean over rows and entries, sum over blocks."""
    return len(attempt.vectors) * attempt.distance()


def _teacher_s_token(attempt: Attempt) -> Tensor:
    """Cross-entropy of the teacher's most likely tokens; mean over the minibatch."""
    return functional.cross_entropy(attempt.logits, _likely(attempt.backbone, attempt.lessons, attempt.logits.device))


def _likely(backbone: Backbone, lessons: Sequence[Lesson], device: torch.device) -> Tensor:
    """Return the teacher's most likely token a lesson, ``[N]``."""
    with torch.no_grad():
        states = torch.stack([lesson.taught for lesson in lessons]).to(device)
        return backbone.logits(states).argmax(-1).to(device)


def _share_right(backbone: Backbone, lessons: Sequence[Lesson]) -> float:
    likely: list[int] = _likely(backbone, lessons, backbone.device).tolist()
    return sum(token == lesson.question.answer for token, lesson in zip(likely, lessons, strict=True)) / len(lessons)


def _one_after_the_others(shown: Sequence[Labelled], rng: Randomness) -> list[Episode]:
    """Each row after all others, shuffled; a row whose content is shown twice does not see itself."""
    found = []
    for number, query in enumerate(shown):
        others = [own for own in shown if own.example.content_hash != query.example.content_hash]
        rng.python("teacher-order", str(number)).shuffle(others)
        found.append(Episode(tuple(others), query))
    return found
