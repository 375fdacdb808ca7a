"""``icrbench analyse``: run the analyses of fitted methods and keep their outcome in the results folder."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from icrbench.analysis.iclness import iclness, log_probability_change
from icrbench.analysis.latency import latency
from icrbench.analysis.routing import Routed, importance
from icrbench.analysis.theory import theory
from icrbench.backbone import Backbone
from icrbench.method import Fitted, Scope
from icrbench.protocol import Datasets
from icrbench.runner.plan import Cell
from icrbench.runner.request import Request
from icrbench.runner.worker import Worker
from icrbench.store.store import Store
from icrbench.toolkit.episodes import Labelled, Questions
from icrbench.util.files import write_atomic
from icrbench.util.progress import bar, say, set_quiet

SCHEMA = 1
TOP_TOKENS = 200
LENGTHS = (16, 32, 64, 128, 256, 512)


def analyse(asked: Request, *, quiet: bool = False) -> list[Path]:
    """Analyse every method and seed of a request on its tasks; fits that are not there are made.

    Returns:
        The files written, ``OUT/analysis/KIND-KEY.json``.
    """
    set_quiet(quiet)
    store = Store(asked.out)
    store.check_writable()
    datasets = asked.datasets()
    written: list[Path] = []
    tasks = [task.name for task in asked.tasks]
    for model in asked.models:
        worker = Worker(model, datasets, asked, store)
        backbone = worker.backbone
        shown: dict[str, tuple[Fitted, int]] = {}
        for method in asked.methods:
            for seed in asked.seeds if method.method.seeded else [None]:
                about = {"model": backbone.revision.name, "label": method.label, "seed": seed, "tasks": tasks}
                fits = {task: worker.fitted(Cell(method, task, seed)).fitted for task in tasks}
                first = fits[tasks[0]]
                shown.setdefault(method.label, (first, int(first.config.get("tokens", 0))))
                if method.method.scope is not Scope.NONE and not first.shares_prefix:  # words change without a prompt
                    tokens = _iclness(backbone, datasets, fits)
                    written.append(_write(asked.out, "iclness", about, {"tokens": tokens}))
                routed = {task: fitted for task, fitted in fits.items() if isinstance(fitted, Routed)}
                if len(routed) == len(fits):
                    routing = {"layers": first.config["layers"], "by_task": _routing(datasets, routed)}
                    written.append(_write(asked.out, "routing", about, routing))
                say(f"analysed {method.label}" + ("" if seed is None else f" seed {seed}"))
        text = datasets.tasks[tasks[0]].prompt(datasets.test(tasks[0])[0])
        lengths = [length for length in LENGTHS if 2 * length <= backbone.max_length]
        seconds = latency(backbone, shown, lengths, text)
        about = {"model": backbone.revision.name, "label": "+".join(shown), "seed": None, "tasks": tasks[:1]}
        written.append(_write(asked.out, "latency", about, {"lengths": lengths, "seconds": seconds}))
    return written


def analyse_theory(folder: Path) -> Path:
    """Measure on synthetic data how well PCA finds what domains share, without a model; returns the file written."""
    return _write(folder, "theory", *theory())


def _routing(datasets: Datasets, fits: Mapping[str, Routed]) -> dict[str, Any]:
    """Compute the importance of layers, heads and directions, by task."""
    found = {}
    for name, fitted in fits.items():
        texts = tuple(datasets.tasks[name].prompt(example) for example in datasets.test(name))
        alpha, gamma = fitted.strengths(texts)
        found[name] = importance(alpha, gamma)
    return found


def _iclness(backbone: Backbone, datasets: Datasets, fits: dict[str, Fitted]) -> list[dict[str, Any]]:
    """Return the tokens with the highest scores."""
    questions = Questions(backbone)
    changes = []
    with bar("words made likelier", len(fits)) as progress:
        for name, fitted in fits.items():
            rows = [Labelled(datasets.tasks[name], example) for example in datasets.test(name)]
            changes.append(log_probability_change(backbone, fitted, questions.zero_shot(rows)))
            progress.update(1)
    statistics = iclness(torch.stack(changes))
    best = statistics["score"].topk(min(TOP_TOKENS, len(statistics["score"]))).indices.tolist()
    tokens = backbone.tokenizer.convert_ids_to_tokens(best)
    return [
        {"token": token, **{name: float(values[index]) for name, values in statistics.items()}}
        for index, token in zip(best, tokens, strict=True)
    ]


def _write(folder: Path, kind: str, about: dict[str, Any], content: dict[str, Any]) -> Path:
    key = hashlib.sha256(json.dumps([kind, about], sort_keys=True).encode()).hexdigest()[:16]
    path = folder / "analysis" / f"{kind}-{key}.json"
    text = json.dumps({"schema": SCHEMA, "kind": kind, **about, **content}, indent=1, ensure_ascii=False)
    write_atomic(path, text + "\n")
    return path
