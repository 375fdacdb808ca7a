"""What a fit costs: time, sequences and tokens through the model, and memory beyond what was held before."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from icrbench.backbone import Backbone
from icrbench.backbone.hooks import forward_pre_hook


@dataclass
class Cost:
    """The cost of a fit.

    Attributes:
        seconds: by the clock.
        sequences: sequences through the model, whole or in part; one in a backward pass is not counted again.
        tokens: tokens of those sequences, padding among them.
        peak_bytes: most memory held at once beyond what was held at the start, of the GPU if there is one, else of the
            process; None where the system does not say.
    """

    seconds: float = 0.0
    sequences: int = 0
    tokens: int = 0
    peak_bytes: int | None = None


@contextmanager
def metered(backbone: Backbone) -> Iterator[Cost]:
    """Measure what happens within the context; the numbers are whole when it is left."""
    cost = Cost()

    def count(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        ids = args[0] if args else kwargs.get("input_ids")
        tokens = ids if ids is not None else kwargs["inputs_embeds"]
        cost.sequences += tokens.shape[0]
        cost.tokens += tokens.shape[0] * tokens.shape[1]

    before = reset_peak(backbone)
    begin = time.perf_counter()
    with forward_pre_hook(backbone.model.get_decoder(), count):
        yield cost
    cost.seconds = round(time.perf_counter() - begin, 3)
    most = peak(backbone)
    cost.peak_bytes = None if before is None or most is None else max(0, most - before)


def reset_peak(backbone: Backbone) -> int | None:
    """Forget the highest use of memory so far; returns the present use in bytes, None where the system does not say."""
    if backbone.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(backbone.device)
        return torch.cuda.memory_allocated(backbone.device)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: resets the high-water mark of this process
    except OSError:
        return None
    return int(psutil.Process().memory_info().rss)


def peak(backbone: Backbone) -> int | None:
    """The highest use of memory since `reset_peak`, in bytes; None where the system does not say."""
    if backbone.device.type == "cuda":
        return torch.cuda.max_memory_allocated(backbone.device)
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
    return None if line is None else int(line.split()[1]) * 1024
