"""Which layers, heads and principal directions a router uses, task by task (ICR paper, the analyses)."""

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
    """Compute the importance of routed layers, heads and directions over the queries of one task.

    Args:
        alpha: ``[B, L', r]`` direction weights.
        gamma: ``[B, L', H]`` head gates.

    Returns:
        ``layer``: ``[L']``, for each query the mean gate and the mean size of alpha, each scaled to 0..1 over layers,
        multiplied, and scaled to sum 1 (a query whose product is 0 in every layer ranks none and is left out).
        ``head``: ``[L', H]``, the mean gate. ``pid``: ``[r]``, the size of each direction's weight times the mean gate
        of its layer, averaged over layers. All averaged over queries, last of all.
    """
    size, gate = alpha.abs().double(), gamma.double()
    pid = (size * gate.mean(2, keepdim=True)).mean((0, 1))
    return {
        "layer": _layer_importance(size.mean(2), gate.mean(2)).tolist(),
        "head": gate.mean(0).tolist(),
        "pid": pid.tolist(),
    }


def _layer_importance(size: Tensor, gate: Tensor) -> Tensor:
    """``[L']`` from each query's sizes and gates ``[B, L']``; all zero if no query ranks its layers."""
    product = _to_unit(size) * _to_unit(gate)
    total = product.sum(1, keepdim=True)
    ranking = (product / total)[total[:, 0] > 0]
    return ranking.mean(0) if len(ranking) else product.mean(0)


def _to_unit(values: Tensor) -> Tensor:
    """Min-max scaling of rows ``[B, L']`` to 0..1; all zero in a row without differences."""
    low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    return ((values - low) / (high - low)).nan_to_num()
