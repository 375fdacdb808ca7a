"""Seeded, tiny, random models of every supported family, and a tokenizer for them.

``ICRBENCH_TEST_DEVICE`` (say ``cuda``) and ``ICRBENCH_TEST_DTYPE`` (``bfloat16``) are for the tests of the contract.
"""

import os
from copy import deepcopy
from functools import cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from icrbench.backbone import Backbone, Revision
from icrbench.backbone.load import DTYPES

VOCABULARY = 300  # 256 bytes, special tokens, room to spare
LAYERS = 6
DEVICE = os.environ.get("ICRBENCH_TEST_DEVICE", "cpu")
DTYPE = DTYPES[os.environ.get("ICRBENCH_TEST_DTYPE", "float32")]

_COMMON = {"vocab_size": VOCABULARY, "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258}
_GROUPED = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}

CONFIGS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**_COMMON, **_GROUPED)),
    # full attention in the first half, a window in the second
    "qwen2": (
        Qwen2ForCausalLM,
        Qwen2Config(**_COMMON, **_GROUPED, use_sliding_window=True, sliding_window=20, max_window_layers=3),
    ),
    # head widths that are not hidden_size / heads
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**_COMMON, **_GROUPED, head_dim=16)),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(**_COMMON, **_GROUPED, head_dim=16, query_pre_attn_scalar=24, sliding_window=16),
    ),
    "mistral": (MistralForCausalLM, MistralConfig(**_COMMON, **_GROUPED, sliding_window=24)),
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config(
            **_COMMON,
            n_embd=48,
            n_layer=LAYERS,
            n_head=6,
            n_positions=512,
            scale_attn_by_inverse_layer_idx=True,
        ),
    ),
    "gpt_neox": (
        GPTNeoXForCausalLM,
        GPTNeoXConfig(
            **_COMMON,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=LAYERS,
            num_attention_heads=6,
            rotary_pct=0.25,
        ),
    ),
    # norms after the branches, and over all heads at once
    "olmo2": (Olmo2ForCausalLM, Olmo2Config(**_COMMON, **_GROUPED)),
    # one projection for queries, keys and values, one for gate and up; a part of each head turns
    "phi3": (
        Phi3ForCausalLM,
        Phi3Config(
            **_COMMON,
            **_GROUPED,
            sliding_window=22,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        ),
    ),
    # two of five experts a token, in every block but the second
    "qwen3_moe": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            **_COMMON,
            **_GROUPED,
            head_dim=16,
            moe_intermediate_size=24,
            num_experts=5,
            num_experts_per_tok=2,
            mlp_only_layers=[1],
        ),
    ),
}
EVERY_FAMILY = sorted(CONFIGS)
FURTHER = ["olmo2", "phi3", "qwen3_moe"]
FAMILIES = [family for family in EVERY_FAMILY if family not in FURTHER]
"""Those on which each method is held against its formulas; the further ones are tried with less."""
WINDOWED = ["gemma3", "mistral", "phi3", "qwen2"]  # all windows are shorter than the prompts of the tests


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte: every text round-trips, no file needed."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    vocabulary.update({"<s>": 256, "</s>": 257, "<pad>": 258})
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def tiny_model(family: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model with weights large enough that attention is far from uniform."""
    with torch.inference_mode(False):  # whoever makes it first: a cached model must also serve training
        return _random_model(family, dtype)


def _random_model(family: str, dtype: torch.dtype) -> PreTrainedModel:
    torch.manual_seed(0)
    kind, config = CONFIGS[family]
    config = deepcopy(config)  # models write into theirs
    if dtype == torch.float64:
        config._experts_implementation = "eager"  # the grouped kernel takes no more than 32 bits
    model = kind(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name or "ln_" in name else 0.25 * noise)
    return model.to(dtype).eval()


@cache
def tiny_backbone(family: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Backbone:
    """A tiny model as a backbone; shared by tests, so nothing may change its weights."""
    model = tiny_model(family, dtype).to(device)
    return Backbone(model, tokenizer(), Revision(f"tiny-{family}", f"tiny-{family}", "seed0"))
