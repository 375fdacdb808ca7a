"""The command line: one file a command, shared option groups in `options`."""

from icrbench.cli.entry import main

__all__ = ["main"]
