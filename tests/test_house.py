"""The house: an import goes to the same floor or to a lower one, never in a circle, and what computes is hashed."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from icrbench.util.code import COMPUTING, PACKAGE

ROOT = PACKAGE.parent
FLOORS = (
    {"util"},
    {"data", "backbone", "model_names"},
    {"method", "method_spec", "registry", "protocol", "randomness"},
    {"scoring"},
    {"toolkit"},
    {"methods"},
    {"store", "experiments"},
    {"report"},
    {"runner"},
    {"launch"},
    {"analysis", "lm_eval", "api"},
    {"cli"},
    {"__init__", "__main__"},
)
"""Folders and modules of the package, lowest floor first; ``methods`` is the top level's, the last two its own."""
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
COMPUTES = {name.removesuffix(".py") for name in COMPUTING}
WITHOUT_TORCH = (
    "icrbench.report",
    "icrbench.store.records",
    "icrbench.store.store",
    "icrbench.store.index",
    "icrbench.experiments",
)


def modules() -> dict[str, Path]:
    """Every module of the package and of ``methods/``, by name."""
    found = {}
    for top, folder in (("icrbench", PACKAGE), ("icrbench.methods", ROOT / "methods")):
        for file in folder.rglob("*.py"):
            parts = [top, *file.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(name: str, file: Path, known: dict[str, Path]) -> set[str]:
    """The modules of ours that a module imports, wherever in it the import stands.

    The package's own ``__init__`` does not count: every import runs it.
    """
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                found.add(inner if inner in known else module)
    return {module for module in found if module in known and module not in (name, "icrbench")}


def part(module: str) -> str:
    """The folder or module of the package that a module lies in."""
    return [*module.split("."), "__init__"][1]


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(name, file, known) for name, file in known.items()}


def test_every_part_has_a_floor(graph: dict[str, set[str]]) -> None:
    assert {part(module) for module in graph} <= FLOOR.keys()


def test_no_import_goes_up(graph: dict[str, set[str]]) -> None:
    up = [
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in others
        if FLOOR[part(other)] > FLOOR[part(module)]
    ]
    assert up == []


def test_no_imports_in_a_circle(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_folders_of_one_floor_do_not_import_each_other(graph: dict[str, set[str]]) -> None:
    folders = {part(module): set() for module in graph}
    for module, others in graph.items():
        folders[part(module)] |= {part(other) for other in others} - {part(module)}
    try:
        TopologicalSorter(folders).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_what_computes_imports_only_what_is_hashed(graph: dict[str, set[str]]) -> None:
    outside = [
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in others
        if part(module) in COMPUTES | {"methods"} and part(other) not in COMPUTES | {"util", "methods"}
    ]
    assert outside == []


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_reports_do_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
