"""Where and with what a result was made."""

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from icrbench.store.records import Environment

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


@cache
def environment() -> Environment:
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


def _git(*arguments: str) -> str | None:
    """Run a git command in the checkout of this package; return its output, None outside a checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
