"""Zero-shot: the model as it is."""

from dataclasses import dataclass
from typing import ClassVar

from icrbench.backbone import Backbone
from icrbench.method import FitData, Fitted, Method, Scope, register
from icrbench.randomness import Randomness


class ZeroShotFitted(Fitted):
    """Nothing to apply."""

    last_token_only: ClassVar[bool] = True


@register("zero_shot")
@dataclass(frozen=True)
class ZeroShot(Method):
    """The reference every other method is compared with."""

    scope: ClassVar[Scope] = Scope.NONE
    seeded: ClassVar[bool] = False
    fitted: ClassVar[type[Fitted]] = ZeroShotFitted

    def fit(self, backbone: Backbone, data: FitData, rng: Randomness) -> ZeroShotFitted:
        """Nothing to fit."""
        return ZeroShotFitted({}, {})
