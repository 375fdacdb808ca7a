"""The interface every method stands behind, and the registry that finds them.

A `Method` is a dataclass of hyperparameters. ``fit`` turns a frozen backbone and labelled data into a `Fitted`: a
value (tensors and a json-able configuration) that can be stored, reloaded and applied. Nothing here knows any one
method; a new method is one file in ``methods/``.
"""

import hashlib
import importlib
import json
import math
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self, get_args, get_type_hints

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.errors import UserError, unknown
from icrbench.files import write_atomic
from icrbench.metering import Cost
from icrbench.plugins import import_installed
from icrbench.randomness import Randomness
from icrbench.task import Example, Task

FORMAT = 2  # of stored artefacts


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
        shares_prefix: whether the demonstrations' keys and values are the same for every query, so that scoring may
            compute them once. False for methods that change what those tokens compute.
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
        """The value of ``formula`` for a model: what the count has to come to."""
        return 0

    def prefix(self, task: Task, query: Example) -> Sequence[str]:
        """Demonstrations to put before the query, first to last; none for implicit methods."""
        return ()

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """The method itself: a context inside which forward passes of ``batch`` (and its decoding) are changed."""
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
        fitted: the type that ``fit`` returns.
    """

    name: ClassVar[str]
    scope: ClassVar[Scope]
    seeded: ClassVar[bool] = True
    fitted: ClassVar[type[Fitted]]

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


def at_least_one(method: Method, *names: str) -> None:
    """Refuse hyperparameters below 1.

    Raises:
        UserError: naming the first of them.
    """
    for name in names:
        if getattr(method, name) < 1:
            raise UserError(f"{method.name}.{name} must be at least 1, not {getattr(method, name)}.")


_REGISTRY: dict[str, type[Method]] = {}


def register(name: str) -> Callable[[type[Method]], type[Method]]:
    """Class decorator: make a method known under a name."""

    def add(method: type[Method]) -> type[Method]:
        if name in _REGISTRY and _REGISTRY[name].__module__ != method.__module__:
            raise UserError(f"two methods are named '{name}' ({_REGISTRY[name].__module__}, {method.__module__}).")
        method.name = name
        _REGISTRY[name] = method
        return method

    return add


def methods() -> dict[str, type[Method]]:
    """Every method by name: those in ``methods/``, of installed packages and of folders imported before.

    Files are found, not listed.
    """
    package = importlib.import_module("icrbench.methods")
    for module in pkgutil.iter_modules(package.__path__, "icrbench.methods."):
        importlib.import_module(module.name)
    import_installed()
    return dict(sorted(_REGISTRY.items()))


def make_method(name: str, overrides: Mapping[str, Any]) -> Method:
    """A method with some hyperparameters overridden; strings are converted to the declared types.

    Raises:
        UserError: for an unknown method, an unknown hyperparameter or a value of the wrong type.
    """
    known = methods()
    if name not in known:
        raise unknown("method", name, known)
    kind = known[name]
    types = get_type_hints(kind)
    names = [item.name for item in fields(kind)]
    values = {}
    for key, value in overrides.items():
        if key not in names:
            raise unknown(f"hyperparameter of {name}", key, names)
        values[key] = _convert(f"{name}.{key}", value, types[key])
    return kind(**values)


def _convert(what: str, value: Any, kind: Any) -> Any:
    """A command-line or YAML value as the type a dataclass field declares."""
    choices = get_args(kind)
    if choices and all(isinstance(choice, str) for choice in choices):  # Literal of strings
        if value not in choices:
            raise unknown(f"value of {what}", str(value), choices)
        return value
    optional = type(None) in choices
    if optional and value in (None, "none", "null"):
        return None
    plain = next((choice for choice in choices if choice is not type(None)), kind) if optional else kind
    try:
        if plain is bool:
            if str(value).lower() not in ("true", "false"):
                raise ValueError
            return str(value).lower() == "true"
        if plain in (int, float):
            number = float(value)
            if not math.isfinite(number) or (plain is int and not number.is_integer()):
                raise ValueError
            return plain(number)
        return plain(value)
    except (TypeError, ValueError) as error:
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        raise UserError(f"{what} must be {words.get(plain, plain.__name__)}, not '{value}'.") from error


class DamagedArtefact(UserError):
    """A stored fit that cannot be read, or belongs to something else."""


@dataclass(frozen=True)
class Artefact:
    """A fitted method as stored in a folder: ``fitted.safetensors`` and ``fitted.json``.

    Attributes:
        method: what was fitted.
        fitted: the outcome.
        model: identity of the backbone it was fitted on.
        cost: what the fit took.
    """

    method: Method
    fitted: Fitted
    model: Mapping[str, Any] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)

    @property
    def sha256(self) -> str:
        """Hash of everything stored, first 16 hex digits."""
        content = json.dumps(self._description(), sort_keys=True).encode() + save(_contiguous(self.fitted.tensors))
        return hashlib.sha256(content).hexdigest()[:16]

    def _description(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "method": self.method.name,
            "hyperparameters": self.method.hyperparameters(),
            "model": dict(self.model),
            "config": self.fitted.config,
        }

    def save(self, folder: Path) -> None:
        """Write the artefact; the json file comes last, so a folder that has it is whole."""
        weights = save(_contiguous(self.fitted.tensors))
        description = {
            **self._description(),
            "cost": asdict(self.cost),
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
        }
        write_atomic(folder / "fitted.safetensors", weights)
        write_atomic(folder / "fitted.json", json.dumps(description, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: Path, backbone: Backbone) -> Self:
        """Read an artefact and check that it belongs to this model.

        Raises:
            DamagedArtefact: if files are missing, damaged, of another format, or fitted on another model.
        """
        source = folder / "fitted.json"
        try:
            stored = json.loads(source.read_text("utf-8"))
            weights = (folder / "fitted.safetensors").read_bytes()
            tensors = load_file(folder / "fitted.safetensors")
            if hashlib.sha256(weights).hexdigest() != stored["weights_sha256"]:
                raise ValueError("the weights do not match their hash")
            if stored["format"] != FORMAT:
                raise ValueError(f"format {stored['format']}, this version reads {FORMAT}")
            method = make_method(stored["method"], stored["hyperparameters"])
            config, model, cost = dict(stored["config"]), dict(stored["model"]), Cost(**stored["cost"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError, UserError) as error:
            problem = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise DamagedArtefact(
                f"{folder} does not hold a fitted method that can be read ({problem}): delete it, and it is"
                " fitted again."
            ) from error
        here = backbone.identity()
        if any(model.get(key) != here[key] for key in ("location", "revision")):
            raise DamagedArtefact(
                f"{folder} was fitted on {model.get('location')}@{model.get('revision')}, not on"
                f" {here['location']}@{here['revision']}: use the model it was fitted on."
            )
        return cls(method, type(method).fitted(config, tensors), model, cost)


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Clones, since safetensors refuses tensors that share memory.
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in sorted(tensors.items())}
