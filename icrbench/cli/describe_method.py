"""One method, described: its docstring, and every hyperparameter with meaning, default and the presets' values."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields

from tabulate import tabulate

from icrbench.method import Method
from icrbench.registry import methods
from icrbench.runner.presets import preset
from icrbench.util.errors import unknown

PRESETS = ("paper", "cpu", "demo")
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*)$")


def describe_method(name: str) -> str:
    """Describe a method by what its class says of itself.

    Raises:
        UserError: for an unknown method.
    """
    known = methods()
    if name not in known:
        raise unknown("method", name, known)
    kind = known[name]
    text, _, _ = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")
    meaning = meanings(kind)
    sizes = {size: preset(size).methods.get(name, {}) for size in PRESETS}
    rows = [
        [
            field.name,
            _default(field.default),
            *(str(sizes[size].get(field.name, "")) for size in PRESETS),
            meaning.get(field.name, ""),
        ]
        for field in fields(kind)
    ]
    facts = [
        f"fitted per {kind.scope}" + ("" if kind.seeded else "; no randomness, so one cell stands for every seed"),
        f"cached parameters: {kind.fitted.formula}",
    ]
    table = tabulate(
        rows, ["hyperparameter", "default", *PRESETS, "meaning"], maxcolwidths=[None] * 5 + [60], disable_numparse=True
    )
    return "\n".join([f"{name}: {text.strip()}", "", *facts, "", table if rows else "no hyperparameters"])


def meanings(kind: type[Method]) -> dict[str, str]:
    """Read what the docstrings of a method and of its bases say of each attribute."""
    return {name: meaning for base in reversed(kind.__mro__) for name, meaning in _meanings(base)}


def _meanings(kind: type[Method] | type) -> Iterator[tuple[str, str]]:
    """Yield the entries of the ``Attributes:`` section of a class's own docstring, each on one line."""
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")
    names: list[str] = []
    parts: list[str] = []
    for line in [*section.split("\n"), "    end: "]:
        if found := _ENTRY.match(line):
            yield from ((name, " ".join(parts)) for name in names)
            names, parts = found[1].split(", "), [found[2]]
        elif line.strip():
            parts.append(line.strip())


def _default(value: object) -> str:
    return "" if value is MISSING else str(value)
