"""Methods whose whole outcome is one vector that changes one block's output."""

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import ClassVar

from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.positions import Where
from icrbench.backbone.sites import Site
from icrbench.backbone.steering import steered
from icrbench.method import Fitted


class LayerVector(Fitted):
    """One vector and the block whose output it changes.

    Attributes:
        where: the tokens at which it does.
        config: ``layer``, and ``sweep``: held-out accuracy by layer (empty if the layer was given).
        tensors: ``vector`` ``[d]``.
    """

    last_token_only: ClassVar[bool] = True
    formula: ClassVar[str] = "d"
    where: ClassVar[Where] = "last"

    @property
    def first_layer(self) -> int:
        """The block after which the vector is put in."""
        return int(self.config["layer"])

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``d``."""
        return dims.hidden

    @abstractmethod
    def changed(self, states: Tensor, vector: Tensor) -> Tensor:
        """Return what takes the place of the states ``[..., d]``."""

    def intervene(self, backbone: Backbone, batch: Batch) -> AbstractContextManager[None]:
        """Change the block's output at the tokens meant."""
        vector = self.tensors["vector"].to(backbone.device)

        def edit(states: Tensor) -> Tensor:
            return self.changed(states, vector.to(states.device))

        return steered(backbone, batch, {Site("block", self.first_layer): edit}, self.where)
