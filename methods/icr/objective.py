"""The router's training objective (ICR paper, Sec. 2.5, eq. 11-15)."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax


@dataclass(frozen=True)
class Weights:
    """Weights of the terms beside cross-entropy, and how the sparsity weight rises with depth."""

    confidence: float
    sparsity: float
    gate: float
    deepest: float


@dataclass(frozen=True)
class Terms:
    """The four terms, each a scalar."""

    cross_entropy: Tensor
    confidence: Tensor
    sparsity: Tensor
    gate: Tensor

    def values(self) -> dict[str, float]:
        """The terms as numbers, by name."""
        return {item.name: float(getattr(self, item.name).detach()) for item in fields(self)}

    def total(self, weights: Weights) -> Tensor:
        """The weighted sum."""
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


def terms(
    logits: Tensor, answers: Tensor, zero_shot_entropy: Tensor, alpha: Tensor, gamma: Tensor, deepest: float
) -> Terms:
    """The terms of the objective for a batch.

    Args:
        logits: ``[B, V]`` at the answer position, over the whole vocabulary.
        answers: ``[B]`` first token of the right answer.
        zero_shot_entropy: ``[B]`` entropy of the unrouted model at the same place.
        alpha: ``[B, L', r]`` direction weights.
        gamma: ``[B, L', H]`` head gates.
        deepest: sparsity weight of the last layer; that of the first is 1 and the rise is linear (the paper gives the
            end, 3.0, not the start).
    """
    depth = torch.linspace(1.0, deepest, alpha.shape[1], device=alpha.device)
    return Terms(
        cross_entropy=cross_entropy(logits, answers),
        confidence=torch.relu(entropy(logits) - zero_shot_entropy).mean(),
        sparsity=(depth * alpha.abs().mean(2)).mean(),
        gate=gamma.abs().mean(),
    )
