"""``icrbench new task``: from a data file to a task that runs."""

from pathlib import Path

import pytest

from cli_setup import Commands, icrbench, lines

__all__ = ["icrbench"]  # a fixture

ROWS: list[dict[str, object]] = [{"review text": f"film number {number}", "stars": number % 3} for number in range(12)]
WORDS = [{**row, "stars": ["bad", "fine", "good"][number % 3]} for number, row in enumerate(ROWS)]


def drafted(commands: Commands, rows: list[dict[str, object]], *more: object) -> str:
    data = commands.folder / "films"
    lines(data / "train.jsonl", rows)
    lines(data / "test.jsonl", rows[:4])
    done = commands("new", "task", data / "train.jsonl", "--out", commands.folder / "tasks", *more)
    assert done.code == 0, done.err
    return (commands.folder / "tasks" / "films.yaml").read_text()


@pytest.mark.parametrize(("rows", "options"), [(ROWS, "[A, B, C]"), (WORDS, "[bad, fine, good]")])
def test_a_drafted_task_runs(icrbench: Commands, rows: list[dict[str, object]], options: str) -> None:
    text = drafted(icrbench, rows)
    assert f"options: {options}" in text
    assert "{review_text}" in text
    done = icrbench.run("--protocol", "in_task", tasks="films", tasks_dir=icrbench.folder / "tasks", demo=None)
    assert done.counts == (1, 0, 0), done


def test_what_cannot_be_told_is_asked_for(icrbench: Commands, tmp_path: Path) -> None:
    data = lines(tmp_path / "films" / "train.jsonl", [{**row, "place": n % 2} for n, row in enumerate(ROWS)])
    out = ("--out", tmp_path / "tasks")
    icrbench.refused(icrbench("new", "task", data, *out), "no test rows", "--test")
    lines(tmp_path / "films" / "test.jsonl", ROWS)
    icrbench.refused(icrbench("new", "task", data, *out), "which column", "--label")
    icrbench.refused(icrbench("new", "task", data, *out, "--label", "star"), "did you mean stars")
    icrbench.refused(icrbench("new", "task", tmp_path / "none.jsonl", "--test", data, *out), "cannot read")
    assert icrbench("new", "task", data, *out, "--label", "stars").code == 0
    icrbench.refused(icrbench("new", "task", data, *out, "--label", "stars"), "there already")


def test_all_missing_keys_are_named_at_once(icrbench: Commands, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\ntitle: Mine\n")
    icrbench.refused(
        icrbench("list", "tasks", "--tasks-dir", tmp_path), "role", "license", "source", "template", "options"
    )
