"""Which blocks are routed."""

from typing import Literal

Target = Literal["early", "middle", "late", "all"]


def target_layers(target: Target, layers: int) -> list[int]:
    """0-based block numbers of a third of the model, or all of it.

    ``late`` is the paper's choice, the last third: ``floor(2L/3) .. L-1`` (Sec. 2.4; the thirds of Table 13).
    """
    third, two_thirds = layers // 3, 2 * layers // 3
    bounds = {
        "early": (0, third),
        "middle": (third, two_thirds),
        "late": (two_thirds, layers),
        "all": (0, layers),
    }
    return list(range(*bounds[target]))
