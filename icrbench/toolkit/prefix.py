"""Demonstrations that stay in the prompt at test time: what a fit keeps of them, and what they cost."""

from collections.abc import Sequence
from typing import Any

from icrbench.backbone import Backbone
from icrbench.backbone.anatomy import Dimensions
from icrbench.data.task import DEMONSTRATION_SEPARATOR


def prefix_config(backbone: Backbone, texts: Sequence[str]) -> dict[str, Any]:
    """``demonstrations``, their ``tokens``, and ``prefix_parameters``: entries of these tokens' keys and values."""
    tokens = len(backbone.encode(DEMONSTRATION_SEPARATOR.join(texts))) if texts else 0
    return {
        "demonstrations": list(texts),
        "tokens": tokens,
        "prefix_parameters": cache_size(backbone.dims, tokens),
    }


def cache_size(dims: Dimensions, tokens: int) -> int:
    """Entries of the keys and values of so many tokens, ``2 M L G d_k``."""
    return 2 * tokens * dims.layers * dims.kv_heads * dims.head_dim
