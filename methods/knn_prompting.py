"""kNN prompting: the class of the train rows whose next-token distributions are nearest to the query's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.class_scores import ClassScores, ScoredByClass
from icrbench.util.bounds import Count

ANCHORS = 64  # distributions over the vocabulary held at once


class KNNPromptingFitted(ClassScores):
    """Anchors: final states, from which the head gives distributions over the whole vocabulary.

    Attributes:
        config: as of `ClassScores`; ``labels`` ``[N]``, the anchors' classes; ``neighbours``.
        tensors: ``anchors`` ``[N, d]``.
    """

    formula: ClassVar[str] = "Nd (few: + 2MLGd_k)"

    @property
    def vectors(self) -> int:
        """``N``."""
        return len(self.config["labels"])

    def class_scores(self, backbone: Backbone, states: Tensor) -> Tensor:
        """Return the votes of the nearest anchors."""
        queries = backbone.logits(states).log_softmax(-1)
        distances = torch.cat([divergences(anchors, queries) for anchors in self._distributions(backbone)], 1)
        return votes(distances, self.config["labels"], self.config["neighbours"], len(self.config["classes"]))

    def _distributions(self, backbone: Backbone) -> Iterator[Tensor]:
        """Logarithms of the anchors' probabilities, ``[n, V]`` at a time."""
        for states in self.tensors["anchors"].split(ANCHORS):
            yield backbone.logits(states.to(backbone.device, backbone.dtype)).log_softmax(-1)


@register("knn_prompting")
@dataclass(frozen=True)
class KNNPrompting(ScoredByClass):
    """kNN prompting (Xu et al. 2023, arXiv 2303.13824; code of the authors).

    The next-token distributions after train prompts, over the whole vocabulary, are anchors. A query gets the class
    that most of its ``neighbours`` nearest anchors have, by ``KL(anchor || query)``; ties go to the lowest class. Class
    scores are numbers of votes.

    Choices of this implementation:
        Demonstrations: the authors fill the context with them and keep the other rows as anchors. Here there are none
            by default, since nothing else would be implicit; ``shots=few`` shows one draw before anchors and queries
            alike.
        Anchors: 1024 a class, or all there are (the authors: up to that many, demonstrations included). The final
            states are kept, ``d`` numbers each, and the head is run on them anew (the authors keep the distributions).
        Multiple choice: classes are the answers' letters.
        Tasks without rows of their own: not applicable.

    Attributes:
        neighbours: anchors that vote.
    """

    rows_per_class: Count = 1024
    neighbours: Count = 3

    budget: ClassVar[tuple[str, ...]] = ("rows_per_class",)
    fitted: ClassVar[type[Fitted]] = KNNPromptingFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> KNNPromptingFitted:
        """Read the anchors."""
        config, states, labels = self.read(backbone, data, rng)
        return KNNPromptingFitted({**config, "labels": labels, "neighbours": self.neighbours}, {"anchors": states})


def divergences(anchors: Tensor, queries: Tensor) -> Tensor:
    """``KL(anchor || query)`` in nats, ``[B, n]``, of logarithms of probabilities ``[n, V]`` and ``[B, V]``."""
    probabilities = anchors.exp()
    return (probabilities * anchors).sum(-1) - queries @ probabilities.T


def votes(distances: Tensor, labels: Sequence[int], neighbours: int, classes: int) -> Tensor:
    """Votes ``[B, C]`` of each row's nearest anchors, of equally near ones the first, from distances ``[B, N]``."""
    nearest = distances.argsort(dim=1, stable=True)[:, :neighbours]
    classes_of = torch.tensor(labels, device=distances.device)[nearest]
    return torch.nn.functional.one_hot(classes_of, classes).sum(1).float()
