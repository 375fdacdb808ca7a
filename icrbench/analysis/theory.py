"""The theory behind the principal directions, on data whose right answer is known (ICR paper, Sec. 2.3, A.3, A.4).

The vectors of domain ``d`` have covariance ``S L S' + B_d G_d B_d' + s^2 I``: directions ``S`` that all domains share,
and random ones ``B_d`` of its own, which are the stronger ones. The mean of the own part is a multiple of the identity,
so that the pooled covariance approaches ``M = S L S' + c I`` as domains ``D`` and samples ``N`` grow.
"""

from typing import Any

import torch
from torch import Tensor

from icrbench.methods.icr.directions import largest_principal_angle, principal_directions

WIDTH = 32
RANK = 4  # shared directions, and as many of each domain's own
SHARED = (2.0, 2.5)  # the variances along S go evenly from one to the other
OWN = (2.5, 4.0)  # those along B_d are drawn from in between
NOISE = 0.25  # s^2
DOMAINS = tuple(2**power for power in range(9))
SAMPLES = (512, 2048, 8192)  # in all domains together
SEEDS = tuple(range(10))


def draw(domains: int, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Vectors of all domains, of as many samples each, and the directions they share.

    Args:
        domains: ``D``.
        samples: ``N``, a multiple of ``D``.
        seed: of a generator of this call's own.

    Returns:
        ``[N, WIDTH]``, and orthonormal columns ``[WIDTH, RANK]``; float64.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows = samples // domains
    shared = torch.linalg.qr(normal(WIDTH, RANK)).Q
    own = torch.linalg.qr(normal(domains, WIDTH, RANK)).Q
    low, high = OWN
    variance = low + (high - low) * torch.rand(domains, 1, RANK, generator=generator, dtype=torch.float64)
    vectors = (
        (normal(domains, rows, RANK) * _shared_variances().sqrt()) @ shared.mT
        + (normal(domains, rows, RANK) * variance.sqrt()) @ own.mT
        + normal(domains, rows, WIDTH) * NOISE**0.5
    )
    return vectors.flatten(0, 1), shared


def expected_covariance(shared: Tensor) -> Tensor:
    """``M = S L S' + c I``, the mean of a domain's covariance over random ``B_d`` and ``G_d``; ``[WIDTH, WIDTH]``.

    A random subspace of ``RANK`` of ``WIDTH`` dimensions has the mean projection ``RANK / WIDTH I``, so that
    ``c = s^2 + E[G] RANK / WIDTH``.
    """
    level = NOISE + sum(OWN) / 2 * RANK / WIDTH
    return (shared * _shared_variances()) @ shared.mT + level * torch.eye(WIDTH, dtype=torch.float64)


def sine_bound(expected: Tensor, found: Tensor, rank: int) -> float:
    """Upper bound for the sine of the largest angle between the top eigenspaces of two symmetric matrices.

    The sin-theta theorem of Davis and Kahan (SIAM J. Numer. Anal. 7, 1970) in the operator norm: with ``E = found -
    expected`` and the gap ``d = lambda_rank(expected) - lambda_(rank+1)(found) > 0``, ``sin <= |E| / d``. Why: let
    ``U`` be the eigenvectors of ``expected`` above the gap and ``W`` those of ``found`` below it. The sine is
    ``|W'U|``, and ``W'EU = (W' found W) W'U - W'U (U' expected U)`` has a norm of at least ``d |W'U|``. Without a gap,
    and where this exceeds 1, nothing is known, and the bound is 1. With the gap of ``expected`` alone it has a factor
    of 2 (Yu, Wang and Samworth, Biometrika 102, 2015).

    Args:
        expected: ``[n, n]``, whose eigenspace is known.
        found: ``[n, n]``.
        rank: dimensions of the eigenspaces, less than ``n``.
    """
    error = float(torch.linalg.matrix_norm(found - expected, 2))
    gap = float(torch.linalg.eigvalsh(expected)[-rank] - torch.linalg.eigvalsh(found)[-rank - 1])
    return error / gap if error < gap else 1.0


def recovery(domains: int, samples: int, seed: int) -> tuple[float, float]:
    """Sine of the largest angle between the shared directions and those PCA finds, and its bound."""
    vectors, shared = draw(domains, samples, seed)
    sine = largest_principal_angle(principal_directions(vectors, RANK), shared)
    return sine, sine_bound(expected_covariance(shared), torch.cov(vectors.T, correction=0), RANK)


def theory() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the setting and the findings: ``sine`` and ``bound`` by samples, domains and seed."""
    setting = {"width": WIDTH, "rank": RANK, "shared": SHARED, "own": OWN, "noise": NOISE, "seeds": SEEDS}
    found = torch.tensor(
        [[[recovery(domains, samples, seed) for seed in SEEDS] for domains in DOMAINS] for samples in SAMPLES],
        dtype=torch.float64,
    )
    sine, bound = found.unbind(-1)
    return setting, {"samples": SAMPLES, "domains": DOMAINS, "sine": sine.tolist(), "bound": bound.tolist()}


def _shared_variances() -> Tensor:
    return torch.linspace(*SHARED, RANK, dtype=torch.float64)
