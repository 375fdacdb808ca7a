"""Files and folders that are written whole or not at all."""

import os
import platform
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from icrbench.util.errors import UserError

_PARTIAL = ".partial"
_STALE = 24 * 3600
"""Seconds after which a file that another machine has not finished is taken for abandoned."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on a clean exit it is synced and renamed to ``path``.

    A reader never sees half a file, whatever kills the writer. The folder is made if it is missing. Permissions are
    those of any new file: the umask decides.

    Raises:
        UserError: if the folder cannot be made or written.
    """
    temporary = _temporary(path)
    try:
        # Not tempfile, which makes files that only their owner may read.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise _cannot_write_in(path.parent, error) from error
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    except OSError as error:  # for example a full disk
        raise _cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on a clean exit its files are synced and it is renamed to ``path``.

    If ``path`` holds files by then, they stay, and what was written is dropped: another process was faster.

    Raises:
        UserError: if the folder cannot be made or written.
    """
    temporary = _temporary(path)
    try:
        temporary.mkdir()
    except OSError as error:
        raise _cannot_write_in(path.parent, error) from error
    try:
        yield temporary
        for file in temporary.rglob("*"):
            # safetensors makes files that only their owner may read; the new folder tells what the umask allows.
            file.chmod(temporary.stat().st_mode & (0o777 if file.is_dir() else 0o666))
            _sync(file)
        _sync(temporary)
        with suppress(FileExistsError):  # a folder that holds files is never replaced
            _rename_folder(temporary, path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write ``content`` (text as UTF-8) to ``path`` whole or not at all.

    Raises:
        UserError: if the folder cannot be written.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def remove(folder: Path) -> None:
    """Remove a folder at once: nobody sees it half removed.

    Raises:
        UserError: if it cannot be removed.
    """
    aside = _temporary(folder)
    try:
        folder.rename(aside)
    except FileNotFoundError:  # another process has removed it
        return
    except OSError as error:
        raise UserError(f"cannot remove {folder} ({error.strerror}): remove it yourself.") from error
    shutil.rmtree(aside, ignore_errors=True)


def remove_abandoned(folder: Path) -> None:
    """Remove what processes that were killed left half written in a folder; what a live process writes stays."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.name.startswith(".") and path.name.endswith(_PARTIAL) and _abandoned(path):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()


def _temporary(path: Path) -> Path:
    """Make the folder of ``path``; return a name beside ``path`` that says who writes it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write_in(path.parent, error) from error
    return path.with_name(f".{path.name}~{platform.node()}~{os.getpid()}~{secrets.token_hex(4)}{_PARTIAL}")


def _abandoned(path: Path) -> bool:
    """Whether the process that wrote a temporary file is gone; of another machine's only the age is known."""
    try:
        _, machine, process, _ = path.name.rsplit("~", 3)
        return gone(machine, int(process), path.stat().st_mtime, _STALE)
    except (OSError, ValueError):
        return False


def gone(machine: str, process: int, seen: float, patience: float) -> bool:
    """Whether a process is no more.

    Args:
        machine: that it runs on, as `platform.node` names it.
        process: its number there.
        seen: when it last gave a sign, in seconds since 1970.
        patience: seconds after which a process of another machine, where one cannot look, is taken for gone.
    """
    if machine != platform.node():
        return time.time() - seen > patience
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # somebody else's
        return False
    return False


def _rename_folder(temporary: Path, path: Path) -> None:
    try:
        temporary.rename(path)
    except OSError:
        if not path.is_dir():
            raise
        raise FileExistsError(path) from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_read(path: Path, error: OSError) -> UserError:
    """Return what to say of a file that may not be read, which is not damaged for all that."""
    return UserError(f"cannot read {error.filename or path} ({error.strerror}): ask its owner for it.")


def _cannot_write(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path} ({error.strerror or error}): make room, or choose another folder.")


def _cannot_write_in(folder: Path, error: OSError) -> UserError:
    return UserError(f"cannot write in {folder} ({error.strerror}): choose a folder you may write to.")
