"""Frozen language models: loading them, where their parts are, reading and changing what flows through them."""

from icrbench.backbone.batch import Batch, make_batch
from icrbench.backbone.core import Backbone, Revision

__all__ = ["Backbone", "Batch", "Revision", "make_batch"]
