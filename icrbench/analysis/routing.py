"""Which layers, heads and principal directions a router uses, task by task (ICR paper, Sec. 4 and App. C)."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Routed(Protocol):
    """What a fit has that routes attention by the query, as ICR's."""

    config: dict[str, Any]

    def strengths(self, texts: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        """Alpha ``[B, L', r]`` and gamma ``[B, L', H]`` for zero-shot prompts."""
        ...


def importance(alpha: Tensor, gamma: Tensor) -> dict[str, Any]:
    """Importance of what is routed, over the queries of one task.

    Args:
        alpha: ``[B, L', r]`` direction weights.
        gamma: ``[B, L', H]`` head gates.

    Returns:
        ``layer``: ``[L']``, the mean gate and the mean size of alpha, each scaled to 0..1 over layers, multiplied,
        and scaled to sum 1. ``head``: ``[L', H]``, the mean gate. ``pid``: ``[r]``, the size of each direction's weight
        times the mean gate of its layer, averaged over layers. All averaged over queries.
    """
    size, gate = alpha.abs().double(), gamma.double()
    layer = _to_unit(gate.mean((0, 2))) * _to_unit(size.mean((0, 2)))
    total = layer.sum()
    pid = (size * gate.mean(2, keepdim=True)).mean((0, 1))
    return {
        "layer": (layer / total if total > 0 else layer).tolist(),
        "head": gate.mean(0).tolist(),
        "pid": pid.tolist(),
    }


def _to_unit(values: Tensor) -> Tensor:
    """Min-max scaling to 0..1; all zero where there is no difference."""
    span = values.max() - values.min()
    return (values - values.min()) / span if span > 0 else values * 0
