"""The query-conditioned router."""

from typing import Literal, Self

import torch
from torch import Tensor, nn

HIDDEN = 256  # width of the hidden layer; the paper does not state it

Strength = Literal["routed", "uniform", "shared"]
"""What a branch says: a strength for each direction (head); their mean size for all of a layer; one learned number."""


class Router(nn.Module):
    """Two 2-layer networks from a sentence embedding to routing strengths (ICR paper, Sec. 2.4, eq. 8-9).

    ``alpha = tanh(g_a(e))`` weighs each direction of each layer, ``gamma = sigmoid(g_g(e))`` gates each head. The last
    layer of the alpha branch starts at zero, so an untrained router leaves the model exactly as it is (the paper's
    initialisation is not stated). The strengths of a ``uniform`` branch are evened out over the directions or heads of
    each layer (`evened`); a ``shared`` branch is one learned number instead (`Shared`).
    """

    def __init__(
        self,
        width: int,
        layers: int,
        rank: int,
        heads: int,
        hidden: int = HIDDEN,
        alpha: Strength = "routed",
        gamma: Strength = "routed",
    ) -> None:
        super().__init__()
        self._shape = (layers, rank, heads)
        self._uniform = (alpha == "uniform", gamma == "uniform")
        self.alpha = _branch(alpha, width, hidden, layers * rank)
        self.gamma = _branch(gamma, width, hidden, layers * heads)

    @classmethod
    def initial(
        cls,
        width: int,
        layers: int,
        rank: int,
        heads: int,
        hidden: int,
        generator: torch.Generator,
        alpha: Strength = "routed",
        gamma: Strength = "routed",
    ) -> Self:
        """Make a router with weights drawn from a generator, untouched by the global random state."""
        router = cls(width, layers, rank, heads, hidden, alpha, gamma)
        for branch in (router.alpha, router.gamma):
            if isinstance(branch, Shared):
                continue  # starts at zero
            for parameter in branch.parameters():
                fan_in = parameter.shape[1] if parameter.dim() == 2 else parameter.shape[0]
                nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)
        if isinstance(router.alpha, nn.Sequential):
            for parameter in router.alpha[2].parameters():
                nn.init.zeros_(parameter)
        return router

    def forward(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Strengths for sentence embeddings ``[B, width]``: alpha ``[B, L', r]`` and gamma ``[B, L', H]``."""
        layers, rank, heads = self._shape
        alpha = torch.tanh(self.alpha(embeddings)).unflatten(-1, (layers, rank))
        gamma = torch.sigmoid(self.gamma(embeddings)).unflatten(-1, (layers, heads))
        uniform_alpha, uniform_gamma = self._uniform
        return evened(alpha) if uniform_alpha else alpha, evened(gamma) if uniform_gamma else gamma


def evened(strengths: Tensor) -> Tensor:
    """Every strength ``[.., n]`` replaced by the mean size of all n, with the sign of their mean (zero counts as +).

    Their total size is preserved and redistributed uniformly (ICR paper, "Key Components"); the paper does not give the
    sign. Where all n are equal, as after a start at zero with one gradient for all, nothing changes, and the gradient
    is that of the mean, at zero, too.
    """
    size = torch.where(strengths < 0, -strengths, strengths).mean(-1, keepdim=True)
    mean = strengths.mean(-1, keepdim=True)
    return torch.where(mean < 0, -size, size).expand_as(strengths)


class Shared(nn.Module):
    """One learned number in place of a branch: the same for every query, every layer and every direction or head.

    It starts at zero, which is alpha 0 and gamma 0.5: where the routed branches start, on average.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self._outputs = outputs
        self.value = nn.Parameter(torch.zeros(1))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Repeat the learned number as ``[B, outputs]``, whatever the embeddings ``[B, width]``."""
        return self.value.expand(len(embeddings), self._outputs)


def _branch(kind: Strength, width: int, hidden: int, outputs: int) -> nn.Sequential | Shared:
    if kind == "shared":
        return Shared(outputs)
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
