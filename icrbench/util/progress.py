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


@contextmanager
def bar(what: str, total: int) -> "Iterator[tqdm[Any]]":
    """Show a bar, to be updated by hand."""
    with tqdm(total=total, desc=what, leave=False, disable=_quiet or None, dynamic_ncols=True) as shown:
        yield shown


def say(text: str) -> None:
    """Print a line without disturbing a bar, at once: a log file is read while it grows."""
    tqdm.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a line on the error output, without disturbing a bar: what a result that is printed must not contain."""
    tqdm.write(text, file=sys.stderr)
