"""A plan, cut into pieces for workers."""

from collections.abc import Iterator, Sequence

from icrbench.launch.board import Piece
from icrbench.protocol import Datasets
from icrbench.runner.estimate import Costs
from icrbench.runner.plan import Unit


def cut(units: Sequence[Unit], models: Sequence[str], datasets: Datasets) -> list[Piece]:
    """Cut the plan of each model: a unit of several tasks into its fit and one piece a task, another is one piece.

    Args:
        units: of the plan, the same for every model.
        models: their names.
        datasets: for the estimates.

    Returns:
        Pieces, numbered by their place.
    """
    costs = Costs(datasets)
    found: list[Piece] = []
    for model, name in enumerate(models):
        for number, unit in enumerate(units):
            found += _of_unit(unit, costs, (len(found), model, number, name))
    return found


def _of_unit(unit: Unit, costs: Costs, place: tuple[int, int, int, str]) -> Iterator[Piece]:
    first, model, number, name = place
    cell = unit.cells[0]
    by_task: dict[str, list[int]] = {}
    for position, each in enumerate(unit.cells):
        by_task.setdefault(each.task, []).append(position)
    if len(by_task) == 1:
        tokens = sum(costs.cells(unit))
        yield Piece(first, model, number, tuple(range(len(unit.cells))), False, None, tokens, f"{name} {cell}")
        return
    seed = "" if cell.seed is None else f" seed {cell.seed}"
    yield Piece(first, model, number, (0,), True, None, costs.fit(cell), f"{name} fit of {cell.label}{seed}")
    for offset, positions in enumerate(by_task.values(), start=1):
        tokens = sum(costs.score(unit.cells[position]) for position in positions)
        what = f"{name} {unit.cells[positions[0]]}"
        yield Piece(first + offset, model, number, tuple(positions), False, first, tokens, what)
