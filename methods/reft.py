"""LoReFT: a low-rank edit of the residual stream after every block, at some tokens of the prompt."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.positions import Ends, Where
from icrbench.backbone.sites import Edit, Site
from icrbench.backbone.steering import steered
from icrbench.method import FitData, Fitted, register
from icrbench.randomness import Randomness
from icrbench.toolkit.answer_training import fixed_minibatches, train_on_answers
from icrbench.toolkit.distillation import COST_OF_TRAINING, TrainedOnDemonstrations
from icrbench.toolkit.episodes import Episodes, Questions, demonstration_tokens
from icrbench.toolkit.optimisation import Decay
from icrbench.util.bounds import Count, NotNegative, Share

Positions = Literal["l1", "f1+l1", "f7+l7"]

WHERE: Mapping[str, Where | Ends] = {"l1": "last", "f1+l1": Ends(1, 1), "f7+l7": Ends(7, 7)}


class ReFTFitted(Fitted):
    """A rotation, a map and a bias for each block.

    Attributes:
        config: ``positions``, and ``loss``: mean training loss by epoch.
        tensors: ``rotation`` ``[L, d, r]``, whose orthonormal columns (`orthonormal`) are the rows of ``R``; ``weight``
            ``[L, r, d]``, ``W``; ``bias`` ``[L, r]``, ``b``.
    """

    formula: ClassVar[str] = "L(2rd + r)"

    @property
    def last_token_only(self) -> bool:  # type: ignore[override]  # here it depends on a hyperparameter
        """Where the last token alone is edited."""
        return bool(self.config["positions"] == "l1")

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``L(2rd + r)``."""
        rank = self.tensors["rotation"].shape[2]
        return dims.layers * (2 * rank * dims.hidden + rank)

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Make ``h + R'(Wh + b - Rh)`` of the states after every block at the tokens meant."""
        rotation = orthonormal(self.tensors["rotation"].to(backbone.device))

        def edit(layer: int) -> Edit:
            def change(states: Tensor) -> Tensor:
                own = rotation[layer].to(states.device)
                weight, bias = (self.tensors[name][layer].to(states.device) for name in ("weight", "bias"))
                added: Tensor = (states @ (weight.T - own) + bias) @ own.T
                return states + added

            return change

        edits = {Site("block", layer): edit(layer) for layer in range(len(rotation))}
        return steered(backbone, batch, edits, WHERE[self.config["positions"]])


def orthonormal(free: Tensor) -> Tensor:
    """Orthonormal columns ``[L, d, r]`` of any matrices of full rank, which orthonormal ones keep.

    The signs of a QR decomposition are free; here the triangle's diagonal is positive, so that a stored rotation is the
    same wherever it is read.
    """
    columns: Tensor
    columns, triangle = torch.linalg.qr(free)
    signs = torch.where(triangle.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    return columns * signs[..., None, :]


@register("reft")
@dataclass(frozen=True)
class ReFT(TrainedOnDemonstrations):
    """LoReFT (Wu et al. 2024, arXiv 2404.03592; sizes of their commonsense runs with LLaMA).

    The state ``h`` after every block becomes ``h + R'(Wh + b - Rh)``: in the ``r`` directions that the orthonormal rows
    of ``R`` span it takes the value ``Wh + b``; the rest stays. That happens at the prompt's first and last tokens with
    the same parameters (the authors' "tied"), never in what follows it. Trained by the cross-entropy of the answer's
    first token.

    As in the authors' code, ``W`` and ``b`` start as a linear layer of torch does, uniform within ``1 / sqrt(d)``, so
    training does not start at the plain model; the first tokens include a beginning-of-sequence token; and of a prompt
    of ``T`` tokens at most ``T // 2`` are first and as many last.

    That start is far from the plain model where a few directions hold much of the state (a loss of 40 on gemma-270m
    at rank 4), and few steps on few rows do not lead back. ``start=plain`` is the plain model: ``W = R``, ``b = 0``.

    Choices of this implementation: the rows are as many as few-shot shows, where the authors train on a hundred
    thousand, so there are 20 epochs for their 6; every row of a minibatch keeps its company in all epochs. ``R`` is
    what the QR decomposition makes of a free matrix. The authors search learning rates up to 5e-3; their example script
    edits four blocks, here all are edited.

    Attributes:
        positions: edited tokens: ``f7+l7``, the first and last seven; ``f1+l1``; or ``l1``, the last alone, which costs
            a token a prompt and step.
        rank: ``r``.
        start: of ``W`` and ``b``: ``random``, as the authors', or at the ``plain`` model.
    """

    learning_rate: NotNegative = 0.0009
    weight_decay: NotNegative = 0.0
    batch_size: Count = 32
    epochs: Count = 20
    warmup: Share = 0.1
    decay: Decay = "linear"
    positions: Positions = "f7+l7"
    rank: Count = 8
    start: Literal["random", "plain"] = "random"

    fitted: ClassVar[type[Fitted]] = ReFTFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> ReFTFitted:
        """Train the edits."""
        shown = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task).demonstrations()
        initial = self._initial(backbone, rng)
        own = fixed_minibatches(
            backbone,
            Questions(backbone).zero_shot(shown),
            self.batch_size,
            rng,
            last_token_only=initial.last_token_only,
        )
        rates = dict.fromkeys(initial.tensors, self.learning_rate)
        return train_on_answers(backbone, initial, rates, own, self.schedule(len(own)), rng, f"training {self.name}")

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Return the rows, forward and backward, every epoch: their last tokens alone, where nothing else is edited."""
        if self.positions != "l1":
            return super().fit_tokens(tokens, classes)
        shown = demonstration_tokens(self.per_class, self.per_task, tokens, classes)
        return shown + COST_OF_TRAINING * self.asked(shown * len(tokens) / sum(tokens.values()))

    def _initial(self, backbone: Backbone, rng: Randomness) -> ReFTFitted:
        layers, hidden = backbone.dims.layers, backbone.dims.hidden
        within = hidden**-0.5

        def uniform(*shape: int, purpose: str) -> Tensor:
            return torch.empty(shape).uniform_(-within, within, generator=rng.torch(purpose))

        rotation = orthonormal(torch.randn(layers, hidden, self.rank, generator=rng.torch("rotation")))
        plain = self.start == "plain"
        return ReFTFitted(
            {"positions": self.positions},
            {
                "rotation": rotation,
                "weight": rotation.transpose(1, 2).contiguous()
                if plain
                else uniform(layers, self.rank, hidden, purpose="weight"),
                "bias": torch.zeros(layers, self.rank) if plain else uniform(layers, self.rank, purpose="bias"),
            },
        )
