"""The part of a forward pass below an intervention: computed once, continued many times.

A method that touches only the blocks from ``layer`` on leaves everything below unchanged. The hidden states that
enter that block (the trunk states) are therefore the same for every variant of the method, for every training epoch
and for every evaluation.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from icrbench.backbone.anatomy import tensor_of
from icrbench.backbone.batch import Batch
from icrbench.backbone.core import Backbone
from icrbench.backbone.hooks import StopForward, forward_pre_hook


@contextmanager
def captured_input(backbone: Backbone, layer: int, *, stop: bool) -> Iterator[list[Tensor]]:
    """Collect the hidden states ``[B, T, d]`` entering a block; with ``stop`` the forward pass ends there."""
    states: list[Tensor] = []

    def read(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        states.append(tensor_of(args[0] if args else kwargs["hidden_states"]))
        if stop:
            raise StopForward

    with forward_pre_hook(backbone.blocks[layer], read):
        yield states


def trunk_states(backbone: Backbone, layer: int, batch: Batch) -> Tensor:
    """Return the hidden states ``[B, T, d]`` that enter block ``layer`` for a batch."""
    with captured_input(backbone, layer, stop=True) as states, suppress(StopForward):
        backbone.hidden_states(batch)
    return states[0].to(backbone.device)


def continue_from(backbone: Backbone, layer: int, states: Tensor, batch: Batch) -> Tensor:
    """Return final hidden states ``[B, T, d]`` of a batch, from its trunk states at block ``layer``.

    Blocks below ``layer`` are skipped; masks, positions and rotary embeddings are made by the model as ever.
    """

    def skip(hidden: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        return hidden

    def enter(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        # Whatever the model did to its inputs on the way here (GPT-2 adds position embeddings) is replaced.
        if args:
            return (states, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": states}

    with ExitStack() as stack:
        for block in backbone.blocks[:layer]:
            stack.enter_context(_replaced_forward(block, skip))
        stack.enter_context(forward_pre_hook(backbone.blocks[layer], enter))
        return backbone.hidden_states(batch, inputs_embeds=torch.zeros_like(states))


@contextmanager
def _replaced_forward(block: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    before = vars(block).get("forward")  # accelerate puts its own here when a model spreads over devices
    block.forward = forward
    try:
        yield
    finally:
        if before is None:
            del block.forward
        else:
            block.forward = before
