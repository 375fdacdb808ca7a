"""The query-conditioned router."""

from typing import Self

import torch
from torch import Tensor, nn

HIDDEN = 256  # width of the hidden layer; the paper does not state it


class Router(nn.Module):
    """Two 2-layer networks from a sentence embedding to routing strengths (ICR paper, Sec. 2.4, eq. 8-9).

    ``alpha = tanh(g_a(e))`` weighs each direction of each layer, ``gamma = sigmoid(g_g(e))`` gates each head. The last
    layer of the alpha branch starts at zero, so an untrained router leaves the model exactly as it is (the paper's
    initialisation is not stated).
    """

    def __init__(self, width: int, layers: int, rank: int, heads: int, hidden: int = HIDDEN) -> None:
        super().__init__()
        self._shape = (layers, rank, heads)
        self.alpha = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, layers * rank))
        self.gamma = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, layers * heads))

    @classmethod
    def initial(cls, width: int, layers: int, rank: int, heads: int, hidden: int, generator: torch.Generator) -> Self:
        """A router with weights drawn from a generator, untouched by the global random state."""
        router = cls(width, layers, rank, heads, hidden)
        for parameter in router.parameters():
            fan_in = parameter.shape[1] if parameter.dim() == 2 else parameter.shape[0]
            nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)
        for parameter in router.alpha[2].parameters():
            nn.init.zeros_(parameter)
        return router

    def forward(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Strengths for sentence embeddings ``[B, width]``: alpha ``[B, L', r]`` and gamma ``[B, L', H]``."""
        layers, rank, heads = self._shape
        alpha = torch.tanh(self.alpha(embeddings)).unflatten(-1, (layers, rank))
        gamma = torch.sigmoid(self.gamma(embeddings)).unflatten(-1, (layers, heads))
        return alpha, gamma
