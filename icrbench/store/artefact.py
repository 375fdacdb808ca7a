"""Fitted methods as stored in a folder, which is written whole or not at all and checked when it is read."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.backbone.metering import Cost
from icrbench.method import Fitted, Method
from icrbench.registry import make_method
from icrbench.store.records import quantisation_words
from icrbench.util.cache import Damaged, verified, write_kept
from icrbench.util.errors import UserError, said

FORMAT = 3  # of stored artefacts
DESCRIPTION = "fitted.json"
WEIGHTS = "fitted.safetensors"


class DamagedArtefact(UserError):
    """A stored fit that cannot be read, or belongs to something else.

    Attributes:
        problem: what is wrong, without what to do about it.
    """

    def __init__(self, problem: str, remedy: str = "delete it, and it is fitted again") -> None:
        super().__init__(f"{problem}: {remedy}.")
        self.problem = problem


@dataclass(frozen=True)
class Artefact:
    """A fitted method as stored in a folder: ``fitted.safetensors`` and ``fitted.json``.

    Attributes:
        method: what was fitted.
        fitted: the outcome.
        model: identity of the backbone it was fitted on.
        cost: of the fit.
    """

    method: Method
    fitted: Fitted
    model: Mapping[str, Any] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)

    @cached_property
    def sha256(self) -> str:
        """Hash of everything stored but the cost, first 16 hex digits: the same for a fit that is made again."""
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
        """Write the artefact; a fit that another process has put there meanwhile stays.

        Raises:
            UserError: if the folder cannot be written.
            TypeError, ValueError: if the configuration is not json-able.
        """

        def fill(temporary: Path) -> dict[str, Any]:
            save_file(_contiguous(self.fitted.tensors), temporary / WEIGHTS)
            return {**self._description(), "cost": asdict(self.cost)}

        write_kept(folder, fill, DESCRIPTION)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read an artefact, whatever model it belongs to.

        Raises:
            DamagedArtefact: if files are missing, damaged or of another format.
            UserError: if a file may not be read.
        """
        try:
            stored = verified(folder, DESCRIPTION)
        except (FileNotFoundError, Damaged) as error:
            raise _unreadable(folder, error) from error
        try:
            if stored["format"] != FORMAT:
                raise ValueError(f"format {stored['format']}, this version reads {FORMAT}")
            tensors = load_file(folder / WEIGHTS)
            method = make_method(stored["method"], stored["hyperparameters"])
            config, model, cost = dict(stored["config"]), dict(stored["model"]), Cost.read(stored["cost"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError, UserError) as error:
            raise _unreadable(folder, error) from error
        return cls(method, type(method).fitted(config, tensors), model, cost)

    @classmethod
    def load(cls, folder: Path, backbone: Backbone, *, allow_model: bool = False) -> Self:
        """Read an artefact and check that it belongs to this model.

        Args:
            folder: where it is.
            backbone: the model it is to be applied to.
            allow_model: also take other weights than those it was fitted on.

        Raises:
            DamagedArtefact: as `read`, or if it was fitted on another model.
        """
        artefact = cls.read(folder)
        model, here = artefact.model, backbone.identity()
        if not allow_model and not same_weights(model, here):
            raise DamagedArtefact(
                f"{folder} was fitted on {_words(model)}, not on {_words(here)}",
                "use the model it was fitted on",
            )
        return artefact


def _unreadable(folder: Path, error: Exception) -> DamagedArtefact:
    problem = said(error)
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        found = json.loads((folder / DESCRIPTION).read_bytes())["format"]
        if found != FORMAT:  # an older version's, whose json had no hash
            problem = f"format {found}, this version reads {FORMAT}"
    return DamagedArtefact(f"{folder} does not hold a fitted method that can be read ({problem})")


def same_weights(stored: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Whether two model identities (`Backbone.identity`) are of the same weights, tokenizer and framing.

    They are if their contents agree, wherever they lie and whatever they are called, or if they are one revision of one
    place: weights that are stored as float32 have another content when they are loaded as bfloat16. Framing is the chat
    template; a model that is quantised otherwise is another one.
    """
    content, place = ("weights", "tokenizer"), ("location", "revision")
    if any(stored.get(key) != here.get(key) for key in ("chat_template", "quantisation")):
        return False
    return any(all(stored.get(key) == here[key] for key in keys) for keys in (content, place))


def _words(model: Mapping[str, Any]) -> str:
    how = quantisation_words(model)
    chat = " in its chat template" * ("chat_template" in model)
    return f"{model.get('location')}@{model.get('revision')}" + (f" in {how}" if how else "") + chat


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Clones, since safetensors refuses tensors that share memory.
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in sorted(tensors.items())}
