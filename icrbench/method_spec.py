"""How a method and its hyperparameters are written: ``icr:rank=4:basis=random``, ``icr.rank=4``."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from icrbench.util.errors import UserError

GROUP = "icrbench.methods"
"""Entry points by which installed packages name their methods."""


def split(spec: str) -> tuple[str, dict[str, str]]:
    """Return a method's name and the hyperparameters asked for, as text.

    Raises:
        UserError: if a part is not ``hyperparameter=value``, or sets a hyperparameter a second time.
    """
    name, *pairs = (part.strip() for part in spec.split(":"))
    asked: dict[str, str] = {}
    for pair in pairs:
        _add(asked, *_pair(pair, spec), f"'{spec}'")
    return name, asked


def label(name: str, asked: Mapping[str, str]) -> str:
    """Return what a table calls a method: its name and everything asked for, sorted."""
    return ":".join([name, *(f"{key}={value}" for key, value in sorted(asked.items()))])


def settings(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """``name.hyperparameter=value`` texts by method.

    Raises:
        UserError: for a text that cannot be read, or that sets a hyperparameter a second time.
    """
    by_method: dict[str, dict[str, str]] = {}
    for text in texts:
        path, value = _pair(text, f"--set {text}")
        name, _, key = path.partition(".")
        if not name or not key:
            raise UserError(f"cannot read '--set {text}': write method.hyperparameter=value.")
        _add(by_method.setdefault(name, {}), key, value, f"--set {name}.{key}")
    return by_method


def _add(asked: dict[str, str], key: str, value: str, where: str) -> None:
    """Put a hyperparameter to those asked for; two values are refused, since neither is more meant than the other."""
    if key in asked:
        raise UserError(f"{where} gives '{key}' twice, as {asked[key]} and {value}: keep one.")
    asked[key] = value


def _pair(text: str, where: str) -> tuple[str, str]:
    key, _, value = (part.strip() for part in text.partition("="))
    if not key or not value:
        raise UserError(f"cannot read '{text}' in '{where}': write hyperparameter=value.")
    return key, value


def declared_names(extra_dir: Path | None = None) -> list[str]:
    """Return the names that files of methods register, read from their text: importing them would import torch.

    Args:
        extra_dir: a folder of the user's, beside ``methods/``.
    """
    folders = [_bundled(), *([] if extra_dir is None else [extra_dir])]
    return sorted({name for folder in folders for path in folder.rglob("*.py") for name in _registered(path)})


def summaries() -> dict[str, str]:
    """Return what the methods in ``methods/`` are: the first line of the file's docstring, or of its folder's."""
    bundled, found = _bundled(), {}
    for path in bundled.rglob("*.py"):
        says = path if path.parent == bundled else path.with_name("__init__.py")
        for name in _registered(path):
            words = ast.get_docstring(ast.parse(says.read_bytes())) or ""
            found[name] = words.partition("\n")[0]
    return found


def _bundled() -> Path:
    return Path(str(resources.files("icrbench.methods")))


def _registered(path: Path) -> Iterator[str]:
    """Yield the names in ``@register("name")`` of a file; a file that cannot be read is left to its import."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "register":
                    yield from (str(value.value) for value in call.args if isinstance(value, ast.Constant))
