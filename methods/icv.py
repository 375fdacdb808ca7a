"""ICV: the shift that an answer gives the hidden states of demonstrations, added to every block's MLP output."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.sites import Edit, Site
from icrbench.backbone.steering import steered
from icrbench.method import FitData, Fitted, Method, Scope, register
from icrbench.randomness import Randomness
from icrbench.toolkit.episodes import Episodes, Questions, demonstration_tokens
from icrbench.toolkit.reading import text_end_vectors
from icrbench.toolkit.selection import ChooseBy, by_accuracy
from icrbench.util.bounds import Count

Direction = Literal["code", "pc1", "mean"]

STRENGTHS = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Tried where no strength is given: around the 0.1 to 0.12 of the authors' examples. ICR's grid is unknown."""


class ICVFitted(Fitted):
    """A direction for each block and one strength.

    Attributes:
        config: ``strength``, and ``sweep``: held-out accuracy by strength (empty if it was given).
        tensors: ``vectors`` ``[L, d]``, of which the direction alone matters.
    """

    formula: ClassVar[str] = "dL"

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``dL``."""
        return dims.hidden * dims.layers

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Turn every block's MLP output at every token; a strength of 0 is zero-shot up to rounding."""
        vectors = self.tensors["vectors"].to(backbone.device)
        edits = {Site("mlp", layer): _turned(vector, self.config["strength"]) for layer, vector in enumerate(vectors)}
        return steered(backbone, batch, edits, "all")


@register("icv")
@dataclass(frozen=True)
class ICV(Method):
    """In-context vectors (Liu et al. 2024; the form of the authors' code), for classification.

    From pairs of texts: the differences of their hidden states at the last token, of the embeddings and all blocks side
    by side, have a mean and a first principal component; cut into blocks they are the vectors ``v``. At every token the
    MLP's output ``x`` of every block turns towards its vector and keeps its norm::

        s = 1 + max(0, cos(x, -v))
        x <- ||x|| * normalise(normalise(x) + strength * s * normalise(v))

    Chosen here, since no source says how ICV is used for classification, as the ICR paper does: a pair is a
    demonstration's prompt without and with its answer, and the strength is the best of `STRENGTHS` on held-out rows.
    ``pair="label"`` takes the answer alone for the second text.

    The paper says "the first principal component", the code takes component plus mean. As the component has length 1
    and the mean is long, the code's is the mean for all that matters (``direction="mean"``), and ``"pc1"`` is another
    method; the component's sign, by the code's convention, makes the largest of the pairs' loadings positive.
    Punctuation stays in the demonstrations, from which the authors remove it: the templates are made of it. Prompt
    tokens are shifted like all others, as in the code (its documentation speaks of the response alone). The authors
    used no family that norms the MLP's output on its way to the residual stream (Gemma 3): there the normed output is
    turned, whose norm the model would otherwise set anew. "Embeddings" is what enters the first block: in families with
    learned places (GPT-2) the token's embedding and its place's, in the authors' code the token's alone. No vector is
    made of it; it takes part in the principal component, whose cosine with the authors' is 1.0 on tiny models.

    Attributes:
        per_class: pairs per class.
        per_task: pairs per in-domain task, for tasks without demonstrations of their own.
        direction: ``code`` (component plus mean), ``pc1`` or ``mean``.
        pair: the second text of a pair: ``answered`` (prompt and answer) or ``label``.
        strength: lambda; none for the best on held-out rows.
        held_out: train rows held out to choose it by.
        choose_by: whether by raw or by calibrated accuracy there (`icrbench.toolkit.selection`).
    """

    per_class: Count = 5
    per_task: Count = 3
    direction: Direction = "code"
    pair: Literal["answered", "label"] = "answered"
    strength: float | None = None
    held_out: Count = 32
    choose_by: ChooseBy = "raw"

    scope: ClassVar[Scope] = Scope.TASK
    fitted: ClassVar[type[Fitted]] = ICVFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> ICVFitted:
        """Read both texts of every pair, then choose a strength on held-out rows."""
        episodes = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task, held_out=self.held_out)
        questions = Questions(backbone)
        asked, answered = [], []
        for shown in episodes.demonstrations():
            prompt, answer = questions(shown).prompt.text, shown.task.answer(shown.example)
            asked.append(prompt)
            answered.append(answer if self.pair == "label" else f"{prompt} {answer}")
        vectors = shift(states(backbone, answered) - states(backbone, asked), self.direction)
        if self.strength is not None:
            return ICVFitted({"strength": self.strength, "sweep": []}, {"vectors": vectors})
        candidates = [ICVFitted({"strength": strength, "sweep": []}, {"vectors": vectors}) for strength in STRENGTHS]
        held_out = questions.zero_shot(episodes.held_out)
        return by_accuracy(backbone, candidates, held_out, self.choose_by, last_token_only=False)

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Both texts of the pairs, and the held-out prompts once for each strength."""
        pairs = demonstration_tokens(self.per_class, self.per_task, tokens, classes)
        tried = 0 if self.strength is not None else len(STRENGTHS)
        return 2 * pairs + tried * self.held_out * sum(tokens.values()) / len(tokens)


def states(backbone: Backbone, texts: list[str]) -> Tensor:
    """Read the residual stream at the last token of texts, ``[N, L + 1, d]``: embeddings, then every block."""
    blocks = [Site("block", layer) for layer in range(backbone.dims.layers)]
    branches = [Site("attention", 0), Site("mlp", 0)]
    found = text_end_vectors(backbone, texts, [*blocks, *branches])
    # What enters the first block is what leaves it, less what its branches add.
    entering: Tensor = found[blocks[0]] - found[branches[0]] - found[branches[1]]
    return torch.stack([entering, *(found[site] for site in blocks)], 1)


def shift(differences: Tensor, direction: Direction) -> Tensor:
    """Compute the vectors ``[L, d]`` of pairs' differences ``[N, L + 1, d]``; the embeddings' is left out."""
    flat = differences.flatten(1).double()
    mean = flat.mean(0)
    left, _, right = torch.linalg.svd(flat - mean, full_matrices=False)
    loadings = left[:, 0]
    component = right[0] * loadings[loadings.abs().argmax()].sign()
    chosen: Tensor = {"code": component + mean, "pc1": component, "mean": mean}[direction]
    return chosen.view_as(differences[0])[1:].float()


def _turned(vector: Tensor, strength: float) -> Edit:
    def edit(outputs: Tensor) -> Tensor:
        own = vector.to(outputs.device)
        more = 1 + cosine_similarity(outputs, -own, dim=-1).clamp(min=0)[..., None]
        moved = normalize(outputs, dim=-1) + strength * more * normalize(own, dim=-1)
        turned: Tensor = normalize(moved, dim=-1) * outputs.norm(dim=-1, keepdim=True)
        return turned

    return edit
