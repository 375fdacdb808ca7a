"""From the words of a command line to a command, and from its errors to an exit code."""

import argparse
import os
import shlex
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icrbench import __version__
from icrbench.cli import analyse, compare, demo, explain, export, lm_eval, new, push, report, run, status
from icrbench.cli import list as listing
from icrbench.cli.options import Parser, one_line
from icrbench.util.chatty import quieten
from icrbench.util.errors import UserError

INTERRUPTED = 2  # like any run that did not do what was asked; what is finished is kept
COMMANDS = (run, status, analyse, explain, listing, report, compare, export, push, lm_eval, new, demo)
"""Modules, each with ``add(commands)``: makes the command's parser and sets its ``command``."""


def run_command(arguments: Sequence[str]) -> int:
    """Run a command; returns its exit code, as `icrbench.cli.main` says."""
    options = _parse(arguments)
    quieten()
    with _orderly_end(), warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return int(options.command(options))
        except UserError as error:
            print(f"icrbench: {one_line(error)}", file=sys.stderr)
            return 2
        except SystemExit as stop:  # a method's, inside lm-eval say: not a silent success
            *_, last = traceback.extract_tb(stop.__traceback__)
            if stop.code not in (None, 0) or "/lm_eval/_cli/" in Path(last.filename).as_posix():
                raise
            print(f"icrbench: ended by sys.exit at {last.filename}:{last.lineno}.", file=sys.stderr)
            return 2
        except BrokenPipeError:  # the reader of our output went away, as `| head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except OSError as error:  # a folder that may not be read, a path too long: wherever it is met
            if error.filename is None:
                raise
            print(f"icrbench: {one_line(error.filename)}: {error.strerror}; check the path.", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(f"icrbench: interrupted; finished cells are kept, go on with: {options.line}", file=sys.stderr)
            return INTERRUPTED


@contextmanager
def _orderly_end() -> Iterator[None]:
    """Take SIGTERM, with which schedulers end a job, for Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():  # Python hears signals in the main thread alone
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    print(f"icrbench: warning: {one_line(message)}", file=sys.stderr)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="icrbench", description="Implicit in-context learning, measured honestly.")
    parser.add_argument("--version", action="version", version=f"icrbench {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command in COMMANDS:
        command.add(commands)
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:  # bytes of another encoding: they fit into no record
            parser.error(f"argument {argument!r} is not UTF-8 text: rename the file or folder")
    start = argparse.Namespace(line=shlex.join(["icrbench", *arguments]))
    options, rest = parser.parse_known_args(arguments, start)
    if rest and options.command is not lm_eval.command:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.passed_on = rest
    return options
