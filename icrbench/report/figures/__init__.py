"""Figures of a results folder: drawn from stored records and analyses, never from a model."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from matplotlib.figure import Figure

from icrbench.experiments import Vary
from icrbench.report.figures import accuracy, calibration, latency, routing, sensitivity, theory
from icrbench.report.figures.sources import Routing, latencies, routings, theories
from icrbench.report.figures.style import ENDINGS, save, styled
from icrbench.report.groups import Group
from icrbench.report.leaderboard import leaderboards
from icrbench.report.sensitivity import sensitivities
from icrbench.store.store import Store
from icrbench.util.errors import UserError

_ROUTING: dict[str, Callable[[Routing], Figure]] = {
    "layer-importance": routing.layer_importance,
    "heads": routing.heads,
    "pid-correlation": routing.pid_correlation,
}


@dataclass(frozen=True)
class Drawn:
    """What became of the figures: files, and a sentence for each that could not be drawn."""

    paths: list[Path]
    missing: list[str]


def write_figures(folder: Path, out: Path) -> Drawn:
    """Write ``figures/NAME.pdf`` and ``.png`` below ``out``; names go on where there are several of a kind.

    Raises:
        UserError: if the folder does not exist, a file in it is damaged, or ``out`` cannot be written.
    """
    if not folder.is_dir():
        raise UserError(f"no folder {folder}: give the folder a run or an analysis wrote to.")
    paths, missing = [], []
    with styled():
        for name, (found, way) in _figures(folder).items():
            several = len(found) > 1
            if not found:
                missing.append(f"figure {name}: {way}.")
            taken: set[str] = set()
            for about, figure in found:
                stem = f"{name}-{_slug(about)}" if several else name
                while stem in taken:
                    stem += "-2"
                taken.add(stem)
                for ending in ENDINGS:
                    paths.append(out / "figures" / f"{stem}.{ending}")
                    save(figure, paths[-1])
    return Drawn(paths, missing)


def _figures(folder: Path) -> dict[str, tuple[list[tuple[str, Figure]], str]]:
    """By name: the figures, each with what tells it from others of its name; and how one is had if there are none."""
    analyse = f"no analysis in {folder / 'analysis'}; `icrbench analyse --methods METHOD --models MODEL --out {folder}`"
    run = f"no complete results in {folder}; `icrbench run --methods METHOD --models MODEL --out {folder}` makes them"
    routed = routings(folder)
    found: dict[str, tuple[list[tuple[str, Figure]], str]] = {
        name: (
            [(f"{own.model} {own.label}", draw(own)) for own in routed],
            f"{analyse} makes it for a routed METHOD, as icr",
        )
        for name, draw in _ROUTING.items()
    }
    timed = [(own.model, latency.latency(own)) for own in latencies(folder)]
    found["latency"] = (timed, f"{analyse} makes it")
    found["theory"] = (
        [(f"rank={own.rank} width={own.width}", theory.theory(own)) for own in theories(folder)],
        f"no analysis in {folder / 'analysis'}; `icrbench analyse --theory --out {folder}` makes it, without a model",
    )
    store = Store(folder)
    tables = [] if store.empty else leaderboards(store)
    costs: list[tuple[str, Figure]] = []
    chances: list[tuple[str, Figure]] = []
    controls: list[tuple[str, Figure]] = []
    for table in tables:
        for drawn, figure in (
            (costs, accuracy.pareto(table)),
            (chances, accuracy.seeds(table)),
            (controls, calibration.calibration(table)),
        ):
            if figure is not None:
                drawn.append((_short(table.group), figure))
    found["pareto"] = (costs, run)
    found["seeds"] = (chances, run)
    found["calibration"] = (
        controls,
        f"no priors beside zero-shot and another method in {folder}; {run.partition('; ')[2]}",
    )
    for vary in get_args(Vary):
        varied = [] if store.empty else [own for own in sensitivities(store, vary) if own.spreads]
        if varied:  # wanted by few, so that their absence is nothing to tell of
            found[vary] = (
                [(f"{_short(own.group)} {own.calibrate}", sensitivity.sensitivity(own)) for own in varied],
                run,
            )
    return found


def _short(group: Group) -> str:
    """Return a group's title, as short as a file's name should be."""
    limit = group.records[0][1]["data"]["limit"]
    data = "demo" if group.demo else "full" if limit is None else f"n{limit}"
    parts = [group.model, group.variant, group.protocol, "clean" if group.clean else "", data]
    parts += [f"variants-of-{group.variants_of}"] if group.variants_of else []
    return " ".join(filter(None, [*parts, f"superseded{group.edition}" if group.edition else ""]))


def _slug(words: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=]+", "-", words).strip("-")
