"""State vectors: what heads put out where demonstrations predict their answers, put in a zero-shot prompt."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.sites import Edit, Site, captured
from icrbench.backbone.steering import steered
from icrbench.method import FitData, Fitted, Method, Scope, register
from icrbench.randomness import Randomness
from icrbench.toolkit.demonstration_text import Demonstrations
from icrbench.toolkit.episodes import Episodes, Labelled, Questions, shares
from icrbench.toolkit.selection import ChooseBy, by_layer
from icrbench.util.bounds import Count, NotNegative

Variant = Literal["momentum", "inner", "plain"]

AVERAGED = 6  # states of demonstrations beside the query's own, and steps between states
WEIGHTS = (1.0, 2.0, 4.0, 8.0, 16.0, 0.0)  # of those steps, the last one being the step to the average


class StateVectorFitted(Fitted):
    """Outputs of all heads in the first blocks.

    Attributes:
        config: ``layer``, the last block changed; ``sweep``, held-out accuracy by that block (empty if it was given);
            ``states``, how many demonstrations were read.
        tensors: ``vectors`` ``[layer + 1, H*d_k]``.
    """

    last_token_only: ClassVar[bool] = True
    formula: ClassVar[str] = "(l+1)Hd_k"

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``(l + 1) H d_k``, ``l`` being the last block changed, from 0."""
        return (int(self.config["layer"]) + 1) * dims.heads * dims.head_dim

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Put the outputs in the place of the heads' own at the context's last token."""

        def put(vector: Tensor) -> Edit:
            return lambda outputs: vector.to(outputs.device).expand_as(outputs)

        edits = {Site("heads", layer): put(vector) for layer, vector in enumerate(self.tensors["vectors"])}
        return steered(backbone, batch, edits, "last")


@register("state_vector")
@dataclass(frozen=True)
class StateVector(Method):
    """State vectors (Li et al. 2024, arXiv 2404.11225; code of the authors).

    One prompt of demonstrations and a dummy query is read. The heads' outputs, before the output projection, at the
    tokens that predict the demonstrations' answers and the query's are the states ``S_1 .. S_N, S_q`` of every block.
    ``inner`` averages the last six and the query's. ``momentum`` adds to that average ``rate`` times the mean of the
    last five steps ``S_i - S_(i-1)``, weighted 1, 2, 4, 8, 16 from the first to the last. At test the result takes the
    place of the heads' outputs at the last token, in all blocks up to one.

    Choices of this implementation:
        Demonstrations: the authors show 10 examples of a map between words. Here they are balanced over the classes, at
            most ``shots`` in all but one a class; where that makes fewer than seven, all of them are averaged, and
            the last weights count.
        Token: the authors' separator before an answer (an arrow) may be several tokens, each with a vector of its own;
            here it is the one token at the end of the template's cue.
        Block: theirs is fixed for each task and model (found on the task's own data); here the one that answers most
            held-out train rows.
        Dummy query: a train row that is not among the demonstrations.
        Tasks without rows of their own: demonstrations of all in-domain tasks, so that means and steps are taken over
            tasks, which the authors do not do.
        Aggregation of several prompts (their second part) is left out.

    Attributes:
        variant: ``momentum``, ``inner``, or ``plain``: the query's states alone.
        shots: demonstrations in all, if that is one of each class (or in-domain task) or more.
        rate: factor on the mean step.
        layer: last block changed, from 0; none for the best on held-out rows.
        held_out: train rows held out to choose it by.
        choose_by: whether by raw or by calibrated accuracy there (`icrbench.toolkit.selection`).
    """

    variant: Variant = "momentum"
    shots: Count = 10
    rate: NotNegative = 1.0
    layer: int | None = None
    held_out: Count = 32
    choose_by: ChooseBy = "raw"

    scope: ClassVar[Scope] = Scope.TASK
    fitted: ClassVar[type[Fitted]] = StateVectorFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> StateVectorFitted:
        """Read the states, make one of them, and choose the last block."""
        per_class, per_task = shares(data, self.shots)
        episodes = Episodes(data, rng, per_class=per_class, per_task=per_task, held_out=self.held_out)
        query = episodes.queries(1)[0]
        shown = episodes.demonstrations(exclude={query.example.content_hash})
        states = cue_states(backbone, Demonstrations.fitting(backbone, shown), query)
        vectors = self._vectors(states)
        candidates = [
            StateVectorFitted(
                {"layer": layer, "sweep": [], "states": len(states) - 1}, {"vectors": vectors[: layer + 1].clone()}
            )
            for layer in range(backbone.dims.layers)
        ]
        questions = Questions(backbone).zero_shot(episodes.held_out)
        return by_layer(self, self.layer, backbone, candidates, questions, self.choose_by)

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Return the prompt and the held-out ones; the passes over single tokens are left out."""
        return (self.shots + 1 + self.held_out) * sum(tokens.values()) / len(tokens)

    def _vectors(self, states: Tensor) -> Tensor:
        if self.variant == "plain":
            return states[-1]
        return inner(states) if self.variant == "inner" else momentum(states, self.rate)


def cue_states(backbone: Backbone, demonstrations: Demonstrations, query: Labelled) -> Tensor:
    """Heads' outputs ``[N + 1, L, H*d_k]`` where the answers of ``N`` demonstrations and of a query are predicted."""
    prompt = Questions(backbone)(query, demonstrations.shown).prompt
    if prompt.dropped:  # a query too long to stand behind all of them
        demonstrations = Demonstrations.fitting(backbone, demonstrations.shown[prompt.dropped :])
    sites = [Site("heads", layer) for layer in range(backbone.dims.layers)]
    batch = make_batch([prompt.tokens], [prompt.text], device=backbone.device)
    with torch.inference_mode(), captured(backbone, sites) as seen:
        backbone.hidden_states(batch)
        places = [*demonstrations.cues(backbone), len(prompt.tokens) - 1]
        found = torch.stack([seen[site][0, places].float().cpu() for site in sites], 1)
    return found.clone()


def inner(states: Tensor) -> Tensor:
    """Mean of the last states, ``[N + 1, ...]`` to ``[...]``: the query's and up to six before it."""
    return states[-AVERAGED - 1 :].mean(0)


def momentum(states: Tensor, rate: float) -> Tensor:
    """Return the mean of the last states, moved on by ``rate`` times the weighted mean of the steps before it."""
    average = inner(states)
    path = torch.cat([states[:-1], average[None]])  # the query's own state is in the average alone
    steps = path.diff(dim=0)[-len(WEIGHTS) :]
    weights = torch.tensor(WEIGHTS[-len(steps) :]) if len(steps) else torch.zeros(0)
    total = weights.sum()
    return average if total == 0 else average + rate * torch.tensordot(weights / total, steps, 1)
