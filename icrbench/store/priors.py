"""What a cell's method answers to prompts that say nothing: one file a cell, ``DIR/priors/<key>.json``.

Kept apart from the record, so that cells which have none yet are completed without being scored again. The logits of
every prompt are stored, not a mean of them: what a report makes of them can change without a model.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

from icrbench.util.errors import UserError
from icrbench.util.files import cannot_read, write_atomic

FOLDER = "priors"
PRIORS_VERSION = 1


class Prompts(TypedDict):
    """The prompts of one kind for the rows that have the same options."""

    options: list[str]
    ids: list[str]
    """Of the train rows that were read; empty for prompts that are made up."""
    logits: list[list[float]]
    """Of the options after every prompt, ``[prompts, options]``; empty where there was no row to make a prompt of."""


class Priors(TypedDict):
    """The priors of one cell. A kind that the protocol does not allow is not there."""

    prompts: dict[str, list[Prompts]]
    inputs: str | None
    """Hash of the train rows that could be read; None where the protocol gives none."""
    overlap: int
    """Test rows that share a text with the train rows that were read."""
    seconds: float
    command: str


def write_priors(folder: Path, key: str, priors: Priors) -> None:
    """Save the priors of a cell, whole or not at all.

    Args:
        folder: of the results.
        key: of the cell.
        priors: to save.

    Raises:
        UserError: if the folder cannot be written.
        ValueError: if a logit is not finite.
    """
    content = {"schema": PRIORS_VERSION, "key": key, "sha256": _digest(key, priors), "priors": priors}
    write_atomic(_path(folder, key), json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")


def read_priors(folder: Path, key: str) -> Priors | None:
    """Return the priors of a cell, or None if it has none.

    Raises:
        UserError: if the file may not be read, is cut, was changed, or belongs to another cell.
    """
    path = _path(folder, key)
    try:
        content = json.loads(path.read_bytes())
        priors = content["priors"]
        whole = content["key"] == key and content["schema"] == PRIORS_VERSION
        if not whole or content["sha256"] != _digest(key, priors):
            raise ValueError("another cell's, another version's, or changed")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise cannot_read(path, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not the file that a run wrote ({error}): delete it and run again.") from error
    return cast(Priors, priors)


def remove_priors(folder: Path, key: str) -> None:
    """Forget the priors of a cell."""
    _path(folder, key).unlink(missing_ok=True)


def keys_with_priors(folder: Path) -> frozenset[str]:
    """Return the cells of a results folder that have priors."""
    return frozenset(path.stem for path in (folder / FOLDER).glob("*.json"))


def logits_by_options(prompts: Sequence[Prompts]) -> Mapping[int, list[list[float]]]:
    """Group logits by the number of options: the options of a row are the first so many of a list.

    Raises:
        UserError: if two sets of options have the same number.
    """
    found = {len(part["options"]): part["logits"] for part in prompts}
    if len(found) != len(prompts):
        raise UserError("a prior has two sets of options of the same size: delete the folder priors/ and run again.")
    return found


def _path(folder: Path, key: str) -> Path:
    return folder / FOLDER / f"{key}.json"


def _digest(key: str, priors: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([key, priors], sort_keys=True).encode()).hexdigest()
