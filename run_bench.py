"""Run the benchmark from a checkout: ``python run_bench.py ARGS`` is ``icrbench run ARGS``."""

import sys

from icrbench.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["run", *sys.argv[1:]]))
