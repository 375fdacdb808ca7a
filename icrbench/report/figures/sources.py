"""What the figures show of the analyses in a results folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from icrbench.report.analyses import read_analyses

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Routing:
    """What a router uses, by task; the mean over seeds.

    Attributes:
        layers: the routed blocks, counted from 0.
        layer: ``[tasks, L']``, each row sums to 1 (or is 0).
        head: ``[tasks, L', H]``, mean gates.
        pid: ``[tasks, r]``.
    """

    model: str
    label: str
    seeds: int
    layers: tuple[int, ...]
    tasks: tuple[str, ...]
    layer: Floats
    head: Floats
    pid: Floats

    @property
    def about(self) -> str:
        """The figure's origin, in a few words."""
        return f"{self.label} on {self.model}" + (f", mean of {self.seeds} seeds" if self.seeds > 1 else "")


@dataclass(frozen=True)
class Latency:
    """Seconds a query by method, at each prompt length."""

    model: str
    lengths: tuple[int, ...]
    seconds: dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class Theory:
    """How far PCA is from the directions that domains share, on synthetic data.

    Attributes:
        width: dimensions of a vector, of which ``rank`` are shared.
        samples: numbers of samples in all domains together.
        domains: numbers of domains.
        sine: ``[samples, domains, seeds]``, of the largest principal angle.
        bound: the same shape, Davis and Kahan's; 1 where it says nothing.
    """

    width: int
    rank: int
    samples: tuple[int, ...]
    domains: tuple[int, ...]
    sine: Floats
    bound: Floats


def routings(folder: Path) -> list[Routing]:
    """One for each model, label and set of tasks.

    Raises:
        UserError: for a file that is cut or not ours (it is named).
    """
    found: dict[tuple[Any, ...], list[tuple[Floats, Floats, Floats]]] = {}
    for key, values in read_analyses(folder, "routing", _routing).values():
        found.setdefault(key, []).append(values)
    return [
        Routing(model, label, len(seeds), layers, tasks, *(np.mean(part, axis=0) for part in zip(*seeds, strict=True)))
        for (model, label, layers, tasks, *_), seeds in sorted(found.items())
    ]


def latencies(folder: Path) -> list[Latency]:
    """One for each analysis: methods that were timed side by side.

    Raises:
        UserError: for a file that is cut or not ours (it is named).
    """
    return list(read_analyses(folder, "latency", _latency).values())


def theories(folder: Path) -> list[Theory]:
    """One for each setting.

    Raises:
        UserError: for a file that is cut or not ours (it is named).
    """
    return list(read_analyses(folder, "theory", _theory).values())


def _routing(content: dict[str, Any]) -> tuple[tuple[Any, ...], tuple[Floats, Floats, Floats]]:
    own = content["by_task"]
    tasks = tuple(str(name) for name in own)
    layer, head, pid = (
        np.array([own[task][name] for task in tasks], dtype=np.float64) for name in ("layer", "head", "pid")
    )
    layers = tuple(int(layer) for layer in content["layers"])
    if not tasks or layer.shape[1:] != (len(layers),) or head.shape[1:2] != (len(layers),) or pid.ndim != 2:
        raise ValueError
    # Arrays of other sizes (another rank) under one label have no mean.
    return (str(content["model"]), str(content["label"]), layers, tasks, head.shape, pid.shape), (layer, head, pid)


def _latency(content: dict[str, Any]) -> Latency:
    lengths = tuple(int(length) for length in content["lengths"])
    seconds = {str(name): tuple(float(value) for value in own) for name, own in content["seconds"].items()}
    if not seconds or any(len(own) != len(lengths) or min(own) <= 0 for own in seconds.values()):
        raise ValueError
    return Latency(str(content["model"]), lengths, seconds)


def _theory(content: dict[str, Any]) -> Theory:
    samples, domains = (tuple(int(count) for count in content[name]) for name in ("samples", "domains"))
    sine, bound = (np.array(content[name], dtype=np.float64) for name in ("sine", "bound"))
    wanted = (len(samples), len(domains), len(content["seeds"]))
    if (
        sine.shape != wanted
        or bound.shape != wanted
        or not all(((own >= 0) & (own <= 1)).all() for own in (sine, bound))
    ):
        raise ValueError
    return Theory(int(content["width"]), int(content["rank"]), samples, domains, sine, bound)
