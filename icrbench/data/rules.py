"""The rules by which data is handed out; `icrbench.protocol` applies them."""

from dataclasses import dataclass
from typing import Literal

Protocol = Literal["paper", "in_task"]
PROTOCOLS: tuple[Protocol, ...] = ("paper", "in_task")


@dataclass(frozen=True)
class Rules:
    """How data is handed out.

    Attributes:
        protocol: ``paper`` gives tasks out of domain no labels of their own: what is fitted for them uses the
            in-domain tasks. ``in_task`` gives every task its own train split.
        clean: drop train rows that share texts with any known task's test split.
        limit: test rows a task; None for all.
    """

    protocol: Protocol
    clean: bool
    limit: int | None


def own_rows(protocol: str, role: str) -> bool:
    """Whether anything of the train split of a task of this role may be used for the task itself."""
    return protocol == "in_task" or role == "id"
