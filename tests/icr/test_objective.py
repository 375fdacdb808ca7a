import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from icrbench.methods.icr.objective import Weights, entropy, terms
from icrbench.methods.icr.training import alpha_scale

Array = npt.NDArray[np.float64]


def softmax(logits: Array) -> Array:
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def uncertainty(logits: Array) -> Array:
    p = softmax(logits)
    return np.asarray(-(p * np.log(p)).sum(-1))


def some(seed: int = 0) -> tuple[Array, Array, Array, Array, Array]:
    rng = np.random.default_rng(seed)
    logits, plain = rng.normal(size=(4, 50)), rng.normal(size=(4, 50))
    logits[:2] *= 3
    plain[2:] *= 3
    alpha, gamma = rng.uniform(-1, 1, (4, 6, 8)), rng.uniform(0, 1, (4, 6, 5))
    return logits, plain, rng.integers(0, 50, 4), alpha, gamma


@pytest.mark.parametrize("seed", range(3))
def test_every_term_equals_its_formula(seed: int) -> None:
    logits, plain, answers, alpha, gamma = some(seed)
    found = terms(*map(torch.from_numpy, (logits, answers, uncertainty(plain), alpha, gamma)), deepest=3.0)
    cross = np.mean([-math.log(softmax(row)[answer]) for row, answer in zip(logits, answers, strict=True)])
    gained = uncertainty(logits) - uncertainty(plain)
    assert gained.min() < 0 < gained.max()  # both sides of the hinge are met
    confidence = np.mean([max(0.0, gain) for gain in gained])
    depth = [1.0, 1.4, 1.8, 2.2, 2.6, 3.0]
    sparsity = np.mean([depth[layer] * np.abs(alpha[x, layer]).sum() / 8 for x in range(4) for layer in range(6)])
    gate = np.mean([np.abs(gamma[x, layer]).sum() / 5 for x in range(4) for layer in range(6)])
    values = [found.cross_entropy, found.confidence, found.sparsity, found.gate]
    np.testing.assert_allclose([float(value) for value in values], [cross, confidence, sparsity, gate], rtol=1e-6)
    expected = cross + 0.01 * confidence + 0.001 * sparsity + 0.02 * gate
    assert float(found.total(Weights(0.01, 0.001, 0.02, 3.0))) == pytest.approx(expected, rel=1e-6)


def test_becoming_more_certain_costs_nothing() -> None:
    logits, _, answers, alpha, gamma = map(torch.from_numpy, some())
    certain = terms(logits, answers, entropy(logits) + 0.1, alpha, gamma, 3.0)
    assert float(certain.confidence) == 0
    assert float(terms(logits, answers, entropy(logits) - 0.1, alpha, gamma, 3.0).confidence) == pytest.approx(0.1)


def test_entropy_spans_the_whole_vocabulary_and_survives_large_logits() -> None:
    assert float(entropy(torch.zeros(1, 300))) == pytest.approx(math.log(300), rel=1e-6)
    assert float(entropy(torch.tensor([[0.0, 200.0, -200.0]]))) == pytest.approx(0, abs=1e-6)
    assert float(entropy(torch.tensor([[500.0, 500.0]]))) == pytest.approx(math.log(2), rel=1e-6)


def test_the_scale_of_alpha_falls_from_one_to_the_end_value() -> None:
    values = [alpha_scale(step / 100, 0.8) for step in range(101)]
    assert values[0] == 1.0
    assert values[-1] == pytest.approx(0.8, abs=1e-12)
    assert values[50] == pytest.approx(0.9, abs=1e-12)
    assert values[25] == pytest.approx(0.8 + 0.1 * (1 + math.cos(math.pi / 4)), abs=1e-12)
    assert all(later < earlier for earlier, later in itertools.pairwise(values))
    assert alpha_scale(0.7, 1.0) == 1.0  # no annealing
