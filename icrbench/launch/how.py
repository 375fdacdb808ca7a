"""How a run is spread, as asked for on the command line."""

from dataclasses import dataclass, field

from icrbench.launch.batch_script import Slurm


@dataclass(frozen=True)
class Launch:
    """How to spread a run.

    Attributes:
        launcher: ``local``, ``ray`` or ``slurm``.
        workers: processes at once, under Slurm tasks of the array; None for one a GPU, or one for every two cores.
        gpus_per_model: GPUs that a worker sees, over which it spreads its model.
        retries: how often a piece, or a task of the array, is tried again after its worker was lost.
        wait: whether to stay until all is done; only under Slurm may one not.
        ray_address: of a Ray cluster: ``auto`` for the one that this machine belongs to, HOST:PORT, or ``local`` for
            one that is started here and ends with the run.
        slurm: what Slurm is asked for.
    """

    launcher: str = "local"
    workers: int | None = None
    gpus_per_model: int = 1
    retries: int = 2
    wait: bool = True
    ray_address: str = "auto"
    slurm: Slurm = field(default_factory=Slurm)
