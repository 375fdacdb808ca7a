"""How a method and its hyperparameters are written: ``icr:rank=4:basis=random``, ``icr.rank=4``."""

from collections.abc import Mapping, Sequence

from icrbench.util.errors import UserError


def split(spec: str) -> tuple[str, dict[str, str]]:
    """A method's name and the hyperparameters asked for, as text.

    Raises:
        UserError: if a part is not ``hyperparameter=value``.
    """
    name, *pairs = (part.strip() for part in spec.split(":"))
    return name, dict(_pair(pair, spec) for pair in pairs)


def label(name: str, asked: Mapping[str, str]) -> str:
    """What a table calls a method: its name and everything asked for, sorted."""
    return ":".join([name, *(f"{key}={value}" for key, value in sorted(asked.items()))])


def settings(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """``name.hyperparameter=value`` texts by method.

    Raises:
        UserError: for a text that cannot be read.
    """
    by_method: dict[str, dict[str, str]] = {}
    for text in texts:
        path, value = _pair(text, f"--set {text}")
        name, _, key = path.partition(".")
        if not name or not key:
            raise UserError(f"cannot read '--set {text}': write method.hyperparameter=value.")
        by_method.setdefault(name, {})[key] = value
    return by_method


def _pair(text: str, where: str) -> tuple[str, str]:
    key, _, value = (part.strip() for part in text.partition("="))
    if not key or not value:
        raise UserError(f"cannot read '{text}' in '{where}': write hyperparameter=value.")
    return key, value
