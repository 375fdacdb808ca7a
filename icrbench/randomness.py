"""Random streams that depend on a seed and a purpose, never on the order in which they are asked for."""

import hashlib
import random
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Randomness:
    """All randomness of one cell.

    Two purposes give independent streams and the same purpose the same stream, on every machine.
    """

    seed: int

    def number(self, *purpose: str) -> int:
        """A 63-bit integer for a purpose."""
        digest = hashlib.sha256("/".join([str(self.seed), *purpose]).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def python(self, *purpose: str) -> random.Random:
        """A fresh standard-library generator for a purpose."""
        return random.Random(self.number(*purpose))

    def torch(self, *purpose: str) -> torch.Generator:
        """A fresh CPU torch generator for a purpose."""
        return torch.Generator().manual_seed(self.number(*purpose))
