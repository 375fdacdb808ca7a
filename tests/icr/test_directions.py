import numpy as np
import pytest
import torch

from icrbench.methods.icr.directions import largest_principal_angle, principal_directions, random_directions
from icrbench.methods.icr.layers import Target, target_layers


def correlated(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Data with clearly separated variances around a mean far from zero."""
    generator = torch.Generator().manual_seed(seed)
    rotation = random_directions(columns, columns, torch.Generator().manual_seed(9)).double()
    spread = torch.linspace(1, 0.05, columns, dtype=torch.float64) ** 2 * 10
    data = torch.randn(rows, columns, generator=generator, dtype=torch.float64) * spread
    return data @ rotation.T + 5.0


def test_known_directions_are_found_in_order() -> None:
    true = random_directions(20, 4, torch.Generator().manual_seed(1)).double()
    scores = torch.randn(5000, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    scores = torch.linalg.qr(scores - scores.mean(0)).Q  # uncorrelated to the last digit
    data = (scores * torch.tensor([8.0, 4.0, 2.0, 1.0])) @ true.T + 100.0
    found = principal_directions(data, 4).double()
    torch.testing.assert_close((found.T @ true).abs(), torch.eye(4, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(200, 24), (24, 24), (15, 40)])
def test_equals_the_singular_vectors(rows: int, columns: int, center: bool) -> None:
    data = correlated(rows, columns)
    values = data.numpy() - (data.numpy().mean(0) if center else 0)
    expected = np.linalg.svd(values, full_matrices=False)[2][:6].T
    found = principal_directions(data, 6, center=center).double().numpy()
    assert found.shape == (columns, 6)
    np.testing.assert_allclose(np.abs(found.T @ expected), np.eye(6), atol=1e-6)


def test_both_gram_matrices_give_the_same_directions() -> None:
    data = correlated(12, 30)
    # Zero rows change nothing without centring and lead to the other branch.
    padded = torch.cat([data, torch.zeros(40, 30, dtype=torch.float64)])
    torch.testing.assert_close(
        principal_directions(data, 5, center=False), principal_directions(padded, 5, center=False), atol=1e-6, rtol=0
    )


def test_centring_matters_and_removes_the_mean() -> None:
    data = correlated(300, 16)
    mean = torch.nn.functional.normalize(data.mean(0), dim=0)
    raw = principal_directions(data, 1, center=False).double()[:, 0]
    assert abs(float(raw @ mean)) > 0.9
    centred = principal_directions(data, 3)
    torch.testing.assert_close(centred, principal_directions(data + 50 * torch.arange(16), 3), atol=1e-5, rtol=0)
    assert largest_principal_angle(centred[:, :1], raw[:, None]) > 0.5


@pytest.mark.parametrize(("rows", "columns"), [(100, 12), (8, 30)])
def test_signs_do_not_depend_on_the_order_of_the_rows(rows: int, columns: int) -> None:
    data = correlated(rows, columns)
    found = principal_directions(data, 4)
    shuffled = data[torch.randperm(rows, generator=torch.Generator().manual_seed(3))]
    torch.testing.assert_close(principal_directions(shuffled, 4), found, atol=1e-5, rtol=0)
    torch.testing.assert_close(principal_directions(-data, 4), found, atol=1e-5, rtol=0)
    assert (found.amax(0) == found.abs().amax(0)).all()


def test_orthonormal_also_when_the_data_have_lower_rank() -> None:
    flat = correlated(3, 30)[:, :, None].expand(-1, -1, 4).permute(0, 2, 1).reshape(12, 30)  # 3 different rows
    found = principal_directions(flat, 6).double()
    torch.testing.assert_close(found.T @ found, torch.eye(6, dtype=torch.float64), atol=1e-6, rtol=0)


def test_random_directions_are_orthonormal_and_follow_the_generator() -> None:
    first, again, other = (random_directions(40, 8, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    torch.testing.assert_close(first.T @ first, torch.eye(8), atol=1e-6, rtol=0)
    assert torch.equal(first, again)
    assert largest_principal_angle(first, other) > 0.5


def test_the_angle_between_subspaces() -> None:
    axes = torch.eye(6)
    turned = axes[:, :2].clone()
    turned[:, 1] = np.cos(0.3) * axes[:, 1] + np.sin(0.3) * axes[:, 4]
    assert largest_principal_angle(axes[:, :2], turned) == pytest.approx(np.sin(0.3), abs=1e-6)
    assert largest_principal_angle(axes[:, :2], axes[:, [1, 0]]) == pytest.approx(0, abs=1e-6)
    assert largest_principal_angle(axes[:, :2], axes[:, 2:4]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("target", "layers", "expected"),
    [
        ("late", 18, list(range(12, 18))),
        ("late", 32, list(range(21, 32))),
        ("late", 28, list(range(18, 28))),
        ("middle", 18, list(range(6, 12))),
        ("early", 32, list(range(10))),
        ("all", 5, list(range(5))),
        ("early", 2, []),
    ],
)
def test_target_layers(target: Target, layers: int, expected: list[int]) -> None:
    assert target_layers(target, layers) == expected


def test_the_thirds_cover_every_layer_once() -> None:
    for layers in range(3, 49):
        thirds = [target_layers(target, layers) for target in ("early", "middle", "late")]
        assert [layer for third in thirds for layer in third] == target_layers("all", layers)
