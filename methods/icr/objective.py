"""The router's training objective (ICR paper, the section on training the router; eq. 11-15 of the version read)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

Penalised = Literal["model", "routed"]
"""The layers that eq. 13 averages over: all of the model, of which those that are not routed add nothing, or the routed
ones. The sparsity weight rises over the same layers."""


@dataclass(frozen=True)
class Weights:
    """Weights of the terms beside cross-entropy.

    Attributes:
        confidence, sparsity, gate: of each term.
        layers: ``[L']`` of each routed layer in the sparsity term (`depth_weights`).
        share: routed layers among those that sparsity and gate are averaged over.
    """

    confidence: float
    sparsity: float
    gate: float
    layers: tuple[float, ...]
    share: float


@dataclass(frozen=True)
class Terms:
    """The four terms, each a scalar."""

    cross_entropy: Tensor
    confidence: Tensor
    sparsity: Tensor
    gate: Tensor

    def values(self) -> dict[str, float]:
        """Return the terms as numbers, by name."""
        return {item.name: float(getattr(self, item.name).detach()) for item in fields(self)}

    def total(self, weights: Weights) -> Tensor:
        """Return the weighted sum of the terms."""
        return (
            self.cross_entropy
            + weights.confidence * self.confidence
            + weights.sparsity * self.sparsity
            + weights.gate * self.gate
        )


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of the softmax over the last dimension, ``[B, V]`` to ``[B]``."""
    log_p = log_softmax(logits, dim=-1)
    return -(log_p.exp() * log_p).sum(-1)


def depth_weights(routed: Sequence[int], layers: int, deepest: float, over: Penalised) -> tuple[float, ...]:
    """Sparsity weights ``[L']``, rising linearly from 1 at the first layer to ``deepest`` at the last.

    The paper gives the end, 3.0, not the start. A single layer is the deepest.

    Args:
        routed: 0-based numbers of the routed layers, rising.
        layers: of the model.
        deepest: weight of the last layer.
        over: whether first and last are the model's or the routed ones.
    """
    first, last = (0, layers - 1) if over == "model" else (routed[0], routed[-1])
    if first == last:
        return (deepest,)
    return tuple(1 + (deepest - 1) * (layer - first) / (last - first) for layer in routed)


def terms(
    logits: Tensor,
    answers: Tensor,
    zero_shot_entropy: Tensor,
    alpha: Tensor,
    gamma: Tensor,
    weights: Weights,
    prior: Tensor | None = None,
) -> Terms:
    """Return the terms of the objective for a batch.

    Args:
        logits: ``[B, V]`` at the answer position, over the whole vocabulary.
        answers: ``[B]`` first token of the right answer.
        zero_shot_entropy: ``[B]`` entropy of the unrouted model at the same place.
        alpha: ``[B, L', r]`` direction weights as the router gives them, before their schedule.
        gamma: ``[B, L', H]`` head gates.
        weights: of layers; of whole terms in `Terms.total`.
        prior: ``[B, V]`` to take off the logits before the cross-entropy, for training on calibrated answers.
    """
    depth = torch.tensor(weights.layers, dtype=alpha.dtype, device=alpha.device)
    return Terms(
        cross_entropy=cross_entropy(logits if prior is None else logits - prior, answers),
        confidence=torch.relu(entropy(logits) - zero_shot_entropy).mean(),
        sparsity=weights.share * (depth * alpha.abs().mean(2)).mean(),
        gate=weights.share * gamma.abs().mean(),
    )
