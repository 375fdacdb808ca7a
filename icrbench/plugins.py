"""Methods from elsewhere: installed packages and a folder of the user's. Importing their modules registers them."""

import hashlib
import importlib
import pkgutil
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from icrbench.errors import UserError

GROUP = "icrbench.methods"  # entry points of installed packages


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
    except UserError:
        raise
    except Exception as error:  # whatever somebody's file does wrong
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = (
            f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else f"{last.filename}:{last.lineno}"
        )
        raise UserError(f"{what} cannot be imported: {type(error).__name__} at {place}: {error}") from error
