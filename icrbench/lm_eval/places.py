"""How many places of a sequence a method's virtual tokens take, whatever the method."""

from typing import Any

import torch
from torch import nn

from icrbench.backbone import Backbone, make_batch
from icrbench.backbone.hooks import forward_pre_hook
from icrbench.method import Fitted


def places_taken(backbone: Backbone, fitted: Fitted) -> int:
    """By how many places a method moves a batch on, seen from the place that a single token gets.

    What is generated stands behind them, too, and a model with learned places has no more than ``max_length``.
    """
    place = 0

    def look(_module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        nonlocal place
        place = int(kwargs["position_ids"].max())

    token = int(backbone.tokenizer.bos_token_id == 0)  # any but BOS, which can share its place with a virtual one
    batch = make_batch([[token]], [""], device=backbone.device)
    decoder = backbone.model.get_decoder()
    # Set last, the hook runs after the method's own and sees what they make of the places.
    with torch.no_grad(), fitted.applied(backbone, batch), forward_pre_hook(decoder, look):
        backbone.hidden_states(batch)
    return place
