"""ELICIT: a library of states in which few-shot prompts end; those that fit a query are added to its own."""

from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.sites import Edit, Site
from icrbench.backbone.steering import steered
from icrbench.method import FitData, Fitted, Method, Scope, register
from icrbench.randomness import Randomness
from icrbench.toolkit.encoder import by_similarity, sentence_encoder
from icrbench.toolkit.episodes import Episodes, Question, Questions
from icrbench.toolkit.reading import last_token_vectors
from icrbench.toolkit.selection import ChooseBy, by_layer
from icrbench.util.bounds import Count, NotNegative
from icrbench.util.errors import UserError


class Found(NamedTuple):
    """What the library has for a query: numbers of the entries, and the block they are for."""

    entries: list[int]
    layer: int


class ElicitFitted(Fitted):
    """States to add at the last token, by retrieval for each query or the same for all.

    Attributes:
        config: ``blocks`` ``[K]``, the blocks the states belong to, ascending; ``best`` ``[N]``, the block of each
            entry's task; ``k``; ``threshold``; ``own_weight``, ``vector_weight``; ``encoder`` and ``width`` of the
            embeddings (0 without retrieval); ``sweep``, held-out accuracy by block (of several tasks: by task);
            ``chosen_by``, what kind of accuracy.
        tensors: ``states`` ``[N, K, d]``; for retrieval ``embeddings`` ``[N, width]``, unit length.
    """

    last_token_only: ClassVar[bool] = True
    formula: ClassVar[str] = "NKd + Nw"

    @property
    def first_layer(self) -> int:
        """The lowest block after which states may be added."""
        return int(self.config["blocks"][0])

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``N K d + N w``: N entries, K blocks, w numbers an embedding."""
        entries, blocks = len(self.config["best"]), len(self.config["blocks"])
        return int(entries * (blocks * dims.hidden + self.config["width"]))

    def found(self, text: str) -> Found | None:
        """Return the entries for a query, most similar first, or None if none is similar enough."""
        best: list[int] = self.config["best"]
        entries = list(range(len(best)))
        if "embeddings" in self.tensors:
            vector = sentence_encoder(self.config["encoder"])([text])[0]
            order, similarity = by_similarity(self.tensors["embeddings"], vector)
            entries = order[: self.config["k"]]
            threshold = self.config["threshold"]
            if threshold is not None and float(similarity[entries[0]]) < threshold:
                return None
        votes = Counter(best[entry] for entry in entries)
        return Found(entries, max(votes, key=lambda layer: (votes[layer], -layer)))

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Add the mean of the retrieved states to the state of the context's last token."""
        blocks: list[int] = self.config["blocks"]
        found = {text: self.found(text) for text in set(batch.texts)}
        edits: dict[Site, Edit] = {}
        for place, layer in enumerate(blocks):
            rows = [own if own and own.layer == layer else None for own in map(found.get, batch.texts)]
            if any(rows):
                states = self.tensors["states"][:, place]
                zero = torch.zeros(states.shape[1])
                vectors = torch.stack([states[own.entries].mean(0) if own else zero for own in rows])
                edits[Site("block", layer)] = self._added(vectors, torch.tensor([own is not None for own in rows]))
        return steered(backbone, batch, edits, "last")

    def _added(self, vectors: Tensor, rows: Tensor) -> Edit:
        own, weight = self.config["own_weight"], self.config["vector_weight"]

        def add(states: Tensor) -> Tensor:
            added = own * states + weight * vectors[:, None].to(states.device)
            return torch.where(rows[:, None, None].to(states.device), added, states)

        return add


@register("elicit")
@dataclass(frozen=True)
class Elicit(Method):
    """ELICIT (Wang et al. 2024), with a retriever that is not the authors'.

    The library holds the state after a block at the last token of few-shot prompts, ``prompts`` of them a task. A query
    gets the mean of the ``k`` most fitting entries added to its own state at its last token, ``1`` of the own and ``2``
    of theirs, after the block that is best for most of those entries' tasks on held-out rows. Where even the best entry
    stays below a threshold, the model is left as it is.

    Choices, where the paper does not fit this benchmark or cannot be followed:
        Library: the authors' has 20 tasks. Here it has the tasks that the fit may see. A task with rows of its own thus
            has a library of itself; with ``k`` entries or fewer and no threshold nothing is left to retrieve, and the
            mean of all is used (the ICR paper does not say how it ran ELICIT on a single task; this is one reading).
        Retriever: the authors train a classifier of (prompt, query) pairs on a sentence encoder. Here it is the cosine
            similarity of frozen sentence embeddings of the query and of the entry's query, without demonstrations.
            The authors' threshold (0.9096) belongs to their classifier and means nothing here: there is none unless
            asked for.
        Layers: by arg max over the options (the authors: over all tokens), on rows that are in no prompt (the authors
            take both from one split). Ties in the vote go to the lower block.

    Attributes:
        prompts: entries a task.
        shots: demonstrations a prompt, spread over the classes.
        k: entries averaged, at most ``prompts``.
        threshold: least cosine similarity of the best entry; none for no threshold.
        own_weight: factor on the model's own state.
        vector_weight: factor on the entries' mean.
        layer: block number, from 0; none for the best of each task on held-out rows.
        held_out: train rows of each task held out to choose it by.
        choose_by: whether by raw or by calibrated accuracy there (`icrbench.toolkit.selection`).
        encoder: sentence encoder for retrieval.
    """

    prompts: Count = 10
    shots: Count = 16
    k: Count = 10
    threshold: float | None = None
    own_weight: NotNegative = 1.0
    vector_weight: NotNegative = 2.0
    layer: int | None = None
    held_out: Count = 100
    choose_by: ChooseBy = "raw"
    encoder: str = "minilm"

    scope: ClassVar[Scope] = Scope.TASK
    budget: ClassVar[tuple[str, ...]] = ("prompts", "shots", "held_out")
    fitted: ClassVar[type[Fitted]] = ElicitFitted

    def __post_init__(self) -> None:
        """Refuse numbers outside their bounds, and more entries for a query than a task has."""
        super().__post_init__()
        if self.k > self.prompts:
            raise UserError(
                f"elicit.k must not exceed elicit.prompts, not {self.k} of {self.prompts}: a query could then not be"
                " served by the entries of one task."
            )

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> ElicitFitted:
        """Read the states of every task's prompts, choose its block, and put the library together."""
        read: list[Tensor] = []
        asked: list[str] = []
        chosen: dict[str, ElicitFitted] = {}
        questions = Questions(backbone)
        for name, pool in sorted(data.pools.items()):
            # As a task without rows of its own: so many demonstrations in all, not so many a class.
            alone = replace(data, pools={name: pool}, target=None)
            episodes = Episodes(alone, rng, per_class=1, per_task=self.shots, held_out=self.held_out)
            prompts = questions.in_context(episodes.episodes(self.prompts))
            held_out = questions.zero_shot(episodes.held_out)
            states = self._states(backbone, prompts)
            candidates = [self._fitted([layer], [layer], own.mean(0)[None, None]) for layer, own in enumerate(states)]
            chosen[name] = by_layer(self, self.layer, backbone, candidates, held_out, self.choose_by)
            read.append(states.transpose(0, 1))
            asked += [question.prompt.text for question in prompts]
        if len(chosen) == 1 and len(asked) <= self.k and self.threshold is None:
            return next(iter(chosen.values()))
        best = [own.first_layer for own, states in zip(chosen.values(), read, strict=True) for _ in states]
        blocks = sorted(set(best))
        library = self._fitted(blocks, best, torch.cat(read)[:, blocks])
        library.tensors["embeddings"] = normalize(sentence_encoder(self.encoder)(asked), dim=1)
        library.config["width"] = library.tensors["embeddings"].shape[1]
        library.config["sweep"] = {name: own.config["sweep"] for name, own in chosen.items()}
        library.config["chosen_by"] = self.choose_by if self.layer is None else None
        return library

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Few-shot prompts and held-out ones of every task."""
        return sum((self.prompts * (self.shots + 1) + self.held_out) * own for own in tokens.values())

    def _states(self, backbone: Backbone, prompts: list[Question]) -> Tensor:
        """``[L, N, d]``."""
        sites = [Site("block", layer) for layer in range(backbone.dims.layers)]
        states = last_token_vectors(backbone, prompts, sites)
        return torch.stack([states[site] for site in sites])

    def _fitted(self, blocks: list[int], best: list[int], states: Tensor) -> ElicitFitted:
        config = {
            "blocks": blocks,
            "best": best,
            "k": self.k,
            "threshold": self.threshold,
            "own_weight": self.own_weight,
            "vector_weight": self.vector_weight,
            "encoder": self.encoder,
            "width": 0,
            "sweep": [],
        }
        return ElicitFitted(config, {"states": states})
