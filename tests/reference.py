"""A slow oracle: attention in float64 with the T x T bias spelled out, from the weights alone.

It shares nothing with the code under test but the library's model classes: queries and keys are multiplied out here,
family by family, rotation and masks are written out, and the bias is added to the logits of a plain softmax.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from icrbench.backbone import Batch
from icrbench.backbone.attention import Position
from icrbench.backbone.attention_kernel import Channels
from tiny import tiny_model

NAME = "tests_reference"
NEVER = -1e30  # not -inf: rows of padding see nothing at all and must stay finite

# Query heads, key heads and their width, as tiny.py configures them.
HEADS = {
    "gemma3": (6, 2, 16),
    "gpt2": (6, 6, 8),
    "gpt_neox": (6, 6, 8),
    "llama": (6, 2, 8),
    "mistral": (6, 2, 8),
    "olmo2": (6, 2, 8),
    "phi3": (6, 2, 8),
    "qwen2": (6, 2, 8),
    "qwen3": (6, 2, 16),
    "qwen3_moe": (6, 2, 16),
}


def scale(family: str, layer: int) -> float:
    """What the model multiplies ``q . k`` with."""
    if family == "gemma3":
        return float(24**-0.5)
    return float(HEADS[family][2] ** -0.5 / (layer + 1 if family == "gpt2" else 1))


def window(family: str, layer: int) -> int | None:
    """How many tokens a query sees, itself among them."""
    if family == "gemma3":
        return 16 if layer < 5 else None
    if family == "qwen2":
        return 20 if layer >= 3 else None
    return {"mistral": 24, "phi3": 22}.get(family)


def projections(family: str, attention: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Queries ``[B, T, H, d_k]`` and keys ``[B, T, G, d_k]`` of what enters an attention, before rotation."""
    heads, kv_heads, width = HEADS[family]
    if family == "gpt2":
        joined = hidden @ attention.c_attn.weight + attention.c_attn.bias
        query, key = joined[..., : heads * width], joined[..., heads * width : 2 * heads * width]
    elif family == "gpt_neox":
        weight, bias = attention.query_key_value.weight, attention.query_key_value.bias
        first = [3 * width * head for head in range(heads)]  # each head holds its query, key and value rows
        rows_q = [start + i for start in first for i in range(width)]
        rows_k = [start + width + i for start in first for i in range(width)]
        query, key = (hidden @ weight[rows].T + bias[rows] for rows in (rows_q, rows_k))
    elif family == "phi3":
        joined = hidden @ attention.qkv_proj.weight.T
        query, key = joined[..., : heads * width], joined[..., heads * width : (heads + kv_heads) * width]
    else:
        query, key = hidden @ attention.q_proj.weight.T, hidden @ attention.k_proj.weight.T
        if family == "qwen2":
            query, key = query + attention.q_proj.bias, key + attention.k_proj.bias
    if family == "olmo2":  # over all heads at once
        query, key = (
            x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
            for x, norm in ((query, attention.q_norm), (key, attention.k_norm))
        )
    query, key = query.unflatten(-1, (heads, width)), key.unflatten(-1, (kv_heads, width))
    if family in ("qwen3", "qwen3_moe", "gemma3"):
        one = 1.0 if family == "gemma3" else 0.0

        def norm(x: Tensor, weight: Tensor) -> Tensor:
            return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * (one + weight)

        query, key = norm(query, attention.q_norm.weight), norm(key, attention.k_norm.weight)
    return query, key


def rotate(x: Tensor, angles: tuple[Tensor, Tensor] | None) -> Tensor:
    """Rotary embedding of ``[B, T, n, d_k]``, of its first channels only where the angles are fewer."""
    if angles is None:  # GPT-2
        return x
    cosine, sine = (part[:, :, None].to(x.dtype) for part in angles)
    turned, rest = x[..., : cosine.shape[-1]], x[..., cosine.shape[-1] :]
    half = turned.shape[-1] // 2
    left, right = turned[..., :half], turned[..., half:]
    swapped = torch.cat([-right, left], -1)
    return torch.cat([turned * cosine + swapped * sine, rest], -1)


@dataclass(frozen=True)
class LowRank:
    """A random low-rank term ``gamma (Q U_q) diag(alpha) (K U_k)'``, with strengths of its own for every row."""

    family: str
    query_basis: dict[int, Tensor]  # [H*d_k, r]
    key_basis: dict[int, Tensor]  # [G*d_k, r]
    alpha: Tensor  # [B, r]
    gamma: Tensor  # [B, H]

    @property
    def layers(self) -> list[int]:
        return sorted(self.query_basis)

    def bias(self, layer: int, queries: Tensor, keys: Tensor) -> Tensor:
        """``[B, H, T, S]``, the slow way."""
        low_q = queries @ self.query_basis[layer].to(queries.dtype)
        low_k = keys @ self.key_basis[layer].to(keys.dtype)
        alpha, gamma = self.alpha.to(queries.dtype), self.gamma.to(queries.dtype)
        return torch.einsum("bh,br,btr,bsr->bhts", gamma, alpha, low_q, low_k)

    def channels(self, layer: int, queries: Tensor, keys: Tensor) -> Channels:
        """The same, as the code under test takes it."""
        low_q = queries.float() @ self.query_basis[layer]
        strength = self.gamma[:, :, None, None] * self.alpha[:, None, None, :] / scale(self.family, layer)
        return Channels(query=strength * low_q[:, None], key=keys.float() @ self.key_basis[layer])


def low_rank(family: str, layers: Sequence[int], rows: int, rank: int = 3, strength: float = 0.5) -> LowRank:
    """A random term that moves the logits by about as much as they are."""
    generator = torch.Generator().manual_seed(5)
    heads, kv_heads, width = HEADS[family]

    def basis(size: int) -> Tensor:
        return torch.linalg.qr(torch.randn(size, rank, generator=generator)).Q

    return LowRank(
        family,
        {layer: basis(heads * width) for layer in layers},
        {layer: basis(kv_heads * width) for layer in layers},
        strength * torch.randn(rows, rank, generator=generator),
        torch.rand(rows, heads, generator=generator),
    )


@dataclass
class _Call:
    """What the oracle's attention needs to know, hung on each attention module while it runs."""

    family: str
    layer: int
    real: Tensor  # [B, T], 1 for tokens
    term: LowRank | None
    position: Position
    hidden: Tensor | None = None
    angles: tuple[Tensor, Tensor] | None = None


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_args: Any, **_kwargs: Any
) -> tuple[Tensor, None]:
    call: _Call = module._tests_call  # type: ignore[assignment]
    assert call.hidden is not None
    query, key = projections(call.family, module, call.hidden)
    before = query.flatten(2), key.flatten(2)
    query, key = rotate(query, call.angles), rotate(key, call.angles)
    shared = HEADS[call.family][0] // HEADS[call.family][1]
    spread = key.repeat_interleave(shared, dim=2), value.transpose(1, 2).repeat_interleave(shared, dim=2)
    logits = scale(call.family, call.layer) * torch.einsum("bthd,bshd->bhts", query, spread[0])
    if call.term is not None and call.layer in call.term.layers:
        low = before if call.position == "pre_rope" else (query.flatten(2), key.flatten(2))
        logits = logits + call.term.bias(call.layer, *low)
    step = torch.arange(query.shape[1])
    distance = step[:, None] - step[None]
    seen = (distance >= 0) & (distance < (window(call.family, call.layer) or query.shape[1]))
    seen = seen[None, None] & call.real.bool()[:, None, None]
    weights = logits.masked_fill(~seen, NEVER).softmax(-1)
    return torch.einsum("bhts,bshd->bthd", weights, spread[1]), None


@cache
def _oracle(family: str) -> PreTrainedModel:
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, eager_mask)
    model = tiny_model(family, torch.float64)
    model.set_attn_implementation(NAME)
    return model.requires_grad_(False)


def attentions(model: PreTrainedModel) -> list[Any]:
    """The self-attention modules, first to last, found by what they are."""
    return [module for module in model.modules() if type(module).__name__.endswith("Attention")]


def reference_logits(family: str, batch: Batch, term: LowRank | None = None, position: Position = "pre_rope") -> Tensor:
    """Logits ``[B, T, V]`` in float64 of every token."""
    model = _oracle(family)

    def remember(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        module._tests_call.hidden = args[0] if args else kwargs["hidden_states"]
        module._tests_call.angles = kwargs.get("position_embeddings")

    with ExitStack() as stack:
        for layer, module in enumerate(attentions(model)):
            module._tests_call = _Call(family, layer, batch.attention_mask, term, position)
            stack.callback(module.register_forward_pre_hook(remember, with_kwargs=True).remove)
        logits: Tensor = model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
        ).logits
    return logits
