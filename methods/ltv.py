"""Linear task vectors: a linear map from a zero-shot prompt's last state to what demonstrations would add to it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.sites import Point, Site
from icrbench.backbone.steering import steered
from icrbench.method import FitData, Fitted, Method, Scope, register
from icrbench.randomness import Randomness
from icrbench.toolkit.episodes import Episode, Episodes, Question, Questions, shares
from icrbench.toolkit.reading import last_token_vectors
from icrbench.util.bounds import Count, Positive
from icrbench.util.errors import UserError

Space = Literal["released", "final_in", "post_norm"]

READ: dict[Space, Point] = {"released": "final", "final_in": "block", "post_norm": "final"}
CHANGED: dict[Space, Point] = {"released": "block", "final_in": "block", "post_norm": "final"}


class LTVFitted(Fitted):
    """A linear map, or one vector, for the last token's state after the last block.

    Attributes:
        config: ``space``, and ``layer``, the last.
        tensors: ``matrix`` ``[d, d]``, or ``mean`` ``[d]``.
    """

    last_token_only: ClassVar[bool] = True
    formula: ClassVar[str] = "d^2, or d if constant"

    @property
    def first_layer(self) -> int:
        """The last block: nothing before its output is changed."""
        return int(self.config["layer"])

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``d^2`` of the map, ``d`` of the vector."""
        return dims.hidden if "mean" in self.tensors else dims.hidden**2

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Shift the state of the context's last token."""
        tensors = {name: tensor.to(backbone.device) for name, tensor in self.tensors.items()}

        def shifted(states: Tensor) -> Tensor:
            if "mean" in tensors:
                return states + tensors["mean"].to(states.device)
            return states + states @ tensors["matrix"].to(states.device).T

        return steered(backbone, batch, {Site(CHANGED[self.config["space"]], self.first_layer): shifted}, "last")


@register("ltv")
@dataclass(frozen=True)
class LTV(Method):
    """Linear task vectors (Kwon et al., arXiv 2605.20730; the authors' code, github.com/Jii111/LTV).

    One set of demonstrations precedes each of many train queries, whose labels are not used. With ``h_i`` the last
    token's state of query ``i`` asked zero-shot and ``d_i`` what the demonstrations add to it, ridge regression without
    an intercept gives ``W``, the minimiser of ``sum_i ||d_i - W h_i||^2 + ridge * ||W||^2``; at inference ``h + W h``
    takes the place of ``h``. It is solved in float64 over the queries (the dual form, as they are fewer than ``d``).

    The released code fits on the states behind the model's final norm and applies the map to those before it, at the
    output of the last block: two spaces, which differ by the norm's factors (``space=released``, the default).
    ``post_norm`` and ``final_in`` read and change in one space, behind the norm or before it, and are ours. The value
    of ``ridge`` is that of the released configuration, for states behind the norm; before it the states of some models
    are far longer, and the same value then regularises less. As in the released code every class gets the same number
    of demonstrations, so that there may be fewer than ``shots``. For tasks without demonstrations of their own every
    in-domain task gives the same number, which is ours.

    Attributes:
        shots: demonstrations in all.
        queries: train queries to fit on, none of them among the demonstrations; fewer where a pool is small.
        ridge: weight of the squared norm of the map.
        space: where states are read, and where they are changed.
        variant: ``linear``, or ``constant``: the mean of the shifts, added.
    """

    shots: Count = 30
    queries: Count = 256
    ridge: Positive = 5.0
    space: Space = "released"
    variant: Literal["linear", "constant"] = "linear"

    scope: ClassVar[Scope] = Scope.TASK
    budget: ClassVar[tuple[str, ...]] = ("shots", "queries")
    fitted: ClassVar[type[Fitted]] = LTVFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> LTVFitted:
        """Read every query's state without and with the demonstrations, then solve for the map."""
        per_class, per_task = shares(data, self.shots)
        episodes = Episodes(data, rng, per_class=per_class, per_task=per_task)
        shown = episodes.demonstrations()
        taken = {own.example.content_hash for own in shown}
        drawn = episodes.queries(self.queries + len(shown))
        asked = [query for query in drawn if query.example.content_hash not in taken][: self.queries]
        if not asked:
            raise UserError("ltv shows all train rows as demonstrations and has none left to ask: lower ltv.shots.")
        questions = Questions(backbone)
        return self.solved(
            backbone, questions.zero_shot(asked), questions.in_context(Episode(shown, query) for query in asked)
        )

    def solved(self, backbone: Backbone, zero_shot: Sequence[Question], few_shot: Sequence[Question]) -> LTVFitted:
        """Solve for the map from queries asked without demonstrations and with them."""
        site = Site(READ[self.space], backbone.dims.layers - 1)
        states = last_token_vectors(backbone, zero_shot, [site])[site].double()
        shifts = last_token_vectors(backbone, few_shot, [site])[site].double() - states
        config = {"space": self.space, "layer": site.layer}
        if self.variant == "constant":
            return LTVFitted(config, {"mean": shifts.mean(0).float()})
        return LTVFitted(config, {"matrix": ridge_map(states, shifts, self.ridge).float()})

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Count the demonstrations once, and every query twice."""
        return (self.shots + 2 * self.queries) * sum(tokens.values()) / len(tokens)


def ridge_map(inputs: Tensor, outputs: Tensor, ridge: float) -> Tensor:
    """Fit the map ``W`` ``[d, d]`` minimising ``sum_i ||y_i - W x_i||^2 + ridge * ||W||^2``, for rows ``[N, d]``."""
    between = inputs @ inputs.T + ridge * torch.eye(len(inputs), dtype=inputs.dtype)
    weights: Tensor = torch.linalg.solve(between, inputs)
    return outputs.T @ weights
