"""Numbers that are not finite, and what is at fault: the model, its number type or the method."""

import torch

from icrbench.backbone.core import Backbone
from icrbench.backbone.quantised import parts
from icrbench.util.errors import UserError


def not_finite(backbone: Backbone, what: str) -> UserError:
    """Return the error for numbers that are not finite, naming what is at fault.

    Args:
        backbone: the model they were computed with.
        what: the numbers, as the start of a sentence.
    """
    kind = str(backbone.dtype).removeprefix("torch.")
    said = f"{what} are not finite on model '{backbone.revision.name}'"
    weights = (part for whole in backbone.model.named_parameters() for part in parts(*whole))
    damaged = next((name for name, weight in weights if not weight.isfinite().all()), None)
    if damaged is not None:
        return UserError(f"{said}: its weight {damaged} is not finite in {kind}, so fetch the model again.")
    if backbone.dtype == torch.float16:
        return UserError(f"{said}: float16 ends at 65504, so try --dtype bfloat16 or float32.")
    return UserError(
        f"{said}: the weights are finite and {kind} is wide enough, so the method is at fault;"
        " lower its learning rate or strength."
    )
