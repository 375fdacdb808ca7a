"""What a result depends on beside its configuration."""

import hashlib
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from icrbench.method import Method

# What these compute is in every number; reports, the command line and the store are not in any.
COMPUTING = ("backbone", "data", "scoring", "toolkit", "method.py", "protocol.py", "randomness.py")


@cache
def code_identity(kind: type[Method]) -> dict[str, Any]:
    """What a result depends on beside its configuration: the code that computes it and the numeric libraries.

    Read once a process: what is edited while it runs is not what it runs.
    """
    here = Path(__file__).parent.parent
    own = {_method_source(base) for base in kind.__mro__ if issubclass(base, Method) and base is not Method}
    return {
        "core": _hash_sources([here / name for name in COMPUTING]),
        "method": _hash_sources(sorted(own)),
        **{name: metadata.version(name) for name in ("torch", "transformers", "sentence-transformers")},
    }


def _method_source(kind: type[Method]) -> Path:
    """The file of a method, or its folder if it has one to itself."""
    source = Path(str(sys.modules[kind.__module__].__file__))
    package = source.parent
    return package if (package / "__init__.py").exists() and package.parent.name == "methods" else source


def _hash_sources(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]
