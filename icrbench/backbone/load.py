"""Load a model by name, hub id, folder or GGUF file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from icrbench.backbone.anatomy import anatomy_of
from icrbench.backbone.chat import ChatFrame
from icrbench.backbone.core import Backbone, Revision
from icrbench.backbone.gguf import converted, packaged_gguf
from icrbench.backbone.quantised import check_quantisable, check_quantised, torchao_config
from icrbench.backbone.whole import check_files, check_weights, uses_remote_code
from icrbench.model_names import check_model, known_models, name_and_revision, path_of
from icrbench.util.cache import hash_files
from icrbench.util.errors import UserError, said, unknown

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_WRAPPED = "_icrbench_backbone"  # on a model that was given loaded: its backbone
WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.json", "*.model", "*.txt", "*.py")


def default_device() -> str:
    """Return the first GPU if there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def default_dtype(device: str) -> str:
    """bfloat16 on a GPU; float32 on a CPU, where it makes results independent of the batch size."""
    return "float32" if device == "cpu" else "bfloat16"


def load_backbone(
    spec: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    device_map: str | None = None,
    quantize: str | None = None,
    chat_template: bool = False,
    trust_remote_code: bool = False,
) -> Backbone:
    """Load a model.

    Args:
        spec: a name of ``models.yaml``, a hub id (``org/name`` or ``org/name@revision``), a folder, or a GGUF file.
        device: torch device; default the first GPU, else the CPU.
        dtype: ``float32``, ``bfloat16`` or ``float16``; default float32 on a CPU and bfloat16 elsewhere.
        device_map: passed to accelerate to spread one model over several devices, for example ``auto``.
        quantize: ``int8`` or ``int4``: quantise the weights of linear layers with torchao; without it, one that comes
            quantised is loaded as it comes.
        chat_template: put every prompt into the tokenizer's chat template, as a user's turn.
        trust_remote_code: run code that comes with the model or its tokenizer, if they name some; without it, a model
            that needs such code is refused.

    Raises:
        UserError: for an unknown name, an unsupported family, a missing chat template, weights that are not here and
            cannot be fetched, a model that is not whole (weights missing, left over, not finite or offloaded), or a
            package for quantised weights that is not installed.
    """
    check_model(spec)
    device = device or default_device()
    dtype = dtype or default_dtype(device)
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    _check_device(device)
    name, asked = name_and_revision(spec)
    entry = known_models().get(name, {})
    folder: Path | None = None
    if "gguf" in entry:
        location, revision, folder = converted(name, packaged_gguf(name, entry["gguf"]))
    elif name.endswith(".gguf") and path_of(name).is_file():
        location, revision, folder = converted(Path(name).stem, path_of(name))
    elif "hub" not in entry and path_of(name).is_dir():
        folder = path_of(name)
        weights = sorted(path for pattern in WEIGHT_PATTERNS for path in folder.glob(pattern) if path.name[0] != ".")
        location, revision = folder.name, hash_files(weights)
    else:
        location, revision = entry.get("hub", name), asked or entry.get("revision", "main")
    source = str(folder) if folder else location
    arguments: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if not folder:
        arguments["revision"] = revision
    try:
        if folder:
            check_files(folder)
        config = AutoConfig.from_pretrained(source, **arguments)
        anatomy = anatomy_of(config)  # fails before gigabytes are loaded
        quantised = check_quantisable(spec, config, quantize)
        tokenizer = AutoTokenizer.from_pretrained(source, **arguments)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=DTYPES[dtype],
            # Quantised weights are put in their place while they are read: not all kinds can be moved.
            device_map={"": device} if device_map is None and quantised else device_map,
            # A None would hide the configuration of a model that comes quantised.
            **({"quantization_config": torchao_config(quantize)} if quantize else {}),
            output_loading_info=True,
            use_safetensors=True,
            **arguments,
        )
        model, info = loaded
        check_weights(model, info)
        if quantize:
            check_quantised(model, anatomy, spec)
        if device_map is None and not quantised:
            model.to(device)
        if not folder:
            revision = getattr(model.config, "_commit_hash", None) or revision
        remote = uses_remote_code(model, model.config, tokenizer)
        chat = ChatFrame.of(tokenizer, spec) if chat_template else None
        return Backbone(model, tokenizer, Revision(spec, location, revision, remote), chat)
    except UserError:
        raise
    except Exception as error:  # a damaged model makes the libraries raise anything, from KeyError to ZeroDivisionError
        raise UserError(
            f"cannot load model '{spec}' from {source} ({said(error)}): {_way(error, location, folder)}."
        ) from error


def _way(error: Exception, location: str, folder: Path | None) -> str:
    """Return what to do about a model that cannot be loaded."""
    if "trust_remote_code" in str(error):
        return "it needs code of its own, which is run only with --trust-remote-code"
    way = "give a folder that holds a whole model"
    if folder:
        return way
    return (
        f"{way}, or put it in the hub's cache on a machine with network by `hf download {location}`"
        " (gated models need `hf auth login` first)"
    )


def wrap(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> Backbone:
    """Take a model that is loaded already; its attention function and evaluation mode are set, its weights stay.

    Raises:
        UserError: for an unsupported family, or without the tokenizer.
    """
    if tokenizer is None:
        raise UserError("a loaded model needs its tokenizer: give it beside the model, as tokenizer=...")
    found: Backbone | None = getattr(model, _WRAPPED, None)
    if found is None or found.tokenizer is not tokenizer:
        name = str(model.config.name_or_path or type(model).__name__)
        found = Backbone(model, tokenizer, Revision(name, "memory", ""))
        found.revision = replace(found.revision, revision=found.content["weights"][:16])
        setattr(model, _WRAPPED, found)  # two fits on one model must know of each other
    return found


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{device}' is not usable here ({said(error)}): try --device cpu.") from error
