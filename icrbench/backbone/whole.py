"""Whether a model is what its files say: nothing missing, left over, pointing elsewhere or not finite."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from icrbench.backbone.quantised import parts

# Buffers that checkpoints of older library versions hold beside the weights; the library computes them anew.
COMPUTED = re.compile(r"(rotary_emb\.inv_freq|(attn|attention)\.(bias|masked_bias))$")
SHOWN = 3  # names in a message


def check_files(folder: Path) -> None:
    """Check the files of a model's folder, before any library reads them.

    Raises:
        ValueError: if the weights are pickles, which run code when they are read, or an index names files elsewhere.
    """
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        if pickles:
            raise ValueError(f"{pickles[0]} is a pickle, which can run code when it is read; save it as safetensors")
    for index in folder.glob("*.index.json"):
        files = json.loads(index.read_text("utf-8"))["weight_map"].values()
        outside = sorted({str(name) for name in files if Path(str(name)).name != name})
        if outside:
            raise ValueError(f"{index.name} names a file outside the folder, {outside[0]!r}")


def check_weights(model: PreTrainedModel, info: Mapping[str, Any]) -> None:
    """Check the weights of a loaded model.

    Args:
        model: the model.
        info: what transformers found while loading.

    Raises:
        ValueError: if weights are missing (the library goes on with random numbers), are left over (the configuration
            is of a smaller model), or are not finite.
    """
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"it lacks the weights {_some(missing)}")
    if left := sorted(name for name in info["unexpected_keys"] if not COMPUTED.search(name)):
        raise ValueError(f"its configuration has no place for the weights {_some(left)}")
    for name, weight in (part for whole in model.named_parameters() for part in parts(*whole)):
        # The extremes are finite exactly if all are; no tensor of the weight's size is made.
        if weight.is_floating_point() and not weight.is_meta and weight.numel():
            low, high = weight.detach().aminmax()
            if not (low.isfinite() and high.isfinite()):
                kind = str(weight.dtype).removeprefix("torch.")
                raise ValueError(f"the weight {name} holds numbers that are not finite in {kind}")


def uses_remote_code(*parts: object) -> bool:
    """Whether any of these objects is of a class that came with the model."""
    return any(kind.__module__.startswith("transformers_modules") for part in parts for kind in type(part).__mro__)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
