"""M2IV-style vectors: one for each attention and MLP output, distilled from the model with demonstrations."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.sites import Edit, Point, Site
from icrbench.backbone.steering import steered
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.distillation import Attempt, Distilled
from icrbench.util.bounds import NotNegative

BRANCHES: tuple[Point, Point] = ("attention", "mlp")
INITIAL_SPREAD = 0.01  # of the vectors' entries
INITIAL_SCALE = 0.1


class M2IVFitted(Fitted):
    """A vector and its scale for both branches of each block.

    Attributes:
        config: ``loss``: mean training loss by epoch.
        tensors: ``vectors`` ``[L, 2, d]``, ``scales`` ``[L, 2]``; attention, then MLP.
    """

    formula: ClassVar[str] = "2dL + 2L"

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``2dL + 2L``."""
        return 2 * dims.layers * (dims.hidden + 1)

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Add the scaled vectors to what both branches of every block add to the residual stream, at all tokens."""
        vectors, scales = self.tensors["vectors"], self.tensors["scales"]
        edits = {
            Site(branch, layer): _moved(vectors[layer, place], scales[layer, place])
            for layer in range(backbone.dims.layers)
            for place, branch in enumerate(BRANCHES)
        }
        return steered(backbone, batch, edits, "all")


@register("m2iv")
@dataclass(frozen=True)
class M2IV(Distilled):
    """M2IV-style vectors, in our own form: after Li et al. 2025 (arXiv 2504.04633), without code of the authors.

    What the ICR paper and the abstract say of M2IV, and what is kept: a learned vector and a learned weight for
    attention and MLP of every layer, added at inference; trained by imitation of the model with demonstrations
    (mimicry), by cross-entropy (supervised), and by a term that couples both branches (synergistic).

    What no source at hand gives, and is decided here: ``KL(teacher || student)`` at temperature 1 for the imitation,
    0.5 times cross-entropy (as in LIVE), optimiser, sizes and initial values of LIVE, and for the synergistic term one
    like Barlow Twins (arXiv 2103.03230, eq. 1): with ``Z`` a branch's outputs at all tokens of a minibatch but each
    prompt's first, each of the ``d`` columns less its mean and brought to length 1, and ``M = Z_attention' Z_mlp``, the
    sum of ``(1 - M_ii)^2`` plus ``w_apart`` times that of ``M_ij^2``, divided by ``d``, mean over the layers. Not kept:
    queries chosen by clustering, and shuffled copies of the demonstrations.

    Attributes:
        learning_rate_scales: of the weights.
        w_synergy: weight of the synergistic term.
        w_apart: weight of its off-diagonal part; Barlow Twins' value.
    """

    learning_rate_scales: NotNegative = 0.01
    w_synergy: NotNegative = 0.1
    w_apart: NotNegative = 0.005

    fitted: ClassVar[type[Fitted]] = M2IVFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> M2IVFitted:
        """Run the teacher, then train vectors and scales."""
        dims = backbone.dims
        drawn = torch.randn(dims.layers, 2, dims.hidden, generator=rng.torch("vectors"))
        initial = {"vectors": INITIAL_SPREAD * drawn, "scales": torch.full((dims.layers, 2), INITIAL_SCALE)}
        rates = {"vectors": self.learning_rate, "scales": self.learning_rate_scales}
        sites = [Site(branch, layer) for layer in range(dims.layers) for branch in BRANCHES]
        lessons = self.lessons(backbone, data, rng)
        return self.train(
            backbone, M2IVFitted({}, initial), rates, lessons, self.objective, rng, sites if self.w_synergy else ()
        )

    def objective(self, attempt: Attempt) -> Tensor:
        """Compute the loss of a minibatch."""
        loss = attempt.divergence() + self.w_answer * attempt.cross_entropy()
        if not self.w_synergy:
            return loss
        # Without the first token, whose vectors can be hundreds of times as long: columns would be about it alone.
        real = attempt.batch.attention_mask.bool() & (attempt.batch.position_ids > 0)
        terms = []
        for layer in range(attempt.backbone.dims.layers):
            first, second = (attempt.vectors[Site(branch, layer)] for branch in BRANCHES)
            kept = real.to(first.device)
            terms.append(synergy(first[kept].float(), second[kept].float(), self.w_apart).to(loss.device))
        return loss + self.w_synergy * torch.stack(terms).mean()


def synergy(first: Tensor, second: Tensor, w_apart: float) -> Tensor:
    """How far corresponding columns of two matrices ``[N, d]`` are from correlated, and others from uncorrelated.

    ``(sum_i (1 - M_ii)^2 + w_apart * sum_{i != j} M_ij^2) / d`` with ``M`` the correlations of ``first``'s columns with
    ``second``'s: ``first' second`` of columns with mean 0 and length 1.
    """
    first, second = (normalize(values - values.mean(0), dim=0) for values in (first, second))
    rows, columns = first.shape
    # The sum of all M_ij^2: M itself is d x d, the two products that give the same sum are N x N.
    gram = (first @ first.T) * (second @ second.T) if rows < columns else (first.T @ second).square()
    total = gram.sum()
    own = (first * second).sum(0)
    return ((1 - own).square().sum() + w_apart * (total - own.square().sum())) / columns


def _moved(vector: Tensor, scale: Tensor) -> Edit:
    def edit(states: Tensor) -> Tensor:
        return states + scale.to(states.device) * vector.to(states.device)

    return edit
