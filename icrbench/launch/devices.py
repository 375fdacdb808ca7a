"""What each worker of a machine gets: threads, and the GPUs that it sees."""

import os
from collections.abc import Sequence

from icrbench.util.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus() -> list[str]:
    """Return the GPUs that may be used, as CUDA names them; CUDA itself is not touched, so workers may choose."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def environments(
    workers: int | None, gpus_per_model: int, device: str | None, visible: Sequence[str]
) -> list[dict[str, str]]:
    """Return the variables of each worker.

    Args:
        workers: how many; None for one a GPU (or group of GPUs), and on a CPU one for every two cores.
        gpus_per_model: GPUs a worker sees.
        device: what the user asked for; None for a GPU if there is one.
        visible: the GPUs.

    Raises:
        UserError: if there are fewer GPUs than asked for.
    """
    cores = len(os.sched_getaffinity(0))
    if device == "cpu" or (device is None and not visible):
        count = workers or max(1, cores // 2)
        threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // count))
        return [{VISIBLE: "", "OMP_NUM_THREADS": threads}] * count
    groups = len(visible) // gpus_per_model
    count = workers or groups
    if not groups or count > groups:
        needed = (count or 1) * gpus_per_model
        raise UserError(
            f"{count or 1} workers with --gpus-per-model {gpus_per_model} need {needed} GPUs, and there are"
            f" {len(visible)}: ask for fewer, or for --device cpu."
        )
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // count))
    return [
        {VISIBLE: ",".join(visible[own * gpus_per_model : (own + 1) * gpus_per_model]), "OMP_NUM_THREADS": threads}
        for own in range(count)
    ]
