"""The shares of a run under Slurm, followed from their submission to their end."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from icrbench.launch import slurm
from icrbench.launch.batch_script import OUT_OF_TIME
from icrbench.launch.slurm import Task, Unavailable
from icrbench.runner.plan import Cell
from icrbench.runner.standing import Lost, Progress, Running, Standing, standings
from icrbench.util.errors import UserError

SILENCE = 600.0  # seconds for which Slurm may not answer
SIGHT = 60.0  # seconds until what another machine wrote is seen here at the latest, on file systems in a network
ENDED = ("BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT")
"""States in which a task has come to a bad end that it did not choose."""
OWN_ENDS = (1, 2)
"""Exit codes with which `icrbench run` says itself that something is missing: another start would change nothing."""


@dataclass
class Share:
    """A part of the run.

    Attributes:
        number: from 1.
        command: of the process that runs it.
        cells: with the name of the model of each.
        tokens: estimated, through the model.
        job: that it was last submitted with.
        starts: how often it was started by earlier jobs.
        task: what Slurm last said of it.
        ending: how it ended; None as long as it has not, empty if all its cells are there.
        standing: what it last said of itself.
    """

    number: int
    command: str
    cells: Sequence[tuple[str, Cell]]
    tokens: float
    job: str = ""
    starts: int = 0
    task: Task | None = None
    ending: str | None = None
    standing: Standing | None = None

    def __str__(self) -> str:
        return f"share {self.number}"

    @property
    def done(self) -> float:
        """Tokens that are through."""
        return self.tokens * (1.0 if self.ending == "" else self.standing["share"] if self.standing else 0.0)

    @property
    def says_complete(self) -> bool:
        """Whether the share has said itself that it came to its end, and all its cells have a result."""
        own = self.standing
        return own is not None and own["over"] and own["done"] + own["kept"] == own["cells"]


@dataclass
class Shares:
    """Follows shares, and submits one again whose task has died.

    Args:
        shares: submitted.
        folder: of the results, where they leave word.
        again: submits a share once more, with so many further starts; returns the job.
        retries: how often a share is started again at most.
        tell: takes lines for people.
    """

    shares: Sequence[Share]
    folder: Path
    again: Callable[[Share, int], str]
    retries: int
    tell: Callable[[str], None]
    _strangers: frozenset[tuple[str, int, float]] = field(init=False)
    _answered: float = field(init=False)

    def __post_init__(self) -> None:
        """Remember what earlier runs have left, which says nothing of these shares."""
        self._strangers = frozenset(map(_author, standings(self.folder)))
        self._answered = time.monotonic()

    @property
    def jobs(self) -> list[str]:
        """All jobs that may have tasks under way."""
        return list(dict.fromkeys(share.job for share in self.shares if share.ending is None))

    def look(self) -> bool:
        """Ask Slurm and read what the shares have left; returns whether all have ended.

        Raises:
            UserError: if Slurm does not answer for long.
        """
        self._listen()
        try:
            seen = slurm.tasks(self.jobs)
        except Unavailable as error:
            if time.monotonic() - self._answered > SILENCE:
                raise UserError(
                    f"Slurm does not answer for {SILENCE:.0f} s ({error}); job {' '.join(self.jobs)} goes on without"
                    f" being watched: see `icrbench status {self.folder}`."
                ) from error
            return False
        self._answered = time.monotonic()
        for share in self.shares:
            if share.ending is None:
                self._follow(share, seen.get((share.job, share.number)))
        return all(share.ending is not None for share in self.shares)

    def settle(self) -> None:
        """Wait until the last word of every share that ran to its end is to be read here."""
        ended = [share for share in self.shares if share.task and share.task.ran_to_its_end]
        until = time.monotonic() + SIGHT
        while time.monotonic() < until:
            self._listen()
            if all(share.standing is not None and share.standing["over"] for share in ended):
                return
            time.sleep(0.2)

    def progress(self) -> Progress:
        """Return how far all are."""
        known = [share.standing for share in self.shares if share.standing is not None]
        running: list[Running] = [
            {**own, "where": f"{share} on {share.task.node}, {own['where']}"}
            for share in self.shares
            if share.standing is not None and share.task is not None and share.task.state == "RUNNING"
            for own in share.standing["running"]
        ]
        given_up: list[Lost] = [{"what": str(share), "why": share.ending} for share in self.shares if share.ending]
        return {
            "cells": sum(len(share.cells) for share in self.shares),
            "done": sum(own["done"] for own in known),
            "kept": sum(own["kept"] for own in known),
            "failed": sum(own["failed"] for own in known),
            "share": sum(share.done for share in self.shares) / (sum(share.tokens for share in self.shares) or 1.0),
            "running": running,
            "lost": given_up + self.refused(),
        }

    def refused(self) -> list[Lost]:
        """Return what shares have left out themselves, for example a model that cannot be loaded, each once."""
        lost = [(own["what"], own["why"]) for share in self.shares if share.standing for own in share.standing["lost"]]
        return [{"what": what, "why": why} for what, why in dict.fromkeys(lost)]

    def _listen(self) -> None:
        own = {share.command: share for share in self.shares}
        for standing in sorted(standings(self.folder), key=lambda said: said["started"]):
            if (share := own.get(standing["command"])) and _author(standing) not in self._strangers:
                share.standing = standing

    def _follow(self, share: Share, task: Task | None) -> None:
        """Take note of what Slurm says of a share."""
        before, share.task = share.task, task or share.task
        if task is None and not share.says_complete:
            self._end(share, "is no longer known to Slurm", again=True)
        elif task is None or (task.state == "COMPLETED" and task.code == 0):
            share.ending = ""
            self.tell(f"{share}: all its cells are there")
        elif task.state == "FAILED" and task.code in OWN_ENDS:
            self._end(share, f"ended with code {task.code}", again=False)
        elif task.state == "CANCELLED":
            self._end(share, "was cancelled", again=False)
        elif task.state in ENDED:
            self._end(share, _how(task), again=True)
        elif task != before:
            self._tell_news(share, task, before)

    def _tell_news(self, share: Share, task: Task, before: Task | None) -> None:
        if before is not None and task.restarts > before.restarts:
            self.tell(f"{share}: to be started again, after {before.node or 'a node'} lost it or its time was up")
        if task.state == "RUNNING" and (before is None or (before.state, before.node) != (task.state, task.node)):
            self.tell(f"{share}: runs on {task.node}")
        elif task.state == "PENDING" and task.reason not in ("None", "Priority", "BeginTime"):
            self.tell(f"{share}: waits ({task.reason})")

    def _end(self, share: Share, how: str, *, again: bool) -> None:
        """Submit a share again, or give it up."""
        share.starts += 1 + (share.task.restarts if share.task else 0)
        ending = how + (f" on {share.task.node}" if share.task and share.task.node else "")
        if not again:
            self.tell(f"{share} {ending}.")
        elif share.starts > self.retries:
            self.tell(f"{share} {ending}; --retries allows no further start.")
        else:
            try:
                share.job, share.task = self.again(share, self.retries - share.starts), None
            except UserError as error:  # the others go on
                ending += f"; {error}"
                self.tell(f"{share} {ending}")
            else:
                self.tell(f"{share} {ending}; submitted again as job {share.job}.")
                return
        share.ending = ending


def _how(task: Task) -> str:
    """Say how a task has come to its bad end."""
    if task.state != "FAILED":
        return f"ended as {task.state}"
    if task.code == OUT_OF_TIME:
        return "ran out of time"
    killed = -task.code if task.code < 0 else task.code - 128  # Slurm says it of a script, a shell of its processes
    return f"was killed by signal {killed}" if killed > 0 else f"ended with code {task.code}"


def _author(standing: Standing) -> tuple[str, int, float]:
    return standing["host"], standing["process"], standing["started"]
