"""Which results are to be had, and in which order: cells, grouped by the fit that they share."""

from collections.abc import Iterator
from dataclasses import dataclass

from icrbench.method import Scope
from icrbench.protocol import Datasets
from icrbench.runner.labels import LabelledMethod
from icrbench.runner.request import Request
from icrbench.runner.variation import PLAIN, Variation


@dataclass(frozen=True)
class Cell:
    """A result to be had: one method on one task with one seed, plain or varied in one respect."""

    method: LabelledMethod
    task: str
    seed: int | None
    variation: Variation = PLAIN

    @property
    def label(self) -> str:
        """The method's label and the variation: ``few_shot``, ``few_shot@order=3``."""
        return f"{self.method.label}{self.variation}"

    def __str__(self) -> str:
        return f"{self.label} {self.task}" + ("" if self.seed is None else f" seed {self.seed}")


@dataclass(frozen=True)
class Unit:
    """The unit of work: the cells that one fit serves.

    Attributes:
        cells: of one method and seed, in the order of the tasks.
    """

    cells: tuple[Cell, ...]


def plan(request: Request, datasets: Datasets) -> list[Unit]:
    """Cut the work of one model into units, methods in the order asked for.

    A method without randomness has one cell a task, whatever the seeds. A method without a fit has a unit a task.
    Variations that change nothing of a method are left out.
    """
    return [
        unit
        for method in request.methods
        for seed in (request.seeds if method.method.seeded else [None])
        for unit in _units(request, datasets, method, seed)
    ]


def not_applicable(request: Request, datasets: Datasets) -> list[str]:
    """Return a sentence for every method that has no cell on some of the tasks asked for."""
    found = []
    for method in request.methods:
        wanted = [task.name for task in request.tasks if _wanted(request, method, task.name)]
        without = [name for name in wanted if not datasets.applies(method.method, name)]
        if without:
            found.append(
                f"{method.label} is not applicable to {', '.join(without)}: it needs labelled rows of the task itself,"
                f" which protocol {request.rules.protocol} keeps from methods."
            )
    return found


def _wanted(request: Request, method: LabelledMethod, task: str) -> bool:
    return task in request.only.get(method.label, frozenset([task]))


def _units(request: Request, datasets: Datasets, method: LabelledMethod, seed: int | None) -> Iterator[Unit]:
    groups: dict[tuple[str | None, str | None, Variation], list[Cell]] = {}
    fitted = method.method.scope is not Scope.NONE
    for task in request.tasks:
        if _wanted(request, method, task.name) and datasets.applies(method.method, task.name):
            target = datasets.target(method.method, task.name)
            ways = (variation if fitted else variation.without_fit for variation in request.variations)
            for variation in dict.fromkeys(way for way in ways if way is not None):
                place = (target, None if fitted else task.name, variation.of_fit)
                groups.setdefault(place, []).append(Cell(method, task.name, seed, variation))
    yield from (Unit(tuple(cells)) for cells in groups.values())
