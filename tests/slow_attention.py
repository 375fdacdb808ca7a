"""An oracle for attention methods: float64, one loop-free formula, T x T matrices built in full.

It shares nothing with the code it checks but the models' own weights and the library's masks: queries and keys are
computed here from each attention's input, and attention itself is written out.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from icrbench.backbone import Batch
from tiny import CONFIGS, tiny_model

NAME = "slow_reference"
HEADS = 6


def head_dim(family: str) -> int:
    config: Any = CONFIGS[family][1]
    return int(getattr(config, "head_dim", None) or 48 // HEADS)


def kv_heads(family: str) -> int:
    return int(getattr(CONFIGS[family][1], "num_key_value_heads", HEADS))


def softmax_scale(family: str, layer: int) -> float:
    """What q . k is multiplied with, from the configurations in tiny.py."""
    if family == "gemma3":
        return float(24**-0.5)
    return float(head_dim(family) ** -0.5) / (layer + 1 if family == "gpt2" else 1)


def raw_queries_and_keys(family: str, attention: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Before rotary embedding, with bias and q/k norm: ``[B, T, H*d_k]`` and ``[B, T, G*d_k]``."""
    if family == "gpt2":
        query, key, _ = attention.c_attn(hidden).split(48, dim=2)
        return query, key
    if family == "gpt_neox":
        per_head = attention.query_key_value(hidden).view(*hidden.shape[:2], HEADS, 3 * head_dim(family))
        query, key, _ = per_head.split(head_dim(family), dim=3)
        return query.flatten(2), key.flatten(2)
    if family == "phi3":
        widths = [HEADS * head_dim(family), *2 * [kv_heads(family) * head_dim(family)]]
        query, key, _ = attention.qkv_proj(hidden).split(widths, dim=2)
        return query, key
    query, key = attention.q_proj(hidden), attention.k_proj(hidden)
    if family == "olmo2":
        return attention.q_norm(query), attention.k_norm(key)
    if family in ("qwen3", "qwen3_moe", "gemma3"):
        query = attention.q_norm(query.unflatten(2, (HEADS, -1))).flatten(2)
        key = attention.k_norm(key.unflatten(2, (kv_heads(family), -1))).flatten(2)
    return query, key


@dataclass
class Seen:
    """What one layer computed: flat vectors ``[B, T, n*d_k]`` and attention ``[B, H, T, T]``."""

    query: Tensor
    key: Tensor
    rotated_query: Tensor
    rotated_key: Tensor
    attention: Tensor


@dataclass
class Term:
    """The low-rank term of one layer: bases ``[n*d_k, r]``, ``alpha [B, r]``, ``gamma [B, H]``."""

    basis_q: Tensor
    basis_k: Tensor
    alpha: Tensor
    gamma: Tensor
    factor: float = 1.0
    rotated: bool = False


@dataclass
class Reference:
    """A tiny model in float64 whose attention is computed the slow way."""

    family: str
    dtype: torch.dtype = torch.float64
    model: PreTrainedModel = field(init=False)
    seen: dict[int, Seen] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        assert self.family in CONFIGS
        self.model = tiny_model(self.family, self.dtype).requires_grad_(False)
        AttentionInterface.register(NAME, _slow_attention)
        AttentionMaskInterface.register(NAME, eager_mask)
        self.model.set_attn_implementation(NAME)

    def attentions(self) -> list[nn.Module]:
        decoder: Any = self.model.get_decoder()
        if self.family == "gpt2":
            return [block.attn for block in decoder.h]
        return [block.attention if self.family == "gpt_neox" else block.self_attn for block in decoder.layers]

    def logits(self, batch: Batch, low_rank: dict[int, Term] | None = None) -> Tensor:
        """Logits ``[B, T, V]`` with a low-rank term added to some layers' attention logits."""
        self.seen = {}
        with self._instrumented(low_rank or {}):
            states = self.model.get_decoder()(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                position_ids=batch.position_ids,
                use_cache=False,
            ).last_hidden_state
        output: Tensor = self.model.get_output_embeddings()(states)
        return output

    def one(self, tokens: tuple[int, ...] | list[int]) -> Tensor:
        """Logits ``[T, V]`` of one sequence, no padding; ``seen`` then tells the rest."""
        ids = torch.tensor([tokens])
        batch = Batch(
            ids, torch.ones_like(ids), torch.arange(len(tokens))[None], torch.tensor([len(tokens) - 1]), ("",)
        )
        return self.logits(batch)[0]

    @contextmanager
    def _instrumented(self, low_rank: dict[int, Term]) -> Iterator[None]:
        def before(_module: nn.Module, args: Any, kwargs: dict[str, Any], layer: int) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]
            attention: Any = _module
            attention.slow = (self, layer, *raw_queries_and_keys(self.family, attention, hidden), low_rank.get(layer))

        with ExitStack() as stack:
            for layer, attention in enumerate(self.attentions()):
                hook = attention.register_forward_pre_hook(
                    lambda module, args, kwargs, layer=layer: before(module, args, kwargs, layer), with_kwargs=True
                )
                stack.callback(hook.remove)
            yield


def _slow_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: Any = None, **_: Any
) -> tuple[Tensor, Tensor]:
    reference, layer, raw_q, raw_k, term = module.slow
    del module.slow
    scale = softmax_scale(reference.family, layer)
    assert scaling is None or abs(scaling - scale) < 1e-12
    repeat = query.shape[1] // key.shape[1]
    logits = scale * query @ key.repeat_interleave(repeat, 1).transpose(2, 3)
    flat_q, flat_k = query.transpose(1, 2).flatten(2), key.transpose(1, 2).flatten(2)
    if term is not None:
        left = (flat_q if term.rotated else raw_q) @ term.basis_q.to(query.dtype)
        right = (flat_k if term.rotated else raw_k) @ term.basis_k.to(query.dtype)
        shared = left @ torch.diag_embed(term.alpha.to(query.dtype)) @ right.transpose(1, 2)  # [B, T, T]
        logits = logits + term.factor * term.gamma.to(query.dtype)[:, :, None, None] * shared[:, None]
    allowed = attention_mask == 0
    attention = logits.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num()
    reference.seen[layer] = Seen(raw_q, raw_k, flat_q, flat_k, attention)
    output = attention @ value.repeat_interleave(repeat, 1)
    return output.transpose(1, 2).contiguous(), attention
