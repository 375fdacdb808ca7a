"""Random changes of stored bytes."""

import os

from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("ICRBENCH_MUTATIONS", "25"))
"""Mutations of each kind of file; more, for a thorough check by hand, by the environment variable."""


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """Other bytes than the content: bits flipped, a stretch removed, zeroed, doubled, or replaced."""
    start = draw(st.integers(0, len(content) - 1))
    stop = draw(st.integers(start + 1, min(len(content), start + 64)))
    stretch = content[start:stop]
    kind = draw(st.sampled_from(["bit", "digit", "remove", "zero", "double", "random", "cut"]))
    if kind == "bit":
        new = bytes([stretch[0] ^ 1 << draw(st.integers(0, 7))]) + stretch[1:]
    elif kind == "digit":  # most likely to leave the text readable
        places = [place for place, byte in enumerate(content) if chr(byte).isdigit()] or [start]
        start = draw(st.sampled_from(places))
        stop, new = start + 1, str(draw(st.integers(0, 9))).encode()
    elif kind == "random":
        new = draw(st.binary(min_size=1, max_size=8))
    else:
        new = {"remove": b"", "zero": bytes(len(stretch)), "double": stretch * 2, "cut": b""}[kind]
        stop = len(content) if kind == "cut" else stop
    changed = content[:start] + new + content[stop:]
    return changed if changed != content else content[:start] + bytes([content[start] ^ 1]) + content[start + 1 :]
