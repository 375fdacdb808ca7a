"""Demonstrations that stay in the prompt at test time: what a fit keeps of them, and what they cost."""

from collections.abc import Sequence
from typing import Any

from icrbench.backbone import Backbone
from icrbench.backbone.anatomy import Dimensions
from icrbench.data.task import DEMONSTRATION_SEPARATOR, Example, Task
from icrbench.method import Fitted


class ShowsDemonstrations(Fitted):
    """A fit that may put demonstrations into the prompt, the same for every query; beside what else it holds.

    Attributes:
        config: as `prefix_config` makes it: ``demonstrations`` (none if they are not shown), ``tokens`` and
            ``prefix_parameters``.
    """

    @property
    def shares_prefix(self) -> bool:  # type: ignore[override]  # here it depends on the demonstrations
        """Whether there are any."""
        return bool(self.config["demonstrations"])

    @property
    def cached_parameters(self) -> int:
        """What else is held, and the demonstrations' keys and values."""
        return super().cached_parameters + int(self.config["prefix_parameters"])

    def parameters_by_formula(self, dims: Dimensions) -> int:
        """Return what else is held, and ``2 M L G d_k``, ``M`` being the demonstrations' tokens."""
        return super().parameters_by_formula(dims) + cache_size(dims, int(self.config["tokens"]))

    def prefix(self, task: Task, query: Example) -> Sequence[str]:
        """Return the demonstrations, the same for every query."""
        texts: list[str] = self.config["demonstrations"]
        return texts


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
