"""Random streams that depend on a seed and a purpose, never on the order in which they are asked for."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

Shown = TypeVar("Shown")


@dataclass(frozen=True)
class Randomness:
    """All randomness of one cell.

    Two purposes give independent streams and the same purpose the same stream, on every machine.

    Attributes:
        seed: the cell's.
        draw: which draw of demonstrations; nothing else depends on it.
        order: which order of the demonstrations that were drawn; 0 is that of the draw.
    """

    seed: int
    draw: int = 0
    order: int = 0

    def number(self, *purpose: str) -> int:
        """Return a 63-bit integer for a purpose."""
        digest = hashlib.sha256("/".join([str(self.seed), *purpose]).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def python(self, *purpose: str) -> random.Random:
        """Make a fresh standard-library generator for a purpose."""
        return random.Random(self.number(*purpose))

    def torch(self, *purpose: str) -> torch.Generator:
        """Make a fresh CPU torch generator for a purpose."""
        return torch.Generator().manual_seed(self.number(*purpose))

    def demonstrations(self, *purpose: str) -> random.Random:
        """Return a fresh generator to draw demonstrations with, another one for every ``draw``."""
        return self.python(*purpose, *([f"draw {self.draw}"] if self.draw else []))

    def ordered(self, demonstrations: Sequence[Shown]) -> list[Shown]:
        """Return the demonstrations in the cell's order: the same permutation of any as many."""
        if not self.order:
            return list(demonstrations)
        return self.python("order", str(self.order)).sample(list(demonstrations), len(demonstrations))
