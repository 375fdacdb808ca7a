"""Iterative vectors: what demonstrations change in attention where labels are predicted, averaged over many prompts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.sites import Edit, Site, captured
from icrbench.backbone.spans import columns_at
from icrbench.backbone.steering import steered
from icrbench.data.task import DEMONSTRATION_SEPARATOR, Example, Task
from icrbench.method import FitData, Fitted, Method, Scope, register
from icrbench.randomness import Randomness
from icrbench.toolkit.episodes import Episode, Episodes, Labelled, Questions, demonstration_tokens
from icrbench.toolkit.reading import last_token_vectors
from icrbench.toolkit.selection import ChooseBy, accuracies, best, question_batch
from icrbench.util.bounds import Count
from icrbench.util.progress import bar

STRENGTHS = (0.1, 0.3, 0.5, 0.7, 0.9)  # the authors' grid for inference
QUERY = 0  # the place of the query's vector; those of the classes follow


class Shown(NamedTuple):
    """A demonstration: its text, the number of characters up to its cue's end, the place of its class's vector."""

    text: str
    cue: int
    place: int


class IterativeVectorFitted(Fitted):
    """Vectors added to what attention gives at the tokens that predict a label, in every block.

    Attributes:
        config: ``classes`` that have vectors, as ``task/label``; ``demonstrations``, as in `Shown`; both empty in the
            zero-shot variant. ``strength``; ``strengths``, held-out accuracy by strength (empty if it was given).
        tensors: ``vectors`` ``[C+1, L, d]``, the query's first.
    """

    formula: ClassVar[str] = "(C+1)dL"

    @property
    def last_token_only(self) -> bool:  # type: ignore[override]  # here it depends on the variant
        """Whether there are no demonstrations, whose tokens would be changed too."""
        return not self.config["demonstrations"]

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``(C+1) d L``."""
        return (len(self.config["classes"]) + 1) * dims.hidden * dims.layers

    def prefix(self, task: Task, query: Example) -> Sequence[str]:
        """Return the demonstrations of the few-shot variant, the same for every query."""
        return [text for text, _, _ in self.config["demonstrations"]]

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Add the query's vectors at the last token and those of the classes where demonstrations predict theirs."""
        vectors = self.config["strength"] * self.tensors["vectors"].to(backbone.device)
        if self.config["demonstrations"]:
            shown = [Shown(*own) for own in self.config["demonstrations"]]
            return steered(backbone, batch, _at(_places(backbone, batch, [shown] * len(batch.texts)), vectors), "all")

        def add(vector: Tensor) -> Edit:
            return lambda states: states + vector.to(states.device)

        edits = {Site("attention", layer): add(vector) for layer, vector in enumerate(vectors[QUERY])}
        return steered(backbone, batch, edits, "last")


@register("iterative_vector")
@dataclass(frozen=True)
class IterativeVector(Method):
    """Iterative vectors (Liu & Deng, ICML 2025), by default in a zero-shot form that is ours.

    In each of many episodes (demonstrations and a query) attention's output at every token that predicts a label, of
    demonstrations and query alike, is compared with that of the query alone. The mean difference over all episodes so
    far is the vector of the class, or of the query. After the first episode, then after every ``batch``, the means are
    taken anew, and ``extraction_strength`` times them is added in the prompts that follow, whose outputs are read with
    what was added.

    Choices, where the paper does not fit this benchmark or cannot be followed:
        Variant: the method needs at least one demonstration at test (its authors list zero-shot as unexplored), and the
            ICR paper does not say how it ran it as an implicit method. ``zero_shot`` adds the query's vectors alone, at
            the last token of the zero-shot prompt: not the authors' method. ``few_shot`` is theirs, with one draw of
            demonstrations for all queries.
        Token: the authors' templates have a line break between text and label; here it is the last token of the
            template's cue (``Sentiment:``), which predicts the label.
        Post-norms (Gemma 3; not in the paper): attention's output is taken after them.
        Rows: episodes come from train rows (the released code draws them from the test split).
        Search: ``strength`` is searched as published, by accuracy (the authors: macro F1). Demonstrations per class
            and ``extraction_strength``, which they search too, keep their defaults, since every value would need an
            extraction of its own.
        Tasks without rows of their own: classes are those of all in-domain tasks.

    Attributes:
        variant: ``zero_shot`` or ``few_shot``.
        per_class: demonstrations per class.
        per_task: demonstrations per in-domain task, for tasks without demonstrations of their own.
        episodes: how many.
        batch: episodes between two updates.
        extraction_strength: factor on what is added while vectors are extracted.
        strength: factor on what is added in the end; none for the best of five on held-out rows.
        held_out: train rows held out to choose it by.
        choose_by: whether by raw or by calibrated accuracy there (`icrbench.toolkit.selection`).
    """

    variant: Literal["zero_shot", "few_shot"] = "zero_shot"
    per_class: Count = 1
    per_task: Count = 1
    episodes: Count = 200
    batch: Count = 10
    extraction_strength: float = 0.1
    strength: float | None = None
    held_out: Count = 200
    choose_by: ChooseBy = "raw"

    scope: ClassVar[Scope] = Scope.TASK
    budget: ClassVar[tuple[str, ...]] = ("episodes", "held_out")
    fitted: ClassVar[type[Fitted]] = IterativeVectorFitted

    @property
    def explicit(self) -> bool:
        """In the authors' variant."""
        return self.variant == "few_shot"

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> IterativeVectorFitted:
        """Extract the vectors, then choose the strength."""
        episodes = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task, held_out=self.held_out)
        classes = sorted({_class(row) for row in episodes.rows})
        vectors = self._extracted(backbone, episodes.episodes(self.episodes), classes)
        questions = Questions(backbone)
        config: dict[str, Any] = {"classes": classes, "demonstrations": []}
        held_out = questions.zero_shot(episodes.held_out)
        if self.variant == "few_shot":
            demonstrations = episodes.demonstrations()
            config["demonstrations"] = [list(own) for own in _shown(demonstrations, classes)]
            held_out = [questions(row, demonstrations) for row in episodes.held_out]
        else:
            config["classes"] = []
            vectors = vectors[QUERY][None].clone()

        def with_strength(strength: float, scores: list[float]) -> IterativeVectorFitted:
            own = {"strength": strength, "strengths": scores, "chosen_by": self.choose_by if scores else None}
            return IterativeVectorFitted({**config, **own}, {"vectors": vectors})

        if self.strength is not None:
            return with_strength(self.strength, [])
        candidates = [with_strength(strength, []) for strength in STRENGTHS]
        alone = self.variant == "zero_shot"
        scores = accuracies(backbone, candidates, held_out, self.choose_by, last_token_only=alone)
        return with_strength(STRENGTHS[best(scores)], scores)

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Episodes with and without demonstrations, and the held-out prompts."""
        shown = demonstration_tokens(self.per_class, self.per_task, tokens, classes)
        query = sum(tokens.values()) / len(tokens)
        held_out = query if self.variant == "zero_shot" else len(STRENGTHS) * (query + shown)
        return self.episodes * (shown + 2 * query) + self.held_out * held_out

    def _extracted(self, backbone: Backbone, episodes: Sequence[Episode], classes: Sequence[str]) -> Tensor:
        """Return the vectors of query and classes, ``[C+1, L, d]``; zero for a class that no episode shows."""
        questions, dims = Questions(backbone), backbone.dims
        sites = [Site("attention", layer) for layer in range(dims.layers)]
        alone = last_token_vectors(backbone, questions.zero_shot(episode.query for episode in episodes), sites)
        total = torch.zeros(len(classes) + 1, dims.layers, dims.hidden)
        count = torch.zeros(len(classes) + 1, 1, 1)
        with torch.inference_mode(), bar("iterative vectors", len(episodes)) as progress:
            for rows in _groups(len(episodes), self.batch):
                vectors = self.extraction_strength * total / count.clamp(min=1)
                group = [episodes[row] for row in rows]
                batch = question_batch(backbone, questions.in_context(group))
                places = _places(backbone, batch, [_shown(own.demonstrations, classes) for own in group])
                edits = _at(places, vectors.to(backbone.device))
                with steered(backbone, batch, edits, "all"), captured(backbone, sites) as seen:
                    backbone.hidden_states(batch)
                own, columns = (places >= 0).cpu().nonzero(as_tuple=True)
                kinds = places[own, columns].cpu()
                for layer, site in enumerate(sites):
                    change = seen[site][own, columns].float().cpu() - alone[site][rows][own]
                    total[:, layer].index_add_(0, kinds, change)
                count[:, 0, 0] += kinds.bincount(minlength=len(classes) + 1)
                progress.update(len(rows))
        return (total / count.clamp(min=1)).clone()


def _groups(count: int, size: int) -> Iterator[list[int]]:
    """Episodes between two updates of the vectors: the first alone, then ``size`` at a time."""
    yield [0]
    for start in range(1, count, size):
        yield list(range(start, min(start + size, count)))


def _class(row: Labelled) -> str:
    return f"{row.task.name}/{row.example.label}"


def _shown(demonstrations: Sequence[Labelled], classes: Sequence[str]) -> list[Shown]:
    places = {name: place for place, name in enumerate(classes, QUERY + 1)}
    return [
        Shown(row.task.demonstration(row.example), len(row.task.prompt(row.example)), places[_class(row)])
        for row in demonstrations
    ]


def _places(backbone: Backbone, batch: Batch, shown: Sequence[Sequence[Shown]]) -> Tensor:
    """For every token of a batch the place of the vector that belongs there, ``[B, T]``; -1 for none.

    Args:
        backbone: the model.
        batch: prompts.
        shown: the demonstrations of each.
    """
    places = torch.full_like(batch.input_ids, -1)
    real = batch.attention_mask[:, -batch.input_ids.shape[1] :].bool()
    for row, own in enumerate(shown):
        last = int(batch.last[row])
        columns = real[row, : last + 1].nonzero()[:, 0]
        tokens = batch.input_ids[row, columns].tolist()
        for place, column in _cues(backbone, tokens, own, batch.texts[row]):
            places[row, columns[column]] = place
        places[row, last] = QUERY
    return places


def _cues(backbone: Backbone, tokens: Sequence[int], shown: Sequence[Shown], query: str) -> list[tuple[int, int]]:
    """Vector and token of each demonstration that has kept its cue in a prompt."""
    # lm-evaluation-harness leaves out a demonstration that is the query itself, and has requests without a text, which
    # no demonstrations precede.
    for kept in (shown, [own for own in shown if not own.text.startswith(query.rstrip())]):
        ends, start = [], 0
        for own in kept:
            ends.append(start + own.cue - 1)
            start += len(own.text) + len(DEMONSTRATION_SEPARATOR)
        try:
            columns = columns_at(
                backbone, tokens, DEMONSTRATION_SEPARATOR.join([*(own.text for own in kept), query]), ends
            )
        except ValueError:
            continue
        return [(own.place, column) for own, column in zip(kept, columns, strict=True) if column is not None]
    if query:
        raise ValueError("a prompt does not consist of its demonstrations and its query")
    return []


def _at(places: Tensor, vectors: Tensor) -> dict[Site, Edit]:
    """In every block, add to attention's output the vectors ``[C+1, L, d]`` in their places ``[B, T]``.

    Passes over what follows the batch (decoded tokens) are shorter than it and left alone; one that goes over batch and
    continuation together starts with the batch.
    """
    padded = torch.cat([torch.zeros_like(vectors[:1]), vectors])
    width = places.shape[1]

    def add(table: Tensor) -> Edit:
        def edit(states: Tensor) -> Tensor:
            if states.shape[1] < width:
                return states
            changed = states.clone()
            changed[:, :width] += table.to(states.device)[places.to(states.device) + 1]
            return changed

        return edit

    return {Site("attention", layer): add(padded[:, layer]) for layer in range(vectors.shape[1])}
