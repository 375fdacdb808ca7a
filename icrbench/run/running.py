"""From command-line options to a finished run."""

import argparse
import logging
import math
import sys
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from icrbench.backbone.load import check_model, load_backbone
from icrbench.data.find_tasks import get_tasks, load_tasks
from icrbench.data.sources import Demo, Hub, LocalDir, Source
from icrbench.data.task import Task
from icrbench.experiments import get_experiments, specs
from icrbench.protocol import PROTOCOLS, Datasets, Rules, needed_domains
from icrbench.run.estimate import estimate
from icrbench.run.plan import LabelledMethod
from icrbench.run.presets import Preset, preset
from icrbench.run.request import Request, experiment_methods, parse_methods
from icrbench.run.runner import Runner
from icrbench.scoring.next_token import ScoringOptions
from icrbench.store.store import Store
from icrbench.util.cache import cache_folder
from icrbench.util.errors import UserError, unknown
from icrbench.util.progress import say, set_quiet


def request(options: argparse.Namespace) -> Request:
    """Check everything that can be checked without loading data or a model.

    Raises:
        UserError: for anything wrong, in one sentence.
    """
    sizes = preset(options.preset)
    if options.protocol not in PROTOCOLS:
        raise unknown("protocol", options.protocol, PROTOCOLS)
    models = list(dict.fromkeys(name.strip() for name in options.models.split(",") if name.strip()))
    if not models:
        raise UserError("no model asked for: name one with --models; `icrbench list models` shows some.")
    for model in models:
        check_model(model)
    methods, tasks, only = _what(options, sizes)
    return Request(
        methods=methods,
        models=models,
        tasks=tasks,
        known_tasks=list(load_tasks(options.tasks_dir).values()),
        seeds=sizes.seeds if options.seeds is None else _seeds(options.seeds),
        source=_source(options.data_dir, options.demo),
        rules=Rules(options.protocol, options.clean, _limit(options.limit, sizes)),
        out=options.out,
        workspace=options.cache_dir or cache_folder(),
        scoring=ScoringOptions(batch_size=options.batch_size),
        device=options.device,
        dtype=options.dtype,
        device_map=options.device_map,
        command=options.line,
        only=only,
    )


def _what(
    options: argparse.Namespace, sizes: Preset
) -> tuple[list[LabelledMethod], list[Task], dict[str, frozenset[str]]]:
    """Methods, tasks, and the tasks that some labels are confined to."""
    if options.methods is not None:
        return (
            parse_methods(options.methods, options.set, sizes),
            get_tasks("all" if options.tasks is None else options.tasks, options.tasks_dir),
            {},
        )
    chosen = get_experiments(options.experiment)
    methods, labels = experiment_methods(specs(chosen), options.set, sizes)
    wanted: dict[str, set[str]] = {}
    tasks: dict[str, Task] = {}
    for experiment in chosen:
        own = {
            task.name: task
            for task in get_tasks(experiment.tasks if options.tasks is None else options.tasks, options.tasks_dir)
        }
        tasks |= own
        for row in experiment.rows:
            wanted.setdefault(labels[row.method], set()).update(own)
    only = {label: frozenset(names) for label, names in wanted.items()}
    return methods, list(tasks.values()), only


def _source(data_dir: Path | None, demo: bool) -> Source:
    if demo:
        return Demo()
    if data_dir is None:
        return Hub()
    if not data_dir.is_dir():
        raise UserError(f"no folder {data_dir}: give --data-dir the folder that holds TASK/train.jsonl.")
    return LocalDir(data_dir)


def _limit(asked: float | None, sizes: Preset) -> int | None:
    if asked is None:
        return sizes.limit
    return None if math.isinf(asked) else int(asked)


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"--seeds must be whole numbers joined by commas, not '{text}'.") from error
    return list(dict.fromkeys(seeds))


def _datasets(asked: Request) -> Datasets:
    domains = needed_domains(
        asked.known_tasks, asked.tasks, [item.method for item in asked.methods], asked.rules.protocol
    )
    return Datasets(asked.tasks, domains, asked.source, asked.rules, asked.workspace, asked.known_tasks)


def run(asked: Request, *, quiet: bool) -> int:
    """Run the grid; returns 0, or 1 if a cell failed."""
    set_quiet(quiet)
    if quiet or not sys.stderr.isatty():  # transformers draws its bars into log files, too
        disable_progress_bar()
    for noisy in ("transformers", "huggingface_hub", "datasets"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    store = Store(asked.out)
    store.check_writable()
    datasets = _datasets(asked)
    grid = asked.cells()
    failed = 0
    for model in asked.models:
        backbone = load_backbone(model, device=asked.device, dtype=asked.dtype, device_map=asked.device_map)
        outcome = Runner(backbone, datasets, asked.rules, store, asked.scoring, asked.command).run(grid)
        failed += outcome.failed
        say(f"{model}: {outcome}; results in {asked.out}")
        del backbone
    return 1 if failed else 0


def dry_run(asked: Request) -> int:
    """Print the cells and what they will cost."""
    datasets = _datasets(asked)
    grid = asked.cells()
    for model in asked.models:
        for cell in grid:
            print(f"{model}  {cell}  ({len(datasets.test(cell.task))} rows)")
        cost = estimate(grid, datasets, model)
        time = "time unknown (the model is not here)" if cost.seconds is None else f"about {_duration(cost.seconds)}"
        print(f"{model}: {len(grid)} cells, about {cost.tokens / 1e6:.2f} million tokens, {time} on this machine")
    return 0


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def analyse(asked: Request, *, quiet: bool) -> list[Path]:
    """Run the analyses of the methods; returns the files written."""
    from icrbench.analysis.command import analyse as run_analyses

    set_quiet(quiet)
    Store(asked.out).check_writable()
    return run_analyses(asked, _datasets(asked))
