"""Random changes of stored bytes."""

import os
from dataclasses import dataclass
from typing import Literal, get_args

from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("ICRBENCH_MUTATIONS", "25"))
"""Mutations of each kind of file; more, for a thorough check by hand, by the environment variable."""
Kind = Literal["bit", "digit", "remove", "zero", "double", "replace", "cut"]


@dataclass(frozen=True)
class Mutation:
    """What is done to a stretch of bytes somewhere in a file."""

    kind: Kind
    place: float
    length: int
    new: int

    def of(self, content: bytes) -> bytes:
        """Other bytes than the content."""
        start = int(self.place * len(content))
        if self.kind == "digit":  # most likely to leave the text readable
            digits = [place for place, byte in enumerate(content) if chr(byte).isdigit()] or [start]
            start = digits[int(self.place * len(digits))]
        stretch = content[start : start + self.length]
        first = {"bit": bytes([stretch[0] ^ 1 << self.new % 8]), "digit": str(self.new % 10).encode()}
        whole = {"remove": b"", "zero": bytes(len(stretch)), "double": stretch * 2, "replace": bytes([self.new])}
        if self.kind == "cut":
            changed = content[:start]
        elif self.kind in first:
            changed = content[:start] + first[self.kind] + content[start + 1 :]
        else:
            changed = content[:start] + whole[self.kind] + content[start + len(stretch) :]
        return changed if changed != content else content[:start] + bytes([content[start] ^ 1]) + content[start + 1 :]


mutations = st.builds(
    Mutation,
    st.sampled_from(get_args(Kind)),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 64),
    st.integers(0, 255),
)
