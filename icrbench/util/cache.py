"""Where downloaded, converted and intermediate artefacts are kept; what is read is what was written.

A kept folder holds files and a description with their hashes, which has a hash of its own (`sealed`). Folders are
written whole or not at all, and checked when a process first reads them: a flipped bit, a cut or a foreign file is
found, and what is damaged is made again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icrbench.util.errors import UserError
from icrbench.util.files import atomic_folder, cannot_read, remove, remove_abandoned
from icrbench.util.progress import note

DESCRIPTION = "contents.json"
_MARK = b',\n "sha256": "'
_SEEN: dict[Path, tuple[object, Mapping[str, Any]]] = {}


class Damaged(UserError):
    """What is stored is not what was written; the message names the file."""


@dataclass(frozen=True)
class Kept:
    """A folder that holds what was written.

    Attributes:
        about: what its writer said of it.
        made: whether it was made by this call.
    """

    about: Mapping[str, Any]
    made: bool


def cache_folder() -> Path:
    """``$ICRBENCH_CACHE``, or ``icrbench`` in the user's cache folder."""
    named = os.environ.get("ICRBENCH_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "icrbench"


def hash_files(paths: list[Path]) -> str:
    """First 16 hex digits of the SHA-256 over the names and contents of files, in the given order."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def key_of(identity: Mapping[str, Any]) -> str:
    """Return a short name for JSON values, the same wherever it is computed."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def sealed(content: Mapping[str, Any]) -> bytes:
    """JSON text that ends with the hash of all that stands before it, as ``sha256``.

    Raises:
        ValueError: for a number that is not finite.
        TypeError: for what JSON cannot hold.
    """
    try:
        body = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        body = json.dumps(content, indent=1, allow_nan=False).encode()
    body = body.removesuffix(b"\n}")
    return body + _MARK + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def check_seal(text: bytes) -> None:
    """Refuse what `sealed` did not give.

    Raises:
        ValueError: if it is anything else, by as little as a space.
    """
    body, mark, seal = text.rpartition(_MARK)
    if not mark:
        raise ValueError("it does not end with a hash")
    if seal != hashlib.sha256(body).hexdigest().encode() + b'"\n}\n':
        raise ValueError("it was changed after it was written")


def unsealed(text: bytes) -> dict[str, Any]:
    """Parse what `sealed` gave.

    Raises:
        ValueError: as `check_seal`.
    """
    check_seal(text)
    content: dict[str, Any] = json.loads(text)
    return content


def kept(folder: Path, fill: Callable[[Path], Mapping[str, Any]]) -> Kept:
    """Return what a folder holds; it is made if it is not there, and made again, with a sentence, if it is damaged.

    Args:
        folder: named by all that its content depends on.
        fill: writes files into an empty folder, and says of them what is to be remembered, as JSON values.

    Raises:
        UserError: if the folder cannot be read or written.
    """
    about = stored(folder)
    if about is not None:
        return Kept(about, made=False)
    write_kept(folder, fill)
    return Kept(verified(folder), made=True)


def stored(folder: Path) -> Mapping[str, Any] | None:
    """Return what is known of a kept folder; None if there is none, or it was damaged: it is then removed, and said so.

    Raises:
        UserError: if the folder cannot be read or removed.
    """
    try:
        return verified(folder)
    except FileNotFoundError:
        return None
    except Damaged as damage:
        note(f"{damage}: it is made again.")
        remove(folder)
        return None


def write_kept(folder: Path, fill: Callable[[Path], Mapping[str, Any]], description: str = DESCRIPTION) -> None:
    """Make a folder, whole or not at all; if another process makes it meanwhile, what that one wrote stays.

    Args:
        folder: where.
        fill: as of `kept`.
        description: the name of the file that holds the hashes and what ``fill`` returns.

    Raises:
        UserError: if the folder cannot be written.
    """
    remove_abandoned(folder.parent)
    with atomic_folder(folder) as temporary:
        about = fill(temporary)
        hashes = {name: _hash(temporary / name) for name in _names(temporary)}
        (temporary / description).write_bytes(sealed({**about, "files": hashes}))


def verified(folder: Path, description: str = DESCRIPTION) -> Mapping[str, Any]:
    """Check every byte of a kept folder; once a process, as long as no file's size, times or inode change.

    Returns:
        What its writer said of it, and the hash of each of its ``files``.

    Raises:
        FileNotFoundError: if there is none.
        Damaged: if a file is missing, was changed, or is not one that was written; the message names it.
        UserError: if a file may not be read.
    """
    source = folder / description
    try:
        stamps = [(name, _stamp(folder / name)) for name in _names(folder)]
        known = _SEEN.get(source)
        if known is not None and known[0] == stamps:
            return known[1]
        try:
            about = unsealed(source.read_bytes())
            hashes = dict(about["files"])
        except FileNotFoundError:
            raise Damaged(f"{source} is missing") from None
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise Damaged(f"{source} is damaged ({error})") from error
        for name, wanted in hashes.items():
            try:
                found = _hash(folder / name)
            except FileNotFoundError:
                raise Damaged(f"{folder / name} is missing") from None
            if found != wanted:
                raise Damaged(f"{folder / name} is damaged (it was changed after it was written)")
        for name, _ in stamps:
            if name not in hashes and name != description:
                raise Damaged(f"{folder / name} was put there by something else")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise cannot_read(folder, error) from error
    _SEEN[source] = (stamps, about)
    return about


def _names(folder: Path) -> list[str]:
    """List the files below a folder, without hidden files that systems leave (``._x``, ``.DS_Store``) and READMEs."""
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    files = (path for path in folder.rglob("*") if not path.name.startswith((".", "README")) and not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _stamp(entry: Path) -> tuple[int, int, int, int]:
    about = entry.stat()
    return about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino
