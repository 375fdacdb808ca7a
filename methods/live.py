"""LIVE: a vector a layer, trained to turn what the layer computes in the direction in which demonstrations would."""

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
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.distillation import Attempt, Distilled
from icrbench.util.bounds import NotNegative

INITIAL_SPREAD = 0.01  # of the vectors' entries
INITIAL_SCALE = 0.1


class LIVEFitted(Fitted):
    """A vector and its scale for each block.

    Attributes:
        config: ``point``, where they are added; ``loss``: mean training loss by epoch.
        tensors: ``vectors`` ``[L, d]``, ``scales`` ``[L]``.
    """

    formula: ClassVar[str] = "dL + L"

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``dL + L``."""
        return dims.hidden * dims.layers + dims.layers

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Turn the vectors of every block at all tokens."""
        edits: Mapping[Site, Edit] = {
            Site(self.config["point"], layer): _turned(vector, scale)
            for layer, (vector, scale) in enumerate(zip(self.tensors["vectors"], self.tensors["scales"], strict=True))
        }
        return steered(backbone, batch, edits, "all")


@register("live")
@dataclass(frozen=True)
class LIVE(Distilled):
    """LIVE, learnable in-context vectors (Peng et al. 2024; defaults of the authors' code for VQAv2).

    At every token and block, ``h`` becomes ``(h + scale * vector)``, brought back to the length of ``h``. Trained by
    ``KL(teacher || student) + 0.5 * cross-entropy``, the teacher being the model with demonstrations.

    The method was made for vision-language models; what had to be decided for text:

    - Where to add: the authors' code does it at the block's output or at the MLP's, depending on the model; later
      re-implementations at the MLP's; the ICR paper, the one with numbers for text, describes the attention's.
      ``attention`` is the default here, ``mlp`` the reference code's.
    - The loss: at the one position where the answer's first token is predicted. The authors' KL starts one position
      later, and so leaves out the only prediction that a one-token label has; their cross-entropy runs over all tokens
      of the question, too.
    - Demonstrations: as many as the few-shot baseline shows, balanced over the classes; the authors show 32, or 1,
      drawn at random. As in their code they are drawn anew for every step.
    - Size: 1000 queries by 8 for 10 epochs are the 1250 steps that the authors make with 8000 by 64.
    - Their search is not known to have a grid, so there is none.

    Attributes:
        point: the output that is turned: of attention, MLP or block.
        learning_rate_scales: of the scales.
    """

    point: Literal["attention", "mlp", "block"] = "attention"
    learning_rate_scales: NotNegative = 0.01

    fitted: ClassVar[type[Fitted]] = LIVEFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> LIVEFitted:
        """Run the teacher, then train vectors and scales."""
        dims = backbone.dims
        drawn = torch.randn(dims.layers, dims.hidden, generator=rng.torch("vectors"))
        initial = {"vectors": INITIAL_SPREAD * drawn, "scales": torch.full((dims.layers,), INITIAL_SCALE)}
        rates = {"vectors": self.learning_rate, "scales": self.learning_rate_scales}
        lessons = self.lessons(backbone, data, rng)
        return self.train(backbone, LIVEFitted({"point": self.point}, initial), rates, lessons, self.objective, rng)

    def objective(self, attempt: Attempt) -> Tensor:
        """Compute the loss of a minibatch."""
        return attempt.divergence() + self.w_answer * attempt.cross_entropy()


def _turned(vector: Tensor, scale: Tensor) -> Edit:
    def edit(states: Tensor) -> Tensor:
        moved = states + scale.to(states.device) * vector.to(states.device)
        # One quotient of lengths: it is exactly 1 where nothing is moved.
        before, after = torch.linalg.vector_norm(states, dim=-1), torch.linalg.vector_norm(moved, dim=-1)
        turned: Tensor = moved * (before / after.clamp(min=torch.finfo(states.dtype).tiny))[..., None]
        return turned

    return edit
