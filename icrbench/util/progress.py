"""How far work is: bars on a terminal, and one plain line a minute where the output goes to a file."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

LINE_SECONDS = 60.0  # between two plain lines

_quiet = False
_subject = ""
_bars: "list[Bar]" = []


def set_quiet(quiet: bool) -> None:
    """Show no bars at all, and no lines in their place, from now on."""
    global _quiet
    _quiet = quiet


class Bar:
    """One piece of work that gets on; drawn on a terminal, and remembered anywhere."""

    def __init__(self, what: str, total: int, drawn: "tqdm[Any]") -> None:
        self._what = what
        self._total = total
        self._drawn = drawn
        self._done = 0
        self._begun = time.monotonic()

    def update(self, count: int = 1) -> None:
        """Add what has been done since the last call."""
        self._done += count
        self._drawn.update(count)

    def set_postfix(self, **values: str) -> None:
        """Show values beside a drawn bar."""
        self._drawn.set_postfix(values)

    @property
    def seconds_left(self) -> float | None:
        """How long it still takes, if it gets on as it did; None before anything is done."""
        taken = time.monotonic() - self._begun
        return taken * (self._total - self._done) / self._done if self._done else None

    def __str__(self) -> str:
        left = self.seconds_left
        return f"{self._what} {self._done}/{self._total}" + (f", about {duration(left)}" if left else "")


@contextmanager
def bar(what: str, total: int) -> Iterator[Bar]:
    """Show a bar, to be updated by hand."""
    with tqdm(total=total, desc=what, leave=False, disable=_quiet or None, dynamic_ncols=True) as drawn:
        _bars.append(Bar(what, total, drawn))
        try:
            yield _bars[-1]
        finally:
            _bars.pop()


@contextmanager
def subject(what: str) -> Iterator[None]:
    """Say inside what is at work, for `doing`."""
    global _subject
    before, _subject = _subject, what
    try:
        yield
    finally:
        _subject = before


def doing() -> str:
    """Say what is at work now, and how far its innermost bar is; empty if nothing is."""
    shown = [str(inner) for inner in _bars[-1:]]
    if _subject and not (shown and shown[0].startswith(_subject)):
        shown.insert(0, _subject)
    return ": ".join(shown)


@contextmanager
def plain_lines(line: Callable[[], str]) -> Iterator[None]:
    """Print a line a minute inside, unless bars are drawn or the user asked for quiet.

    Args:
        line: says how far the work is; called from another thread.
    """
    if _quiet or (sys.stdout.isatty() and sys.stderr.isatty()):
        yield
        return
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(LINE_SECONDS):
            say(line())

    teller = _Teller(target=tell, name="plain lines", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


class _Teller(threading.Thread):
    """A thread that tells how far the work is: not one that a method has left behind."""


def duration(seconds: float) -> str:
    """Return a time in words."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def say(text: str) -> None:
    """Print a line without disturbing a bar, at once: a log file is read while it grows."""
    tqdm.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a line on the error output, without disturbing a bar: what a result that is printed must not contain."""
    tqdm.write(text, file=sys.stderr)
