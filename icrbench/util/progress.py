"""Progress bars for long work; silent when the output is not a terminal or the user asked for quiet."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

_quiet = False


def set_quiet(quiet: bool) -> None:
    """Show no bars at all from now on."""
    global _quiet
    _quiet = quiet


class Bar:
    """A bar, to be updated by hand; it counts where none is shown, too."""

    def __init__(self, what: str, total: int, shown: "tqdm[Any]") -> None:
        self._what, self._total, self._done = what, total, 0
        self._shown = shown

    def update(self, steps: int = 1) -> None:
        """Go on by so many steps."""
        self._done += steps
        self._shown.update(steps)

    def set_postfix(self, **values: str) -> None:
        """Show values beside the bar."""
        self._shown.set_postfix(values)

    def __str__(self) -> str:
        return f"{self._what} {self._done}/{self._total}"


_open: list[Bar] = []


@contextmanager
def bar(what: str, total: int) -> Iterator[Bar]:
    """Show a bar."""
    with tqdm(total=total, desc=what, leave=False, disable=_quiet or None, dynamic_ncols=True) as shown:
        _open.append(own := Bar(what, total, shown))
        try:
            yield own
        finally:
            _open.remove(own)


def current() -> str | None:
    """Return how far the innermost bar is, whether it is shown or not; None if there is none."""
    return str(_open[-1]) if _open else None


def say(text: str) -> None:
    """Print a line without disturbing a bar, at once: a log file is read while it grows."""
    tqdm.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a line on the error output, without disturbing a bar: what a result that is printed must not contain."""
    tqdm.write(text, file=sys.stderr)


def duration(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
