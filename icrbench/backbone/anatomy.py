"""Where each model family keeps its blocks, projections and heads: one table entry per family.

Nothing else in the project knows a family's module names. Adding a family is adding one entry to ``ANATOMIES``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from icrbench.util.errors import UserError, shown


@dataclass(frozen=True)
class Dimensions:
    """Sizes of the text model.

    Attributes:
        layers: number of blocks, ``L``.
        hidden: width of the residual stream, ``d``.
        heads: query heads, ``H``.
        kv_heads: key/value heads, ``G``; ``H / G`` query heads share one.
        head_dim: width of a head, ``d_k``; ``H * d_k`` may differ from ``d`` (Qwen3, Gemma 3).
        inner: width of the feed-forward part.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int


Reader = Callable[[Tensor, Dimensions], Tensor]


def _flat(output: Tensor, _: Dimensions) -> Tensor:
    """``[B, T, n*d_k]`` as it is."""
    return output


def _heads_last(output: Tensor, _: Dimensions) -> Tensor:
    """``[B, T, n, d_k]`` to ``[B, T, n*d_k]`` (norms applied before the heads are moved to the front)."""
    return output.flatten(2)


def _heads_first(output: Tensor, _: Dimensions) -> Tensor:
    """``[B, n, T, d_k]`` to ``[B, T, n*d_k]`` (norms applied after the heads are moved to the front)."""
    return output.transpose(1, 2).flatten(2)


def _block_split(part: int) -> Reader:
    """GPT-2: one projection holding the query, key and value blocks side by side."""

    def read(output: Tensor, _: Dimensions) -> Tensor:
        parts: tuple[Tensor, ...] = output.chunk(3, dim=-1)
        return parts[part]

    return read


def _grouped_split(part: int) -> Reader:
    """Phi-3: one projection holding the queries of all heads, then the fewer keys, then the values."""

    def read(output: Tensor, dims: Dimensions) -> Tensor:
        widths = [heads * dims.head_dim for heads in (dims.heads, dims.kv_heads, dims.kv_heads)]
        parts: tuple[Tensor, ...] = output.split(widths, dim=-1)
        return parts[part]

    return read


def _interleaved_split(part: int) -> Reader:
    """GPT-NeoX: one projection holding (query, key, value) of head 0, then of head 1, and so on."""

    def read(output: Tensor, dims: Dimensions) -> Tensor:
        per_head: Tensor = output.unflatten(-1, (dims.heads, 3, dims.head_dim))
        return per_head[..., part, :].flatten(2)

    return read


@dataclass(frozen=True)
class Tap:
    """A module whose output holds a vector per token, and how to read it as ``[B, T, heads*d_k]``."""

    module: str
    read: Reader


@dataclass(frozen=True)
class Anatomy:
    """Module names of one family.

    Attributes:
        blocks: the list of blocks, from the text decoder (``model.get_decoder()``).
        attention: the self-attention, from a block.
        mlp: the feed-forward part, from a block.
        output: the attention's output projection, from the attention; its input is the concatenated heads.
        final_norm: the norm before the output head, from the text decoder.
        attention_norm, mlp_norm: from a block, the norm through which what attention and the feed-forward part compute
            goes before it is added to the residual stream, in families that have one (Gemma 3, OLMo 2).
        inputs: the projections that make queries, keys and values, from the attention; one where they are fused.
        feed_forward: the projections of the feed-forward part, from it; none in mixtures of experts, which keep the
            weights of all experts in one tensor.
        query, key: the last projections before rotary embedding, after any q/k normalisation, from the attention.
        cache_argument: the keyword by which the attention takes its key/value cache.
    """

    blocks: str
    attention: str
    mlp: str
    output: str
    final_norm: str
    query: Tap
    key: Tap
    inputs: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    feed_forward: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    attention_norm: str | None = None
    mlp_norm: str | None = None
    cache_argument: str = "cache"


_LLAMA = Anatomy(
    blocks="layers",
    attention="self_attn",
    mlp="mlp",
    output="o_proj",
    final_norm="norm",
    query=Tap("q_proj", _flat),
    key=Tap("k_proj", _flat),
)

ANATOMIES: dict[str, Anatomy] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": Anatomy(
        blocks="layers",
        attention="self_attn",
        mlp="mlp",
        output="o_proj",
        final_norm="norm",
        query=Tap("q_norm", _heads_last),
        key=Tap("k_norm", _heads_last),
    ),
    "qwen3_moe": Anatomy(
        blocks="layers",
        attention="self_attn",
        mlp="mlp",
        output="o_proj",
        final_norm="norm",
        query=Tap("q_norm", _heads_last),
        key=Tap("k_norm", _heads_last),
        feed_forward=(),
    ),
    "olmo2": Anatomy(
        blocks="layers",
        attention="self_attn",
        mlp="mlp",
        output="o_proj",
        final_norm="norm",
        query=Tap("q_norm", _flat),
        key=Tap("k_norm", _flat),
        attention_norm="post_attention_layernorm",
        mlp_norm="post_feedforward_layernorm",
    ),
    "phi3": Anatomy(
        blocks="layers",
        attention="self_attn",
        mlp="mlp",
        output="o_proj",
        final_norm="norm",
        query=Tap("qkv_proj", _grouped_split(0)),
        key=Tap("qkv_proj", _grouped_split(1)),
        inputs=("qkv_proj",),
        feed_forward=("gate_up_proj", "down_proj"),
    ),
    "gemma3_text": Anatomy(
        blocks="layers",
        attention="self_attn",
        mlp="mlp",
        output="o_proj",
        final_norm="norm",
        query=Tap("q_norm", _heads_first),
        key=Tap("k_norm", _heads_first),
        attention_norm="post_attention_layernorm",
        mlp_norm="post_feedforward_layernorm",
    ),
    "gpt2": Anatomy(
        blocks="h",
        attention="attn",
        mlp="mlp",
        output="c_proj",
        final_norm="ln_f",
        query=Tap("c_attn", _block_split(0)),
        key=Tap("c_attn", _block_split(1)),
        inputs=("c_attn",),
        feed_forward=("c_fc", "c_proj"),
    ),
    "gpt_neox": Anatomy(
        blocks="layers",
        attention="attention",
        mlp="mlp",
        output="dense",
        final_norm="final_layer_norm",
        query=Tap("query_key_value", _interleaved_split(0)),
        key=Tap("query_key_value", _interleaved_split(1)),
        inputs=("query_key_value",),
        feed_forward=("dense_h_to_4h", "dense_4h_to_h"),
        cache_argument="layer_past",
    ),
}


OUT_OF_REACH = {
    "gemma2": "it caps its attention logits, which torch's fused attention, that methods here run on, cannot",
}
"""Families that an entry would not suffice for, and why."""


def anatomy_of(config: Any) -> Anatomy:
    """Return the table entry of a model's family, from its configuration.

    Raises:
        UserError: if the family is not in the table; the sentence says what to add.
    """
    family = str(config.get_text_config().model_type)
    if family in OUT_OF_REACH:
        raise UserError(f"model family '{family}' is not supported: {OUT_OF_REACH[family]}.")
    if family not in ANATOMIES:
        raise UserError(
            f"model family '{family}' is not supported: add an entry naming its blocks, attention and projections"
            f" to ANATOMIES in icrbench/backbone/anatomy.py (supported: {', '.join(sorted(ANATOMIES))})."
        )
    return ANATOMIES[family]


def dimensions_of(config: Any) -> Dimensions:
    """Sizes of a model's text stack, from its configuration.

    Raises:
        UserError: if a size is missing or no whole number of at least 1.
    """
    config = config.get_text_config()
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    return Dimensions(
        layers=_size(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads", heads),
        head_dim=_size(config, "head_dim", hidden // heads),
        inner=_size(config, "intermediate_size", 4 * hidden),
    )


def _size(config: Any, name: str, default: int | None = None) -> int:
    value = getattr(config, name, None)
    value = default if value is None else value
    if not isinstance(value, int) or value < 1:
        raise UserError(f"the model's configuration gives {name} as {shown(value)}: correct its config.json.")
    return value


def blocks_of(model: PreTrainedModel, anatomy: Anatomy) -> list[nn.Module]:
    """Return the blocks of the text decoder, first to last."""
    return list(attrgetter(anatomy.blocks)(model.get_decoder()))


def submodule(parent: nn.Module, name: str) -> nn.Module:
    """Return a named part of a module, typed."""
    found = attrgetter(name)(parent)
    assert isinstance(found, nn.Module), f"{name} of {type(parent).__name__} is not a module"
    return found


def tensor_of(output: Any) -> Tensor:
    """Return the hidden states in what a module returned: the tensor itself or the first of a tuple."""
    tensor = output[0] if isinstance(output, tuple) else output
    assert isinstance(tensor, torch.Tensor)
    return tensor
