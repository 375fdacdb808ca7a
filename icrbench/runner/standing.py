"""How a run stands: a small file in its folder that is written anew as it goes, and a line a minute in a log.

``OUT/logs/HOST-PROCESS.json`` is what `icrbench status` reads. Nothing else does: no result rests on it.
"""

import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TypedDict, cast

from icrbench.util.files import gone, remove_abandoned, write_atomic
from icrbench.util.progress import duration, note

FOLDER = "logs"
EVERY = 5.0  # seconds between two writings
LINE_EVERY = 60.0  # seconds between two lines
SILENT = 60.0  # seconds without a sign after which a run on another machine is said to be gone


class Running(TypedDict):
    """A piece of work under way: what, by whom, and for how many seconds."""

    what: str
    where: str
    seconds: float


class Lost(TypedDict):
    """A piece of work that was given up, and why."""

    what: str
    why: str


class Progress(TypedDict):
    """How far the work is: cells, and the share of the estimated tokens that are through."""

    cells: int
    done: int
    kept: int
    failed: int
    share: float
    running: list[Running]
    lost: list[Lost]


class Standing(Progress):
    """How a run stands. Moments are seconds since 1970."""

    command: str
    host: str
    process: int
    started: float
    updated: float
    over: bool


def line(progress: Progress, seconds: float) -> str:
    """Return one line: what is done, what is running, and how long it still takes, from what it took so far."""
    parts = [f"{progress['done'] + progress['kept'] + progress['failed']} of {progress['cells']} cells"]
    if progress["failed"]:
        parts[0] += f" ({progress['failed']} failed)"
    shown = progress["running"][:3]
    parts += [f"{own['what']} ({own['where']}, {duration(own['seconds'])})" for own in shown]
    if len(progress["running"]) > len(shown):
        parts.append(f"{len(progress['running']) - len(shown)} more")
    share = progress["share"]
    left = f"about {duration(seconds * (1 - share) / share)} left" if share > 0.01 else "time left not known yet"
    return f"{datetime.now().astimezone():%H:%M} {'; '.join([*parts, left])}"


class Reporter:
    """Writes how a run stands into its folder, and a line a minute for a log.

    Args:
        folder: of the results.
        command: that asked for the run.
        look: says how far it is.
        lines: whether to print lines: where nobody sees bars.
        share: whether the run is a share, so that what the others have left stays to be counted.
    """

    def __init__(
        self, folder: Path, command: str, look: Callable[[], Progress], *, lines: bool, share: bool = False
    ) -> None:
        self._path = path_of(folder)
        self._command = command
        self._look = look
        self._lines = lines
        self._started = time.time()
        self._written = 0.0
        self._said = self._started
        remove_abandoned(folder / FOLDER)
        _forget_finished(folder, command if share else None)

    def update(self, *, over: bool = False) -> None:
        """Write and say what is due."""
        now = time.time()
        if not over and now - self._written < EVERY:
            return
        self._written = now
        progress = self._look()
        standing: Standing = {
            **progress,
            "command": self._command,
            "host": platform.node(),
            "process": os.getpid(),
            "started": self._started,
            "updated": now,
            "over": over,
        }
        write_atomic(self._path, json.dumps(standing, ensure_ascii=False) + "\n")
        if self._lines and not over and now - self._said >= LINE_EVERY:
            self._said = now
            note(line(progress, now - self._started))

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Report from a thread while other work goes on inside."""
        end = threading.Event()

        def report() -> None:
            while not end.wait(1.0):
                with suppress(Exception):  # of a full disk the work itself tells
                    self.update()

        thread = threading.Thread(target=report, name="icrbench standing", daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
            with suppress(Exception):
                self.update(over=True)


def path_of(folder: Path) -> Path:
    """Return where this process writes how its run stands."""
    return folder / FOLDER / f"{platform.node()}-{os.getpid()}.json"


def standings(folder: Path) -> list[Standing]:
    """Return how the runs of a results folder stand, the latest last; what cannot be read is left out."""
    found = []
    for file in (folder / FOLDER).glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = cast(Standing, json.loads(file.read_bytes()))
            float(content["updated"])
            found.append(content)
    return sorted(found, key=lambda own: own["updated"])


def is_gone(standing: Standing) -> bool:
    """Whether the process of a run is no more; of another machine, whether it has given no sign for long."""
    return gone(standing["host"], standing["process"], standing["updated"], SILENT)


def _forget_finished(folder: Path, share_of: str | None) -> None:
    """Remove what runs that are over have left here; a share, only what it has left itself when it was started before.

    Args:
        folder: of the results.
        share_of: the command of a share; None for a whole run.
    """
    for own in standings(folder):
        if own["over"] if share_of is None else own["command"] == share_of and (own["over"] or is_gone(own)):
            with suppress(OSError):
                (folder / FOLDER / f"{own['host']}-{own['process']}.json").unlink()
