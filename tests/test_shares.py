"""Shares under Slurm, as squeue tells of them where no real one does so on demand: a stand-in for squeue says it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from icrbench.launch import shares as module
from icrbench.launch.shares import Share, Shares
from icrbench.launch.slurm import Task, Unavailable, tasks
from icrbench.runner.standing import Progress, Reporter
from icrbench.util.errors import UserError

Says = Callable[[str], None]


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """A program of this name, which runs what it is told to."""
    program = tmp_path / "bin" / "squeue"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def says(script: str) -> None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return says


def followed(folder: Path, retries: int = 1) -> tuple[Shares, list[str], list[int]]:
    """Two shares of job 7, what is told of them, and with how many further starts they are submitted again."""
    told: list[str] = []
    further: list[int] = []

    def again(share: Share, left: int) -> str:
        further.append(left)
        return "8"

    shares = [Share(number, f"icrbench run --share {number}/2", [], 1.0, job="7") for number in (1, 2)]
    return Shares(shares, folder, again, retries, told.append), told, further


def test_exit_codes_are_read_as_either_version_writes_them(squeue: Says) -> None:
    squeue(
        "echo '7|1|FAILED|512|one|NonZeroExitCode|0|'; echo '7|2|FAILED|0:9|two|None|3|'; echo '7|N/A|PENDING|0|||0|'"
    )
    assert tasks(["7"]) == {
        ("7", 1): Task("FAILED", 2, "one", "NonZeroExitCode", 0),
        ("7", 2): Task("FAILED", -9, "two", "None", 3),
    }


def test_a_share_that_slurm_has_forgotten_is_done_if_it_said_so_and_else_submitted_again(
    squeue: Says, tmp_path: Path
) -> None:
    shares, told, further = followed(tmp_path)
    progress: Progress = {"cells": 2, "done": 2, "kept": 0, "failed": 0, "share": 1.0, "running": [], "lost": []}
    Reporter(tmp_path, "icrbench run --share 1/2", lambda: progress, lines=False, share=True).update(over=True)
    squeue("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert not shares.look()
    assert [share.ending for share in shares.shares] == ["", None]
    assert further == [0]
    assert shares.jobs == ["8"]
    assert shares.look()  # it is forgotten again, and may not start once more
    assert told[-1] == "share 2 is no longer known to Slurm; --retries allows no further start."
    assert shares.progress()["lost"] == [{"what": "share 2", "why": "is no longer known to Slurm"}]


def test_what_earlier_runs_have_left_says_nothing_of_these(squeue: Says, tmp_path: Path) -> None:
    progress: Progress = {"cells": 2, "done": 2, "kept": 0, "failed": 0, "share": 1.0, "running": [], "lost": []}
    Reporter(tmp_path, "icrbench run --share 1/2", lambda: progress, lines=False, share=True).update(over=True)
    shares, _, _ = followed(tmp_path)
    squeue("echo '7|1|RUNNING|0|one|None|0|'; echo '7|2|PENDING|0||Resources|0|'")
    assert not shares.look()
    assert shares.progress()["done"] == 0


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        ("NODE_FAIL", "0", "ended as NODE_FAIL on one; submitted again as job 8."),
        ("FAILED", "31744", "ran out of time on one; submitted again as job 8."),
        ("FAILED", "35072", "was killed by signal 9 on one; submitted again as job 8."),
        ("FAILED", "9", "was killed by signal 9 on one; submitted again as job 8."),
        ("FAILED", "256", "ended with code 1 on one."),
        ("CANCELLED", "15", "was cancelled on one."),
    ],
)
def test_what_becomes_of_a_share(squeue: Says, tmp_path: Path, state: str, code: str, said: str) -> None:
    shares, told, _ = followed(tmp_path)
    squeue(f"echo '7|1|COMPLETED|0|one|None|0|'; echo '7|2|{state}|{code}|one|None|0|'")
    assert shares.look() == ("submitted again" not in said)
    assert told == ["share 1: all its cells are there", f"share 2 {said}"]


def test_a_slurm_that_does_not_answer_is_given_time(
    squeue: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares, _, _ = followed(tmp_path)
    squeue("echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(Unavailable, match="Unable to contact slurm controller"):
        tasks(["7"])
    assert not shares.look()
    monkeypatch.setattr(module, "SILENCE", 0.0)
    with pytest.raises(UserError, match=r"does not answer for 0 s \(slurm_load_jobs error: Unable to contact"):
        shares.look()
