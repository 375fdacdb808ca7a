"""Changing the vectors at chosen tokens: what nearly every method that edits hidden states does."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.positions import Ends, Where, chosen_tokens
from icrbench.backbone.sites import Edit, Site, edited


@contextmanager
def steered(backbone: Backbone, batch: Batch, edits: Mapping[Site, Edit], where: Where | Ends) -> Iterator[None]:
    """Within the context, forward passes of ``batch`` (and its decoding) are edited at some tokens.

    Edits are computed in float32 and rounded to the model's number type. Tokens that are not chosen keep their vectors
    bit for bit.

    Args:
        backbone: the model.
        batch: what the method is applied to.
        edits: by site; each is given the vectors ``[B, T, n]`` of all tokens.
        where: which tokens (``docs/positions.md``).
    """
    with chosen_tokens(backbone, batch, where) as chosen:

        def at_chosen(edit: Edit) -> Edit:
            def change(states: Tensor) -> Tensor:
                changed = edit(states.float()).to(states.dtype)
                return torch.where(chosen().to(states.device)[..., None], changed, states)

            return change

        with edited(backbone, {site: at_chosen(edit) for site, edit in edits.items()}):
            yield
