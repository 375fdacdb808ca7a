"""Gradient training of a method's few parameters through the frozen model."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from icrbench.util.errors import UserError
from icrbench.util.progress import bar

Item = TypeVar("Item")

Decay = Literal["cosine", "whole_cosine", "linear", "constant"]
"""What the learning rate does after its warm-up: half a cosine to zero, a straight line to zero, or nothing.

``whole_cosine`` counts the half cosine from the first step, so that the rate drops a little where the warm-up ends.
"""


@dataclass(frozen=True)
class Schedule:
    """AdamW with linear warm-up.

    Attributes:
        steps: optimiser steps.
        warmup: share of the steps in which the learning rate rises from 0.
        weight_decay: of AdamW.
        clip: largest norm of the gradient over all parameters; None for no limit.
        decay: the learning rate after the warm-up.
    """

    steps: int
    warmup: float = 0.1
    weight_decay: float = 1e-3
    clip: float | None = 1.0
    decay: Decay = "cosine"

    def factor(self, step: int) -> float:
        """Return the factor on the learning rate at a step, counted from 0."""
        rising = self.warmup * self.steps
        if step < rising:
            return step / rising
        if self.decay == "whole_cosine":
            return 1.0 if step == rising > 0 else 0.5 * (1 + math.cos(math.pi * step / self.steps))
        done = (step - rising) / max(1.0, self.steps - rising)
        return {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}[self.decay]


def optimise(
    groups: Sequence[tuple[Sequence[Tensor], float]],
    loss: Callable[[Item], Tensor],
    items: Iterator[Item],
    schedule: Schedule,
    description: str,
) -> list[float]:
    """Train parameters in place.

    Args:
        groups: parameters with their learning rate.
        loss: of one item; an item is a minibatch.
        items: one a step.
        schedule: how.
        description: for the progress bar.

    Returns:
        The loss of every step.

    Raises:
        UserError: if a loss is not finite.
    """
    parameters = [parameter for own, _ in groups for parameter in own]
    for parameter in parameters:
        parameter.requires_grad_(True)
    options: list[dict[str, Any]] = [{"params": list(own), "lr": rate} for own, rate in groups]
    optimizer = torch.optim.AdamW(options, weight_decay=schedule.weight_decay)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.factor)
    history: list[float] = []
    with bar(description, schedule.steps) as progress, torch.enable_grad():
        for _ in range(schedule.steps):
            value = loss(next(items))
            if not value.isfinite():
                way = "lower the learning rate" if history else "nothing is trained yet, so try --dtype float32"
                raise UserError(f"{description}: the loss is not finite at step {len(history) + 1}: {way}.")
            optimizer.zero_grad()
            value.backward()
            if schedule.clip is not None:
                torch.nn.utils.clip_grad_norm_(parameters, schedule.clip)
            optimizer.step()
            rates.step()
            history.append(float(value.detach()))
            progress.set_postfix(loss=f"{history[-1]:.2f}")
            progress.update(1)
    for parameter in parameters:
        parameter.requires_grad_(False)
    return history


def epoch_means(history: Sequence[float], steps: int) -> list[float]:
    """Return the mean loss of each epoch of some steps."""
    epochs = [history[start : start + steps] for start in range(0, len(history), steps)]
    return [sum(losses) / len(losses) for losses in epochs]
