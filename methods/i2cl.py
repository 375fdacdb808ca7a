"""I2CL: the mean of what demonstrations add to the residual stream, mixed into a zero-shot pass by trained scalars."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.sites import Edit, Point, Site
from icrbench.backbone.steering import steered
from icrbench.data.task import DEMONSTRATION_SEPARATOR
from icrbench.method import FitData, Fitted, Method, Scope, register
from icrbench.randomness import Randomness
from icrbench.toolkit.distillation import answer_loss
from icrbench.toolkit.episodes import Episodes, Question, Questions, demonstration_tokens
from icrbench.toolkit.optimisation import Schedule, epoch_means, optimise
from icrbench.toolkit.reading import text_end_vectors
from icrbench.toolkit.selection import question_batch
from icrbench.util.bounds import Count, NotNegative, Share

Inject = Literal["linear", "add", "balance"]

BRANCHES: tuple[Point, ...] = ("attention", "mlp")


class I2CLFitted(Fitted):
    """A vector and two scalars for each branch of each block.

    Attributes:
        config: ``inject``, ``positions``, and ``loss``: mean loss of each pass over the demonstrations.
        tensors: ``vectors`` ``[L, 2, d]`` and ``coefficients`` ``[L, 2, 2]``: blocks, then attention and MLP, then
            lambda (of the vector) and beta (of the branch).
    """

    formula: ClassVar[str] = "2dL + 4L"

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``2dL + 4L``."""
        return 2 * dims.hidden * dims.layers + 4 * dims.layers

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Mix the vectors into both branches of every block."""
        vectors = self.tensors["vectors"].to(backbone.device)
        coefficients = self.tensors["coefficients"].to(backbone.device)
        return steered(
            backbone, batch, _injections(vectors, coefficients, self.config["inject"]), self.config["positions"]
        )


@register("i2cl")
@dataclass(frozen=True)
class I2CL(Method):
    """Implicit in-context learning (Li et al. 2024, arXiv 2405.14660; defaults of the authors' code).

    Every demonstration is read alone, with the separator that would follow it. What attention and MLP of every block
    add to the residual stream at its last token, which is the separator and not the answer, is averaged over the
    demonstrations: the vectors ``v``. At every token of a zero-shot prompt, a branch's output ``o`` becomes
    ``beta * o + lambda * v``. The 4 scalars a block are calibrated on the demonstrations themselves, asked without
    their answers: cross-entropy of the answer's first token over the whole vocabulary, under noise
    ``noise * ||o|| * N(0, I)`` on every injected branch, where ``||o||`` is taken as a constant, without gradient.

    Paper and code differ in the schedule: the code warms up over the first steps, the paper does not (``warmup=0``).
    As in the code, every step draws its minibatch anew, the decay of AdamW pulls beta, too, towards 0, and the cosine
    along which the learning rate falls is counted from the first step. It spans the steps that are made (in the code,
    for odd numbers of demonstrations, some that are not). In families that norm a branch's output on its way to the
    residual stream (Gemma 3), which the authors did not use, "output" is the normed one: what arrives there.

    Attributes:
        per_class: demonstrations per class.
        per_task: demonstrations per in-domain task, for tasks without demonstrations of their own.
        inject: ``linear`` as above, or the paper's ablations ``add`` (``o + relu(lambda) * v``) and ``balance``
            (``((1 - lambda) * o + lambda * v) * beta``).
        positions: the tokens changed: all, or the last. The code's own "last" is the last but one.
        initial_lambda: of every branch; beta starts at 1.
        noise: scale of the noise in calibration. It is for each of ``d`` entries, so relative to ``||o||`` the noise
            grows with ``sqrt(d)``: 6 % for the authors' 7B models.
        epochs: of ``demonstrations // batch_size`` steps.
        most_steps: steps after which calibration ends whatever ``epochs`` say; none for no limit, as published.
        batch_size: demonstrations a step.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
        warmup: share of the steps.
    """

    per_class: Count = 5
    per_task: Count = 3
    inject: Inject = "linear"
    positions: Literal["all", "last"] = "all"
    initial_lambda: float = 0.1
    noise: NotNegative = 0.001
    epochs: Count = 100
    most_steps: Count | None = None
    batch_size: Count = 2
    learning_rate: NotNegative = 0.01
    weight_decay: NotNegative = 0.001
    warmup: Share = 0.05

    scope: ClassVar[Scope] = Scope.TASK
    trained: ClassVar[bool] = True
    budget: ClassVar[tuple[str, ...]] = ("epochs", "most_steps", "batch_size")
    fitted: ClassVar[type[Fitted]] = I2CLFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> I2CLFitted:
        """Average the demonstrations' branch outputs, then calibrate the scalars on the same demonstrations."""
        shown = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task).demonstrations()
        questions = Questions(backbone).zero_shot(shown)
        texts = [
            f"{question.prompt.text} {own.task.answer(own.example)}{DEMONSTRATION_SEPARATOR}"
            for question, own in zip(questions, shown, strict=True)
        ]
        vectors = context_vectors(backbone, texts)
        coefficients, loss = self._calibrate(backbone, questions, vectors, rng)
        config = {"inject": self.inject, "positions": self.positions, "loss": loss}
        return I2CLFitted(config, {"vectors": vectors, "coefficients": coefficients})

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Count the demonstrations once, then calibration forward and backward."""
        shown = demonstration_tokens(self.per_class, self.per_task, tokens, classes)
        length = sum(tokens.values()) / len(tokens)
        return shown + 3 * self._steps(round(shown / length)) * self.batch_size * length

    def _steps(self, count: int) -> int:
        steps = self.epochs * max(1, count // self.batch_size)
        return steps if self.most_steps is None else min(steps, self.most_steps)

    def _calibrate(
        self, backbone: Backbone, questions: list[Question], vectors: Tensor, rng: Randomness
    ) -> tuple[Tensor, list[float]]:
        """Train the coefficients; return them with the mean loss of each pass."""
        size = min(self.batch_size, len(questions))
        draw, noise = rng.python("calibration"), rng.torch("noise")
        vectors = vectors.to(backbone.device)
        start = torch.tensor([self.initial_lambda, 1.0], device=backbone.device)
        coefficients = start.repeat(backbone.dims.layers, len(BRANCHES), 1)

        def drawn() -> Iterator[list[Question]]:
            while True:
                yield draw.sample(questions, size)

        def loss(own: list[Question]) -> Tensor:
            batch = question_batch(backbone, own)
            with steered(
                backbone, batch, _injections(vectors, coefficients, self.inject, self.noise, noise), self.positions
            ):
                states = batch.at_last(backbone.hidden_states(batch))
            return answer_loss(backbone.logits(states), own)

        steps = self._steps(len(questions))
        schedule = Schedule(steps, self.warmup, self.weight_decay, clip=None, decay="whole_cosine")
        history = optimise([([coefficients], self.learning_rate)], loss, drawn(), schedule, "calibrating I2CL")
        a_pass = max(1, len(questions) // self.batch_size)
        return coefficients.cpu(), epoch_means(history, a_pass)


def context_vectors(backbone: Backbone, texts: list[str]) -> Tensor:
    """Mean over texts of what each branch adds to the residual stream at their last token, ``[L, 2, d]``."""
    sites = {layer: [Site(branch, layer) for branch in BRANCHES] for layer in range(backbone.dims.layers)}
    found = text_end_vectors(backbone, texts, [site for own in sites.values() for site in own])
    return torch.stack([torch.stack([found[site].mean(0) for site in own]) for own in sites.values()])


def _injections(
    vectors: Tensor,
    coefficients: Tensor,
    inject: Inject,
    noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> dict[Site, Edit]:
    return {
        Site(branch, layer): _injection(vectors[layer, place], coefficients[layer, place], inject, noise, generator)
        for layer in range(len(vectors))
        for place, branch in enumerate(BRANCHES)
    }


def _injection(
    vector: Tensor, coefficients: Tensor, inject: Inject, noise: float, generator: torch.Generator | None
) -> Edit:
    def edit(outputs: Tensor) -> Tensor:
        own = vector.to(outputs.device)
        strength, scale = coefficients.to(outputs.device)
        mixed: Tensor
        if inject == "linear":
            mixed = scale * outputs + strength * own
        elif inject == "add":
            mixed = outputs + strength.relu() * own
        else:
            mixed = ((1 - strength) * outputs + strength * own) * scale
        if noise:
            # Drawn on the CPU, so that a seed gives the same noise on every device.
            drawn = torch.randn(outputs.shape, generator=generator).to(outputs.device)
            # The length is a number here, not a function of the scalars: no gradient flows through it.
            mixed = mixed + noise * mixed.detach().norm(dim=-1, keepdim=True) * drawn
        return mixed

    return edit
