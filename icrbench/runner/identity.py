"""What makes a result the same result: everything that can change its number, and the code that computes it."""

import hashlib
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from icrbench.backbone import Backbone
from icrbench.data.rules import Rules
from icrbench.method import Method
from icrbench.protocol import Datasets
from icrbench.runner.plan import Cell
from icrbench.scoring.prompting import MAX_QUERY_TOKENS

# What these compute is in every number; reports, the command line and the store are not in any.
COMPUTING = ("backbone", "data", "scoring", "toolkit", "method.py", "model_names.py", "protocol.py", "randomness.py")


def cell_identity(cell: Cell, backbone: Backbone, datasets: Datasets, rules: Rules) -> dict[str, Any]:
    """Everything that can change a cell's result, as JSON values."""
    data, method = datasets.data[cell.task], cell.method.method
    return {
        "method": {"name": method.name, "hyperparameters": method.hyperparameters()},
        "code": code_identity(type(method)),
        "model": backbone.identity(),
        "pools": {
            name: {"rows": pool.sha256, "task": pool.task.identity()}
            for name, pool in datasets.pools(method, cell.task).items()
        },
        "target": datasets.target(method, cell.task),
        "seed": cell.seed,
        "protocol": rules.protocol,
        "clean": rules.clean,
        "task": data.task.identity(),
        "test": {"sha256": data.provenance.sha256["test"], "limit": rules.limit},
        "scoring": {"max_query_tokens": MAX_QUERY_TOKENS},
    }


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
