"""MimIC: each head moves by a learned vector, by as much as it would attend to demonstrations."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.head_outputs import HeadOutputs, changed_heads
from icrbench.backbone.sites import Site
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.distillation import Attempt, Distilled
from icrbench.util.bounds import Count, NotNegative

INITIAL_SHIFT = 0.001  # spread of the vectors' entries
INITIAL_PROBE = 0.02  # spread of the probes' entries


class MimICFitted(Fitted):
    """A shift for each head, and how far each token goes along it.

    Attributes:
        config: ``loss``: mean training loss by epoch.
        tensors: ``shifts`` and ``probes`` ``[L, H, d_k]``, ``biases`` ``[L, H]``.
    """

    formula: ClassVar[str] = "2LHd_k + LH"

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``2LHd_k + LH``."""
        return dims.layers * dims.heads * (2 * dims.head_dim + 1)

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Shift the outputs of all heads at all tokens."""
        shifts, probes, biases = (self.tensors[name] for name in ("shifts", "probes", "biases"))

        def shifted(layer: int, heads: HeadOutputs) -> Tensor:
            shift, probe, bias = (values[layer].to(heads.outputs.device) for values in (shifts, probes, biases))
            share = heads.share(torch.einsum("bthc,hc->bth", heads.queries, probe) + bias)
            return heads.outputs + share[..., None] * shift

        return changed_heads(backbone, batch, shifted)


@register("mimic")
@dataclass(frozen=True)
class MimIC(Distilled):
    """MimIC (Jiang et al. 2025), in a causally correct form for text; other defaults of the authors' code.

    With demonstrations before it, a head puts out ``A + mu * (A_D - A)``: its own attention ``A``, attention ``A_D`` to
    the demonstrations, and their share ``mu = Z_D / (Z_D + Z)`` of the softmax. MimIC learns one vector for
    ``A_D - A`` and a linear function of the rotated query, ``w q + b``, for ``log Z_D``. Trained by the mean squared
    difference of all MLP outputs from those of the model with demonstrations, plus 0.5 times cross-entropy. The squared
    difference of a query is the mean over its tokens, and the mean of that over queries is taken.

    Deviations from the authors' code, which was made for vision-language models:

    - ``Z`` is what the attention itself divides by: its keys are the ones that the attention mask shows. In the
      authors' code no mask is applied, so that later tokens and padding enter ``mu``, and a prompt is treated
      otherwise than the same tokens decoded one by one.
    - The squared difference runs over the query's tokens, never over a prompt's first: the authors leave out the
      beginning-of-sequence token; a model that has none attends to its first word in its place, whose vectors are as
      long. The answer is not appended.
    - Cross-entropy is that of the answer's first token, at the prompt's last token. In the authors' code it covers all
      tokens of prompt and answer, and that prediction is made from a padding token between the two.
    - The teacher sees ``per_class`` demonstrations of every class from the whole train split, as the few-shot baseline
      does; the authors' sees 16 or 32 random ones of the same ``N`` queries that it trains on.
    - "MLP output" is, in families that norm it on its way to the residual stream (Gemma 3), the normed one.
    - The small weight decay acts on ``b``, too.

    The authors' number of epochs depends on model and number of queries: 15, 10 or 5.

    Attributes:
        w_distance: weight of the squared difference.
    """

    learning_rate: NotNegative = 0.005
    batch_size: Count = 4
    w_distance: NotNegative = 1.0

    fitted: ClassVar[type[Fitted]] = MimICFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> MimICFitted:
        """Run the teacher, then train shifts, probes and biases."""
        dims = backbone.dims
        size = (dims.layers, dims.heads, dims.head_dim)
        initial = {
            "shifts": INITIAL_SHIFT * torch.randn(size, generator=rng.torch("shifts")),
            "probes": INITIAL_PROBE * torch.randn(size, generator=rng.torch("probes")),
            "biases": torch.zeros(size[:2]),
        }
        rates: Mapping[str, float] = dict.fromkeys(initial, self.learning_rate)
        sites = [Site("mlp", layer) for layer in range(dims.layers)]
        lessons = self.lessons(backbone, data, rng, sites)
        return self.train(backbone, MimICFitted({}, initial), rates, lessons, self.objective, rng, sites)

    def objective(self, attempt: Attempt) -> Tensor:
        """Compute the loss of a minibatch."""
        return self.w_distance * attempt.distance() + self.w_answer * attempt.cross_entropy()
