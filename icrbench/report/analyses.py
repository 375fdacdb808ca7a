"""What ``icrbench analyse`` left in a results folder: one reader for every table and figure."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from icrbench.util.errors import UserError

_T = TypeVar("_T")


def read_analyses(folder: Path, kind: str, parse: Callable[[dict[str, Any]], _T]) -> dict[str, _T]:
    """Return the analyses of one kind by file name, sorted; empty where none was made.

    Args:
        folder: results folder; the files are ``analysis/KIND-*.json`` in it.
        kind: ``routing``, ``latency`` or ``iclness``.
        parse: makes something of a file's content; what it raises for another content than it knows (ValueError,
            LookupError, TypeError, AttributeError) means that the file is damaged.

    Raises:
        UserError: for a file that is cut or not ours (it is named).
    """
    found = {}
    for path in sorted((folder / "analysis").glob(f"{kind}-*.json")):
        try:
            content = json.loads(path.read_text("utf-8"))
            if (content["schema"], content["kind"]) != (1, kind):
                raise ValueError
            found[path.name] = parse(content)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path} is not a whole analysis of {kind}: delete it and run `icrbench analyse` again."
            ) from error
    return found
