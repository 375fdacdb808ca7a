"""What the tests of the command line share: tiny models on disk, data files, and running commands in this process."""

import atexit
import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from icrbench.cli import main
from icrbench.store.records import CellRecord
from icrbench.store.store import Store
from tiny import tiny_model, tokenizer


@cache
def model_folder(family: str = "llama") -> Path:
    """A tiny random model saved with its tokenizer; shared by tests, so nothing may change it."""
    parent = Path(tempfile.mkdtemp(prefix="icrbench-tests-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    folder = parent / f"tiny-{family}"
    tiny_model(family).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def counts(self) -> tuple[int, int, int]:
        """Cells run, already there, failed."""
        found = re.search(r": (\d+) cells run, (\d+) already there, (\d+) failed;", self.out)
        assert found, self
        run, kept, failed = map(int, found.groups())
        return run, kept, failed


class Commands:
    """Runs commands of ``icrbench`` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capsys = capsys
        self.folder = folder

    def __call__(self, *arguments: object) -> Done:
        self._capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stopped:  # as argparse ends
            code = int(stopped.code or 0)
        captured = self._capsys.readouterr()
        return Done(code, captured.out, captured.err)

    def run(
        self, *more: object, out: str = "out", command: str = "run", priors: bool = False, **options: object
    ) -> Done:
        """``icrbench run``, or another command with its options.

        Zero-shot on four demonstration rows of sst2, unless options say otherwise; priors where they are asked for.
        """
        defaults: dict[str, object] = {"methods": "zero_shot", "models": model_folder(), "tasks": "sst2", "limit": 4}
        arguments: list[object] = [] if "data_dir" in options else ["--demo"]
        for name, value in {**defaults, "out": out and self.folder / out, "seeds": 0, **options}.items():
            if value is not None:
                arguments += [f"--{name.replace('_', '-')}", value]
        arguments += ["--no-priors"] if command == "run" and not priors else []
        return self(command, *arguments, *more)

    def refused(self, done: Done, *words: str) -> None:
        """Exit code 2 and one sentence with these words, nothing more."""
        assert done.code == 2, done
        assert done.err.count("\n") == 1, done.err
        assert done.err.endswith("\n"), done.err
        for word in words:
            assert word in done.err

    def records(self, out: str = "out") -> list[CellRecord]:
        return Store(self.folder / out).records()


@pytest.fixture
def icrbench(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("ICRBENCH_CACHE", str(tmp_path / "cache"))
    return Commands(capsys, tmp_path)


def lines(path: Path, rows: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


TASK_FILE: dict[str, Any] = {
    "name": "mine",
    "title": "Mine",
    "role": "far_ood",
    "version": 1,
    "license": "CC0",
    "citation": "none",
    "source": {"files": {"train": "a.jsonl", "test": "b.jsonl"}},
    "fields": {"text": "text"},
    "label": {"column": "label", "values": [0, 1]},
    "template": "T: {text}\nA:",
    "options": ["no", "yes"],
}


def task_folder(folder: Path, rows: Sequence[object] | None = None, **changes: object) -> Path:
    """A folder with a task file of a user's own and its two data files."""
    made = [{"text": f"the {word} one", "label": label} for label, word in enumerate(("first", "last"))]
    lines(folder / "a.jsonl", made)
    lines(folder / "b.jsonl", [{"text": "another", "label": 1}] if rows is None else rows)
    content = {key: value for key, value in {**TASK_FILE, **changes}.items() if value is not None}
    (folder / "mine.yaml").write_text(json.dumps(content))
    return folder
