"""Adaptive task vectors: a small network writes a query's vectors for every block from the query's text."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.sites import Edit, Site
from icrbench.backbone.steering import steered
from icrbench.method import FitData, Fitted, Scope, register
from icrbench.randomness import Randomness
from icrbench.toolkit.distillation import COST_OF_TRAINING, Attempt, Lesson, Trained
from icrbench.toolkit.encoder import sentence_encoder
from icrbench.toolkit.episodes import Labelled, Questions
from icrbench.toolkit.optimisation import Decay
from icrbench.toolkit.reading import last_token_vectors
from icrbench.toolkit.universal import chosen_domains, training_rows
from icrbench.util.bounds import Count, NotNegative, Share

MOST_MEASURED = 32  # prompts over which the vectors' length is compared with the states'


class ATVFitted(Fitted):
    """A linear map from a sentence embedding to a vector for each block.

    Attributes:
        config: ``strength``, ``positions``, ``encoder``, ``loss`` (mean training loss by epoch), and ``share`` ``[L]``:
            length of what is added after each block over that of the state there, at the last token of the first
            training prompts.
        tensors: ``weight`` ``[L, d, d_s]`` and ``bias`` ``[L, d]``, ``d_s`` being the embedding's width.
    """

    formula: ClassVar[str] = "Ld(d_s + 1)"

    @property
    def last_token_only(self) -> bool:  # type: ignore[override]  # here it depends on the positions
        """Whether the last token alone is changed."""
        return bool(self.config["positions"] == "last")

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``L d (d_s + 1)``."""
        return dims.layers * dims.hidden * (self.tensors["weight"].shape[2] + 1)

    def vectors(self, texts: tuple[str, ...]) -> Tensor:
        """Generate what is added after each block, ``[B, L, d]``, for zero-shot prompt texts; differentiable."""
        weight = self.tensors["weight"]
        embeddings = sentence_encoder(self.config["encoder"])(texts).to(weight.device)
        generated = torch.einsum("lds,bs->bld", weight, embeddings) + self.tensors["bias"]
        return generated * float(self.config["strength"])

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Add each row's vectors; they are computed once and stay fixed while it decodes."""
        vectors = self.vectors(batch.texts).to(backbone.device)

        def add(layer: int) -> Edit:
            return lambda states: states + vectors[:, layer, None].to(states.device)

        edits = {Site("block", layer): add(layer) for layer in range(vectors.shape[1])}
        return steered(backbone, batch, edits, self.config["positions"])


@register("atv")
@dataclass(frozen=True)
class ATV(Trained):
    """Adaptive task vectors (arXiv 2506.03426; defaults of the authors' code), trained once for all tasks.

    A text encoder reads the query; a linear map of its embedding gives a vector for every block, and ``strength`` times
    that vector is added to the block's output. The map is trained by the cross-entropy of the answer over many tasks'
    train rows, asked without demonstrations. It is the only method here beside ICR that learns once and writes anew for
    every query.

    Choices of this implementation:
        Encoder: the authors train a GPT-2 together with the map and take the state of its last token. Here it is the
            frozen sentence encoder that ICR's router has, so that the two differ in what they write alone.
        Rows: those ICR trains its router on, with the same seed, in random order (the authors pass through one dataset
            after the other) and in the task's one template (they average over up to three).
        Tokens: the paper adds at the last token. The authors' code, with the library it names, adds at every token;
            where blocks return a plain tensor it adds at the last column, which in training is the answer's own last
            token. ``positions=all`` is the former, ``last`` the paper's; the loss is where the answer's first token is
            predicted, so that answers of one token train the map, too.
        Optimiser: AdamW, whose decay is decoupled from the gradient (the authors: Adam with an L2 term of the same
            weight), and gradients longer than 1 are cut, as for every trained method here; their learning rate, too,
            is constant.
        Start: as theirs, ``torch.nn.Linear``'s own, so an untrained fit already adds something.

    How much the vectors are worth at a ``strength`` depends on how long the model's states are (for Gemma 3 a thousand
    times as long as for Llama) and on how many steps are trained: ``share`` in the fit says how much was added.

    Attributes:
        strength: factor on the vectors; 0 is zero-shot.
        positions: the tokens at which they are added.
        encoder: sentence encoder, as ICR's: ``minilm``, ``mpnet``, a folder, a hub id, or ``random``.
        domains: ``all`` in-domain tasks, or some, joined by ``+``.
        train_per_domain: training prompts per domain (the authors: 90 of each of 20 datasets).
    """

    learning_rate: NotNegative = 5e-4
    weight_decay: NotNegative = 1e-5
    batch_size: Count = 1
    epochs: Count = 15
    warmup: Share = 0.0
    decay: Decay = "constant"
    strength: float = 0.001
    positions: Literal["all", "last"] = "all"
    encoder: str = "minilm"
    domains: str = "all"
    train_per_domain: Count = 90

    scope: ClassVar[Scope] = Scope.UNIVERSAL
    budget: ClassVar[tuple[str, ...]] = (*Trained.budget, "train_per_domain")
    fitted: ClassVar[type[Fitted]] = ATVFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> ATVFitted:
        """Train the map on the domains' rows, then measure what it adds."""
        rows = [
            Labelled(pool.task, row)
            for pool in chosen_domains(self, "domains", data.pools)
            for row in training_rows(pool, self.train_per_domain, rng)
        ]
        lessons = [Lesson(question) for question in Questions(backbone).zero_shot(rows)]
        initial = self._initial(backbone, rng)
        rates = dict.fromkeys(initial.tensors, self.learning_rate)
        fitted = self.train(backbone, initial, rates, lessons, Attempt.cross_entropy, rng)
        fitted.config["share"] = _share(backbone, fitted, lessons[:MOST_MEASURED])
        return fitted

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Count the training prompts, forward and backward, in every epoch."""
        names = [name for name in tokens if self.domains == "all" or name in self.domains.split("+")]
        asked = self.asked(self.train_per_domain * len(names))
        return COST_OF_TRAINING * asked * sum(tokens[name] for name in names) / len(names)

    def _initial(self, backbone: Backbone, rng: Randomness) -> ATVFitted:
        """Uniform within ``1 / sqrt(d_s)``, as ``torch.nn.Linear`` starts."""
        dims, width = backbone.dims, sentence_encoder(self.encoder).width

        def uniform(name: str, *shape: int) -> Tensor:
            drawn = torch.rand(dims.layers, dims.hidden, *shape, generator=rng.torch("generator", name))
            return (2 * drawn - 1) / float(width**0.5)

        config = {"strength": self.strength, "positions": self.positions, "encoder": self.encoder}
        return ATVFitted(config, {"weight": uniform("weight", width), "bias": uniform("bias")})


def _share(backbone: Backbone, fitted: ATVFitted, lessons: list[Lesson]) -> list[float]:
    """Mean length of what is added after each block over that of the model's own state there, at the last token."""
    questions = [lesson.question for lesson in lessons]
    sites = [Site("block", layer) for layer in range(backbone.dims.layers)]
    states = last_token_vectors(backbone, questions, sites)
    added = fitted.vectors(tuple(question.prompt.text for question in questions)).norm(dim=-1)
    return [float((added[:, site.layer] / states[site].norm(dim=-1)).mean()) for site in sites]
