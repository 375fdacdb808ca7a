import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from icrbench.methods.icr.objective import Penalised, Weights, depth_weights, entropy, terms
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


WEIGHTS = Weights(0.01, 0.001, 0.02, depth_weights(range(12, 18), 18, 3.0, "model"), 6 / 18)


@pytest.mark.parametrize("over", ["model", "routed"])
@pytest.mark.parametrize("seed", range(3))
def test_every_term_equals_its_formula(seed: int, over: Penalised) -> None:
    """Of blocks 12 to 17 routed, in a model of 18."""
    logits, plain, answers, alpha, gamma = some(seed)
    depth = [1 + 2 * layer / 17 for layer in range(18)] if over == "model" else [0.0] * 12 + [1, 1.4, 1.8, 2.2, 2.6, 3]
    layers = 18 if over == "model" else 6
    weights = Weights(0.01, 0.001, 0.02, depth_weights(range(12, 18), 18, 3.0, over), 6 / layers)
    found = terms(*map(torch.from_numpy, (logits, answers, uncertainty(plain), alpha, gamma)), weights)
    cross = np.mean([-math.log(softmax(row)[answer]) for row, answer in zip(logits, answers, strict=True)])
    gained = uncertainty(logits) - uncertainty(plain)
    assert gained.min() < 0 < gained.max()  # both sides of the hinge are met
    confidence = np.mean([max(0.0, gain) for gain in gained])
    pairs = [(x, layer) for x in range(4) for layer in range(6)]
    sparsity = sum(depth[12 + layer] * np.abs(alpha[x, layer]).sum() / 8 for x, layer in pairs) / (4 * layers)
    gate = sum(np.abs(gamma[x, layer]).sum() / 5 for x, layer in pairs) / (4 * layers)
    values = [found.cross_entropy, found.confidence, found.sparsity, found.gate]
    np.testing.assert_allclose([float(value) for value in values], [cross, confidence, sparsity, gate], rtol=1e-6)
    expected = cross + 0.01 * confidence + 0.001 * sparsity + 0.02 * gate
    assert float(found.total(weights)) == pytest.approx(expected, rel=1e-6)


def test_becoming_more_certain_costs_nothing() -> None:
    logits, _, answers, alpha, gamma = map(torch.from_numpy, some())
    certain = terms(logits, answers, entropy(logits) + 0.1, alpha, gamma, WEIGHTS)
    assert float(certain.confidence) == 0
    doubtful = terms(logits, answers, entropy(logits) - 0.1, alpha, gamma, WEIGHTS)
    assert float(doubtful.confidence) == pytest.approx(0.1)


@pytest.mark.parametrize("over", ["model", "routed"])
def test_the_last_layer_weighs_most_also_where_it_is_the_only_one(over: Penalised) -> None:
    assert depth_weights([5], 6, 3.0, over) == (3.0,)
    assert depth_weights([0], 1, 3.0, over) == (3.0,)
    assert depth_weights([4, 5], 6, 3.0, over)[-1] == 3.0
    assert depth_weights([0, 5], 6, 3.0, over) == (1.0, 3.0)


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
