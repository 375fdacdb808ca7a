"""PCA as the method does it, on data whose right answer is known (ICR paper, Sec. 2.3, A.3, A.4)."""

import itertools
import json

import numpy as np
import pytest
import torch

from cli_setup import Commands, icrbench
from icrbench.analysis import theory
from icrbench.methods.icr.directions import largest_principal_angle, principal_directions

__all__ = ["icrbench"]  # a fixture


def symmetric(generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(10, 10, generator=generator, dtype=torch.float64)
    return (values + values.T) / 2


def top(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    return torch.linalg.eigh(matrix).eigenvectors[:, -rank:]


def test_the_error_falls_with_domains_and_samples_and_stays_below_the_bound() -> None:
    sizes = [(1, 2048), (4, 2048), (16, 2048), (64, 2048), (64, 128), (64, 512)]
    found = {size: np.array([theory.recovery(*size, seed) for seed in range(4)]) for size in sizes}
    assert all((own[:, 0] <= own[:, 1]).all() for own in found.values())
    sine, bound = ({size: float(np.median(own[:, kind])) for size, own in found.items()} for kind in (0, 1))
    by_domains = [sine[domains, 2048] for domains in (1, 4, 16, 64)]
    by_samples = [sine[64, samples] for samples in (128, 512, 2048)]
    assert all(later < 0.8 * earlier for earlier, later in itertools.pairwise(by_domains)), by_domains
    assert all(later < 0.8 * earlier for earlier, later in itertools.pairwise(by_samples)), by_samples
    assert by_domains[0] > 0.9  # a single domain's own directions are the stronger ones
    assert bound[64, 2048] < 0.4  # so that staying below says something


def test_other_directions_than_the_leading_ones_break_the_bound() -> None:
    vectors, shared = theory.draw(64, 4096, 0)
    bound = theory.sine_bound(theory.expected_covariance(shared), torch.cov(vectors.T, correction=0), theory.RANK)
    more = principal_directions(vectors, theory.RANK + 1)
    assert largest_principal_angle(more[:, :-1], shared) < bound
    assert largest_principal_angle(more[:, 1:], shared) > bound


def test_the_bound_is_reached_by_a_rotation_in_two_dimensions() -> None:
    sine, cosine = np.sin(0.3), np.cos(0.3)
    turn = torch.tensor([[cosine, -sine], [sine, cosine]], dtype=torch.float64)
    before = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64))
    assert theory.sine_bound(before, turn @ before @ turn.T, 1) == pytest.approx(sine)
    assert theory.sine_bound(before, before, 1) == 0
    assert theory.sine_bound(before, before.flip(0, 1), 1) == 1  # the gap has closed: nothing is known


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_the_bound_holds_for_any_symmetric_matrices(rank: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    telling = 0
    for size in np.geomspace(0.003, 1, 60):
        before = symmetric(generator)
        after = before + size * symmetric(generator)
        bound = theory.sine_bound(before, after, rank)
        assert largest_principal_angle(top(before, rank), top(after, rank)) <= bound + 1e-9
        telling += bound < 1
    assert telling > 10


def test_draws_have_the_covariance_they_are_said_to_have() -> None:
    vectors, shared = theory.draw(2048, 16384, 0)
    expected, found = theory.expected_covariance(shared), vectors.T @ vectors / len(vectors)
    assert float(torch.linalg.matrix_norm(found - expected, 2)) < 0.1 * float(torch.linalg.matrix_norm(expected, 2))
    assert float(found.trace()) == pytest.approx(float(expected.trace()), rel=0.01)
    # A single domain: noise everywhere, and directions with more, half of them shared.
    vectors, shared = theory.draw(1, 65536, 0)
    variances, more = torch.linalg.eigvalsh(torch.cov(vectors.T)), 2 * theory.RANK
    torch.testing.assert_close(variances[:-more], torch.full_like(variances[:-more], theory.NOISE), atol=0.02, rtol=0)
    assert float(variances[-more]) > 2 * theory.NOISE
    along = torch.cov((vectors @ shared).T).diagonal()
    assert (along > theory.NOISE + theory.SHARED[0] - 0.1).all()


def test_a_draw_follows_its_seed_alone() -> None:
    state = torch.get_rng_state()
    (first, shared), (again, _), (other, elsewhere) = (theory.draw(4, 16, seed) for seed in (1, 1, 2))
    assert first.dtype == shared.dtype == torch.float64
    assert (tuple(first.shape), tuple(shared.shape)) == ((16, theory.WIDTH), (theory.WIDTH, theory.RANK))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(shared, elsewhere)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_command_needs_no_model_and_its_figure_is_drawn(
    icrbench: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icrbench.runner.request.load_backbone", lambda *_, **__: pytest.fail("loaded"))
    for name, sizes in {"DOMAINS": (1, 4), "SAMPLES": (16, 64, 256), "SEEDS": (0, 5)}.items():
        monkeypatch.setattr(theory, name, sizes)
    out = icrbench.folder / "out"
    assert icrbench("analyse", "--theory", "--out", out).code == 0
    (path,) = (out / "analysis").iterdir()
    assert path.name.startswith("theory-")
    stored = json.loads(path.read_text())
    assert (stored["domains"], stored["samples"], stored["seeds"]) == ([1, 4], [16, 64, 256], [0, 5])
    assert (stored["sine"][2][1][1], stored["bound"][2][1][1]) == theory.recovery(4, 256, 5)
    before = path.read_bytes()
    assert icrbench("analyse", "--theory", "--out", out).code == 0
    assert [own.read_bytes() for own in (out / "analysis").iterdir()] == [before]
    assert icrbench("report", out, "--figures").code == 0
    assert {own.name for own in (out / "figures").iterdir()} == {"theory.pdf", "theory.png"}


def test_theory_stands_alone_and_methods_need_a_model(icrbench: Commands) -> None:
    icrbench.refused(icrbench("analyse", "--theory", "--methods", "icr"), "not allowed with")
    icrbench.refused(icrbench("analyse", "--methods", "icr"), "no model asked for")
    icrbench.refused(icrbench("run", "--methods", "icr"), "--models")


@pytest.mark.parametrize("option", [("--models", "gemma-270m"), ("--tasks", "sst2"), ("--seeds", "3")])
def test_the_command_refuses_what_it_would_not_use(icrbench: Commands, option: tuple[str, str]) -> None:
    out = icrbench.folder / "out"
    done = icrbench("analyse", "--theory", *option, "--out", out)
    icrbench.refused(done, "leave out --models, --tasks and --seeds")
    assert not out.exists()
