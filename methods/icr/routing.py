"""Routed attention: the low-rank term of eq. 10, added through extra attention channels."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.backbone.attention import Position, extra_channels
from icrbench.backbone.attention_kernel import Channels

RoutingScale = Literal["paper", "attention"]


@dataclass(frozen=True)
class Directions:
    """Principal ICL directions of the routed layers.

    Attributes:
        layers: 0-based block numbers, ``L'`` of them.
        queries: ``[L', H*d_k, r]``, orthonormal columns.
        keys: ``[L', G*d_k, r]``; under grouped-query attention keys keep their own, smaller space.
        position: whether vectors are projected before or after rotary embedding.
    """

    layers: list[int]
    queries: Tensor
    keys: Tensor
    position: Position


def routed(
    backbone: Backbone,
    directions: Directions,
    alpha: Tensor,
    gamma: Tensor,
    scale: RoutingScale,
) -> AbstractContextManager[None]:
    """Route within a context: the attention logits of every routed layer are as in eq. 10.

    ``A~ = s q k' + gamma (Q U_q) diag(alpha) (K U_k)'`` per layer and head, ``s`` being the model's attention scale.
    The low-rank term is not multiplied by ``s`` (``scale="paper"``) unless asked (``scale="attention"``). Layers whose
    term is zero for the whole batch are left alone, so that they give the model's own logits bit for bit.

    Args:
        backbone: the model.
        directions: where to project.
        alpha: ``[B, L', r]``.
        gamma: ``[B, L', H]``.
        scale: factor on the low-rank term.
    """
    index = {layer: place for place, layer in enumerate(directions.layers)}
    device = backbone.device
    alpha, gamma = alpha.to(device), gamma.to(device)
    basis_q, basis_k = directions.queries.to(device), directions.keys.to(device)
    # A term under training counts although it may be zero: its gradient is not.
    active = (
        [True] * len(index)
        if alpha.requires_grad
        else ((alpha != 0).flatten(2).any(2) & (gamma != 0).any(2)).any(0).tolist()
    )

    def channels(layer: int, queries: Tensor, keys: Tensor) -> Channels:
        place, here = index[layer], queries.device  # a model may spread over several
        low_q = queries.float() @ basis_q[place].to(here)  # [B, T, r]
        low_k = keys.float() @ basis_k[place].to(here)
        weighted = (low_q * alpha[:, place, None].to(here)).unsqueeze(1)  # [B, 1, T, r]
        # The kernel multiplies by the attention scale; dividing here takes that out again.
        factor = 1.0 if scale == "attention" else 1 / backbone.attention_scale(layer)
        return Channels(query=gamma[:, place, :, None, None].to(here) * weighted * factor, key=low_k)

    layers = [layer for layer, place in index.items() if active[place]]
    return extra_channels(backbone, layers, channels, directions.position)
