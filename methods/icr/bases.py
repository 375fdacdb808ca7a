"""Stage 1: query and key vectors of in-context prompts, kept on disk.

One file a domain, half precision, written batch by batch and memory-mapped when read, all layers: rank, centring,
random-basis, layer and domain-subset variants derive their directions from it without running the model again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import normalize

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.attention import Position, queries_and_keys
from icrbench.backbone.prefix import expanded, prefix_cache, shared_prefix
from icrbench.data.task import Example
from icrbench.method import Pool
from icrbench.randomness import Randomness
from icrbench.toolkit.demonstrations import balanced
from icrbench.toolkit.encoder import by_similarity, sentence_encoder
from icrbench.toolkit.episodes import Episode, Labelled, Questions
from icrbench.toolkit.intermediate import Intermediate
from icrbench.toolkit.tensor_file import tensor_file
from icrbench.util.errors import UserError
from icrbench.util.progress import bar

from .rollout import rollout_weights

Pooling = Literal["last", "last4", "last8", "rollout"]
Sampling = Literal["balanced", "similar"]
BATCH = 16  # queries a forward pass; changes nothing but speed


@dataclass(frozen=True)
class Extraction:
    """How in-context prompts are made and read (ICR paper, Sec. 2.2, App. B; Tables 12 and 14).

    Attributes:
        prompts: number of prompts, one query each.
        per_class: demonstrations per class.
        sampling: balanced random demonstrations, or as many nearest neighbours of the query.
        queries_per_set: queries that share one draw of demonstrations, whose keys and values are computed once.
        pooling: the last token, the mean of the last 4 or 8, or all tokens weighted by attention rollout.
        position: vectors before or after rotary embedding.
        encoder: sentence encoder for ``sampling="similar"``; else None.
    """

    prompts: int
    per_class: int
    sampling: Sampling
    queries_per_set: int
    pooling: Pooling
    position: Position
    encoder: str | None


@dataclass(frozen=True)
class Bases:
    """ICL bases of one domain on disk."""

    path: Path

    def vectors(self, kind: Literal["queries", "keys"], layer: int) -> Tensor:
        """Float32 ``[N, heads*d_k]`` of one layer; only that layer is read."""
        with safe_open(self.path, framework="pt") as file:
            rows: Tensor = file.get_slice(kind)[layer]
        return rows.float()


def icl_bases(backbone: Backbone, pool: Pool, how: Extraction, rng: Randomness, workspace: Path) -> Bases:
    """Return the bases of a domain, read from the workspace or computed and put there."""
    identity = {
        "task": pool.task.identity(),
        "data": pool.sha256,
        "rows": len(pool.train),
        "how": asdict(how),
        "random": asdict(rng),
    }

    def compute(file: Path) -> None:
        _extract(backbone, pool, how, rng, file)

    return Bases(Intermediate(backbone, workspace / "bases" / pool.task.name, __name__, identity).write(compute))


def _half(vectors: Tensor, pool: Pool) -> Tensor:
    """Vectors ``[L, B, n]`` in half precision.

    Raises:
        UserError: if an entry does not fit, or is not finite to begin with.
    """
    halves = vectors.half()
    if not halves.isfinite().all():
        layer = int((~halves.isfinite()).flatten(1).any(1).int().argmax())
        largest = vectors[layer].abs().max()
        raise UserError(
            f"in-context prompts of {pool.task.name}: vectors of block {layer} reach {largest:.3g}, more than half"
            " precision holds: use icr.basis=random or learned, which read none, or another model."
        )
    return halves


def _extract(backbone: Backbone, pool: Pool, how: Extraction, rng: Randomness, file: Path) -> None:
    """Write the query ``[L, N, H*d_k]`` and key ``[L, N, G*d_k]`` vectors of all prompts into a file."""
    name, dims = pool.task.name, backbone.dims
    order = rng.python("icl-queries", name)
    asked = order.sample(pool.train, min(how.prompts, len(pool.train)))
    widths = {"queries": dims.heads * dims.head_dim, "keys": dims.kv_heads * dims.head_dim}
    shapes = {kind: (dims.layers, len(asked), width) for kind, width in widths.items()}
    done = 0
    with (
        torch.inference_mode(),
        tensor_file(file, shapes) as vectors,
        bar(f"in-context prompts of {name}", len(asked)) as progress,
    ):
        for group in _sets(pool, asked, how, rng):
            for queries, keys in _read_group(backbone, group, how):
                vectors.put("queries", done, _half(queries, pool))
                vectors.put("keys", done, _half(keys, pool))
                done += queries.shape[1]
            progress.update(len(group))


def _sets(pool: Pool, queries: Sequence[Example], how: Extraction, rng: Randomness) -> Iterator[list[Episode]]:
    """Group queries that share one draw of demonstrations, and yield each group with the draw."""
    if how.sampling == "similar":
        yield from _similar_sets(pool, queries, how)
        return
    for start in range(0, len(queries), how.queries_per_set):
        group = queries[start : start + how.queries_per_set]
        draw = rng.demonstrations("icl-demonstrations", pool.task.name, str(start))
        # A query is never among its own demonstrations.
        shown = rng.ordered(balanced(pool.train, how.per_class, draw, {query.content_hash for query in group}))
        yield [_episode(pool, shown, query) for query in group]


def _similar_sets(pool: Pool, queries: Sequence[Example], how: Extraction) -> Iterator[list[Episode]]:
    assert how.encoder is not None, "similar to what"
    encode = sentence_encoder(how.encoder)
    vectors = normalize(encode([pool.task.prompt(example) for example in pool.train]), dim=1)
    count = how.per_class * pool.task.max_options
    for query in queries:
        nearest, _ = by_similarity(vectors, encode([pool.task.prompt(query)])[0])
        others = [pool.train[i] for i in nearest if pool.train[i].content_hash != query.content_hash]
        yield [_episode(pool, others[:count], query)]


def _episode(pool: Pool, shown: Sequence[Example], query: Example) -> Episode:
    return Episode(tuple(Labelled(pool.task, row) for row in shown), Labelled(pool.task, query))


def _read_group(backbone: Backbone, group: Sequence[Episode], how: Extraction) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what `_read_batch` returns for the prompts of a group, in their order."""
    sequences = [question.prompt.tokens for question in Questions(backbone).in_context(group)]
    # Rollout needs the attention of every token, so it cannot start from cached keys.
    own = {"last": 1, "last4": 4, "last8": 8}.get(how.pooling, 0)
    shared = shared_prefix(sequences, own) if own and len(group) > 1 else 0
    prefix = prefix_cache(backbone, sequences[0][:shared]) if shared else None
    step = 1 if how.pooling == "rollout" else BATCH
    for start in range(0, len(group), step):
        rows = sequences[start : start + step]
        batch = make_batch(
            [row[shared:] for row in rows], [""] * len(rows), device=backbone.device, prefix_length=shared
        )
        cache = None if prefix is None else expanded(prefix, len(rows))
        yield _read_batch(backbone, batch, cache, how)


def _read_batch(backbone: Backbone, batch: Batch, cache: Any, how: Extraction) -> tuple[Tensor, Tensor]:
    """Pooled vectors of one forward pass: ``[L, B, H*d_k]`` and ``[L, B, G*d_k]``, on the CPU."""
    layers = list(range(backbone.dims.layers))
    pool = _pooler(backbone, batch, how.pooling)
    seen: dict[int, tuple[Tensor, Tensor]] = {}

    def receive(layer: int, queries: Tensor, keys: Tensor) -> None:
        own = keys[:, -batch.input_ids.shape[1] :]  # rotated keys come with the cached ones before them
        seen[layer] = (pool(queries).float().cpu(), pool(own).float().cpu())

    reading: AbstractContextManager[None] = queries_and_keys(backbone, layers, receive, how.position)
    with reading:
        backbone.hidden_states(batch, cache)
    return torch.stack([seen[layer][0] for layer in layers]), torch.stack([seen[layer][1] for layer in layers])


def _pooler(backbone: Backbone, batch: Batch, pooling: Pooling) -> Callable[[Tensor], Tensor]:
    """Return a function from per-token vectors ``[B, T, n]`` to one vector a row ``[B, n]``."""
    if pooling == "last":
        return batch.at_last
    if pooling == "rollout":
        weights = rollout_weights(backbone, batch)
        return lambda states: torch.einsum("bt,btn->bn", weights.to(states.dtype), states)
    count = {"last4": 4, "last8": 8}[pooling]
    columns = batch.last[:, None] - torch.arange(count, device=batch.last.device)
    return lambda states: states[batch.rows[:, None], columns.clamp(min=0)].mean(1)
