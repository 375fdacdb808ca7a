"""Files that are written whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from icrbench.util.errors import UserError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on a clean exit it is synced and renamed to ``path``.

    A reader never sees half a file, whatever kills the writer. The folder is made if it is missing.

    Raises:
        UserError: if the folder cannot be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UserError(
            f"cannot write in {path.parent} ({error.strerror}): choose a folder you may write to."
        ) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:  # for example a full disk
        problem = error.strerror or error
        raise UserError(f"cannot write {path} ({problem}): make room, or choose another folder.") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write ``content`` (text as UTF-8) to ``path`` whole or not at all.

    Raises:
        UserError: if the folder cannot be written.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
