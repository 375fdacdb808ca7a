"""HiFICL: low-rank virtual keys and values that every head attends to, as it would to demonstrations."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.head_outputs import HeadOutputs, changed_heads
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.distillation import Attempt, Lesson, TrainedOnQueries
from icrbench.toolkit.episodes import Episodes, Questions
from icrbench.util.bounds import Count, NotNegative

INITIAL_KEYS = 0.01  # spread of the entries of the keys' second factor


class HiFICLFitted(Fitted):
    """Virtual keys and values of each head, as products of two factors.

    Attributes:
        config: ``own``, and ``loss``: mean training loss by epoch.
        tensors: ``keys.left`` and ``values.left`` ``[L, H, n, r]``, ``keys.right`` and ``values.right``
            ``[L, H, r, d_k]``.
    """

    formula: ClassVar[str] = "2LH(nr + rd_k)"

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``2LH(nr + rd_k)``, for ``n`` virtual pairs of rank ``r``."""
        pairs, rank = self.tensors["keys.left"].shape[-2:]
        return 2 * dims.layers * dims.heads * (pairs * rank + rank * dims.head_dim)

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Let all heads attend to their virtual pairs, too, at all tokens."""

        def widened(layer: int, heads: HeadOutputs) -> Tensor:
            keys, values = (self._pairs(kind, layer).to(heads.outputs.device) for kind in ("keys", "values"))
            scale = backbone.attention_scale(layer)
            logits = scale * torch.einsum("bthc,hnc->bthn", heads.queries, keys)
            virtual = heads.share(logits.logsumexp(-1))[..., None]
            added = virtual * torch.einsum("bthn,hnc->bthc", logits.softmax(-1), values)
            kept = 1 - virtual if self.config["own"] == "scaled" else 1.0
            return kept * heads.outputs + added

        return changed_heads(backbone, batch, widened)

    def _pairs(self, kind: str, layer: int) -> Tensor:
        """``[H, n, d_k]``."""
        return self.tensors[f"{kind}.left"][layer] @ self.tensors[f"{kind}.right"][layer]


@register("hificl")
@dataclass(frozen=True)
class HiFICL(TrainedOnQueries):
    """HiFICL (arXiv 2603.12760), in a causally correct form; other defaults of the authors' code.

    Every head attends to ``n`` virtual keys and values beside its own, all learned: ``K_D = A_K B_K`` and
    ``V_D = A_V B_V`` of rank ``r``. The virtual keys have no position. Trained by cross-entropy alone: there is no
    teacher and there are no demonstrations.

    Deviations from the authors' code, which was made for vision-language models: the own attention's share of the
    softmax counts the keys that the attention mask shows (the authors count all, later tokens and padding, too, so that
    shares do not add up to one); in this form the method is exactly attention over the text's and the virtual pairs.
    The model's own scale takes the place of ``1 / sqrt(d_k)``. The loss is that of the answer's first token; in the
    authors' code it covers all tokens of prompt and answer.

    Before training it is not the plain model, though the virtual values start at 0: the virtual keys take their share
    from the start. ``own=whole``, a variant in the authors' code, leaves the text's own attention as it is, and starts
    as the plain model. Their variants with full-rank keys or values are ``rank=pairs``, but for the parametrisation.

    The authors' scripts pass 3 epochs, the code's default is 10. Gradients longer than 1 are cut, as their
    configuration has it.

    Attributes:
        pairs: virtual pairs of each head, ``n``.
        rank: of their matrices, ``r``.
        own: whether the virtual pairs' share is taken from the text's own attention (``scaled``) or not (``whole``).
    """

    learning_rate: NotNegative = 0.005
    batch_size: Count = 4
    pairs: Count = 8
    rank: Count = 8
    own: Literal["scaled", "whole"] = "scaled"

    fitted: ClassVar[type[Fitted]] = HiFICLFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> HiFICLFitted:
        """Train the factors."""
        dims = backbone.dims
        left = (dims.layers, dims.heads, self.pairs, self.rank)
        right = (dims.layers, dims.heads, self.rank, dims.head_dim)
        initial = {
            "keys.left": torch.randn(left, generator=rng.torch("keys", "left")),
            "keys.right": INITIAL_KEYS * torch.randn(right, generator=rng.torch("keys", "right")),
            "values.left": torch.randn(left, generator=rng.torch("values", "left")),
            "values.right": torch.zeros(right),
        }
        rates = dict.fromkeys(initial, self.learning_rate)
        asked = Episodes(data, rng, per_class=1, per_task=1).queries(self.queries)
        lessons = [Lesson(question) for question in Questions(backbone).zero_shot(asked)]
        fitted = HiFICLFitted({"own": self.own}, initial)
        return self.train(backbone, fitted, rates, lessons, Attempt.cross_entropy, rng)
