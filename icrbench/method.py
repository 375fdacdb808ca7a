"""The interface every method stands behind.

A `Method` is a dataclass of hyperparameters. ``fit`` turns a frozen backbone and labelled data into a `Fitted`: a
value (tensors and a json-able configuration) that can be stored, reloaded and applied. Nothing here knows any one
method; a new method is one file in ``methods/``.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.data.task import Example, Task
from icrbench.randomness import Randomness
from icrbench.util.bounds import check_bounds
from icrbench.util.errors import UserError


class Scope(StrEnum):
    """What a fit belongs to: the runner fits ``task`` methods once per task and ``universal`` ones once for all."""

    NONE = "none"
    TASK = "task"
    UNIVERSAL = "universal"


@dataclass(frozen=True)
class Pool:
    """A task's train rows, as far as a method may see them."""

    task: Task
    train: tuple[Example, ...]
    sha256: str


@dataclass(frozen=True)
class FitData:
    """The labelled data a method may use; the runner alone decides what is in it.

    Attributes:
        pools: train rows by task name.
        target: the task whose own train split is among the pools and which is to be scored; None where a fit on the
            in-domain tasks serves many tasks.
        workspace: a folder for intermediate artefacts that other fits can reuse, keyed by their content.
    """

    pools: Mapping[str, Pool]
    target: str | None
    workspace: Path


class Fitted:
    """A fitted intervention: a value that can be stored, reloaded, compared and applied.

    Attributes:
        config: json-able part.
        tensors: the rest, by name.
        shares_prefix: whether the demonstrations' keys and values, under the method, are the same for every query, so
            that scoring may compute them once. False for methods that change tokens by their place in the prompt.
        last_token_only: whether nothing before the context's last token is changed, so that all of that may be computed
            once for every method that promises it.
        formula: the number of cached parameters in the symbols of `Dimensions` and of the method's paper.
    """

    shares_prefix: ClassVar[bool] = False
    last_token_only: ClassVar[bool] = False
    formula: ClassVar[str] = "0"

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.config = config
        self.tensors = tensors

    @property
    def first_layer(self) -> int | None:
        """The first block whose computation is changed; blocks below it may be computed once. None: no such promise."""
        return None

    @property
    def cached_parameters(self) -> int:
        """Numbers that must be kept to apply the method to a new query, counted."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """Return the value of ``formula`` for a model: what the count has to come to."""
        return 0

    def prefix(self, task: Task, query: Example) -> Sequence[str]:
        """Demonstrations to put before the query, first to last; none for implicit methods."""
        return ()

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Change forward passes of ``batch`` and its decoding within a context: the method itself."""
        return nullcontext()

    def logits(self, backbone: Backbone, states: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """As `Backbone.logits`, for final hidden states computed under the method; for methods that change the head."""
        return backbone.logits(states, token_ids)

    @contextmanager
    def applied(self, backbone: Backbone, batch: Batch) -> Iterator[None]:
        """Apply the method to a batch; leaving the context restores the model, also on an exception.

        Raises:
            RuntimeError: if another intervention is active on the backbone.
        """
        if backbone.active is not None:
            raise RuntimeError(f"{backbone.active} is already applied to this model: leave its context first")
        backbone.active = type(self).__name__
        try:
            with self.intervene(backbone, batch):
                yield
        finally:
            backbone.active = None


@dataclass(frozen=True)
class Method(ABC):
    """A method's hyperparameters. Subclasses are frozen dataclasses registered under a name.

    Attributes:
        scope: what a fit belongs to.
        seeded: whether results depend on the seed; if not, one cell stands for every seed.
        trained: whether ``fit`` trains by gradient through the model, for which float16 is too coarse.
        budget: hyperparameters that say how much data and work a fit gets; below their defaults, which are the
            published ones, a method had less than its paper gives it.
        own_rows: whether a fit needs labelled rows of the task that is scored. Where a protocol gives none of them, the
            method is not applicable: there is no cell.
        fitted: the type that ``fit`` returns.
    """

    name: ClassVar[str]
    scope: ClassVar[Scope]
    seeded: ClassVar[bool] = True
    trained: ClassVar[bool] = False
    budget: ClassVar[tuple[str, ...]] = ()
    own_rows: ClassVar[bool] = False
    fitted: ClassVar[type[Fitted]]

    def __post_init__(self) -> None:
        """Refuse hyperparameters outside the bounds that their types declare (`icrbench.util.bounds`).

        Raises:
            UserError: naming the first of them.
        """
        check_bounds(self.name, self)

    @property
    def explicit(self) -> bool:
        """Whether demonstrations stand before every query at test time, which tables mark."""
        return False

    @abstractmethod
    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> Fitted:
        """Fit to the data. The backbone's weights never change."""

    def fit_tokens(self, tokens: Mapping[str, float], classes: Mapping[str, int]) -> float:
        """Rough cost of a fit, in tokens through the whole model, for estimates made before a run.

        Args:
            tokens: mean length of a demonstration, by pool.
            classes: number of classes, by pool.
        """
        return 0.0

    def hyperparameters(self) -> dict[str, Any]:
        """Every hyperparameter, as json-able values."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def below_published(self) -> dict[str, tuple[float | None, float | None]]:
        """Return the parts of ``budget`` that are below their defaults: the value and the default; None is no limit."""
        found = {name: (getattr(self, name), getattr(type(self), name)) for name in self.budget}
        return {name: pair for name, pair in found.items() if _limit(pair[0]) < _limit(pair[1])}


def _limit(value: float | None) -> float:
    return inf if value is None else value


REGISTRY: dict[str, type[Method]] = {}


def register(name: str) -> Callable[[type[Method]], type[Method]]:
    """Class decorator: make a method known under a name.

    Raises:
        UserError: if the class is no frozen dataclass derived from `Method`, or the name is taken or cannot be written
            in ``--methods`` or as a file's.
    """

    def add(method: type[Method]) -> type[Method]:
        kind: Any = method  # whatever somebody decorates
        if not (isinstance(kind, type) and issubclass(kind, Method) and is_dataclass(kind)):
            raise UserError(f"method '{name}' must be a frozen dataclass derived from icrbench.method.Method.")
        if name == "all" or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", name):
            raise UserError(f"a method cannot be named '{name}': use letters, digits, '_' and '-', and not 'all'.")
        if name in REGISTRY and REGISTRY[name].__module__ != method.__module__:
            raise UserError(f"two methods are named '{name}' ({REGISTRY[name].__module__}, {method.__module__}).")
        method.name = name
        REGISTRY[name] = method
        return method

    return add
