"""Stage 3: training the router; the language model and the sentence encoder stay frozen."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.backbone.trunk import continue_from
from icrbench.toolkit.encoder import Encoder
from icrbench.toolkit.optimisation import Schedule, optimise

from .objective import Weights, terms
from .prior import Priors
from .router import Router
from .routing import Directions, RoutingScale, routed
from .trunkstore import TrunkBatch, TrunkStore


@dataclass(frozen=True)
class Training:
    """How the router is trained (ICR paper, App. B).

    Attributes:
        epochs: passes over the training prompts.
        batch_size: prompts a step.
        learning_rate: of AdamW, constant.
        weight_decay: of AdamW.
        clip: largest norm of the gradient.
        final_scale: the factor on alpha falls from 1 to this along a half cosine, and stays there at inference.
        length_groups: batches within which prompts are sorted by length before batching (1: plain shuffling).
        routing_scale: factor on the low-rank term.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    clip: float
    final_scale: float
    length_groups: int
    routing_scale: RoutingScale


def alpha_scale(progress: float, final: float) -> float:
    """Return the factor on alpha after a share ``progress`` of the training steps."""
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


def train_router(
    backbone: Backbone,
    router: Router,
    directions: Directions,
    store: TrunkStore,
    how: Training,
    weights: Weights,
    encoder: Encoder,
    rng: random.Random,
    priors: Priors | None = None,
) -> list[dict[str, float]]:
    """Train the router in place, and with it those directions that require a gradient.

    Such directions take the same AdamW steps as the router and share its clipping; they are free to leave the
    orthonormal basis they start from.

    Returns:
        Per epoch the mean of each term of the objective.

    Raises:
        UserError: if the objective is not finite.
    """
    trained = [*router.parameters(), *(t for t in (directions.queries, directions.keys) if t.requires_grad)]
    lengths = store.lengths()
    steps = how.epochs * -(-len(lengths) // how.batch_size)
    seen: list[dict[str, float]] = []  # a step's terms, weighted by its share of the epoch

    def loss(rows: list[int]) -> Tensor:
        scale = alpha_scale(len(seen) / max(1, steps - 1), how.final_scale)
        data = store.load(rows)
        logits, alpha, gamma = routed_logits(backbone, router, directions, data, how.routing_scale, encoder, scale)
        prior = None if priors is None else priors.of(rows, logits)
        parts = terms(logits, data.answers, data.entropy, alpha, gamma, weights, prior)
        right = float((logits.argmax(1) == data.answers).float().mean())
        share = len(rows) / len(lengths)
        seen.append({name: value * share for name, value in (parts.values() | {"accuracy": right}).items()})
        return parts.total(weights)

    epochs = (epoch_batches(lengths, how.batch_size, how.length_groups, rng) for _ in repeat(None))
    schedule = Schedule(steps, warmup=0.0, weight_decay=how.weight_decay, clip=how.clip, decay="constant")
    batches = chain.from_iterable(epochs)
    optimise([(trained, how.learning_rate)], loss, batches, schedule, "training the router")
    return _by_epoch(seen, how.epochs)


def _by_epoch(steps: Sequence[dict[str, float]], epochs: int) -> list[dict[str, float]]:
    """Sum what the steps of each epoch add."""
    length = len(steps) // epochs
    parts = (steps[start : start + length] for start in range(0, len(steps), length))
    return [{name: sum(step[name] for step in part) for name in part[0]} for part in parts]


def routed_logits(
    backbone: Backbone,
    router: Router,
    directions: Directions,
    data: TrunkBatch,
    routing_scale: RoutingScale,
    encoder: Encoder,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Next-token logits ``[B, V]`` under the router, with its alpha, before the factor ``scale`` on it, and gamma.

    Differentiable in the router and in the directions.
    """
    embeddings = encoder(data.batch.texts).to(next(router.parameters()).device)
    alpha, gamma = router(embeddings)
    with routed(backbone, directions, alpha * scale, gamma, routing_scale):
        states = continue_from(backbone, directions.layers[0], data.states, data.batch)
    return backbone.logits(data.batch.at_last(states)), alpha, gamma


def epoch_batches(
    lengths: Sequence[int], batch_size: int, length_groups: int, rng: random.Random
) -> Iterator[list[int]]:
    """Shuffled batches of prompt numbers.

    With ``length_groups > 1``, prompts are sorted by length within groups of that many batches, which wastes less on
    padding, and the batches of a group come in random order.
    """
    order = list(range(len(lengths)))
    rng.shuffle(order)
    group = batch_size * length_groups
    for start in range(0, len(order), group):
        rows = order[start : start + group]
        if length_groups > 1:
            rows.sort(key=lambda row: lengths[row])
        batches = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
        if length_groups > 1:
            rng.shuffle(batches)
        yield from batches
