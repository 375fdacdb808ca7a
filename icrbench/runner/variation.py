"""What may be varied of a cell to see how far its result depends on it; one respect at a time, numbered from 1."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from icrbench.data.task import Task
from icrbench.data.templates import templates
from icrbench.experiments import WAYS, Vary
from icrbench.method import Pool
from icrbench.randomness import Randomness

_WORDS: dict[Vary, str] = {
    "templates": "template",
    "templates-refit": "refit-template",
    "orders": "order",
    "demonstrations": "draw",
}


@dataclass(frozen=True)
class Variation:
    """One way to have a cell.

    Attributes:
        vary: ``templates`` scores a plain fit under another template, ``templates-refit`` also fits under it;
            ``orders`` permutes every draw of demonstrations that a fit makes, ``demonstrations`` draws others.
            None for the plain way.
        number: 0 for the plain way.
    """

    vary: Vary | None = None
    number: int = 0

    def __str__(self) -> str:
        return f"@{_WORDS[self.vary]}={self.number}" if self.vary is not None else ""

    @property
    def without_fit(self) -> "Variation | None":
        """The same for a method without a fit; None where nothing is left that changes."""
        if self.vary == "templates-refit":
            return replace(self, vary="templates")
        return self if self.vary in (None, "templates") else None

    @property
    def of_fit(self) -> "Variation":
        """The same for all variations that share one fit."""
        return PLAIN if self.vary == "templates" else self

    def task(self, task: Task) -> Task:
        """Return the task as it is scored."""
        return templates(task)[self.number] if self.vary in ("templates", "templates-refit") else task

    def pools(self, pools: Mapping[str, Pool]) -> dict[str, Pool]:
        """Return the train pools as a fit sees them."""
        if self.vary != "templates-refit":
            return dict(pools)
        return {name: replace(pool, task=self.task(pool.task)) for name, pool in pools.items()}

    def randomness(self, seed: int) -> Randomness:
        """Return the randomness of a fit."""
        return Randomness(
            seed,
            draw=self.number if self.vary == "demonstrations" else 0,
            order=self.number if self.vary == "orders" else 0,
        )

    def of_demonstrations(self) -> dict[str, Any]:
        """Return what a cell's identity says of its demonstrations; nothing where they are the plain ones."""
        if self.vary not in ("orders", "demonstrations"):
            return {}
        return {"demonstrations": {_WORDS[self.vary]: self.number}}


PLAIN = Variation()


def variations(vary: Vary) -> list[Variation]:
    """All ways but the plain one."""
    return [Variation(vary, number) for number in range(1, WAYS[vary])]
