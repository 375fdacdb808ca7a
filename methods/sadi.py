"""SADI: heads that tell right answers from wrong ones, made stronger where an answer is predicted."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.sites import Edit, Site
from icrbench.backbone.steering import steered
from icrbench.method import FitData, Fitted, Method, Scope, register
from icrbench.randomness import Randomness
from icrbench.toolkit.episodes import Episodes, Labelled, Questions
from icrbench.toolkit.reading import text_end_vectors
from icrbench.toolkit.selection import ChooseBy, accuracies, best
from icrbench.util.bounds import Count
from icrbench.util.errors import UserError


class SADIFitted(Fitted):
    """Chosen heads and the factor on their outputs.

    Attributes:
        config: ``heads``, the chosen ones as ``[layer, head]``, strongest first; ``strength``, the factor; ``scores``
            ``[L][H]``; ``sweep``, held-out accuracy as ``[heads, strength, accuracy]`` (empty if there was no choice);
            ``chosen_by``, what kind of accuracy.
        tensors: ``mask`` ``[L, H]``, 1 for the chosen heads, else 0.
    """

    last_token_only: ClassVar[bool] = True
    formula: ClassVar[str] = "LH"

    @property
    def first_layer(self) -> int:
        """The lowest block with a chosen head."""
        return min(int(layer) for layer, _ in self.config["heads"])

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``L H``."""
        return dims.layers * dims.heads

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Multiply the chosen heads' outputs at the context's last token."""
        factors = 1 + (float(self.config["strength"]) - 1) * self.tensors["mask"]
        each = factors.repeat_interleave(backbone.dims.head_dim, 1)

        def multiplied(layer: int) -> Edit:
            return lambda outputs: outputs * each[layer].to(outputs.device)

        layers = sorted({int(layer) for layer, _ in self.config["heads"]})
        return steered(backbone, batch, {Site("heads", layer): multiplied(layer) for layer in layers}, "last")


@register("sadi")
@dataclass(frozen=True)
class SADI(Method):
    """Semantics-adaptive dynamic intervention on heads (Wang et al. 2024, arXiv 2410.12299; code of the authors).

    Train prompts are read with their right and with a wrong answer. A head's score is the difference of its outputs at
    the answer's last token, right less wrong, averaged over its width and over the pairs, with its sign. The heads of
    the largest scores have their outputs multiplied by ``strength`` where a query's answer is predicted (the paper
    adds ``delta`` times the output: ``strength`` is ``1 + delta``).

    Choices of this implementation:
        Heads alone: the authors have the same for hidden states and feed-forward neurons.
        Wrong answer: a random one of the row's other options; where answers are written, another row's.
        In the run: the authors write the outputs of all heads from a pass without changes, some of them multiplied, so
            that a change in a low block never reaches the heads above it. Here it does.
        Search: over the authors' numbers of heads and factors, on held-out train rows (the authors: on the test rows).
        Heads of equal scores: the lower block and number first (the authors look values up, and find one head twice).

    Attributes:
        pairs: train rows read twice.
        heads: numbers of heads tried, joined by ``+``.
        strengths: factors tried, joined by ``+``.
        held_out: train rows held out to choose both by.
        choose_by: whether by raw or by calibrated accuracy there (`icrbench.toolkit.selection`).
    """

    pairs: Count = 150
    heads: str = "1+2+4+6+8+10"
    strengths: str = "5+10+15+20+25+30+35+40+45+50+55+60+65+70+75+80"
    held_out: Count = 32
    choose_by: ChooseBy = "raw"

    scope: ClassVar[Scope] = Scope.TASK
    budget: ClassVar[tuple[str, ...]] = ("pairs",)
    fitted: ClassVar[type[Fitted]] = SADIFitted

    def __post_init__(self) -> None:
        """Refuse lists that cannot be read.

        Raises:
            UserError: naming the hyperparameter.
        """
        super().__post_init__()
        if min(self._numbers("heads")) < 1 or any(count % 1 for count in self._numbers("heads")):
            raise UserError(f"sadi.heads must be whole numbers of at least 1 joined by +, not '{self.heads}'.")
        self._numbers("strengths")

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> SADIFitted:
        """Score the heads, then try numbers of them and factors."""
        episodes = Episodes(data, rng, per_class=1, per_task=1, held_out=self.held_out)
        rows = episodes.queries(self.pairs)
        right, wrong = (self._read(backbone, rows, answers) for answers in _answers(rows, rng))
        scores = head_scores(right, wrong, backbone.dims.heads)
        candidates = [
            self._fitted(scores, int(count), strength)
            for count, strength in product(self._numbers("heads"), self._numbers("strengths"))
        ]
        if len(candidates) == 1:
            return candidates[0]
        questions = Questions(backbone).zero_shot(episodes.held_out)
        found = accuracies(backbone, candidates, questions, self.choose_by, last_token_only=True)
        chosen = candidates[best(found)]
        chosen.config["chosen_by"] = self.choose_by
        chosen.config["sweep"] = [
            [len(own.config["heads"]), own.config["strength"], accuracy]
            for own, accuracy in zip(candidates, found, strict=True)
        ]
        return chosen

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Two passes a pair and the held-out prompts; the passes over single tokens are left out."""
        return (2 * self.pairs + self.held_out) * sum(tokens.values()) / len(tokens)

    def _read(self, backbone: Backbone, rows: list[Labelled], answers: list[str]) -> Tensor:
        """Heads' outputs ``[N, L, H*d_k]`` at the last token of prompts with these answers."""
        texts = [f"{row.task.prompt(row.example)} {answer}" for row, answer in zip(rows, answers, strict=True)]
        sites = [Site("heads", layer) for layer in range(backbone.dims.layers)]
        found = text_end_vectors(backbone, texts, sites)
        return torch.stack([found[site] for site in sites], 1)

    def _fitted(self, scores: Tensor, count: int, strength: float) -> SADIFitted:
        heads = strongest(scores, count)
        mask = torch.zeros_like(scores)
        for layer, head in heads:
            mask[layer, head] = 1
        config: dict[str, Any] = {
            "heads": [list(head) for head in heads],
            "strength": strength,
            "scores": scores.tolist(),
            "sweep": [],
        }
        return SADIFitted(config, {"mask": mask})

    def _numbers(self, name: str) -> list[float]:
        text: str = getattr(self, name)
        try:
            return [float(part) for part in text.split("+")]
        except ValueError as error:
            raise UserError(f"sadi.{name} must be numbers joined by +, not '{text}'.") from error


def head_scores(right: Tensor, wrong: Tensor, heads: int) -> Tensor:
    """Scores ``[L, H]`` from outputs ``[N, L, H*d_k]`` after right and wrong answers."""
    differences: Tensor = (right - wrong).unflatten(-1, (heads, -1))
    return differences.mean((0, -1))


def strongest(scores: Tensor, count: int) -> list[tuple[int, int]]:
    """Layer and head of the largest scores, largest first; of equal ones the lower layer, then the lower head."""
    order = scores.flatten().argsort(descending=True, stable=True)[:count].tolist()
    return [divmod(place, scores.shape[1]) for place in order]


def _answers(rows: list[Labelled], rng: Randomness) -> tuple[list[str], list[str]]:
    """Return the rows' right answers, and a wrong one each."""
    draw = rng.python("wrong-answers")
    right = [row.task.answer(row.example) for row in rows]
    wrong = []
    for row, answer in zip(rows, right, strict=True):
        options = row.example.options if len(row.example.options) > 1 else right  # a written answer has no other
        others = [option for option in options if option != answer]
        if not others:
            raise UserError("sadi needs train rows with different answers: raise sadi.pairs.")
        wrong.append(draw.choice(others))
    return right, wrong
