"""How a model is named, and which names there are; nothing is loaded, and torch is not needed."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from icrbench.util.cache import cache_folder
from icrbench.util.errors import UserError, unknown


def known_models() -> dict[str, dict[str, Any]]:
    """Return the entries of ``models.yaml``."""
    entries: dict[str, dict[str, Any]] = yaml.safe_load(files(__package__).joinpath("models.yaml").read_text("utf-8"))
    return entries


def check_model(spec: str) -> None:
    """Raise a UserError if a model cannot be what the user meant; loads nothing.

    A name without a slash must be in ``models.yaml`` or exist as a path; anything with one may be a hub id.
    """
    name, revision = name_and_revision(spec)
    if revision and "gguf" in known_models().get(name, {}):
        raise UserError(f"model '{name}' is shipped in a package and has no revisions: leave out '@{revision}'.")
    if revision and name not in known_models() and path_of(name).exists():
        raise UserError(f"{name} is on this machine, where models have no revisions: leave out '@{revision}'.")
    is_path = name.endswith(".gguf") or name.startswith((".", "/", "~"))
    if is_path and not path_of(name).exists():
        raise UserError(f"no file or folder {name}: check the model's path.")
    if not is_path and name not in known_models() and "/" not in name and not path_of(name).exists():
        raise unknown("model", name, known_models())


def name_and_revision(spec: str) -> tuple[str, str]:
    """Split ``name@revision`` in two.

    The revision is empty where none is given, as in a path that has the sign itself.
    """
    name, _, revision = (spec, "", "") if path_of(spec).exists() else spec.partition("@")
    return name, revision


def path_of(name: str) -> Path:
    """Return a path as the user may write it."""
    try:
        return Path(name).expanduser()
    except RuntimeError:  # the home of nobody
        return Path(name)


def local_source(spec: str) -> Path | None:
    """Return the folder of a converted or local model, if there is one already; loads and converts nothing."""
    converted = sorted((cache_folder() / "models").glob(f"{Path(spec).stem}-{'[0-9a-f]' * 16}"))
    if "gguf" in known_models().get(spec, {}) or spec.endswith(".gguf"):
        return converted[0] if converted else None
    folder = path_of(spec)
    return folder if folder.is_dir() else None
