"""HiFICL: attention over virtual keys and values beside a text's own, causal and blind to padding."""

from typing import Any

import pytest
import torch
from torch import Tensor

from icr_setup import some_batch
from icrbench.backbone import Backbone, make_batch
from icrbench.methods.hificl import HiFICL, HiFICLFitted
from icrbench.registry import make_method
from icrbench.util.errors import UserError
from method_setup import DOMAINS, DTYPES, fit, logits, zero_shot_questions
from slow_attention import softmax_scale
from slow_heads import assert_heads
from tiny import FAMILIES, LAYERS, tiny_backbone

families = pytest.mark.parametrize("family", FAMILIES)
TINY = {"queries": 6, "batch_size": 3, "epochs": 2, "pairs": 3, "rank": 2}


def some_fitted(backbone: Backbone, own: str = "scaled", pairs: int = 4) -> HiFICLFitted:
    """Virtual pairs as strong as real ones."""
    generator = torch.Generator().manual_seed(7)
    heads, width, rank = backbone.dims.heads, backbone.dims.head_dim, 3
    tensors = {}
    for kind in ("keys", "values"):
        tensors[f"{kind}.left"] = torch.randn(LAYERS, heads, pairs, rank, generator=generator)
        tensors[f"{kind}.right"] = torch.randn(LAYERS, heads, rank, width, generator=generator)
    return HiFICLFitted({"own": own}, tensors)


@families
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_pairs_are_zero_shot_bit_for_bit(family: str, dtype: str) -> None:
    backbone = tiny_backbone(family, DTYPES[dtype])
    questions = zero_shot_questions(backbone)
    plain = logits(backbone, None, questions)
    assert not torch.equal(logits(backbone, some_fitted(backbone), questions), plain)
    assert torch.equal(logits(backbone, some_fitted(backbone, pairs=0), questions), plain)


@families
def test_values_of_0_are_zero_shot_only_where_the_own_attention_stays_whole(family: str) -> None:
    backbone = tiny_backbone(family)
    questions = zero_shot_questions(backbone)
    plain = logits(backbone, None, questions)
    for own, same in (("whole", True), ("scaled", False)):
        fitted = some_fitted(backbone, own)
        fitted.tensors["values.right"] = torch.zeros_like(fitted.tensors["values.right"])
        assert torch.equal(logits(backbone, fitted, questions), plain) == same


@families
@pytest.mark.parametrize("own", ["scaled", "whole"])
def test_it_is_attention_over_both_kinds_of_pairs(family: str, own: str) -> None:
    """In one softmax; with ``own=whole`` the text's own part is as if it were alone."""
    backbone = tiny_backbone(family)
    fitted, questions = some_fitted(backbone, own), zero_shot_questions(backbone)
    tensors = {name: tensor.double() for name, tensor in fitted.tensors.items()}

    def heads(layer: int, queries: Tensor, scores: Tensor, values: Tensor) -> Tensor:
        keys, more = (tensors[f"{kind}.left"][layer] @ tensors[f"{kind}.right"][layer] for kind in ("keys", "values"))
        virtual = softmax_scale(family, layer) * queries @ keys.transpose(1, 2)
        weights = torch.cat([virtual, scores], -1).softmax(-1)
        if own == "scaled":
            return weights @ torch.cat([more.expand(len(values), -1, -1, -1), values], 2)
        return weights[..., : virtual.shape[-1]] @ more + scores.softmax(-1) @ values

    assert_heads(family, fitted, questions, heads)


@families
def test_no_token_knows_of_later_ones(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted, batch = some_fitted(backbone), some_batch((40,))
    changed = batch.input_ids[0].tolist()
    other = make_batch([changed[:30] + changed[30:][::-1]], [""])
    both = []
    for own in (batch, other):
        with torch.no_grad(), fitted.applied(backbone, own):
            both.append(backbone.hidden_states(own)[0])
    torch.testing.assert_close(both[0][:30], both[1][:30], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(both[0][30:], both[1][30:], atol=0.1)


@pytest.mark.parametrize(("names", "target"), [(("trec",), "trec"), (DOMAINS, None)])
def test_both_protocols_fit_and_the_count_is_the_formula_s(names: Any, target: str | None) -> None:
    backbone = tiny_backbone("qwen3")
    fitted = fit("hificl", backbone, names, target, **TINY)
    counted = 2 * LAYERS * 6 * (3 * 2 + 2 * 16)
    assert fitted.cached_parameters == fitted.parameters_by_formula(backbone.dims) == counted


def test_published_sizes_and_refusals() -> None:
    method = HiFICL()
    assert (method.pairs, method.rank, method.learning_rate, method.weight_decay) == (8, 8, 0.005, 0.001)
    assert (method.batch_size, method.epochs, method.queries, method.warmup) == (4, 10, 1000, 0.1)
    # 2LH(nr + r d_k) with 32 layers of 32 heads of width 128: the paper's 2.2 million
    assert pytest.approx(2.2e6, rel=0.02) == 2 * 32 * 32 * (8 * 8 + 8 * 128)
    with pytest.raises(UserError, match=r"hificl.rank must be at least 1"):
        make_method("hificl", {"rank": 0})
