"""Stage 3: training the router; the language model and the sentence encoder stay frozen."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.backbone.trunk import continue_from
from icrbench.toolkit.encoder import sentence_encoder
from icrbench.util.progress import bar

from .objective import Weights, terms
from .router import Router
from .routing import Directions, RoutingScale, routed
from .trunkstore import TrunkBatch, TrunkStore


@dataclass(frozen=True)
class Schedule:
    """How the router is trained (ICR paper, App. B).

    Attributes:
        epochs: passes over the training prompts.
        batch_size: prompts a step.
        learning_rate: of AdamW.
        clip: largest norm of the gradient.
        final_scale: the factor on alpha falls from 1 to this along a half cosine, and stays there at inference.
        length_groups: batches within which prompts are sorted by length before batching (1: plain shuffling).
    """

    epochs: int
    batch_size: int
    learning_rate: float
    clip: float
    final_scale: float
    length_groups: int


def alpha_scale(progress: float, final: float) -> float:
    """The factor on alpha after a share ``progress`` of the training steps."""
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))


def train_router(
    backbone: Backbone,
    router: Router,
    directions: Directions,
    store: TrunkStore,
    schedule: Schedule,
    weights: Weights,
    routing_scale: RoutingScale,
    encoder: str,
    rng: random.Random,
) -> list[dict[str, float]]:
    """Train the router in place, and with it those directions that require a gradient.

    Such directions take the same AdamW steps as the router and share its clipping; they are free to leave the
    orthonormal basis they start from.

    Returns:
        Per epoch the mean of each term of the objective.
    """
    trained = [*router.parameters(), *(t for t in (directions.queries, directions.keys) if t.requires_grad)]
    optimizer = torch.optim.AdamW(trained, lr=schedule.learning_rate)
    lengths = store.lengths()
    steps_per_epoch = -(-len(lengths) // schedule.batch_size)
    total = steps_per_epoch * schedule.epochs
    history: list[dict[str, float]] = []
    step = 0
    with bar("training the router", total) as progress:
        for _ in range(schedule.epochs):
            sums = dict.fromkeys(("cross_entropy", "confidence", "sparsity", "gate", "accuracy"), 0.0)
            for rows in epoch_batches(lengths, schedule.batch_size, schedule.length_groups, rng):
                scale = alpha_scale(step / max(1, total - 1), schedule.final_scale)
                data = store.load(rows)
                logits, alpha, gamma = routed_logits(backbone, router, directions, data, routing_scale, encoder, scale)
                parts = terms(logits, data.answers, data.entropy, alpha, gamma, weights.deepest)
                optimizer.zero_grad()
                parts.total(weights).backward()
                torch.nn.utils.clip_grad_norm_(trained, schedule.clip)
                optimizer.step()
                share = len(rows) / len(lengths)
                for name in ("cross_entropy", "confidence", "sparsity", "gate"):
                    sums[name] += float(getattr(parts, name).detach()) * share
                sums["accuracy"] += float((logits.argmax(1) == data.answers).float().mean()) * share
                step += 1
                progress.update()
                progress.set_postfix(loss=f"{float(parts.cross_entropy.detach()):.2f}")
            history.append(sums)
    return history


def routed_logits(
    backbone: Backbone,
    router: Router,
    directions: Directions,
    data: TrunkBatch,
    routing_scale: RoutingScale,
    encoder: str,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Next-token logits ``[B, V]`` under the router, with its alpha and gamma.

    Differentiable in the router and in the directions.
    """
    embeddings = sentence_encoder(encoder)(data.batch.texts).to(next(router.parameters()).device)
    alpha, gamma = router(embeddings)
    alpha = alpha * scale
    with routed(backbone, directions, alpha, gamma, routing_scale):
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
