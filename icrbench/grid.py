"""What the user asked for, checked before any work is done."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from icrbench.data import Source
from icrbench.errors import UserError, unknown
from icrbench.method import make_method, methods
from icrbench.presets import Preset
from icrbench.protocol import Rules
from icrbench.runner import LabelledMethod
from icrbench.scoring import ScoringOptions
from icrbench.task import Task


@dataclass(frozen=True)
class Request:
    """A run, as asked for on the command line or from Python.

    Attributes:
        methods: in the order of the table's work.
        models: names, hub ids, folders or GGUF files.
        tasks: to score.
        known_tasks: all tasks there are, in-domain ones among them.
        seeds: for methods with randomness.
        source: where data comes from.
        rules: protocol, cleaning, test rows.
        out: results folder.
        workspace: folder for intermediate artefacts.
        scoring: how to compute.
        device, dtype, device_map: how to load models; None for the default.
        command: the command line that asked for it, for the records.
    """

    methods: Sequence[LabelledMethod]
    models: Sequence[str]
    tasks: Sequence[Task]
    known_tasks: Sequence[Task]
    seeds: Sequence[int]
    source: Source
    rules: Rules
    out: Path
    workspace: Path
    scoring: ScoringOptions
    device: str | None = None
    dtype: str | None = None
    device_map: str | None = None
    command: str = ""


def parse_methods(text: str, settings: Sequence[str], preset: Preset) -> list[LabelledMethod]:
    """Methods from ``all`` or ``name[:hyperparameter=value...],...`` and from ``name.hyperparameter=value`` settings.

    The preset's values go first, then the settings, then what stands in the method's own text. A label keeps
    everything that was asked for beside the preset.

    Raises:
        UserError: for unknown names, values of the wrong type, or text that cannot be read.
    """
    common = _settings(settings)
    specs = list(methods()) if text == "all" else [part.strip() for part in text.split(",") if part.strip()]
    if not specs:
        raise UserError("no method asked for: name some with --methods, or all of them with --methods all.")
    found: dict[str, LabelledMethod] = {}
    for spec in specs:
        name, *pairs = (part.strip() for part in spec.split(":"))
        asked = {**common.get(name, {}), **dict(_pair(pair, spec) for pair in pairs)}
        method = make_method(name, {**preset.methods.get(name, {}), **asked})
        label = ":".join([name, *(f"{key}={value}" for key, value in sorted(asked.items()))])
        found[label] = LabelledMethod(label, method)
    for name in sorted(set(common) - {item.method.name for item in found.values()}):
        if name not in methods():
            raise unknown("method in --set", name, methods())
        raise UserError(f"--set {name}.… sets a method that is not run: add it to --methods.")
    return list(found.values())


def _pair(text: str, where: str) -> tuple[str, str]:
    key, _, value = (part.strip() for part in text.partition("="))
    if not key or not value:
        raise UserError(f"cannot read '{text}' in '{where}': write hyperparameter=value.")
    return key, value


def _settings(settings: Sequence[str]) -> dict[str, dict[str, str]]:
    """``name.hyperparameter=value`` texts by method."""
    by_method: dict[str, dict[str, str]] = {}
    for text in settings:
        path, value = _pair(text, f"--set {text}")
        name, _, key = path.partition(".")
        if not name or not key:
            raise UserError(f"cannot read '--set {text}': write method.hyperparameter=value.")
        by_method.setdefault(name, {})[key] = value
    return by_method
