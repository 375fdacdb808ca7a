"""Where and with what a result was made."""

import hashlib
import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from icrbench.method import Method

PACKAGES = (
    "icrbench",
    "torch",
    "transformers",
    "sentence-transformers",
    "datasets",
    "tokenizers",
    "numpy",
    "accelerate",
    "safetensors",
)
# What these compute is in every number; reports, the command line and the store are not in any.
COMPUTING = (
    "backbone",
    "data.py",
    "demonstrations.py",
    "distillation.py",
    "encoder.py",
    "episodes.py",
    "head_outputs.py",
    "layer_vector.py",
    "method.py",
    "optimisation.py",
    "positions.py",
    "prompting.py",
    "protocol.py",
    "randomness.py",
    "reading.py",
    "rows.py",
    "scoring.py",
    "selection.py",
    "spans.py",
    "steering.py",
    "task.py",
)


@cache
def environment() -> dict[str, Any]:
    """Versions, machine and commit, for a record; none of it is part of a cell's identity."""
    # A package installed below somebody's repository is not in that repository: its commit says nothing.
    ours = _git("ls-files", "--error-unmatch", Path(__file__).name) is not None
    return {
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "machine": machine(),
        "commit": _git("rev-parse", "HEAD") if ours else None,
        "dirty": ours and bool(_git("status", "--porcelain")),
    }


def machine() -> str:
    """Processor or GPU, in words."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{os.cpu_count()} cores {platform.machine()}, {torch.get_num_threads()} threads"


@cache
def code_identity(kind: type[Method]) -> dict[str, Any]:
    """What a result depends on beside its configuration: the code that computes it and the numeric libraries.

    Read once a process: what is edited while it runs is not what it runs.
    """
    here = Path(__file__).parent
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


def _git(*arguments: str) -> str | None:
    """A git command's output in the checkout this package is in, or None outside one."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
