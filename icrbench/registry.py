"""Every method by name: those in ``methods/``, of installed packages and of a folder of the user's."""

import hashlib
import importlib
import math
import pkgutil
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

from icrbench.method import REGISTRY, Method
from icrbench.method_spec import GROUP
from icrbench.util.errors import UserError, shortened, unknown


def methods() -> dict[str, type[Method]]:
    """Every method by name: those in ``methods/``, of installed packages and of folders imported before.

    Files are found, not listed.
    """
    package = importlib.import_module("icrbench.methods")
    for module in pkgutil.iter_modules(package.__path__, "icrbench.methods."):
        importlib.import_module(module.name)
    import_installed()
    return dict(sorted(REGISTRY.items()))


def make_method(name: str, overrides: Mapping[str, Any]) -> Method:
    """Make a method with some hyperparameters overridden; strings are converted to the declared types.

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
    """Convert a command-line or YAML value to the type that a dataclass field declares."""
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
        raise UserError(f"{what} must be {words.get(plain, plain.__name__)}, not '{shortened(str(value))}'.") from error


def import_installed() -> None:
    """Import what installed packages name in the entry-point group ``icrbench.methods``.

    Raises:
        UserError: if one of them cannot be imported.
    """
    for entry in metadata.entry_points(group=GROUP):
        package = entry.dist.name if entry.dist is not None else entry.value
        _importing(f"the methods of package {package}", entry.load)


def import_folder(folder: Path) -> None:
    """Import every module of a folder, as one package, so that its files may import each other relatively.

    Raises:
        UserError: if there is no such folder, or a file in it cannot be imported.
    """
    if not folder.is_dir():
        raise UserError(f"no folder {folder}: give --methods-dir the folder with your method files.")
    folder = folder.resolve()
    next(folder.iterdir(), None)  # what follows takes a folder that may not be read for an empty one
    name = f"icrbench_methods_{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        package = ModuleType(name, f"Methods in {folder}.")
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    for module in pkgutil.iter_modules([str(folder)]):
        path = f"{name}.{module.name}"
        _importing(str(folder / module.name), lambda path=path: importlib.import_module(path))  # type: ignore[misc]


def _importing(what: str, load: Callable[[], Any]) -> None:
    try:
        load()
    except KeyboardInterrupt:
        raise
    except UserError as error:
        raise UserError(f"{what}: {error}") from error
    except BaseException as error:  # whatever somebody's file does wrong
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = (
            f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else f"{last.filename}:{last.lineno}"
        )
        raise UserError(f"{what} cannot be imported: {type(error).__name__} at {place}: {error}") from error
