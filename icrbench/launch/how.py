"""How a run is spread, as asked for on the command line."""

from dataclasses import dataclass, field

from icrbench.launch.batch_script import Slurm


@dataclass(frozen=True)
class Launch:
    """How to spread a run.

    Attributes:
        launcher: ``local`` or ``slurm``.
        workers: processes at once, under Slurm tasks of the array; None for one a GPU, or one for every two cores.
        gpus_per_model: GPUs that a worker sees, over which it spreads its model.
        retries: how often a piece, or a task of the array, is tried again after its worker was lost.
        wait: whether to stay until all is done; only under Slurm may one not.
        slurm: what Slurm is asked for.
    """

    launcher: str = "local"
    workers: int | None = None
    gpus_per_model: int = 1
    retries: int = 2
    wait: bool = True
    slurm: Slurm = field(default_factory=Slurm)
