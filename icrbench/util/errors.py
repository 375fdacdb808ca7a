"""Mistakes a user can fix, said in one sentence."""

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """A mistake whose message is one clear sentence naming the fix; the command line prints it and exits 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Make the error for a name that is not in a registry, with the nearest known names.

    Args:
        kind: what the name should have been, for example ``"method"``.
        name: what the user wrote.
        known: every valid name.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names) or 'none'}."
    return UserError(f"unknown {kind} '{name}': {hint}")


LONGEST = 400  # characters of a foreign text in a message: files and libraries can say megabytes


def said(error: BaseException) -> str:
    """Return what an exception of somebody else's code says, as part of a sentence: its first line, never very long."""
    lines = str(error).strip().splitlines()
    return shortened((lines[0] if lines else type(error).__name__).rstrip("."))


def shortened(text: str) -> str:
    """Return a text of at most ``LONGEST`` characters; of a longer one, the start."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def shown(value: Any) -> str:
    """Return a value of a file, for a message: as Python writes it, but short however large or deep it is."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 80, 80, 40
