"""Tensors that a fit computes on its way and other fits can use: on disk, checked when read, with their cost."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.backbone.metering import Cost, count_read, metered
from icrbench.util.cache import kept, key_of, stored
from icrbench.util.code import code_of


class Intermediate:
    """A file of tensors, read or made once; a fit's cost from nothing counts it either way.

    Args:
        backbone: the model; it is part of what the tensors depend on.
        place: where the folder of the file goes; a hash of all that the tensors depend on is added to its name.
        module: the name of the module that computes them (``__name__``); its code and the libraries' versions count.
        identity: what else they depend on, as JSON values.
    """

    def __init__(self, backbone: Backbone, place: Path, module: str, identity: Mapping[str, Any]) -> None:
        self._backbone = backbone
        self._identity = {**identity, "model": backbone.identity(), "code": code_of(module)}
        self._folder = place.with_name(f"{place.name}-{key_of(self._identity)}")

    @property
    def file(self) -> Path:
        """The safetensors file, once it is there."""
        return self._folder / "tensors.safetensors"

    def is_there(self) -> bool:
        """Whether the file is there and whole; what is damaged is removed.

        Raises:
            UserError: if it cannot be read, or removed.
        """
        return stored(self._folder) is not None

    def make(self, compute: Callable[[], Mapping[str, Tensor]]) -> Path:
        """Return the file: as it is there, or made now of what ``compute`` returns.

        Raises:
            UserError: if it cannot be read or written.
        """

        def write(file: Path) -> None:
            save_file({name: tensor.contiguous() for name, tensor in compute().items()}, file)

        return self.write(write)

    def write(self, compute: Callable[[Path], None]) -> Path:
        """Return the file: as it is there, or written now by ``compute``, which need not hold all of it at once.

        Raises:
            UserError: if it cannot be read or written.
        """

        def fill(folder: Path) -> dict[str, Any]:
            with metered(self._backbone) as cost:
                compute(folder / self.file.name)
            return {"cost": asdict(cost), "identity": self._identity}

        found = kept(self._folder, fill)
        if not found.made:
            count_read(Cost.read(found.about["cost"]))
        return self.file
