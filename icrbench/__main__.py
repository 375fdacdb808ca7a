"""``python -m icrbench``: the command line, for whoever has the interpreter and not the path of its scripts."""

import sys

from icrbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
