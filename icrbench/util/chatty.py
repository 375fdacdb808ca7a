"""Packages that log which of their GPU parts are missing, whenever transformers imports what it finds installed."""

import logging

CHATTY = ("bitsandbytes", "torch.utils._pytree", "torchao")


def quieten() -> None:
    """Let them log errors alone."""
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
