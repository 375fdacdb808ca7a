"""Who computes what, where several processes use one results folder: on one machine, or on many.

A claim is a folder, ``claims/KEY``, which says in its file ``owner`` whose it is; that file's time of change is a
heartbeat. The folder is renamed into place with its owner in it, which succeeds for one process alone, on network file
systems, too (``flock`` may succeed on two machines at once), and no kill leaves a claim that is nobody's. It is taken
over when its process is gone from this machine, or has had no heartbeat for `STALE_SECONDS`.

No result rests on claims: what is written is written whole, and is the same whoever writes it. Where two processes own
one claim after all, for example because the first only seemed dead, they waste work.
"""

import errno
import json
import os
import platform
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from icrbench.util.errors import UserError
from icrbench.util.files import remove, temporary_beside
from icrbench.util.heartbeat import Heartbeat

BEAT_SECONDS = 15.0
STALE_SECONDS = 240.0  # clients of network file systems may believe for a minute that a file has not changed
OWNER = "owner"
KEYS = {"machine", "process", "begun", "claim"}


class Claims:
    """The claims below one folder.

    Args:
        folder: made by the first claim.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Claim something while it is computed; yields False if another process that lives has it.

        Raises:
            UserError: if the folder cannot be written.
        """
        path, owner = self._folder / key, _this_process()
        try:
            mine = self._claimed(path, owner)
        except OSError as error:
            raise UserError(f"cannot write {path} ({error.strerror}): choose a folder you may write to.") from error
        if not mine:
            yield False
            return
        heartbeat = Heartbeat(lambda: _touch(path), BEAT_SECONDS)
        try:
            yield True
        finally:
            heartbeat.stop()
            if _owner(path) == owner:  # else this process seemed dead, and another has taken it over
                remove(path)

    def _claimed(self, path: Path, owner: Mapping[str, Any]) -> bool:
        prepared = temporary_beside(path)
        prepared.mkdir()
        try:
            (prepared / OWNER).write_text(json.dumps(owner))
            return _renamed(prepared, path) or (self._cleared(path) and _renamed(prepared, path))
        finally:
            shutil.rmtree(prepared, ignore_errors=True)

    def _cleared(self, path: Path) -> bool:
        """Remove a claim if nobody is at work on it any more; whether there is none now."""
        found = _owner(path)
        if not self._gone(path, found):
            return False
        aside = temporary_beside(path)
        with suppress(FileNotFoundError):  # given back since, or cleared by another process
            path.rename(aside)
            if _owner(aside) != found:  # another process has cleared it and claimed it anew: that one is put back
                with suppress(OSError):
                    aside.rename(path)
                return False
            shutil.rmtree(aside, ignore_errors=True)
        return True

    def _gone(self, path: Path, owner: Mapping[str, Any] | None) -> bool:
        """Whether the owner of a claim has ended, or has had no heartbeat for long."""
        if owner is not None and owner["machine"] == _machine() and not _lives(owner):
            return True
        return self._age(path if owner is None else path / OWNER) > STALE_SECONDS

    def _age(self, path: Path) -> float:
        """Seconds since a file has changed, by the clock of the file system: those of two machines may differ."""
        probe = temporary_beside(path)
        try:
            probe.touch()
            return probe.stat().st_mtime - path.stat().st_mtime
        except FileNotFoundError:
            return 0.0
        finally:
            probe.unlink(missing_ok=True)


def _touch(path: Path) -> None:
    with suppress(OSError):
        os.utime(path / OWNER)


def _renamed(prepared: Path, path: Path) -> bool:
    """Whether a folder could be put in its place: not where there is one already."""
    try:
        prepared.rename(path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        # A server that is asked again because its first answer was lost says so, too: then it is ours.
        return not prepared.is_dir()
    return True


def _owner(path: Path) -> dict[str, Any] | None:
    """Read whose a claim is; None if it is given back, or damaged."""
    try:
        owner = json.loads((path / OWNER).read_text())
    except (OSError, ValueError):
        return None
    return owner if isinstance(owner, dict) and owner.keys() == KEYS else None


def _this_process() -> dict[str, Any]:
    process = os.getpid()
    return {"machine": _machine(), "process": process, "begun": _begun(process), "claim": secrets.token_hex(8)}


def _lives(owner: Mapping[str, Any]) -> bool:
    """Whether a process of this machine is there, and is the one meant: numbers are used again."""
    begun = _begun(owner["process"])
    return begun is not None and abs(begun - owner["begun"]) < 2


def _begun(process: int) -> float | None:
    """Return when a process began; None if it is not there."""
    try:
        found = psutil.Process(process)
        return None if found.status() == psutil.STATUS_ZOMBIE else found.create_time()
    except psutil.Error:
        return None


@cache
def _machine() -> str:
    """Name what process numbers are unique on: a machine, or a container on it."""
    with suppress(OSError):
        return f"{platform.node()} {Path('/proc/self/ns/pid').stat().st_ino}"
    return platform.node()
