"""Numbers that the authors' own code gave, and what it was given."""

import json
from pathlib import Path
from typing import Any


def golden(name: str) -> dict[str, Any]:
    """What official code was given, ``inputs``, and what it gave, ``expected``; the file says which code."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())
    assert {"repository", "commit", "how"} < found.keys()
    return found
