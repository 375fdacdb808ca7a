"""What statistics need of one task's scores: means, variances and cumulants, computed once."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.floating[Any] | np.bool_ | np.int8]
"""Right (1) or wrong (0), or a difference: [seeds, examples], or [examples] where there is one seed."""
Floats = npt.NDArray[np.float64]

_AT_ONCE = 2**20  # scores that are looked at in one step


class Moments(NamedTuple):
    """What the functions here need of one task's scores, or differences of scores: get it by ``moments``.

    The variances are those of the task's mean, that is, divided by the number of examples.
    """

    n: int
    by_seed: tuple[float, ...]
    """The mean of each seed."""
    mean: float
    """Over seeds and examples."""
    unanimous: bool
    """All seeds have the same scores."""
    examples: float
    examples_null: float
    """As ``examples``, but about 0 and not about the mean: the variance if the true mean were 0."""
    interaction: float
    cumulants: tuple[float, float, float]
    """Second to fourth, of the mean of n draws with replacement from the examples (means over seeds)."""
    lowest: float
    highest: float
    discordant: tuple[int, int] | None
    """Numbers of 1 and of -1, if there is one seed and nothing else but 0."""


def moments(scores: Scores) -> Moments:
    """Summarise one task.

    Args:
        scores: [seeds, examples] or [examples], scores or differences of scores.

    Raises:
        ValueError: without a seed or an example.
    """
    return all_moments([np.atleast_2d(np.asarray(scores))])[0]


def all_moments(scores: Sequence[Scores]) -> list[Moments]:
    """``moments`` of each array, [seeds, examples]; faster, and the same to the last bit."""
    found: dict[int, Moments] = {}
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for place, array in enumerate(scores):
        if array.ndim != 2 or array.size == 0:
            raise ValueError("every task needs at least one seed and one example")
        by_shape.setdefault(array.shape, []).append(place)
    for shape, places in by_shape.items():
        step = max(_AT_ONCE // math.prod(shape), 1)
        for start in range(0, len(places), step):
            part = places[start : start + step]
            values = np.array([scores[place] for place in part], dtype=np.float64)
            found.update(zip(part, _stacked_moments(values), strict=True))
    return [found[place] for place in range(len(scores))]


def _stacked_moments(values: Floats) -> list[Moments]:
    """Return the moments of several tasks of the same size: [tasks, seeds, examples]."""
    tasks, seeds, n = values.shape
    rates = (values.sum(axis=2) / n).tolist()
    averages = [sum(by_seed) / seeds for by_seed in rates]
    alike = (values == values[:, :1]).all(axis=(1, 2))
    means = values[:, 0] if seeds == 1 else np.where(alike[:, np.newaxis], values[:, 0], values.sum(axis=1) / seeds)
    centre = np.array(averages)[:, np.newaxis]
    centred = means - centre
    square = centred * centred
    flat = (values.reshape(tasks, -1) - centre) if seeds > 1 else centred
    wins, losses = (means == 1).sum(axis=1), (means == -1).sum(axis=1)
    columns = (
        square.sum(axis=1),
        np.vecdot(square, centred),
        np.vecdot(square, square),
        np.vecdot(flat, flat),
        means.min(axis=1),
        means.max(axis=1),
        wins,
        losses,
        wins + losses == np.count_nonzero(means, axis=1),
    )
    free = max(n - 1, 1)
    found = []
    for by_seed, mean, unanimous, second, third, fourth, total, lowest, highest, won, lost, pure in zip(
        rates, averages, alike.tolist(), *(column.tolist() for column in columns), strict=True
    ):
        interaction = 0.0
        if not unanimous:
            # The sum of squares that is left of the total one without seeds and examples.
            left = total - seeds * second - n * sum((one - mean) ** 2 for one in by_seed)
            interaction = max(left, 0.0) / (free * (seeds - 1) * seeds * n)
        found.append(
            Moments(
                n,
                tuple(by_seed),
                mean,
                unanimous,
                second / (free * n),
                (second / n + mean * mean) / n,
                interaction,
                (second / n**2, third / n**3, (fourth / n - 3 * (second / n) ** 2) / n**3),
                lowest,
                highest,
                (won, lost) if seeds == 1 and pure else None,
            )
        )
    return found
