"""Task vectors: the state in which a few-shot prompt ends, put in the place of a zero-shot prompt's own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.backbone.sites import Site
from icrbench.method import FitData, Fitted, Method, Scope, register
from icrbench.randomness import Randomness
from icrbench.toolkit.episodes import Episodes, Questions, demonstration_tokens
from icrbench.toolkit.layer_vector import LayerVector
from icrbench.toolkit.reading import last_token_vectors
from icrbench.toolkit.selection import ChooseBy, by_layer
from icrbench.util.bounds import Count


class TaskVectorFitted(LayerVector):
    """One vector and the block after which it takes the place of the last token's state."""

    def changed(self, states: Tensor, vector: Tensor) -> Tensor:
        """Return the vector itself."""
        return vector.expand_as(states)


@register("task_vector")
@dataclass(frozen=True)
class TaskVector(Method):
    """Task vectors (Hendel et al. 2023), as the ICR and I2CL papers use them.

    The state after a block at the last token of a few-shot prompt whose query is a train row, never a test row. It
    replaces the same state of the zero-shot prompt; it is not added. The block is the one that answers most held-out
    train rows rightly. The original averages over two dummy queries and draws demonstrations anew for every test
    query; one set of demonstrations and one dummy query are I2CL's form.

    Attributes:
        per_class: demonstrations per class.
        per_task: demonstrations per in-domain task, for tasks without demonstrations of their own.
        dummies: dummy queries averaged over.
        layer: block number, from 0; none for the best on held-out rows.
        held_out: train rows held out to choose it by.
        choose_by: whether by raw or by calibrated accuracy there (`icrbench.toolkit.selection`).
    """

    per_class: Count = 5
    per_task: Count = 3
    dummies: Count = 1
    layer: int | None = None
    held_out: Count = 32
    choose_by: ChooseBy = "raw"

    scope: ClassVar[Scope] = Scope.TASK
    budget: ClassVar[tuple[str, ...]] = ("dummies",)
    fitted: ClassVar[type[Fitted]] = TaskVectorFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> TaskVectorFitted:
        """Read the state of every block, then choose one on held-out rows."""
        episodes = Episodes(data, rng, per_class=self.per_class, per_task=self.per_task, held_out=self.held_out)
        questions = Questions(backbone)
        prompts = questions.in_context(episodes.episodes(self.dummies, queries_per_set=self.dummies))
        sites = [Site("block", layer) for layer in range(backbone.dims.layers)]
        states = last_token_vectors(backbone, prompts, sites)
        candidates = [
            TaskVectorFitted({"layer": site.layer, "sweep": []}, {"vector": states[site].mean(0)}) for site in sites
        ]
        return by_layer(self, self.layer, backbone, candidates, questions.zero_shot(episodes.held_out), self.choose_by)

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Few-shot prompts of the dummies and the held-out prompts."""
        shown = demonstration_tokens(self.per_class, self.per_task, tokens, classes)
        return shown + (self.dummies + self.held_out) * sum(tokens.values()) / len(tokens)
