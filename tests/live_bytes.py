"""How many bytes of tensors are alive: what a peak of the process's memory would hide in noise on a tiny model."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch

from icrbench.backbone import Backbone
from icrbench.backbone.hooks import forward_pre_hook


@dataclass
class Peak:
    """The most bytes of tensors that were alive at the beginning of a forward pass, beyond those at the start."""

    bytes: int = 0


@contextmanager
def peak_of_tensors(backbone: Backbone) -> Iterator[Peak]:
    """Watch what is kept from one forward pass to the next."""
    gc.collect()
    before, peak = _alive(), Peak()

    def look(*_: object) -> None:
        peak.bytes = max(peak.bytes, _alive() - before)

    with forward_pre_hook(backbone.model.get_decoder(), look):
        yield peak
    look()


def _alive() -> int:
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            with suppress(RuntimeError):  # tensors that tracing left, which have no memory
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
