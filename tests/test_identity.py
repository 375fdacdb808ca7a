"""What makes a result, a fit or a cached part another one: the code that computes it, wherever it lies."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from icrbench.registry import import_folder, methods
from icrbench.runner.identity import code_identity
from icrbench.util import code
from icrbench.util.cache import key_of
from icrbench.util.code import COMPUTING, code_of, own_sources
from icrbench.util.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
PARTS = {"bases": "icrbench.methods.icr.bases", "trunks": "icrbench.methods.icr.trunkstore"}
METHODS = ("few_shot", "icr", "lora", "zero_shot")
CELLS = frozenset(f"cell of {name}" for name in METHODS)
EVERYTHING = CELLS | PARTS.keys()
EDITS: dict[str, frozenset[str]] = {
    "icrbench/backbone/attention.py": EVERYTHING,
    "icrbench/data/rows.py": EVERYTHING,
    "icrbench/method.py": EVERYTHING,
    "icrbench/model_names.py": EVERYTHING,
    "icrbench/protocol.py": EVERYTHING,
    "icrbench/randomness.py": EVERYTHING,
    "icrbench/scoring/next_token.py": EVERYTHING,
    "icrbench/toolkit/episodes.py": EVERYTHING,
    "methods/few_shot.py": frozenset({"cell of few_shot"}),
    "methods/icr/training.py": frozenset({"cell of icr"}),
    "methods/icr/rollout.py": frozenset({"cell of icr", "bases"}),
    "methods/icr/objective.py": frozenset({"cell of icr", "trunks"}),
    "icrbench/report/leaderboard.py": frozenset(),
    "icrbench/cli/run.py": frozenset(),
    "icrbench/store/store.py": frozenset(),
    "icrbench/util/files.py": frozenset(),
}


def forget() -> None:
    """As in a new process."""
    for function in (code.core, code_of, code_identity):
        function.cache_clear()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget()
    yield
    forget()
    for name in [name for name in sys.modules if name.startswith("icrbench_methods_")]:
        del sys.modules[name]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the code, from which identities are computed."""
    for name in ("icrbench", "methods"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code, "PACKAGE", tmp_path / "icrbench")
    methods()
    for name, module in list(sys.modules.items()):
        if name.startswith("icrbench.methods") and module.__file__:
            monkeypatch.setattr(module, "__file__", str(tmp_path / Path(module.__file__).relative_to(ROOT)))
    monkeypatch.setattr(sys.modules["icrbench.methods"], "__path__", [str(tmp_path / "methods")])
    return tmp_path


def keys() -> dict[str, str]:
    """The part of every cell's and every cached part's key that depends on code."""
    forget()
    cells = {f"cell of {name}": key_of(code_identity(methods()[name])) for name in METHODS}
    return cells | {name: key_of(code_of(module)) for name, module in PARTS.items()}


def edit(path: Path) -> None:
    path.write_text(path.read_text("utf-8") + "\n# edited\n", "utf-8")


def test_an_edit_is_another_identity_of_what_it_affects_and_of_nothing_else(tree: Path) -> None:
    assert sum(bool(affected) for affected in EDITS.values()) >= 10
    before = keys()
    for name, affected in EDITS.items():
        edit(tree / name)
        after = keys()
        assert {part for part in after if before[part] != after[part]} == affected, name
        before = after


def test_names_and_places_of_files_count_and_the_place_of_the_package_does_not(tree: Path) -> None:
    here = keys()
    (tree / "icrbench/toolkit/reading.py").rename(tree / "icrbench/scoring/reading.py")
    assert not here.items() & keys().items()
    (tree / "icrbench/scoring/reading.py").rename(tree / "icrbench/toolkit/reading.py")
    assert keys() == here
    shutil.move(tree / "icrbench", tree / "elsewhere")
    code.PACKAGE = tree / "elsewhere"  # put back by the fixture
    assert keys() == here


def test_this_process_runs_what_it_has_read(tree: Path) -> None:
    before = code_identity(methods()["icr"])
    edit(tree / "icrbench/backbone/attention.py")
    assert code_identity(methods()["icr"]) == before


def test_all_that_computes_is_there() -> None:
    assert all((code.PACKAGE / name).exists() for name in COMPUTING)


def test_every_file_of_a_method_counts() -> None:
    for folder in (path for path in (ROOT / "methods").iterdir() if (path / "__init__.py").exists()):
        found = {file for _, file in own_sources([methods()[folder.name].__module__])}
        assert set(folder.rglob("*.py")) <= found


METHOD = """
from icrbench.method import Fitted, Method, Scope, register
{imports}


@register("{name}")
class Mine(Method):
    scope, fitted = Scope.NONE, Fitted

    def fit(self, backbone, data, rng):
        return Fitted({{}}, {{}})
"""


@pytest.mark.parametrize(
    ("imports", "files"),
    [
        ("from . import first", {"first.py", "second.py"}),
        ("from .first import value", {"first.py", "second.py"}),
        ("from .package.inner import value", {"package/__init__.py", "package/inner.py", "first.py", "second.py"}),
        ("def later():\n    from .second import value", {"second.py"}),
        ("from icrbench.methods.icr.layers import target_layers", {"icr/layers.py"}),
    ],
)
def test_a_method_of_several_files_is_hashed_whole(
    imports: str, files: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from icrbench import method

    monkeypatch.setattr(method, "REGISTRY", dict(method.REGISTRY))
    monkeypatch.setattr("icrbench.registry.REGISTRY", method.REGISTRY)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner.py").write_text("from ..first import value")
    (tmp_path / "first.py").write_text("import json, torch\nfrom .second import value")
    (tmp_path / "second.py").write_text("value = 1")
    (tmp_path / "unused.py").write_text("value = 1")
    (tmp_path / "mine.py").write_text(METHOD.format(imports=imports, name="mine_of_a_test"))
    import_folder(tmp_path)
    kind = methods()["mine_of_a_test"]
    found = dict(own_sources([kind.__module__]))
    assert files | {"mine.py"} <= found.keys()
    assert "unused.py" not in found
    before = code_identity(kind)
    for name in files - {"icr/layers.py"}:
        edit(found[name])
        forget()
        assert code_identity(kind) != before
        before = code_identity(kind)


def test_a_method_of_an_installed_package_is_hashed_with_what_it_imports_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lab_of_a_test"
    (package / "methods").mkdir(parents=True)
    for path, text in {
        "__init__.py": "",
        "common.py": "value = 1",
        "unused.py": "",
        "methods/__init__.py": "",
        "methods/one.py": "import numpy\nimport lab_of_a_test.common\nfrom ..methods import two",
        "methods/two.py": "",
    }.items():
        (package / path).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("lab_of_a_test.methods.one")
    found = {name for name, _ in own_sources(["lab_of_a_test.methods.one"])}
    assert found == {"__init__.py", "common.py", "methods/__init__.py", "methods/one.py", "methods/two.py"}
    for name in [name for name in sys.modules if name.startswith("lab_of_a_test")]:
        del sys.modules[name]


def test_a_module_in_no_package_is_hashed_with_the_modules_beside_it_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alone_of_a_test.py").write_text("import beside_of_a_test")
    (tmp_path / "beside_of_a_test.py").write_text("")
    (tmp_path / "unused_of_a_test.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("alone_of_a_test")
    found = {name for name, _ in own_sources(["alone_of_a_test"])}
    assert found == {"alone_of_a_test.py", "beside_of_a_test.py"}
    for name in ("alone_of_a_test", "beside_of_a_test"):
        del sys.modules[name]


def test_a_method_that_inherits_changes_with_the_method_it_inherits_from(tree: Path) -> None:
    kind = type("Variant", (methods()["icr"],), {"__module__": "icrbench.methods.few_shot"})
    before = code_identity(kind)["method"]
    edit(tree / "methods/icr/training.py")
    forget()
    assert code_identity(kind)["method"] != before


def test_a_method_in_no_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    kind = type("Variant", (methods()["icr"],), {"__module__": "__main__"})
    with pytest.raises(UserError, match=r"save it as a \.py file"):
        code_identity(kind)
