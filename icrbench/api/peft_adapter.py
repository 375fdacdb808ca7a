"""A fit as an adapter that the peft library loads: `PeftModel.from_pretrained(model, folder)`.

peft puts a prefix's places by the number of tokens, padding among them. So what is left-padded in one batch with longer
prompts answers a little differently there; alone, or padded on the right, its logits are those of icrbench.
"""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, PrefixTuningConfig, PromptTuningConfig, TaskType
from safetensors.torch import save_file
from torch import Tensor, nn

from icrbench.api.fit import Fit
from icrbench.backbone import Backbone
from icrbench.backbone.virtual import Virtual
from icrbench.methods.soft_prompt import SoftPromptFitted
from icrbench.toolkit.lora import LoRAFitted, adapted
from icrbench.toolkit.prefix_fit import PrefixFitted
from icrbench.util.errors import UserError
from icrbench.util.files import atomic_folder

WEIGHTS = "adapter_model.safetensors"


def write_adapter(fit: Fit, folder: Path) -> str | None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors``; returns what is to be known in using them.

    Args:
        fit: low-rank matrices, a soft prompt, or keys and values in every layer.
        folder: made; it must not hold files.

    Raises:
        UserError: if peft has nothing that does what the fit does, or the folder cannot be written.
    """
    config, tensors, hint = _adapter(fit)
    config.base_model_name_or_path = fit.backbone.revision.location
    config.inference_mode = True
    with atomic_folder(folder) as made:
        config.save_pretrained(str(made))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, made / WEIGHTS)
    return hint


def _adapter(fit: Fit) -> tuple[PeftConfig, dict[str, Tensor], str | None]:
    name, fitted, backbone = fit.method.name, fit.fitted, fit.backbone
    if fitted.shares_prefix:
        raise UserError(f"this fit of {name} shows demonstrations before every query, which an adapter does not hold.")
    if isinstance(fitted, LoRAFitted):
        return *_lora(fitted, backbone), None
    if isinstance(fitted, SoftPromptFitted) and fitted.config["where"] == "input":
        return *_prompt(fitted.tensors["embeddings"], backbone), None
    if isinstance(fitted, SoftPromptFitted | PrefixFitted):
        virtual = fitted.virtual(backbone)
        if virtual.length != len(virtual.positions):
            raise UserError(
                f"this fit of {name} leaves out tokens between those it keeps, and peft's prefixes have no gaps:"
                " init=first has none."
            )
        hint = "the prefix begins with the beginning-of-sequence token: tokenise prompts without it." * virtual.has_bos
        return *_prefix(virtual, backbone), hint or None
    raise UserError(
        f"peft has nothing that does what {name} does: lora, ia2, soft_prompt, ct_kv and cartridges can be exported."
    )


def _lora(fitted: LoRAFitted, backbone: Backbone) -> tuple[PeftConfig, dict[str, Tensor]]:
    names = {id(module): name for name, module in backbone.model.named_modules()}
    layers = {own: adapted(backbone, own) for own in sorted({name.rpartition(".")[0] for name in fitted.tensors})}
    places = {own: names[id(layer)] for own, layer in layers.items()}
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=fitted.config["rank"],
        lora_alpha=fitted.config["alpha"],
        lora_dropout=fitted.config["dropout"],
        target_modules=sorted(places.values()),
        fan_in_fan_out=not isinstance(next(iter(layers.values())), nn.Linear),  # GPT-2's projections
    )
    tensors = {}
    for name, tensor in fitted.tensors.items():
        own, _, factor = name.rpartition(".")
        tensors[f"base_model.model.{places[own]}.lora_{factor}.weight"] = tensor
    return config, tensors


def _prompt(embeddings: Tensor, backbone: Backbone) -> tuple[PeftConfig, dict[str, Tensor]]:
    config = PromptTuningConfig(**_sizes(backbone, len(embeddings)), token_dim=backbone.dims.hidden)
    return config, {"prompt_embeddings": embeddings.float()}


def _prefix(virtual: Virtual, backbone: Backbone) -> tuple[PeftConfig, dict[str, Tensor]]:
    """Of a slot: layer by layer its keys, then its values, head after head."""
    dims, slots = backbone.dims, len(virtual.positions)
    config = PrefixTuningConfig(**_sizes(backbone, slots), token_dim=dims.kv_heads * dims.head_dim)
    both = torch.stack([virtual.keys, virtual.values], 1).float().cpu()  # [L, 2, G, n, d_k]
    return config, {"prompt_embeddings": both.permute(3, 0, 1, 2, 4).reshape(slots, -1)}


def _sizes(backbone: Backbone, slots: int) -> dict[str, Any]:
    return {
        "task_type": TaskType.CAUSAL_LM,
        "num_virtual_tokens": slots,
        "num_layers": backbone.dims.layers,
        "num_attention_heads": backbone.dims.kv_heads,
        "num_transformer_submodules": 1,
    }
