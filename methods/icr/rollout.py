"""Attention rollout: how much each token flows into the last one (Abnar & Zuidema 2020)."""

import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch
from icrbench.backbone.attention import queries_and_keys


def rollout_weights(backbone: Backbone, batch: Batch) -> Tensor:
    """Weights ``[B, T]`` of all tokens in the last token's state after all blocks; rows sum to 1.

    Per layer the head-averaged attention is mixed half and half with the identity (the residual path) and the layers
    are multiplied. The attention is recomputed from rotated queries and keys, with the model's causal mask and
    window.
    """
    dims = backbone.dims
    mixing: list[Tensor] = []
    width = batch.input_ids.shape[1]
    # Mistral has one window for all layers, which its attention modules do not know of.
    everywhere = getattr(backbone.model.config.get_text_config(), "sliding_window", None)
    step = torch.arange(width, device=batch.input_ids.device)
    distance = step[:, None] - step[None]
    real = batch.attention_mask[:, -width:].bool()

    def receive(layer: int, queries: Tensor, keys: Tensor) -> None:
        q = queries.unflatten(2, (dims.heads, dims.head_dim)).transpose(1, 2).float()
        k = keys.unflatten(2, (dims.kv_heads, dims.head_dim)).transpose(1, 2).float()
        k = k.repeat_interleave(dims.heads // dims.kv_heads, dim=1)
        window = getattr(backbone.attention(layer), "sliding_window", everywhere) or width
        allowed = (distance >= 0) & (distance < window)
        allowed = allowed[None, None] & real[:, None, None]
        logits = backbone.attention_scale(layer) * q @ k.transpose(2, 3)
        attention = logits.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num().mean(1)
        mixing.append(0.5 * attention + 0.5 * torch.eye(width, device=attention.device))

    with queries_and_keys(backbone, list(range(dims.layers)), receive, "post_rope"):
        backbone.hidden_states(batch)
    flow = torch.nn.functional.one_hot(batch.last, width).float()
    for matrix in reversed(mixing):
        flow = torch.einsum("bt,bts->bs", flow, matrix)
    return flow / flow.sum(1, keepdim=True)
