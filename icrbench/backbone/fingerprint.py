"""Which weights and which tokenizer a model has, told by their content: not by name, place or number type."""

import hashlib
import json

import torch
import xxhash
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from icrbench.backbone.quantised import parts

_STEP = 2**24  # values that are widened at once


def weights_fingerprint(model: PreTrainedModel) -> str:
    """Hash the names, shapes and values of all weights; 32 hex digits (xxh3, as fast as memory is read).

    Floating-point values are hashed as float32, so that bfloat16 weights are the same weights when they are loaded as
    float32. Tied weights are hashed under each of their names, quantised ones by their codes and scales.
    """
    digest = xxhash.xxh3_128()
    state = sorted(model.state_dict().items())
    for name, tensor in (part for whole in state for part in parts(*whole)):
        digest.update(f"{name} {list(tensor.shape)}".encode())
        _add(digest, tensor.detach())
    return digest.hexdigest()


def _add(digest: "xxhash.xxh3_128", tensor: Tensor) -> None:
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), _STEP):
        part = flat[start : start + _STEP].cpu()
        values = part.float() if part.is_floating_point() else part
        digest.update(values.contiguous().view(torch.uint8).numpy())  # type: ignore[arg-type]  # an array is a buffer


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash what turns text into tokens; 16 hex digits."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules = repr(sorted(tokenizer.get_vocab().items()))
    else:  # padding and truncation are set by each call, and say nothing of the tokens
        held = json.loads(backend.to_str())
        rules = json.dumps({key: value for key, value in held.items() if key not in ("padding", "truncation")})
    return hashlib.sha256(rules.encode()).hexdigest()[:16]
