"""What a model answers before it reads an input, and an answer corrected for it.

A language model prefers some options whatever the input is. Its prior pi over the options is read off prompts that say
nothing about the answer, and an answer's score is log q - log pi, where q is the softmax over the options' logits; the
corrected probabilities are proportional to q / pi.

Numpy alone, so that reports correct stored logits without a model. Kinds of prior differ in their prompts
(``scoring/calibration.py``) and in the mean that is taken over them:

* ``cc`` contextual calibration: Zhao et al. (2021), Calibrate before use, arXiv 2102.09690. Mean of q.
* ``dc`` domain-context calibration: Fei et al. (2023), Mitigating label biases, arXiv 2305.19148. Mean of q.
* ``bc`` batch calibration: Zhou et al. (2023), arXiv 2309.17249. Mean of log q.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["cc", "dc", "bc"]
KINDS: tuple[Kind, ...] = ("cc", "dc", "bc")
FROM_INPUTS: frozenset[Kind] = frozenset({"dc", "bc"})
"""Kinds whose prompts are made of unlabelled train inputs of the task."""
NAMES: dict[Kind, str] = {
    "cc": "contextual calibration",
    "dc": "domain-context calibration",
    "bc": "batch calibration",
}
LEAST = 1e-6
"""No option's prior is below this: an option that prompts without content rule out would else win every row."""

Floats = npt.NDArray[np.float64]


def log_softmax(logits: Floats) -> Floats:
    """Logarithms of the softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def log_prior(logits: Floats, kind: Kind) -> Floats:
    """Return the prior's logarithms, ``[options]``.

    Args:
        logits: of the options after each prompt, ``[prompts, options]``.
        kind: which mean is taken over the prompts.

    Raises:
        ValueError: without a prompt.
    """
    if not len(logits):
        raise ValueError("a prior needs at least one prompt")
    log_q = log_softmax(logits)
    mean = np.exp(log_q.mean(axis=0)) if kind == "bc" else np.exp(log_q).mean(axis=0)
    return np.asarray(np.log(np.maximum(mean / mean.sum(), LEAST)))


def corrected(logits: Floats, prior: Floats) -> Floats:
    """Logarithms of the corrected probabilities, ``[rows, options]``.

    Args:
        logits: of the options, ``[rows, options]``.
        prior: logarithms, ``[options]``.
    """
    return log_softmax(log_softmax(logits) - prior)
