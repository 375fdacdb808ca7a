"""Mistakes a user can fix, said in one sentence."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake whose message is one clear sentence naming the fix; the command line prints it and exits 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not in a registry, with the nearest known names.

    Args:
        kind: what the name should have been, for example ``"method"``.
        name: what the user wrote.
        known: every valid name.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names) or 'none'}."
    return UserError(f"unknown {kind} '{name}': {hint}")
