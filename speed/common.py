"""What the speed comparisons share: loading, timing side by side, printing one table."""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tabulate import tabulate

from icrbench.backbone import Backbone
from icrbench.backbone.load import load_backbone
from icrbench.data.find_tasks import get_tasks
from icrbench.data.sources import Demo, LocalDir, Source, load
from icrbench.data.task import Example
from icrbench.method import Pool
from icrbench.runner.environment import machine


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--model", default="gemma-270m")
    made.add_argument("--data-dir", type=Path, help="real data; without it the bundled rows are used, repeated")
    made.add_argument("--rounds", type=int, default=1, help="times each side is measured, in turn")
    return made


def options(description: str | None) -> argparse.Namespace:
    """Return the command line of a benchmark that has no others."""
    return parser(description).parse_args()


def backbone(asked: argparse.Namespace) -> Backbone:
    """Return the model to measure on."""
    return load_backbone(asked.model)


def rows(asked: argparse.Namespace, task: str, count: int) -> tuple[Pool, list[Example]]:
    """Return a train pool and exactly ``count`` test rows of a task, repeating them if there are fewer."""
    source: Source = LocalDir(asked.data_dir) if asked.data_dir else Demo()
    data = load(get_tasks(task)[0], source)
    repeated = list(data.test) * -(-count // len(data.test))
    return Pool(data.task, data.train, data.provenance.sha256["train"]), repeated[:count]


def seconds(run: Callable[[], object]) -> float:
    """Wall-clock seconds of one call, until the device has done what it was given."""
    begin = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def side_by_side(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each side, measured in turn so that the machine's drift hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            times[name].append(seconds(run))
    return {name: statistics.median(measured) for name, measured in times.items()}


def report(title: str, header: Sequence[str], table: Sequence[Sequence[object]]) -> None:
    """Print one table."""
    print(f"\n{title} ({machine()})\n")
    print(tabulate(table, header, floatfmt=".2f"))
