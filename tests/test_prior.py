"""The arithmetic of priors and of answers that are corrected for them."""

import numpy as np
import pytest
from scipy.special import log_softmax as scipy_log_softmax
from scipy.special import softmax

from icrbench.scoring.prior import KINDS, LEAST, Kind, corrected, log_prior, log_softmax

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 3, (50, 4))
PROMPTS = RNG.normal(0, 1, (7, 4))


def test_against_scipy() -> None:
    assert np.allclose(log_softmax(LOGITS), scipy_log_softmax(LOGITS, axis=1))
    assert np.allclose(np.exp(log_prior(PROMPTS, "cc")), softmax(PROMPTS, axis=1).mean(axis=0))
    assert np.allclose(np.exp(log_prior(PROMPTS, "dc")), softmax(PROMPTS, axis=1).mean(axis=0))
    means = scipy_log_softmax(PROMPTS, axis=1).mean(axis=0)
    assert np.allclose(np.exp(log_prior(PROMPTS, "bc")), softmax(means))


@pytest.mark.parametrize("kind", KINDS)
def test_corrected_probabilities_are_proportional_to_q_over_pi(kind: Kind) -> None:
    prior = log_prior(PROMPTS, kind)
    ratio = softmax(LOGITS, axis=1) / np.exp(prior)
    assert np.allclose(np.exp(corrected(LOGITS, prior)), ratio / ratio.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_uniform_prior_changes_nothing(kind: Kind) -> None:
    uniform = log_prior(np.full((3, 4), 2.5), kind)
    assert np.allclose(corrected(LOGITS, uniform), log_softmax(LOGITS))


def test_a_constant_of_each_option_is_taken_out() -> None:
    """By bc whatever the prompts are, by cc with one prompt; not by a mean of q over several."""
    constant = np.array([2.0, -1.0, 0.5, 0.0])
    for kind, prompts in (("bc", PROMPTS), ("cc", PROMPTS[:1]), ("dc", PROMPTS[:1])):
        plain = corrected(LOGITS, log_prior(prompts, kind))
        shifted = corrected(LOGITS + constant, log_prior(prompts + constant, kind))
        assert np.allclose(plain, shifted)
    several = corrected(LOGITS + constant, log_prior(PROMPTS + constant, "cc"))
    assert not np.allclose(corrected(LOGITS, log_prior(PROMPTS, "cc")), several)


@pytest.mark.parametrize("kind", KINDS)
def test_no_prior_is_below_the_least(kind: Kind) -> None:
    prior = log_prior(np.array([[0.0, -1000.0]]), kind)
    assert np.exp(prior).min() == pytest.approx(LEAST)
    assert np.isfinite(corrected(np.array([[0.0, -1000.0], [-1000.0, 0.0]]), prior)).all()


def test_no_prompt_is_no_prior() -> None:
    with pytest.raises(ValueError, match="at least one prompt"):
        log_prior(np.zeros((0, 2)), "bc")
