"""Hidden calibration: the class whose mean final state is nearest to the query's."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.class_scores import ClassScores, ScoredByClass


class HiddenCalibrationFitted(ClassScores):
    """A centroid for each class.

    Attributes:
        config: as of `ClassScores`.
        tensors: ``centroids`` ``[C, d]``.
    """

    formula: ClassVar[str] = "Cd (few: + 2MLGd_k)"

    @property
    def vectors(self) -> int:
        """``C``."""
        return len(self.config["classes"])

    def class_scores(self, backbone: Backbone, states: Tensor) -> Tensor:
        """Return the distances to the centroids, negative."""
        centroids = self.tensors["centroids"].to(states.device)
        # Differences, not products: those of long states that are close to each other would cancel.
        distances: Tensor = torch.linalg.vector_norm(states.float()[:, None] - centroids, dim=-1)
        return -distances


@register("hidden_calibration")
@dataclass(frozen=True)
class HiddenCalibration(ScoredByClass):
    """Hidden calibration (Cho et al. 2024, arXiv 2406.16535; code of the authors).

    The final hidden states at the last token of a task's train prompts are averaged for each class. A query's class is
    that of the nearest centroid, by Euclidean distance; the output head is not used.

    Choices of this implementation:
        Demonstrations: the authors put 4 before every prompt, others before each train row. Here there are none by
            default, since nothing else would be implicit; ``shots=few`` shows one draw before train rows and queries
            alike.
        Rows: 16 of each class, as the authors' code takes them on average.
        Multiple choice: classes are the answers' letters.
        Tasks without rows of their own: not applicable.
    """

    fitted: ClassVar[type[Fitted]] = HiddenCalibrationFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> HiddenCalibrationFitted:
        """Average the states of each class."""
        config, states, labels = self.read(backbone, data, rng)
        own = torch.tensor(labels)
        centroids = torch.stack([states[own == number].mean(0) for number in range(len(config["classes"]))])
        return HiddenCalibrationFitted(config, {"centroids": centroids})
