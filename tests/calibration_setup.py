"""Synthetic cells with logits and priors of their own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from icrbench.store.priors import write_priors
from icrbench.store.store import Store
from records import TASKS, record

Floats = npt.NDArray[np.float64]


def cell(
    store: Store,
    task: str,
    label: str,
    seed: int | None,
    gold: Sequence[int],
    logits: Sequence[Sequence[float]],
    priors: Mapping[str, Sequence[Sequence[float]]] | None = None,
    **more: Any,
) -> str:
    """Write one cell, and its priors where there are some; returns its key."""
    predicted = [max(range(len(own)), key=own.__getitem__) for own in logits]
    correct = [own == right for own, right in zip(predicted, gold, strict=True)]
    # in_task: under paper a task out of domain has no inputs to take a prior from
    made = record(task, label, seed, correct, **{"protocol": "in_task", **more})
    rows = [
        {
            "example_id": f"{task}/test/{number}",
            "content_hash": f"{number:x}",
            "gold": right,
            "prediction": own,
            "correct": own == right,
            "option_logits": list(values),
            "prompt_tokens": 5,
            "truncated": False,
        }
        for number, (right, own, values) in enumerate(zip(gold, predicted, logits, strict=True))
    ]
    store.write(made, rows)
    if priors is not None:
        write_priors(store.folder, made["key"], priors_of(priors))
    return made["key"]


def priors_of(by_kind: Mapping[str, Sequence[Sequence[float]]]) -> Any:
    """Priors of a task with one set of options."""
    return {
        "prompts": {
            kind: [{"options": list("abcdef"[: len(logits[0])]), "ids": [], "logits": [list(own) for own in logits]}]
            for kind, logits in by_kind.items()
        },
        "inputs": None,
        "overlap": 0,
        "seconds": 0.1,
        "command": "icrbench run",
    }


def answers(seed: int, n: int, bias: float, signal: float) -> tuple[list[int], list[list[float]]]:
    """Gold answers of two options, and logits that lean to the first by ``bias``."""
    rng = np.random.default_rng(seed)
    gold = np.arange(n) % 2
    logits = rng.normal(0, 1, (n, 2))
    logits[np.arange(n), gold] += signal
    logits[:, 0] += bias
    return gold.tolist(), logits.tolist()


def fill(store: Store, label: str, seed: int | None, bias: float, signal: float, **more: Any) -> None:
    """Cells of all tasks, whose priors of every kind are their bias."""
    for place, task in enumerate(TASKS):
        gold, logits = answers(place, 60, bias, signal)
        prior = [[bias, 0.0]]
        cell(store, task, label, seed, gold, logits, {"cc": prior, "dc": prior, "bc": prior}, **more)
