"""Methods whose whole outcome is a prefix: keys and values in every layer that all tokens see, as if before them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import torch

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.anatomy import Dimensions
from icrbench.backbone.virtual import Virtual, attending
from icrbench.method import Fitted


class PrefixFitted(Fitted):
    """Keys and values of ``n`` virtual tokens.

    Attributes:
        config: ``places`` they were computed at, ``length``: the place where a prompt goes on, and ``has_bos``: whether
            BOS is among them.
        tensors: ``keys`` and ``values`` ``[L, G, n, d_k]``, float32: narrower ones would lose small steps of training.
    """

    formula: ClassVar[str] = "2nLGd_k"

    @classmethod
    def of(cls, virtual: Virtual, **config: Any) -> Self:
        """Return the prefix that some virtual tokens make."""
        places = {"places": virtual.positions.tolist(), "length": virtual.length, "has_bos": virtual.has_bos}
        kept = {"keys": virtual.keys.float().cpu(), "values": virtual.values.float().cpu()}
        return cls({**places, **config}, kept)

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """``2nLGd_k``."""
        return 2 * len(self.config["places"]) * dims.layers * dims.kv_heads * dims.head_dim

    def virtual(self, backbone: Backbone) -> Virtual:
        """Return the virtual tokens; gradients flow back to the tensors held here."""
        return Virtual(
            self.tensors["keys"].to(backbone.device),
            self.tensors["values"].to(backbone.device),
            torch.tensor(self.config["places"], dtype=torch.long),
            self.config["length"],
            self.config["has_bos"],
        )

    @contextmanager
    def intervene(self, backbone: Backbone, batch: Batch) -> Iterator[None]:
        """Let every token see the virtual ones; its own place is as much further on."""
        with attending(backbone, batch, self.virtual(backbone)):
            yield
