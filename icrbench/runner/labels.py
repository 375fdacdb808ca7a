"""From what a user writes to labelled methods: ``icr:rank=4``, ``--set icr.epochs=7``, the rows of an experiment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from icrbench import method_spec
from icrbench.method import Method
from icrbench.registry import make_method, methods
from icrbench.runner.presets import Preset
from icrbench.util.errors import UserError, unknown


@dataclass(frozen=True)
class LabelledMethod:
    """A method and how the user wrote it, which is its name in tables."""

    label: str
    method: Method


def parse_methods(text: str, settings: Sequence[str], preset: Preset) -> list[LabelledMethod]:
    """Methods from ``all`` or ``name[:hyperparameter=value...],...`` and from ``name.hyperparameter=value`` settings.

    The preset's values go first, then the settings, then what stands in the method's own text. A label keeps
    everything that was asked for beside the preset.

    Raises:
        UserError: for unknown names, values of the wrong type, or text that cannot be read.
    """
    specs = list(methods()) if text == "all" else [part.strip() for part in text.split(",") if part.strip()]
    if not specs:
        raise UserError("no method asked for: name some with --methods, or all of them with --methods all.")
    common = method_spec.settings(settings)
    found = {item.label: item for item in (_labelled(text, common, preset) for text in specs)}
    _check_settings(common, found.values())
    return list(found.values())


def check_precision(methods: Iterable[LabelledMethod], dtype: str | None) -> None:
    """Refuse to train through a model of float16 weights.

    Raises:
        UserError: naming the methods.
    """
    names = sorted({item.method.name for item in methods if item.method.trained})
    if dtype == "float16" and names:
        raise UserError(
            f"--dtype float16 is too coarse for the gradients that train {', '.join(names)}: use bfloat16 or float32."
        )


def experiment_methods(
    rows: Sequence[str], settings: Sequence[str], preset: Preset
) -> tuple[list[LabelledMethod], dict[str, str]]:
    """Make the methods of experiments' rows, and the label of each row; equal rows share a method.

    A label keeps only what changes the method: with ``rank`` 8 by default, ``icr:rank=8`` is ``icr``, which other
    experiments have as well.

    Raises:
        UserError: as ``parse_methods``.
    """
    common = method_spec.settings(settings)
    made = {row: _shortest(row, common, preset) for row in rows}
    found = {item.label: item for item in made.values()}
    _check_settings(common, found.values())
    return list(found.values()), {row: item.label for row, item in made.items()}


def _labelled(text: str, common: Mapping[str, Mapping[str, str]], preset: Preset) -> LabelledMethod:
    name, pairs = method_spec.split(text)
    asked = {**common.get(name, {}), **pairs}
    return LabelledMethod(method_spec.label(name, asked), make_method(name, {**preset.methods.get(name, {}), **asked}))


def _shortest(text: str, common: Mapping[str, Mapping[str, str]], preset: Preset) -> LabelledMethod:
    """Return the method of a row with the shortest label that gives it."""
    whole = _labelled(text, common, preset)
    name, pairs = method_spec.split(text)
    for key in list(pairs):
        fewer = {other: value for other, value in pairs.items() if other != key}
        shorter = _labelled(method_spec.label(name, fewer), common, preset)
        if shorter.method == whole.method:
            whole, pairs = shorter, fewer
    return whole


def _check_settings(common: Mapping[str, object], found: Iterable[LabelledMethod]) -> None:
    for name in sorted(set(common) - {item.method.name for item in found}):
        if name not in methods():
            raise unknown("method in --set", name, methods())
        raise UserError(f"--set {name}.… sets a method that is not run: add it to --methods.")
