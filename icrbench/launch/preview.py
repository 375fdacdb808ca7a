"""What a launcher would do, before it does: units, resources, time, and Slurm's batch script."""

from collections.abc import Mapping, Sequence
from typing import Any

from icrbench.launch.devices import VISIBLE, environments, gpus
from icrbench.launch.how import Launch
from icrbench.launch.on_slurm import SlurmRun
from icrbench.runner.estimate import Costs, seconds_per_token
from icrbench.runner.plan import plan
from icrbench.runner.request import Request
from icrbench.runner.shares import deal
from icrbench.util.progress import duration


def print_launch(request: Request, arguments: Mapping[str, Any], how: Launch) -> None:
    """Print how a run would be spread; nothing is started or submitted.

    Args:
        request: what to run.
        arguments: of `Request.build` that it was built from.
        how: which workers.

    Raises:
        UserError: if it could not be spread so.
    """
    datasets = request.datasets()
    units, models = plan(request, datasets), [str(model) for model in request.models]
    print(f"{len(units) * len(models)} units of work: a fit and the cells that are scored with it")
    costs = Costs(datasets)
    tokens = [sum(costs.cells(unit)) for unit in units]
    speeds = [seconds_per_token(model) for model in models]

    def longest(workers: int) -> str:
        """Say how long the worker takes that has most to do, if each is as fast as this machine."""
        if any(speed is None for speed in speeds):
            return "a time that is not known, for a model is not here"
        dealt = deal(units, len(models), datasets, workers)
        each = [
            sum((speed or 0.0) * tokens[own] for speed, places in zip(speeds, share, strict=True) for own in places)
            for share in dealt
        ]
        return f"about {duration(max(each))}"

    if how.launcher == "slurm":
        run = SlurmRun(request, arguments, how, units, datasets)
        print(f"{len(run.shares)} tasks of a job array: {_sizes([share.cells for share in run.shares])} cells each,")
        print(f"  {run.resources}")
        print(f"  {longest(len(run.shares))} for the longest, if its node is as fast as this machine")
        print(f"\n{run.script}", end="")
        return
    each = environments(how.workers, how.gpus_per_model, request.device, gpus())
    seen = each[0][VISIBLE]
    devices = f"GPUs {' | '.join(own[VISIBLE] for own in each)}" if seen else "no GPU"
    print(f"{len(each)} workers: processes of this machine, {each[0]['OMP_NUM_THREADS']} threads each, {devices}")
    # Without GPUs the workers share the cores with which the speed was measured.
    print(f"  {longest(len(each) if seen else 1)} for all, at best")


def _sizes(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(set(numbers)) == 1 else f"{min(numbers)} to {max(numbers)}"
