"""What a launcher would do, before it does: units, resources, time, and Slurm's batch script."""

from collections.abc import Mapping, Sequence
from typing import Any

from icrbench.launch.devices import VISIBLE, environments, gpus
from icrbench.launch.how import Launch
from icrbench.launch.on_ray import cluster, places
from icrbench.launch.on_slurm import SlurmRun
from icrbench.protocol import Datasets
from icrbench.runner.estimate import Costs, seconds_per_token
from icrbench.runner.plan import Unit, plan
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
    if how.launcher == "slurm":
        run = SlurmRun(request, arguments, how, units, datasets)
        tasks = len(run.shares)
        print(f"{tasks} tasks of a job array; {run.resources}")
        print(f"the longest takes {_longest(units, models, datasets, tasks)} if its node is as fast as this machine")
        print(f"\n{run.script}", end="")
        return
    if how.launcher == "ray":
        with cluster(how.ray_address) as nodes:
            found = places(nodes, how.workers, how.gpus_per_model, request.device)
        print(f"{found}; nodes of the Ray cluster: {len(nodes)}")
        longest = _longest(units, models, datasets, found.workers)
        print(f"the longest takes {longest} if its node is as fast as this machine")
        return
    each = environments(how.workers, how.gpus_per_model, request.device, gpus())
    on_gpus = bool(each[0][VISIBLE])
    devices = f"GPUs {' | '.join(own[VISIBLE] for own in each)}" if on_gpus else "no GPU"
    print(f"{len(each)} workers; threads of each: {each[0]['OMP_NUM_THREADS']}; {devices}")
    # Without GPUs the workers share the cores on which the speed is measured.
    print(f"all take {_longest(units, models, datasets, len(each) if on_gpus else 1)} at best")


def _longest(units: Sequence[Unit], models: Sequence[str], datasets: Datasets, workers: int) -> str:
    """Say how long the worker takes that has most to do, if each is as fast as this machine."""
    speeds = [seconds_per_token(model) for model in models]
    known = [speed for speed in speeds if speed is not None]
    if len(known) < len(speeds):
        return "nobody knows how long (a model is not here)"
    costs = Costs(datasets)
    tokens = [sum(costs.cells(unit)) for unit in units]
    seconds = [
        sum(speed * tokens[own] for speed, places in zip(known, share, strict=True) for own in places)
        for share in deal(units, len(models), datasets, workers)
    ]
    return f"about {duration(max(seconds))}"
