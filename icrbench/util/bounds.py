"""Numbers that may not take every value: bounds declared in a type, checked in one place.

A dataclass field declared ``rank: Count`` is refused below 1 when `check_bounds` is called on its instance.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

from icrbench.util.errors import UserError


@dataclass(frozen=True)
class Bounds:
    """An interval of numbers.

    Attributes:
        low: the least value.
        high: the greatest value.
        open_low: whether ``low`` itself is refused.
        open_high: whether ``high`` itself is refused.
    """

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def broken_by(self, value: float) -> str | None:
        """Return the condition that a number breaks, in words; None if it is inside. Nothing but a finite number is."""
        if not abs(value) < math.inf:  # nor NaN; a whole number may be too large for math.isfinite
            return "finite"
        if value < self.low or (self.open_low and value == self.low):
            return f"{'above' if self.open_low else 'at least'} {self.low:g}"
        if value > self.high or (self.open_high and value == self.high):
            return f"{'below' if self.open_high else 'at most'} {self.high:g}"
        return None


Count = Annotated[int, Bounds(1, 10**9)]
"""A size: a whole number of at least 1, and no more than there can be of anything here."""
NotNegative = Annotated[float, Bounds(0)]
"""A weight, a decay or a learning rate: 0 switches off what it is the weight of."""
Positive = Annotated[float, Bounds(0, open_low=True)]
Share = Annotated[float, Bounds(0, 1)]
"""A part of a whole, from none to all of it."""


def check_bounds(name: str, instance: Any) -> None:
    """Refuse the first field of a dataclass instance that lies outside the bounds its type declares.

    Args:
        name: what the error calls the instance.
        instance: its fields are read; None is accepted where the type has it.

    Raises:
        UserError: naming the field, its bounds and its value.
    """
    for field, bounds in _declared(type(instance)).items():
        value = getattr(instance, field)
        if value is not None and (condition := bounds.broken_by(value)):
            raise UserError(f"{name}.{field} must be {condition}, not {value}.")


def _declared(kind: type[Any]) -> dict[str, Bounds]:
    """Return the bounds of a class's fields, those of its bases included."""
    hints = get_type_hints(kind, include_extras=True)
    return {field: bounds for field, hint in hints.items() if (bounds := _bounds(hint)) is not None}


def _bounds(hint: Any) -> Bounds | None:
    """Return the bounds in a type: its own, or of the alternative to None."""
    found = [item for item in getattr(hint, "__metadata__", ()) if isinstance(item, Bounds)]
    if found:
        return found[0]
    return next((bounds for part in get_args(hint) if (bounds := _bounds(part)) is not None), None)
