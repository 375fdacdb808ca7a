"""Learned task vectors: a vector trained by gradient and added to the state in which a prompt ends."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.backbone.sites import Site
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.answer_training import fixed_minibatches, train_on_answers
from icrbench.toolkit.distillation import COST_OF_TRAINING, TrainedOnDemonstrations
from icrbench.toolkit.episodes import Episodes, Questions, demonstration_tokens
from icrbench.toolkit.layer_vector import LayerVector
from icrbench.toolkit.reading import last_token_vectors
from icrbench.toolkit.selection import ChooseBy, by_accuracy, checked_layer
from icrbench.util.bounds import Count, NotNegative

USUAL_BLOCKS = 24  # of a model, for estimates made before one is loaded


class LearnedTaskVectorFitted(LayerVector):
    """One trained vector and the block after which it is added.

    Attributes:
        config: ``layer``, ``where``, ``blocks`` (those tried), ``sweep`` (their held-out accuracies, empty if the layer
            was given) and ``loss``: mean training loss by epoch.
        tensors: ``vector`` ``[d]``.
    """

    @property
    def where(self) -> Literal["last", "all"]:  # type: ignore[override]  # here it is a hyperparameter
        """The tokens that the vector is added to."""
        return "all" if self.config["where"] == "all" else "last"

    @property
    def last_token_only(self) -> bool:  # type: ignore[override]
        """Not where every token is changed."""
        return self.where == "last"

    def changed(self, states: Tensor, vector: Tensor) -> Tensor:
        """Return the sum."""
        return states + vector


@register("learned_task_vector")
@dataclass(frozen=True)
class LearnedTaskVector(TrainedOnDemonstrations):
    """Learned task vectors (arXiv 2509.24169), from what others say about the paper.

    A vector ``v``, 0 at the start, is added to the state after a block at a prompt's last token, and trained through
    the frozen model by the cross-entropy of the answer's first token after zero-shot prompts. A task vector read from
    a few-shot prompt takes the state's place instead (`task_vector`).

    The authors' code and their hyperparameters were not at hand. Choices of this implementation:

    - The rows are as many as few-shot shows, and all epochs are run.
    - AdamW without weight decay. The learning rate is relative to the states: ``learning_rate`` times the root mean
      square of their entries after the block, since the residual stream of some families grows tenfold and more from
      the first block to the last. It rises over a tenth of the steps and falls along half a cosine.
    - A vector is trained for every block tried, and the block is the one that answers most held-out train rows
      rightly, of equals the lowest. After the last block a vector does little more than shift the logits of all
      prompts alike: a label prior.
    - With ``where=last`` nothing before the last token changes, so keys and values of all others are computed once;
      which rows share a step is therefore drawn once, and their order anew in every epoch.

    Attributes:
        layer: block number, from 0; none for the best on held-out rows.
        every: one block in so many is tried, from the first.
        where: the tokens that the vector is added to: the ``last``, or ``all``.
        learning_rate: of AdamW, relative to the size of the states.
        held_out: train rows held out to choose the block by.
        choose_by: whether by raw or by calibrated accuracy there (`icrbench.toolkit.selection`).
    """

    learning_rate: NotNegative = 0.02
    weight_decay: NotNegative = 0.0
    epochs: Count = 20
    layer: int | None = None
    every: Count = 1
    where: Literal["last", "all"] = "last"
    held_out: Count = 32
    choose_by: ChooseBy = "raw"

    fitted: ClassVar[type[Fitted]] = LearnedTaskVectorFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> LearnedTaskVectorFitted:
        """Train a vector for every block to be tried, then choose one on held-out rows."""
        blocks = self._blocks(backbone)
        episodes = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task, held_out=self.held_out)
        questions = Questions(backbone)
        shown = questions.zero_shot(episodes.demonstrations())
        states = last_token_vectors(backbone, shown, [Site("block", layer) for layer in blocks])
        own = fixed_minibatches(backbone, shown, self.batch_size, rng, last_token_only=self.where == "last")
        candidates = [
            train_on_answers(
                backbone,
                LearnedTaskVectorFitted(
                    {"layer": layer, "where": self.where, "blocks": [layer], "sweep": []},
                    {"vector": torch.zeros(backbone.dims.hidden)},
                ),
                {"vector": self.learning_rate * float(states[Site("block", layer)].square().mean().sqrt())},
                own,
                self.schedule(len(own)),
                rng,
                f"training {self.name}, block {layer}",
            )
            for layer in blocks
        ]
        if self.layer is not None:
            return candidates[0]
        held_out = questions.zero_shot(episodes.held_out)
        chosen = by_accuracy(backbone, candidates, held_out, self.choose_by, last_token_only=self.where == "last")
        chosen.config["blocks"] = blocks
        return chosen

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Count the rows twice, the held-out prompts, and for each block and epoch the rows' last tokens (or all)."""
        shown = demonstration_tokens(self.per_class, self.per_task, tokens, classes)
        length = sum(tokens.values()) / len(tokens)
        tried = 1 if self.layer is not None else -(-USUAL_BLOCKS // self.every)
        asked = self.asked(shown / length) * (1 if self.where == "last" else length)
        return 2 * shown + self.held_out * length + COST_OF_TRAINING * tried * asked

    def _blocks(self, backbone: Backbone) -> list[int]:
        if self.layer is not None:
            return [checked_layer(self, self.layer, backbone.dims.layers)]
        return list(range(0, backbone.dims.layers, self.every))
