"""Principal ICL directions: an orthonormal basis of the query and of the key space of each layer."""

import torch
from torch import Tensor


def principal_directions(vectors: Tensor, rank: int, *, center: bool = True) -> Tensor:
    """Return the ``rank`` leading principal directions of a set of vectors (ICR paper, Sec. 2.2, eq. 5-6).

    The eigenproblem is solved in float64 on the smaller of the two Gram matrices. Signs, which PCA leaves open, are
    fixed by making each direction's largest entry positive.

    Args:
        vectors: ``[N, n]``.
        rank: number of directions, at most ``min(N, n)``.
        center: subtract the mean first (PCA); without, the second moment is decomposed (eq. 5 as written).

    Returns:
        ``[n, rank]``, orthonormal columns, float32, in order of falling variance.
    """
    data = vectors.to(torch.float64, copy=True)
    if center:
        data -= data.mean(0)
    if data.shape[0] >= data.shape[1]:
        _, eigenvectors = torch.linalg.eigh(data.T @ data)
        basis = eigenvectors.flip(1)[:, :rank]
    else:
        _, eigenvectors = torch.linalg.eigh(data @ data.T)
        # Map back from sample space; QR restores orthonormality where an eigenvalue is next to nothing.
        basis = torch.linalg.qr(data.T @ eigenvectors.flip(1)[:, :rank]).Q
    largest = basis.abs().argmax(0)
    signs = torch.sign(basis[largest, torch.arange(basis.shape[1])])
    directions: Tensor = (basis * signs).float()
    return directions


def random_directions(width: int, rank: int, generator: torch.Generator) -> Tensor:
    """Draw a random orthonormal basis ``[width, rank]``: QR of a Gaussian matrix (the ablation of Table 3)."""
    gaussian = torch.randn(width, rank, generator=generator, dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(gaussian).Q
    return basis.float()


def largest_principal_angle(first: Tensor, second: Tensor) -> float:
    """Sine of the largest angle between two subspaces given by orthonormal columns (the distance of Davis-Kahan)."""
    cosines = torch.linalg.svdvals(first.double().T @ second.double()).clamp(max=1)
    return float((1 - cosines.min() ** 2).clamp(min=0).sqrt())
