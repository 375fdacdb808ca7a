"""How much memory there is, and how much a token takes."""

import psutil
import torch

from icrbench.backbone.core import Backbone


def free_bytes(device: torch.device) -> int:
    """Memory free for new tensors on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def activation_bytes(backbone: Backbone) -> int:
    """Bytes a token takes while it goes through one block: the widest activations, several of which live at once."""
    return 8 * max(backbone.dims.inner, backbone.dims.hidden) * backbone.dtype.itemsize


def cache_bytes(backbone: Backbone) -> int:
    """Bytes a token's keys and values take in all blocks."""
    dims = backbone.dims
    return 2 * dims.layers * dims.kv_heads * dims.head_dim * backbone.dtype.itemsize
