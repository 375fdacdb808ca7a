"""The command line: one file a command, shared option groups in `options`."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 cells failed or missing, 2 wrong input or interrupted."""
    try:
        from icrbench.cli.entry import run_command  # imports take time, in which Ctrl-C may be pressed, too

        return run_command(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print("icrbench: interrupted before anything was done.", file=sys.stderr)
        return 2
