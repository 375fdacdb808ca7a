"""Methods that give each class of a task a score of their own, in the place of the output head's logits.

What they compare a query with belongs to classes, so they need labelled rows of the task itself: without them they are
not applicable.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.sites import Site
from icrbench.method import FitData, Method, Scope
from icrbench.randomness import Randomness
from icrbench.toolkit.episodes import Episodes, Question, Questions, shares
from icrbench.toolkit.prefix import ShowsDemonstrations, prefix_config
from icrbench.toolkit.reading import last_token_vectors
from icrbench.util.bounds import Count
from icrbench.util.errors import UserError

OUT_OF_QUESTION = -1e4  # the logit of whatever is no class


class ClassScores(ShowsDemonstrations):
    """A score for each class, from final hidden states that are the model's own.

    Attributes:
        config: of `ShowsDemonstrations`; ``classes``, the token that answers with each class.
    """

    last_token_only: ClassVar[bool] = True

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """Return vectors of ``d`` entries, and ``2 M L G d_k``."""
        return dims.hidden * self.vectors + super().parameters_by_formula(dims)

    @property
    @abstractmethod
    def vectors(self) -> int:
        """How many vectors of the hidden width are kept."""

    @abstractmethod
    def class_scores(self, backbone: Backbone, states: Tensor) -> Tensor:
        """Scores ``[B, C]`` in float32 of final hidden states ``[B, d]``; the right class's is to be the highest."""

    def logits(self, backbone: Backbone, states: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """Return the scores at the classes' tokens, and at all others a number below any score."""
        scores = self.class_scores(backbone, states.flatten(0, -2)).unflatten(0, states.shape[:-1])
        vocabulary = backbone.model.get_output_embeddings().weight.shape[0]
        whole = torch.full((*states.shape[:-1], vocabulary), OUT_OF_QUESTION, device=scores.device)
        whole[..., self.config["classes"]] = scores
        return whole if token_ids is None else whole[..., token_ids.to(scores.device)]


class Read(NamedTuple):
    """What a fit reads.

    Attributes:
        config: of `ClassScores`.
        states: ``[N, d]``, final hidden states of train rows where their answers are predicted.
        labels: ``[N]``, numbers of their classes in ``config["classes"]``.
    """

    config: dict[str, Any]
    states: Tensor
    labels: list[int]


@dataclass(frozen=True)
class ScoredByClass(Method):
    """A method that compares a query with train rows of every class.

    Attributes:
        rows_per_class: train rows compared with, none of them among the demonstrations; fewer where there are fewer.
        shots: ``few`` puts demonstrations before those rows and before every query, as published: explicit.
        demonstrations: at most so many in all, one a class at least.
    """

    rows_per_class: Count = 16
    shots: Literal["zero", "few"] = "zero"
    demonstrations: Count = 4

    scope: ClassVar[Scope] = Scope.TASK
    own_rows: ClassVar[bool] = True

    @property
    def explicit(self) -> bool:
        """With demonstrations."""
        return self.shots == "few"

    def read(self, backbone: Backbone, data: FitData, rng: Randomness) -> Read:
        """Draw demonstrations and rows, and read the rows' final states.

        Raises:
            UserError: for a fit on other tasks.
        """
        if data.target is None:
            raise UserError(f"{self.name} is not applicable: it needs labelled rows of the task itself.")
        per_class, per_task = shares(data, self.demonstrations)
        shown = Episodes(data, rng, per_class=per_class, per_task=per_task).demonstrations() if self.explicit else ()
        rows = Episodes(data, rng, per_class=self.rows_per_class, per_task=1).demonstrations(
            "classes", exclude={own.example.content_hash for own in shown}
        )
        if not rows:
            raise UserError(f"{self.name} shows all train rows and has none left: lower {self.name}.demonstrations.")
        questions = Questions(backbone)
        asked = [questions(row, shown) for row in rows]
        site = Site("final", backbone.dims.layers - 1)
        there = sorted({question.label for question in asked})
        config = {
            "classes": class_tokens(data.target, asked, there),
            **prefix_config(backbone, [own.task.demonstration(own.example) for own in shown]),
        }
        return Read(
            config, last_token_vectors(backbone, asked, [site])[site], [there.index(own.label) for own in asked]
        )

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Return the rows, and the demonstrations once."""
        shown = self.demonstrations if self.explicit else 0
        return sum((self.rows_per_class * classes[name] + shown) * length for name, length in tokens.items())


def class_tokens(task: str, questions: Sequence[Question], classes: Sequence[int]) -> list[int]:
    """Return the token that answers with each of some classes.

    Raises:
        UserError: if it is not the same in all prompts, or one token is not the whole answer.
    """
    if any(own.prompt.continuations or own.prompt.written for own in questions):
        raise UserError(f"task '{task}' has answers of several tokens: a score for each class cannot answer it.")
    found: list[int] = []
    for label in classes:
        tokens = {own.prompt.options[label] for own in questions if label < len(own.prompt.options)}
        if len(tokens) > 1:
            raise UserError(f"task '{task}' has rows whose answers mean other classes: its classes have no scores.")
        found += tokens
    return found
