"""The code a number depends on, found and hashed.

Two kinds of code compute: the folders of `COMPUTING`, which are hashed whole, and a method's own files, which are found
by following its imports. Reports, the command line and the store are neither; what ``util`` holds changes no value
that passes through it.
"""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from icrbench.util.errors import UserError

PACKAGE = Path(__file__).parent.parent
COMPUTING = ("backbone", "data", "scoring", "toolkit", "method.py", "model_names.py", "protocol.py", "randomness.py")
"""Folders and files below the package; what one of them or a method imports lies here or in ``util`` (a test)."""
LIBRARIES = ("torch", "transformers", "sentence-transformers")
_METHODS = "icrbench.methods"


@cache
def core() -> str:
    """Hash of all that computes beside the methods. Read once a process: what is edited later is not what it runs."""
    files = (file for name in COMPUTING for file in _python_files(PACKAGE / name))
    return hash_sources((file.relative_to(PACKAGE).as_posix(), file) for file in files)


def libraries(names: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Versions of the libraries that compute."""
    return {name: metadata.version(name) for name in names}


@cache
def code_of(module: str) -> dict[str, str]:
    """Return what a stored intermediate result depends on beside its inputs.

    Args:
        module: the one that computes it; the modules beside it which it imports count too, its package's other
            modules do not.
    """
    return {"core": core(), "own": hash_sources(own_sources([module], packages=False)), **libraries()}


def hash_sources(files: Iterable[tuple[str, Path]]) -> str:
    """First 16 hex digits of the SHA-256 over names and contents, in the order of the names."""
    digest = hashlib.sha256()
    for name, file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{len(name)} {name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]


def own_sources(modules: Iterable[str], *, packages: bool = True) -> list[tuple[str, Path]]:
    """Return the files that modules consist of: their own, and all which those import, directly or not.

    An import is followed inside the package that a module belongs to (``methods/``, the folder of ``--methods-dir``, an
    installed package; for a module in no package, among the files beside it) and into ``methods/``. An import that is
    written as a string (``importlib``) is not seen.

    Args:
        modules: names of imported modules.
        packages: whether the ``__init__.py`` of the packages they lie in count, with what those import.

    Returns:
        Each file, with its path below the package, which is the same wherever the package lies.

    Raises:
        UserError: for a module without a file, as in a notebook.
    """
    found: dict[Path, str] = {}
    for module in modules:
        roots = dict([_home(module)])
        if _METHODS in sys.modules:
            roots[_METHODS] = Path(sys.modules[_METHODS].__path__[0]).resolve()
        queue = [_file_of(module)]
        while queue:
            file = queue.pop()
            root = next((name for name, folder in roots.items() if file.is_relative_to(folder)), None)
            if file in found or root is None:
                continue
            inside = file.relative_to(roots[root])
            found[file] = inside.as_posix()
            for name in _imported(file, root, inside):
                queue += _files(name, roots, packages=packages)
            if packages:
                queue += _files(".".join(filter(None, [root, *inside.parent.parts])), roots, packages=True)
    return [(name, file) for file, name in found.items()]


def _file_of(module: str) -> Path:
    source = getattr(sys.modules[module], "__file__", None)
    if source is None:
        raise UserError(f"'{module}' is no file, so that its results could not be told apart: save it as a .py file.")
    return Path(source).resolve()


def _home(module: str) -> tuple[str, Path]:
    """Return the package of a module and its folder; for a module in no package no name, and its own folder."""
    name = _METHODS if module.startswith(_METHODS + ".") else module.partition(".")[0]
    paths = getattr(sys.modules.get(name), "__path__", None)
    return (name, Path(next(iter(paths))).resolve()) if paths else ("", _file_of(module).parent)


def _imported(file: Path, root: str, inside: Path) -> Iterator[str]:
    """Full names of what a file imports: modules, and names that may be modules."""
    package = [*filter(None, root.split(".")), *inside.parent.parts]
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            yield from (module, *(".".join(filter(None, [module, alias.name])) for alias in node.names))


def _files(module: str, roots: dict[str, Path], *, packages: bool) -> list[Path]:
    """Return the file of a module in one of the roots, and with ``packages`` the files of packages above it."""
    files: list[Path] = []
    for root, folder in roots.items():
        if root and module != root and not module.startswith(root + "."):
            continue
        parts = [part for part in module.removeprefix(root).split(".") if part]
        for depth in range(len(parts) + 1):
            place = folder.joinpath(*parts[:depth])
            whole = depth == len(parts)
            if whole or packages:
                files += [place / "__init__.py"] if root or depth else []
            if whole and depth:
                files.append(place.with_name(place.name + ".py"))
    return [file for file in files if file.is_file()]


def _python_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]
