from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args, get_type_hints

import pytest

from icrbench.registry import make_method, methods
from icrbench.util.bounds import Bounds, Count, NotNegative, Positive, Share, check_bounds
from icrbench.util.errors import UserError


@dataclass(frozen=True)
class Sizes:
    rows: Count = 1
    most: Count | None = None
    decay: NotNegative = 0.0
    rate: Positive = 0.1
    warmup: Share = 0.0
    dropped: Annotated[float, Bounds(0, 1, open_high=True)] = 0.0
    free: float = 0.0


@dataclass(frozen=True)
class More(Sizes):
    rate: NotNegative = 0.0  # a subclass may have other bounds


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": 10**10}, "sizes.rows must be at most 1e+09, not 10000000000."),
        ({"rows": 0}, "sizes.rows must be at least 1, not 0."),
        ({"most": 0}, "sizes.most must be at least 1, not 0."),
        ({"decay": -1e-9}, "sizes.decay must be at least 0, not -1e-09."),
        ({"rate": 0.0}, "sizes.rate must be above 0, not 0.0."),
        ({"warmup": 1.1}, "sizes.warmup must be at most 1, not 1.1."),
        ({"dropped": 1.0}, "sizes.dropped must be below 1, not 1.0."),
        ({"rate": float("nan")}, "sizes.rate must be finite, not nan."),
        ({"rate": float("inf")}, "sizes.rate must be finite, not inf."),
    ],
)
def test_a_value_outside_its_bounds_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        check_bounds("sizes", Sizes(**changes))
    assert str(caught.value) == said


def test_values_inside_and_none_where_the_type_has_it() -> None:
    check_bounds("sizes", Sizes(rows=1, most=None, decay=0, rate=1e-9, warmup=1, dropped=0.99, free=-3))
    check_bounds("more", More(rate=0.0))
    with pytest.raises(UserError, match=r"more\.rate must be at least 0"):
        check_bounds("more", More(rate=-1.0))


SIZES = {"seed", "layer"}  # numbers of their own kind: a layer is checked against the model
SIGNED = {"strength", "extraction_strength", "threshold", "initial_lambda"}  # factors that mean something below 0


@pytest.mark.parametrize("name", sorted(methods()))
def test_every_number_of_every_method_is_refused_below_its_bounds(name: str) -> None:
    kind = methods()[name]
    types = get_type_hints(kind)
    for item in fields(kind):
        numbers = {int, float} & {types[item.name], *get_args(types[item.name])}
        if not numbers or item.name in SIZES | SIGNED:
            continue
        with pytest.raises(UserError, match=rf"{name}\.{item.name} must be "):
            make_method(name, {item.name: -1})
