"""Forward hooks as context managers that undo themselves, also on an exception."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class StopForward(Exception):
    """Raised inside a forward pass to end it once all that was wanted has been read."""


@contextmanager
def forward_hook(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Run ``hook(module, inputs, output)`` after each forward of ``module``; what it returns replaces the output."""
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def forward_pre_hook(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """Run ``hook(module, args, kwargs)`` before each forward; a returned ``(args, kwargs)`` replaces the inputs."""
    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
