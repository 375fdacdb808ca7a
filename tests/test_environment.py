"""What a record says about its making."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from icrbench.runner import environment as module
from icrbench.runner.environment import environment


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    environment.cache_clear()
    yield
    environment.cache_clear()


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
