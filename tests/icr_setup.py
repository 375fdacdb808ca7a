"""What the tests of ICR share: small pools of demonstration rows, random directions and strengths, a toy encoder."""

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.data.find_tasks import load_tasks
from icrbench.data.sources import Demo, load
from icrbench.data.task import Example
from icrbench.method import Pool
from icrbench.methods.icr.directions import random_directions
from icrbench.methods.icr.layers import target_layers
from icrbench.methods.icr.routing import Directions
from icrbench.toolkit.episodes import Labelled, Question, Questions


@cache
def demo_pool(name: str, rows: int | None = None) -> Pool:
    """A built-in task's bundled train rows."""
    train = load(load_tasks()[name], Demo()).train[:rows]
    content = "\n".join(f"{row.content_hash} {row.label}" for row in train)
    return Pool(load_tasks()[name], train, hashlib.sha256(content.encode()).hexdigest()[:16])


def pools(*names: str, rows: int | None = None) -> dict[str, Pool]:
    return {name: demo_pool(name, rows) for name in names}


def demo_test(name: str) -> tuple[Example, ...]:
    return load(load_tasks()[name], Demo()).test


def training_prompts(backbone: Backbone, name: str, count: int) -> list[Question]:
    pool = demo_pool(name)
    return Questions(backbone).zero_shot(Labelled(pool.task, row) for row in pool.train[:count])


def some_directions(
    backbone: Backbone, rank: int = 3, layers: list[int] | None = None, position: Any = "pre_rope"
) -> Directions:
    """Random orthonormal directions for the late blocks."""
    layers = target_layers("late", backbone.dims.layers) if layers is None else layers
    dims, generator = backbone.dims, torch.Generator().manual_seed(3)
    queries, keys = (
        torch.stack([random_directions(heads * dims.head_dim, rank, generator) for _ in layers])
        for heads in (dims.heads, dims.kv_heads)
    )
    return Directions(layers, queries, keys, position)


def some_strengths(backbone: Backbone, directions: Directions, rows: int) -> tuple[Tensor, Tensor]:
    """Alpha in (-0.5, 0.5) and gamma in (0, 1), different in every row, layer, direction and head."""
    generator = torch.Generator().manual_seed(4)
    layers, rank = len(directions.layers), directions.queries.shape[2]
    alpha = torch.rand(rows, layers, rank, generator=generator) - 0.5
    return alpha, torch.rand(rows, layers, backbone.dims.heads, generator=generator)


def some_batch(lengths: Sequence[int] = (40, 23, 9), padding: Any = "right", seed: int = 5) -> Batch:
    """Random byte tokens; long enough to leave the tiny models' windows (16 and 24 tokens)."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in lengths]
    return make_batch(rows, [f"text {row}" for row in range(len(rows))], padding=padding)


class ToyEncoder:
    """Texts to fixed pseudo-random unit-scale vectors."""

    width = 12

    def __call__(self, texts: Sequence[str]) -> Tensor:
        seeds = [int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) for text in texts]
        return torch.stack([torch.randn(self.width, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
