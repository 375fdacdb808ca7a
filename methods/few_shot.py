"""Few-shot in-context learning: demonstrations before the query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch.nn.functional import normalize

from icrbench.backbone import Backbone
from icrbench.demonstrations import balanced, multi_task
from icrbench.encoder import sentence_encoder
from icrbench.method import FitData, Fitted, Method, Pool, Scope, at_least_one, register
from icrbench.randomness import Randomness
from icrbench.task import DEMONSTRATION_SEPARATOR, Example, Task


class FewShotFitted(Fitted):
    """Demonstrations, either the same for every query or the nearest of a set of candidates.

    Attributes:
        config: ``demonstrations`` (texts, for a fixed set) or ``candidates`` (texts and content hashes), ``count``
            and ``encoder`` (for retrieval); ``cached_parameters``.
        tensors: for retrieval, ``embeddings`` ``[n, width]`` of the candidates' prompts, unit length.
    """

    shares_prefix: ClassVar[bool] = True

    @property
    def cached_parameters(self) -> int:
        """Keys and values of the demonstration tokens, ``2 M L G d_k``; for retrieval, of the longest choice."""
        return int(self.config["cached_parameters"])

    def prefix(self, task: Task, query: Example) -> Sequence[str]:
        """The demonstrations for a query, the most similar first (as KATE orders them)."""
        if "demonstrations" in self.config:
            texts: list[str] = self.config["demonstrations"]
            return texts
        vector = normalize(sentence_encoder(self.config["encoder"])([task.prompt(query)]), dim=1)[0]
        order = torch.argsort(self.tensors["embeddings"] @ vector, descending=True, stable=True).tolist()
        candidates = self.config["candidates"]
        # A query that also occurs among the candidates must not bring its own answer.
        others = [candidates[i]["text"] for i in order if candidates[i]["content"] != query.content_hash]
        return others[: self.config["count"]]


@register("few_shot")
@dataclass(frozen=True)
class FewShot(Method):
    """Demonstrations in the prompt.

    A task with a train pool of its own gets ``per_class`` demonstrations of every class; one without (out of domain,
    protocol ``paper``) gets the multi-task set, ``per_task`` from each in-domain task (ICR paper, Sec. 3.1; how those
    are spread over classes is not stated: here over different classes). ``select="similar"`` replaces the random
    choice by the same number of nearest neighbours of the query, nearest first, by cosine similarity of sentence
    embeddings of the prompts without answers (KATE, Liu et al. 2022).
    """

    per_class: int = 5
    per_task: int = 3
    select: Literal["random", "similar"] = "random"
    encoder: str = "minilm"

    scope: ClassVar[Scope] = Scope.TASK
    fitted: ClassVar[type[Fitted]] = FewShotFitted

    def __post_init__(self) -> None:
        """Refuse sizes below 1."""
        at_least_one(self, "per_class", "per_task")

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> FewShotFitted:
        """Draw the demonstrations, or embed the candidates for retrieval."""
        own = data.pools.get(data.target or "")
        if own is not None:
            chosen = [(own, shown) for shown in balanced(own.train, self.per_class, rng.python("demonstrations"))]
        else:
            chosen = multi_task(data.pools, self.per_task, rng.python("demonstrations"))
        texts = [pool.task.demonstration(shown) for pool, shown in chosen]
        if self.select == "random":
            tokens = len(backbone.encode(DEMONSTRATION_SEPARATOR.join(texts)))
            config = {"demonstrations": texts, "ids": [shown.id for _, shown in chosen]}
            return FewShotFitted({**config, "cached_parameters": _cache_size(backbone, tokens)}, {})
        pools = [own] if own is not None else [pool for _, pool in sorted(data.pools.items())]
        return self._retrieval(backbone, pools, len(chosen))

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """The demonstrations themselves, computed once a task."""
        if len(tokens) == 1:
            return sum(self.per_class * classes[name] * tokens[name] for name in tokens)
        return self.per_task * sum(tokens.values())

    def _retrieval(self, backbone: Backbone, pools: list[Pool], count: int) -> FewShotFitted:
        rows = [(pool.task, example) for pool in pools for example in pool.train]
        embeddings = normalize(sentence_encoder(self.encoder)([task.prompt(row) for task, row in rows]), dim=1)
        texts = [task.demonstration(row) for task, row in rows]
        longest = sorted(texts, key=lambda text: len(backbone.encode(text)), reverse=True)[:count]
        tokens = len(backbone.encode(DEMONSTRATION_SEPARATOR.join(longest)))
        return FewShotFitted(
            {
                "candidates": [
                    {"text": text, "content": row.content_hash} for text, (_, row) in zip(texts, rows, strict=True)
                ],
                "count": count,
                "encoder": self.encoder,
                "cached_parameters": _cache_size(backbone, tokens),
            },
            {"embeddings": embeddings},
        )


def _cache_size(backbone: Backbone, tokens: int) -> int:
    dims = backbone.dims
    return 2 * tokens * dims.layers * dims.kv_heads * dims.head_dim
