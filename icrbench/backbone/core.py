"""A frozen language model with what the methods need to know about it."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from icrbench.backbone.anatomy import anatomy_of, blocks_of, dimensions_of, submodule
from icrbench.backbone.attention_kernel import ATTENTION_NAME, register_attention
from icrbench.backbone.batch import Batch
from icrbench.backbone.chat import ChatFrame
from icrbench.backbone.fingerprint import tokenizer_fingerprint, weights_fingerprint
from icrbench.backbone.quantised import is_plain, quantisation, quantiser
from icrbench.util.errors import UserError


@dataclass(frozen=True)
class Revision:
    """Which weights these are.

    Attributes:
        name: what the user calls the model.
        location: hub id, folder or file.
        revision: hub commit, or a hash of the local files.
        remote_code: whether code that came with the model was run.
    """

    name: str
    location: str
    revision: str
    remote_code: bool = False


@dataclass(eq=False)
class Backbone:
    """A causal language model that is never trained, its tokenizer and its anatomy.

    Attributes:
        model: the model, in evaluation mode, without gradients to its weights.
        tokenizer: its tokenizer.
        revision: which weights these are.
        chat: what a chat template puts around prompts; None for plain prompts.
        adds_bos: whether every text starts with the beginning-of-sequence token.
        max_length: the longest sequence the model takes, in tokens.
        active: the intervention applied right now, if any.

    Raises:
        UserError: if some weights are offloaded, or the family is not supported.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    revision: Revision
    chat: ChatFrame | None = None
    adds_bos: bool = field(init=False)
    max_length: int = field(init=False)
    active: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._refuse_offloaded()
        register_attention()
        self.anatomy = anatomy_of(self.model.config)
        self.dims = dimensions_of(self.model.config)
        self.model.set_attn_implementation(ATTENTION_NAME)
        self.model.eval().requires_grad_(False)
        text_config: Any = self.model.config.get_text_config()
        self.max_length = int(getattr(text_config, "max_position_embeddings", None) or 2048)
        bos = self.tokenizer.bos_token_id
        first = self.tokenizer("a").input_ids[0]
        # Gemma is trained with the token always present and breaks without it, whatever the tokenizer file says.
        self.adds_bos = bos is not None and (first == bos or str(text_config.model_type).startswith("gemma"))

    def _refuse_offloaded(self) -> None:
        """Refuse weights that accelerate fetches for each pass: methods, and the hash of a model, read weights."""
        weights = dict(self.model.named_parameters())
        if away := [name for name, weight in weights.items() if weight.is_meta]:
            raise UserError(
                f"model '{self.revision.name}' does not fit on the devices here: {len(away)} of its {len(weights)}"
                f" weights ({away[0]} first) would be offloaded to the CPU or the disk, where methods cannot read them:"
                " give it more GPUs, load it in fewer bits (--dtype bfloat16, --quantize int8), or take a smaller one."
            )

    @property
    def device(self) -> torch.device:
        """Where inputs go."""
        weight = self.model.get_input_embeddings().weight
        assert isinstance(weight, Tensor)
        return weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' number type."""
        return self.model.dtype

    @cached_property
    def content(self) -> dict[str, str]:
        """Hashes of the weights and of the tokenizer: two backbones of equal content give the same numbers."""
        return {"weights": weights_fingerprint(self.model), "tokenizer": tokenizer_fingerprint(self.tokenizer)}

    @cached_property
    def blocks(self) -> list[nn.Module]:
        """The blocks, first to last."""
        return blocks_of(self.model, self.anatomy)

    def attention(self, layer: int) -> nn.Module:
        """Return the self-attention of a block."""
        return submodule(self.blocks[layer], self.anatomy.attention)

    def part(self, layer: int, name: str) -> nn.Module:
        """Return a part of a block's self-attention."""
        return submodule(self.attention(layer), name)

    def attention_scale(self, layer: int) -> float:
        """Return what the model multiplies ``q . k`` with at a layer: usually, not always, ``1/sqrt(d_k)``."""
        return float(getattr(self.attention(layer), "scaling", None) or self.dims.head_dim**-0.5)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; the beginning-of-sequence token exactly once, or never if the model has none.

        Special tokens spelled out in the text are read as plain text, so data cannot add a second one.
        """
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
        return [self.tokenizer.bos_token_id, *ids] if self.adds_bos else ids

    def encode_prompt(self, text: str) -> list[int]:
        """Tokens of a prompt: of the text as the user's turn in a chat template's frame, if the model is to have one.

        The frame's special tokens are read as such, those spelled out in the text are not. The beginning-of-sequence
        token stands once at the start, whether tokenizer or template bring it.
        """
        ids = self.encode(text)
        if self.chat is None:
            return ids
        before, after = self._framing
        return [*before, *ids[int(self.adds_bos) :], *after]

    def encode_answer(self, text: str) -> list[int]:
        """Tokens from the end of the user's turn to the end of ``text``, with which the answer starts.

        Raises:
            ValueError: if prompts have no frame.
        """
        if self.chat is None:
            raise ValueError("without a chat template answers continue the prompt's text")
        return self._special(self.chat.after + text)

    @cached_property
    def _framing(self) -> tuple[list[int], list[int]]:
        assert self.chat is not None, "there is a frame"
        before, after = self._special(self.chat.before), self._special(self.chat.after)
        bos = self.tokenizer.bos_token_id
        if self.adds_bos and before[:1] != [bos]:
            before = [bos, *before]
        return before, after

    def _special(self, text: str) -> list[int]:
        """Tokens of a text whose special tokens are meant as such."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def hidden_states(self, batch: Batch, cache: Any = None, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return final hidden states ``[B, T, d]``, after the last norm, on the device of the batch.

        Args:
            batch: what to run.
            cache: key/value cache of a shared prefix, extended by this call.
            inputs_embeds: ``[B, T, d]`` to use instead of the embeddings of ``batch.input_ids``.
        """
        output = self.model.get_decoder()(
            input_ids=batch.input_ids if inputs_embeds is None else None,
            inputs_embeds=inputs_embeds,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            cache=cache,
            use_cache=cache is not None,
        )
        states: Tensor = output.last_hidden_state
        return states.to(batch.input_ids.device)  # a model that spreads over devices ends on another one

    def logits(self, states: Tensor, token_ids: Tensor | None = None, added: Tensor | None = None) -> Tensor:
        """Next-token logits ``[..., V]`` in float32 of final hidden states ``[..., d]``, on the device of these.

        Args:
            states: final hidden states.
            token_ids: ``[n]``: only these rows of the output head are computed, giving ``[..., n]``.
            added: what a method adds to the output of the head, of the same shape.
        """
        logits = self._head(states, token_ids).float().to(states.device)
        logits = logits if added is None else logits + added
        softcap = getattr(self.model.config.get_text_config(), "final_logit_softcapping", None)
        return logits if softcap is None else torch.tanh(logits / softcap) * softcap

    def _head(self, states: Tensor, token_ids: Tensor | None) -> Tensor:
        head: Any = self.model.get_output_embeddings()
        weight, bias = head.weight, getattr(head, "bias", None)
        states = states.to(weight.device)
        if not is_plain(weight):  # rows of it cannot be read by themselves
            logits: Tensor = getattr(head, "base_layer", head)(states)  # what an adapter adds comes after
            return logits if token_ids is None else logits[..., token_ids.to(weight.device)]
        if token_ids is not None:
            token_ids = token_ids.to(weight.device)
            weight, bias = weight[token_ids], None if bias is None else bias[token_ids]
        return nn.functional.linear(states, weight, bias)

    def identity(self) -> dict[str, Any]:
        """All about the model that can change a result, for a cell's identity."""
        own = quantisation(self.model.config)
        how = {} if own is None else {"quantisation": own, "quantiser": quantiser(own["quant_method"])}
        return {
            **how,
            **({} if self.chat is None else {"chat_template": self.chat.sha256}),
            "name": self.revision.name,
            "location": self.revision.location,
            "revision": self.revision.revision,
            **self.content,
            "dtype": str(self.dtype).removeprefix("torch."),
            "bos": self.adds_bos,
            "max_length": self.max_length,
            **({"remote_code": True} if self.revision.remote_code else {}),
        }
