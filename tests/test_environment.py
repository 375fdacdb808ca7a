"""What a record says about its making, and what makes a result another one."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from icrbench.method import Method
from icrbench.registry import methods
from icrbench.runner import environment as module
from icrbench.runner import identity
from icrbench.runner.environment import environment
from icrbench.runner.identity import code_identity

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    environment.cache_clear()
    code_identity.cache_clear()
    yield
    environment.cache_clear()
    code_identity.cache_clear()


def test_a_method_is_its_file_or_its_folder() -> None:
    assert identity._method_source(methods()["zero_shot"]) == ROOT / "methods" / "zero_shot.py"
    assert identity._method_source(methods()["icr"]) == ROOT / "methods" / "icr"


def test_the_code_that_computes_is_there() -> None:
    here = Path(identity.__file__).parent.parent
    assert all((here / name).exists() for name in identity.COMPUTING)


def variant(folder: Path, base: type[Method], monkeypatch: pytest.MonkeyPatch) -> type[Method]:
    """A method in a file of its own that inherits from another one."""
    folder.mkdir()
    (folder / "variant.py").write_text("# one")
    made = ModuleType("variant")
    made.__file__ = str(folder / "variant.py")
    monkeypatch.setitem(sys.modules, "variant", made)
    return type("Variant", (base,), {"__module__": "variant"})


def test_edits_make_another_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "icrbench", copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(identity, "__file__", str(copy / "runner" / "identity.py"))
    kind = variant(tmp_path / "own", methods()["zero_shot"], monkeypatch)
    seen = [code_identity(kind)]
    for path in (
        copy / "scoring" / "next_token.py",
        copy / "backbone" / "attention.py",
        tmp_path / "own" / "variant.py",
    ):
        path.write_text(path.read_text() + "\n# edited\n")
        assert code_identity(kind) == seen[-1]  # this process runs what it has read
        code_identity.cache_clear()
        seen.append(code_identity(kind))
    assert len({str(identity) for identity in seen}) == 4
    for path in (copy / "cli" / "entry.py", copy / "store" / "store.py", copy / "report" / "text" / "render.py"):
        path.write_text(path.read_text() + "\n# edited\n")
    code_identity.cache_clear()
    assert code_identity(kind) == seen[-1]


def test_a_variant_changes_with_the_method_it_inherits_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = variant(tmp_path / "own", methods()["zero_shot"], monkeypatch)
    before = code_identity(kind)["method"]
    monkeypatch.setattr(sys.modules["icrbench.methods.zero_shot"], "__file__", str(tmp_path / "own" / "variant.py"))
    code_identity.cache_clear()
    assert code_identity(kind)["method"] != before


def test_the_commit_of_somebody_elses_repository_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"ls-files": None, "rev-parse": "0123abcd", "status": " M theirs.py"}
    monkeypatch.setattr(module, "_git", lambda *arguments: answers[arguments[0]])
    assert (environment()["commit"], environment()["dirty"]) == (None, False)
    answers["ls-files"] = "environment.py"
    environment.cache_clear()
    assert (environment()["commit"], environment()["dirty"]) == ("0123abcd", True)


def test_git_that_is_missing_or_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert module._git("no-such-command") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module._git("status") is None
