"""Few-shot in-context learning: demonstrations before the query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch.nn.functional import normalize

from icrbench.backbone import Backbone
from icrbench.backbone.anatomy import Dimensions
from icrbench.data.task import DEMONSTRATION_SEPARATOR, Example, Task
from icrbench.method import FitData, Fitted, Method, Scope, register
from icrbench.randomness import Randomness
from icrbench.toolkit.encoder import by_similarity, sentence_encoder
from icrbench.toolkit.episodes import Episodes, Labelled, demonstration_tokens
from icrbench.toolkit.prefix import cache_size
from icrbench.util.bounds import Count


class FewShotFitted(Fitted):
    """Demonstrations, either the same for every query or the nearest of a set of candidates.

    Attributes:
        config: ``demonstrations`` (texts, for a fixed set) or ``candidates`` (texts and content hashes), ``count``
            and ``encoder`` (for retrieval); ``tokens`` of the demonstrations and ``cached_parameters``.
        tensors: for retrieval, ``embeddings`` ``[n, width]`` of the candidates' prompts, unit length.
    """

    shares_prefix: ClassVar[bool] = True
    formula: ClassVar[str] = "2MLGd_k"

    @property
    def cached_parameters(self) -> int:
        """Keys and values of the demonstration tokens, ``2 M L G d_k``; for retrieval, of the longest choice."""
        return int(self.config["cached_parameters"])

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``2 M L G d_k``, ``M`` being the demonstrations' tokens."""
        return cache_size(dims, int(self.config["tokens"]))

    def prefix(self, task: Task, query: Example) -> Sequence[str]:
        """Return the demonstrations for a query, the most similar first (as KATE orders them)."""
        if "demonstrations" in self.config:
            texts: list[str] = self.config["demonstrations"]
            return texts
        vector = sentence_encoder(self.config["encoder"])([task.prompt(query)])[0]
        order, _ = by_similarity(self.tensors["embeddings"], vector)
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

    Attributes:
        per_class: demonstrations of each class, for a task with a train pool of its own.
        per_task: demonstrations of each in-domain task, for a task without.
        select: at random, or the nearest neighbours of the query.
        encoder: for ``select="similar"``: a sentence encoder, a folder or a hub id.
    """

    per_class: Count = 5
    per_task: Count = 3
    select: Literal["random", "similar"] = "random"
    encoder: str = "minilm"

    scope: ClassVar[Scope] = Scope.TASK
    fitted: ClassVar[type[Fitted]] = FewShotFitted

    @property
    def explicit(self) -> bool:
        """It is what "explicit" means."""
        return True

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> FewShotFitted:
        """Draw the demonstrations, or embed the candidates for retrieval."""
        episodes = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task)
        chosen = episodes.demonstrations()
        if self.select == "similar":
            return self._retrieval(backbone, episodes.rows, len(chosen))
        texts = [shown.task.demonstration(shown.example) for shown in chosen]
        tokens = len(backbone.encode(DEMONSTRATION_SEPARATOR.join(texts)))
        config = {"demonstrations": texts, "ids": [shown.example.id for shown in chosen]}
        return FewShotFitted({**config, **_sizes(backbone, tokens)}, {})

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Return the demonstrations themselves, computed once a task."""
        return demonstration_tokens(self.per_class, self.per_task, tokens, classes)

    def _retrieval(self, backbone: Backbone, rows: list[Labelled], count: int) -> FewShotFitted:
        embeddings = normalize(sentence_encoder(self.encoder)([row.task.prompt(row.example) for row in rows]), dim=1)
        texts = [row.task.demonstration(row.example) for row in rows]
        longest = sorted(texts, key=lambda text: len(backbone.encode(text)), reverse=True)[:count]
        tokens = len(backbone.encode(DEMONSTRATION_SEPARATOR.join(longest)))
        return FewShotFitted(
            {
                "candidates": [
                    {"text": text, "content": row.example.content_hash} for text, row in zip(texts, rows, strict=True)
                ],
                "count": count,
                "encoder": self.encoder,
                **_sizes(backbone, tokens),
            },
            {"embeddings": embeddings},
        )


def _sizes(backbone: Backbone, tokens: int) -> dict[str, int]:
    return {"tokens": tokens, "cached_parameters": cache_size(backbone.dims, tokens)}
