"""Named sizes of a run."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from icrbench.util.errors import unknown


@dataclass(frozen=True)
class Preset:
    """How large a run is.

    Attributes:
        name: as on the command line.
        limit: test rows a task; None for all.
        seeds: seeds to run.
        methods: hyperparameters by method.
    """

    name: str
    limit: int | None
    seeds: tuple[int, ...]
    methods: dict[str, dict[str, Any]]


def preset(name: str) -> Preset:
    """Return the preset of a name.

    Raises:
        UserError: for an unknown name.
    """
    known = yaml.safe_load(files(__package__).joinpath("presets.yaml").read_text("utf-8"))
    if name not in known:
        raise unknown("preset", name, known)
    entry = known[name]
    return Preset(name, entry["limit"], tuple(entry["seeds"]), entry["methods"])
