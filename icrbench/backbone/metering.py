"""What a fit costs: time, sequences, tokens and training steps, and memory beyond what was held before."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from icrbench.backbone import Backbone
from icrbench.backbone.hooks import forward_pre_hook


@dataclass
class Cost:
    """The cost of a fit from nothing: as if no part of it had been read from a cache.

    Attributes:
        seconds: by the clock.
        sequences: sequences through the model, whole or in part; one in a backward pass is not counted again.
        tokens: tokens of those sequences, padding among them.
        peak_bytes: most memory held at once beyond what was held at the start, of the GPU if there is one, else of the
            process; None where the system does not say.
        taken: what it really took, with the parts that were there already.
        steps: steps of an optimiser.
        examples: sequences that gradients were taken of.
    """

    seconds: float = 0.0
    sequences: int = 0
    tokens: int = 0
    peak_bytes: int | None = None
    taken: "Cost | None" = None
    steps: int = 0
    examples: int = 0

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> "Cost":
        """Make the value again that ``dataclasses.asdict`` took apart."""
        taken = stored.get("taken")
        return cls(**{**stored, "taken": None if taken is None else cls(**taken)})


@dataclass
class _Meter:
    """A measurement that goes on: what passes through the model, and what was read that would have had to."""

    taken: Cost
    read: Cost
    held: int | None
    """Bytes held at the start."""

    def see_peak(self, most: int | None) -> None:
        """Raise the peak to the use of memory at some moment."""
        if self.held is not None and most is not None:
            self.taken.peak_bytes = max(self.taken.peak_bytes or 0, most - self.held)


_METERS: list[_Meter] = []
"""Those that are running, the outermost first."""


@contextmanager
def metered(backbone: Backbone) -> Iterator[Cost]:
    """Measure what happens within the context; the numbers are whole when it is left. Measurements may be nested."""
    cost = Cost()

    def count(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        ids = args[0] if args else kwargs.get("input_ids")
        tokens = ids if ids is not None else kwargs["inputs_embeds"]
        meter.taken.sequences += tokens.shape[0]
        meter.taken.tokens += tokens.shape[0] * tokens.shape[1]
        meter.taken.examples += tokens.shape[0] if torch.is_grad_enabled() else 0

    def step(_optimizer: Optimizer, _args: Any, _kwargs: dict[str, Any]) -> None:
        meter.taken.steps += 1

    _see_peaks(backbone)  # before the inner measurement resets what the system remembers
    meter = _Meter(Cost(), Cost(), reset_peak(backbone))
    begin = time.perf_counter()
    _METERS.append(meter)
    steps = register_optimizer_step_post_hook(step)
    try:
        with forward_pre_hook(backbone.model.get_decoder(), count):
            yield cost
    finally:
        steps.remove()
        _see_peaks(backbone)
        _METERS.pop()
    taken, read = meter.taken, meter.read
    taken.seconds = round(time.perf_counter() - begin, 3)
    cost.seconds = round(taken.seconds + read.seconds, 3)
    cost.sequences, cost.tokens = taken.sequences + read.sequences, taken.tokens + read.tokens
    taken.examples = taken.examples if taken.steps else 0
    cost.steps, cost.examples = taken.steps + read.steps, taken.examples + read.examples
    cost.peak_bytes = None if taken.peak_bytes is None else max(taken.peak_bytes, read.peak_bytes or 0)
    cost.taken = replace(taken)


def count_read(cost: Cost) -> None:
    """Count a part that was read from a cache: its cost belongs to that of whatever is measured now, from nothing."""
    for meter in _METERS:
        read = meter.read
        read.seconds += cost.seconds
        read.sequences += cost.sequences
        read.tokens += cost.tokens
        read.steps += cost.steps
        read.examples += cost.examples
        read.peak_bytes = max(read.peak_bytes or 0, cost.peak_bytes or 0)


def _see_peaks(backbone: Backbone) -> None:
    if _METERS:
        most = peak(backbone)
        for meter in _METERS:
            meter.see_peak(most)


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
    """Return the highest use of memory since `reset_peak`, in bytes; None where the system does not say."""
    if backbone.device.type == "cuda":
        return torch.cuda.max_memory_allocated(backbone.device)
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
    return None if line is None else int(line.split()[1]) * 1024
