"""Head outputs against attention written out in float64, on every family."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from icr_setup import some_batch
from icrbench.backbone import Batch, make_batch
from icrbench.backbone.head_outputs import HeadOutputs, changed_heads, log_normaliser
from icrbench.backbone.prefix import expanded, prefix_cache
from slow_attention import Reference, softmax_scale
from tiny import EVERY_FAMILY, tiny_backbone


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def seen(family: str, batch: Batch, cache: Any = None, dtype: torch.dtype = torch.float32) -> list[HeadOutputs]:
    """What the heads of every layer do in a pass that leaves them as they are."""
    backbone, found = tiny_backbone(family, dtype), []

    def keep(_layer: int, heads: HeadOutputs) -> Tensor:
        found.append(heads)
        return heads.outputs

    with torch.no_grad(), changed_heads(backbone, batch, keep):
        backbone.hidden_states(batch, cache)
    return found


def wanted(family: str, batch: Batch) -> list[Tensor]:
    """Log-normalisers ``[B, T, H]`` from float64 logits: attention's own weights say which keys are seen."""
    reference = Reference(family)
    reference.logits(batch)
    found = []
    for layer, own in sorted(reference.seen.items()):
        heads = own.attention.shape[1]
        queries = own.rotated_query.unflatten(2, (heads, -1)).transpose(1, 2)
        keys = own.rotated_key.unflatten(2, (-1, queries.shape[-1])).transpose(1, 2)
        keys = keys.repeat_interleave(heads // keys.shape[1], 1)
        logits = softmax_scale(family, layer) * queries @ keys.transpose(2, 3)
        found.append(logits.masked_fill(own.attention == 0, -torch.inf).logsumexp(-1).transpose(1, 2))
    return found


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_normalisers_are_those_of_the_keys_that_attention_sees(family: str, padding: str) -> None:
    batch = some_batch(padding=padding)
    real = batch.attention_mask.bool()
    for own, other in zip(seen(family, batch), wanted(family, batch), strict=True):
        close(own.log_normaliser[real].double(), other[real])


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_one_full_row_needs_no_mask(family: str) -> None:
    batch = some_batch((12,))  # shorter than all windows: the library then makes no mask
    for own, other in zip(seen(family, batch), wanted(family, batch), strict=True):
        close(own.log_normaliser.double(), other)


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_cache_changes_nothing(family: str) -> None:
    whole = some_batch((40,))
    tokens = whole.input_ids[0].tolist()
    backbone = tiny_backbone(family)
    with torch.no_grad():
        prefix = prefix_cache(backbone, tokens[:30])
    parts = make_batch([tokens[30:]], [""], prefix_length=30)
    for own, other in zip(seen(family, parts, expanded(prefix, 1)), seen(family, whole), strict=True):
        for name in ("queries", "log_normaliser", "outputs"):
            close(getattr(own, name), getattr(other, name)[:, 30:])


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_decoding_one_token_changes_nothing(family: str) -> None:
    whole = some_batch((40,))
    tokens = whole.input_ids[0].tolist()
    backbone = tiny_backbone(family)
    cache = DynamicCache(config=backbone.model.config)
    with torch.no_grad():
        backbone.hidden_states(make_batch([tokens[:39]], [""]), cache)
    last = make_batch([tokens[39:]], [""], prefix_length=39)
    for own, other in zip(seen(family, last, cache), seen(family, whole), strict=True):
        close(own.log_normaliser, other.log_normaliser[:, 39:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_heads_left_as_they_are_leave_the_model_as_it_is(family: str, dtype: torch.dtype) -> None:
    backbone, batch = tiny_backbone(family, dtype), some_batch()
    with torch.no_grad():
        plain = backbone.hidden_states(batch)
        with changed_heads(backbone, batch, lambda _layer, heads: heads.outputs):
            same = backbone.hidden_states(batch)
        with changed_heads(backbone, batch, lambda _layer, heads: 0 * heads.outputs):
            other = backbone.hidden_states(batch)
        after = backbone.hidden_states(batch)
    real = batch.attention_mask.bool()
    assert torch.equal(same[real], plain[real])
    assert torch.equal(after, plain)
    assert not torch.equal(other[real], plain[real])


def test_gradients_are_numbers_where_padding_sees_no_key() -> None:
    queries = torch.randn(1, 3, 2, 4, requires_grad=True)
    mask = torch.tensor([[[[False, False, False], [False, True, False], [False, True, True]]]])
    log_normaliser(queries, torch.randn(1, 3, 1, 4), mask, 0.5).sum().backward()
    assert queries.grad is not None
    assert queries.grad.isfinite().all()
    assert queries.grad[0, 1].abs().sum() > 0
