"""Slurm's own commands: submit a job array, look at its tasks, cancel it. Of Slurm 20.11 or later; no accounting."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from icrbench.util.errors import UserError

ANSWERS = 60.0  # seconds that a command may take
_FIELDS = "ArrayJobID:|,ArrayTaskID:|,State:|,exit_code:|,NodeList:|,Reason:|,RestartCnt:|"


class Unavailable(Exception):
    """Slurm does not answer just now."""


@dataclass(frozen=True)
class Task:
    """A task of a job array, as Slurm sees it.

    Attributes:
        state: as Slurm names it, ``RUNNING``, ``TIMEOUT``.
        code: exit code of its script; negative for a signal.
        node: where it runs or ran.
        reason: why it waits or failed.
        restarts: how often it was requeued.
    """

    state: str
    code: int
    node: str
    reason: str
    restarts: int

    @property
    def ran_to_its_end(self) -> bool:
        """Whether its run came to its end, with all cells or not."""
        return self.state in ("COMPLETED", "FAILED") and self.code in (0, 1)


def submit(script: str) -> str:
    """Submit a batch script; returns the number of the job.

    Raises:
        UserError: if there is no Slurm here, or it refuses the job.
    """
    try:
        answer = _call(["sbatch", "--parsable"], script)
    except FileNotFoundError as error:
        raise UserError(
            "no sbatch on the path: run this where Slurm's commands are, or leave out --launcher slurm."
        ) from error
    except (Unavailable, OSError) as error:
        raise UserError(f"cannot submit a job: {error}") from error
    if answer.returncode != 0:
        raise UserError(f"Slurm refuses the job: {_said(answer.stderr)}.")
    return answer.stdout.strip().split(";")[0]  # NUMBER or NUMBER;CLUSTER


def tasks(jobs: Sequence[str]) -> dict[tuple[str, int], Task]:
    """Return the tasks of jobs by job and number in the array; those that ended long ago may be missing.

    Raises:
        Unavailable: if Slurm does not answer.
    """
    words = ["squeue", "--states=all", "--array", "--noheader", f"--jobs={','.join(jobs)}", "--Format", _FIELDS]
    try:
        answer = _call(words)
    except OSError as error:
        raise Unavailable(str(error)) from error
    if answer.returncode != 0:
        if "Invalid job id" in answer.stderr:  # all of them ended long ago
            return {}
        raise Unavailable(_said(answer.stderr))
    found = {}
    for line in answer.stdout.splitlines():
        job, number, state, status, node, reason, restarts, *_ = (part.strip() for part in line.split("|"))
        if number.isdigit():
            found[job, int(number)] = Task(state, _code(status), node, reason, int(restarts or 0))
    return found


def cancel(jobs: Sequence[str]) -> str:
    """Cancel jobs with all their tasks; returns what went wrong, empty if nothing did."""
    try:
        answer = _call(["scancel", *jobs])
    except (Unavailable, OSError) as error:
        return str(error)
    return _said(answer.stderr) if answer.returncode != 0 else ""


def _code(status: str) -> int:
    """Read how a script has ended: a wait status, or exit code and signal with a colon, as versions differ."""
    if ":" in status:
        code, killed = map(int, status.split(":"))
        return -killed if killed else code
    return os.waitstatus_to_exitcode(int(status or 0))


def _call(words: Sequence[str], given: str = "") -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(words, input=given, capture_output=True, text=True, timeout=ANSWERS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{words[0]} does not answer within {ANSWERS:.0f} s") from error


def _said(text: str) -> str:
    """Return the last line of what a command has said, without who said it."""
    lines = [line for line in text.splitlines() if line.strip()] or ["no reason given"]
    return re.sub(r"^\w+: (error|fatal): ", "", lines[-1]).strip().rstrip(".")
