"""Which results are to be had, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass

from icrbench.method import Method


@dataclass(frozen=True)
class LabelledMethod:
    """A method and how the user wrote it, which is its name in tables."""

    label: str
    method: Method


@dataclass(frozen=True)
class Cell:
    """One result to be had."""

    method: LabelledMethod
    task: str
    seed: int | None

    def __str__(self) -> str:
        return f"{self.method.label} {self.task}" + ("" if self.seed is None else f" seed {self.seed}")


def cells(methods: Sequence[LabelledMethod], tasks: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """The cells of one model in working order: what is fitted once stays together.

    A method without randomness has one cell a task, whatever the seeds.
    """
    return [
        Cell(method, task, seed)
        for method in methods
        for seed in (seeds if method.method.seeded else [None])
        for task in tasks
    ]
