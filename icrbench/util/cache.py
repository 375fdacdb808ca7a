"""Where downloaded, converted and intermediate artefacts are kept, and how files are told apart."""

import hashlib
import os
from pathlib import Path


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
