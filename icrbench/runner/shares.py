"""A plan, dealt out to runs that do not talk to each other: ``--share 3/8`` does the third of eight parts.

For schedulers that start a fixed number of jobs (Slurm's arrays), and for machines that share nothing but a folder.
"""

import heapq
from collections.abc import Sequence

from icrbench.protocol import Datasets
from icrbench.runner.estimate import Costs
from icrbench.runner.plan import Unit


def deal(units: Sequence[Unit], models: int, datasets: Datasets, shares: int) -> list[list[list[int]]]:
    """Deal out units, the longest first, each to the share that has least so far: all shares take about as long.

    Args:
        units: of the plan, the same for every model.
        models: how many.
        datasets: for the estimates.
        shares: how many.

    Returns:
        For each share and each model the places of its units, ascending. The same for the same run, wherever it is
        computed.
    """
    costs = Costs(datasets)
    tokens = [sum(costs.cells(unit)) for unit in units]
    dealt: list[list[list[int]]] = [[[] for _ in range(models)] for _ in range(shares)]
    filled = [(0.0, share) for share in range(shares)]
    for model in range(models):
        for number in sorted(range(len(units)), key=lambda own: (-tokens[own], own)):
            total, share = heapq.heappop(filled)
            dealt[share][model].append(number)
            heapq.heappush(filled, (total + tokens[number], share))
    return [[sorted(own) for own in share] for share in dealt]
