"""Function vectors: what the few heads that carry a task add to the residual stream, added to a zero-shot prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from icrbench.backbone import Backbone
from icrbench.backbone.anatomy import submodule
from icrbench.backbone.last_token import LastTokens, last_tokens
from icrbench.backbone.positions import Where
from icrbench.backbone.sites import Site, output_weight
from icrbench.backbone.steering import steered
from icrbench.method import FitData, Fitted, Method, Scope, register
from icrbench.randomness import Randomness
from icrbench.toolkit.episodes import Episode, Episodes, Labelled, Question, Questions, demonstration_tokens
from icrbench.toolkit.layer_vector import LayerVector
from icrbench.toolkit.reading import last_token_vectors
from icrbench.toolkit.selection import ChooseBy, by_layer
from icrbench.util.bounds import Count
from icrbench.util.progress import bar

MOST_HEADS = 20
SHARE_OF_HEADS = 10  # at most one head in this many, for models with few
MOST_TRIES = 5  # clean prompts tried for each that is wanted; a model that answers fewer has fewer


class FunctionVectorFitted(LayerVector):
    """A vector added to the output of one block where something is predicted.

    Attributes:
        config: ``layer`` and ``sweep`` as in `LayerVector`; ``effects`` ``[L][H]``, the heads' average indirect
            effects; ``heads``, the chosen ones as ``[layer, head]``, strongest first; ``answered``, how many of the
            prompts the means are over.
        tensors: ``vector`` ``[d]``.
    """

    where: ClassVar[Where] = "predicting"

    def changed(self, states: Tensor, vector: Tensor) -> Tensor:
        """Add the vector to the states."""
        return states + vector


@register("function_vector")
@dataclass(frozen=True)
class FunctionVector(Method):
    """Function vectors (Todd et al. 2024, ICLR; code of the authors).

    Each head's output at the last token is averaged over clean few-shot prompts. Put in the place of the head's own
    output at the last token of prompts whose demonstrations carry permuted labels, it raises the probability of the
    right answer's first token (over the whole vocabulary) by the head's average indirect effect. What the heads of
    the largest effects add to the residual stream on average is the function vector; it is added, unscaled, to the
    output of one block.

    Choices, where the papers are silent or cannot be followed:
        Heads: 10 (GPT-J) and 20 (Llama 2 7B) are published; the default is 20 or a tenth of all heads, whichever is
            less. The heads are the task's own; the authors also publish lists for five models, averaged over tasks.
        Layer: the authors sweep all layers and others quote ``L/3``; the default takes the best on held-out rows.
        Prompts: the authors show 10 demonstrations of words; here they are balanced over the classes. A prompt counts
            as answered if the right option is the most probable option, as everywhere in this project (the authors:
            the most probable token of all). As the authors do, ``mean_prompts`` are taken of those that the model
            answers, but no query twice, and at most five times as many are tried; if it answers none, all are used.
            Prompts with permuted labels ask answered queries, in turn, after new demonstrations; for tasks without rows
            of their own the labels are permuted within each in-domain task. Where a model's texts start without a
            beginning-of-sequence token, none is put there (the authors put the end-of-text token).
        Post-norms (Gemma 3; not in the paper): between a head and the residual stream stands a norm. A head's
            contribution there is its slice through the output weight times the norm's factors for that prompt, so
            that the contributions of a layer's heads still add up to what attention adds.
        Bias: the authors' code adds the output projection's bias once a head; here it is part of no head.

    Attributes:
        per_class: demonstrations per class.
        per_task: demonstrations per in-domain task, for tasks without demonstrations of their own.
        mean_prompts: clean prompts that heads are averaged over.
        effect_prompts: prompts with permuted labels.
        queries_per_set: successive clean prompts that share demonstrations (1 in the paper), to compute these once.
        heads: heads in the vector; none for the default above.
        filter_correct: leave out clean prompts that the model answers wrongly, and draw others.
        shuffle_labels: permute the labels of the demonstrations for the indirect effects.
        layer: block number, from 0; none for the best on held-out rows, or for ``L/3`` if there is no sweep.
        sweep: whether to choose the block on held-out rows.
        held_out: train rows held out to choose it by.
        choose_by: whether by raw or by calibrated accuracy there (`icrbench.toolkit.selection`).
    """

    per_class: Count = 5
    per_task: Count = 3
    mean_prompts: Count = 100
    effect_prompts: Count = 25
    queries_per_set: Count = 1
    heads: Count | None = None
    filter_correct: bool = True
    shuffle_labels: bool = True
    layer: int | None = None
    sweep: bool = True
    held_out: Count = 32
    choose_by: ChooseBy = "raw"

    scope: ClassVar[Scope] = Scope.TASK
    budget: ClassVar[tuple[str, ...]] = ("per_class", "mean_prompts", "effect_prompts")
    fitted: ClassVar[type[Fitted]] = FunctionVectorFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> FunctionVectorFitted:
        """Average the heads, measure their effects, add up the strongest, choose a layer."""
        episodes = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task, held_out=self.held_out)
        questions, layers = Questions(backbone), range(backbone.dims.layers)
        clean, outputs = self._clean(backbone, episodes)
        asked = [self._asked(episodes, clean, number) for number in range(self.effect_prompts)]
        if self.shuffle_labels:
            asked = [_shuffled(episode, rng, number) for number, episode in enumerate(asked)]
        means = torch.stack([own.mean(0).unflatten(-1, (backbone.dims.heads, -1)) for own in outputs])
        effects = indirect_effects(backbone, questions.in_context(asked), means)
        chosen = _strongest(effects, self.heads)
        vector = torch.zeros(backbone.dims.hidden)
        for layer in sorted({layer for layer, _ in chosen}):
            own = contributions(backbone, layer, outputs[layer])
            vector += own[[head for place, head in chosen if place == layer]].sum(0)

        config = {"effects": effects.tolist(), "heads": [list(head) for head in chosen], "answered": len(clean)}
        candidates = [
            FunctionVectorFitted({"layer": layer, "sweep": [], **config}, {"vector": vector}) for layer in layers
        ]
        asked_layer = self.layer if self.layer is not None or self.sweep else len(layers) // 3
        held_out = questions.zero_shot(episodes.held_out)
        return by_layer(self, asked_layer, backbone, candidates, held_out, self.choose_by)

    def _clean(self, backbone: Backbone, episodes: Episodes) -> tuple[list[Episode], list[Tensor]]:
        """Clean prompts, and by layer their heads' outputs ``[N, H*d_k]``.

        Only prompts that the model answers, as many as are wanted: further ones are drawn until there are, or
        `MOST_TRIES` times as many were tried. Where the model answers none, the first ones are taken as they are.
        """
        questions, wanted = Questions(backbone), self.mean_prompts
        sites = [*(Site("heads", layer) for layer in range(backbone.dims.layers)), _last(backbone)]
        drawn = episodes.episodes(
            wanted * (MOST_TRIES if self.filter_correct else 1), queries_per_set=self.queries_per_set
        )
        tried: list[dict[Site, Tensor]] = []
        right: list[int] = []
        for start in range(0, len(drawn), wanted):
            prompts = questions.in_context(drawn[start : start + wanted])
            tried.append(last_token_vectors(backbone, prompts, sites))
            found = list(range(len(prompts)))
            if self.filter_correct:
                found = _answered(backbone, prompts, tried[-1][_last(backbone)])
            right += [start + row for row in found]
            if len(right) >= wanted:
                break
        kept = right[:wanted] or list(range(min(wanted, len(drawn))))
        outputs = [torch.cat([states[site] for states in tried])[kept] for site in sites[:-1]]
        return [drawn[row] for row in kept], outputs

    def _asked(self, episodes: Episodes, clean: Sequence[Episode], number: int) -> Episode:
        """Return the query of a clean prompt after demonstrations of its own."""
        query = clean[number % len(clean)].query
        hidden = {query.example.content_hash}
        return Episode(episodes.demonstrations("effects", str(number), exclude=hidden), query)

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Clean and permuted prompts and the held-out ones; the passes over single tokens are left out."""
        shown = demonstration_tokens(self.per_class, self.per_task, tokens, classes)
        query = sum(tokens.values()) / len(tokens)
        clean = self.mean_prompts * (query + shown / self.queries_per_set)
        return clean + self.effect_prompts * (query + shown) + self.held_out * query


def contributions(backbone: Backbone, layer: int, outputs: Tensor) -> Tensor:
    """Compute what each head of a layer adds to the residual stream, ``[H, d]``, averaged over prompts.

    Over the heads they add up to what attention adds, less the output projection's bias.

    Args:
        backbone: the model.
        layer: the block.
        outputs: ``[N, H*d_k]``, the heads' outputs in each prompt.
    """
    projection = backbone.part(layer, backbone.anatomy.output)
    weight = output_weight(backbone, layer).float().cpu().unflatten(1, (backbone.dims.heads, -1))
    added = torch.einsum("dhk,nhk->nhd", weight, outputs.unflatten(1, (backbone.dims.heads, -1)))
    if backbone.anatomy.attention_norm is None:
        return added.mean(0)
    bias = getattr(projection, "bias", None)
    whole = added.sum(1) if bias is None else added.sum(1) + bias.float().cpu()
    norm = submodule(backbone.blocks[layer], backbone.anatomy.attention_norm)
    return (added * _factors(norm, whole)[:, None]).mean(0)


def _factors(norm: nn.Module, vectors: Tensor) -> Tensor:
    """Return the factor of a norm on the entries of each vector ``[N, d]``: its weight over the root mean square."""
    device = next(norm.parameters()).device
    weight = norm(torch.ones(1, vectors.shape[1], device=device)).cpu()  # ones have a root mean square of one
    normed = norm(vectors.to(device)).cpu()
    scale = (normed * vectors * weight).sum(1) / (vectors * weight).square().sum(1)
    factors: Tensor = weight * scale[:, None]
    return factors


def indirect_effects(backbone: Backbone, questions: Sequence[Question], means: Tensor) -> Tensor:
    """By how much each head's mean output, in the place of its own, raises the right answer's probability, ``[L, H]``.

    Args:
        backbone: the model.
        questions: prompts with permuted labels.
        means: ``[L, H, d_k]``.
    """
    layers, heads, _ = means.shape
    total = torch.zeros(layers, heads)
    texts = [question.prompt.text for question in questions]
    with torch.inference_mode():
        for part in last_tokens(backbone, [question.prompt.tokens for question in questions], texts):
            answers = torch.tensor([questions[row].answer for row in part.rows])
            before = _probabilities(backbone, part.states(), answers)
            with bar("indirect effects", layers) as progress:
                for layer in range(layers):
                    states = torch.stack([_replaced(part, layer, head, means[layer, head]) for head in range(heads)])
                    total[layer] += (_probabilities(backbone, states, answers) - before).sum(1)
                    progress.update(1)
    return total / len(questions)


def _replaced(part: LastTokens, layer: int, head: int, mean: Tensor) -> Tensor:
    """Compute final states ``[B, d]`` while a head of a layer puts out its mean ``[d_k]`` at the last token."""
    own = slice(head * len(mean), (head + 1) * len(mean))

    def put(outputs: Tensor) -> Tensor:
        changed = outputs.clone()
        changed[..., own] = mean.to(outputs.device)
        return changed

    with steered(part.backbone, part.batch, {Site("heads", layer): put}, "last"):
        return part.states()


def _probabilities(backbone: Backbone, states: Tensor, answers: Tensor) -> Tensor:
    """Probability ``[..., B]`` of each row's answer among all tokens, from final states ``[..., B, d]``."""
    logits = backbone.logits(states)
    rows = torch.arange(len(answers))
    return (logits[..., rows, answers] - logits.logsumexp(-1)).exp().cpu()


def _last(backbone: Backbone) -> Site:
    return Site("block", backbone.dims.layers - 1)


def _answered(backbone: Backbone, questions: Sequence[Question], states: Tensor) -> list[int]:
    """Which questions the model answers rightly, from the residual stream ``[N, d]`` that enters the final norm."""
    norm = submodule(backbone.model.get_decoder(), backbone.anatomy.final_norm)
    parameter = next(norm.parameters())
    found = []
    with torch.inference_mode():
        final = norm(states.to(parameter.device, backbone.dtype))
        for row, question in enumerate(questions):
            if question.answered(backbone.logits(final[row])):
                found.append(row)
    return found


def _shuffled(episode: Episode, rng: Randomness, number: int) -> Episode:
    """Permute the labels of an episode's demonstrations within each task; the query keeps its own label."""
    shown = list(episode.demonstrations)
    for name in sorted({one.task.name for one in shown}):
        places = [place for place, one in enumerate(shown) if one.task.name == name]
        order = rng.python("labels", str(number), name).sample(places, len(places))
        labels = [episode.demonstrations[place].example for place in order]
        for place, other in zip(places, labels, strict=True):
            # With its options, since rows of a multiple-choice task may have different numbers of them.
            example = replace(shown[place].example, options=other.options, label=other.label)
            shown[place] = Labelled(shown[place].task, example)
    return Episode(tuple(shown), episode.query)


def _strongest(effects: Tensor, count: int | None) -> list[tuple[int, int]]:
    """Layer and head of the largest effects, largest first."""
    heads = effects.shape[1]
    if count is None:
        count = min(MOST_HEADS, max(1, effects.numel() // SHARE_OF_HEADS))
    order = effects.flatten().sort(descending=True, stable=True).indices[:count].tolist()
    return [(place // heads, place % heads) for place in order]
