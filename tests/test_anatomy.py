import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PretrainedConfig

from icrbench.backbone import Backbone, Batch, Revision, make_batch
from icrbench.backbone.anatomy import ANATOMIES, Dimensions, anatomy_of, submodule
from icrbench.backbone.attention import Position, queries_and_keys
from icrbench.backbone.hooks import forward_hook
from icrbench.util.errors import UserError
from reference import HEADS, attentions, projections, rotate, scale
from tiny import EVERY_FAMILY, LAYERS, tiny_backbone, tiny_model, tokenizer

families = pytest.mark.parametrize("family", EVERY_FAMILY)


def a_batch() -> Batch:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in (30, 19)]
    return make_batch(rows, ["", ""], padding="left")


def read(backbone: Backbone, batch: Batch, position: Position) -> dict[int, tuple[Tensor, Tensor]]:
    """What the taps hand out, by layer."""
    found: dict[int, tuple[Tensor, Tensor]] = {}

    def receive(layer: int, queries: Tensor, keys: Tensor) -> None:
        found[layer] = (queries.clone(), keys.clone())

    with torch.no_grad(), queries_and_keys(backbone, list(range(LAYERS)), receive, position):
        backbone.hidden_states(batch)
    return found


@families
@pytest.mark.parametrize("position", ["pre_rope", "post_rope"])
def test_taps_hand_out_what_the_weights_give(family: str, position: Position) -> None:
    backbone, batch = tiny_backbone(family), a_batch()
    entered: list[tuple[Tensor, Any]] = []

    def remember(_module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        entered.append((args[0] if args else kwargs["hidden_states"], kwargs.get("position_embeddings")))

    handles = [a.register_forward_pre_hook(remember, with_kwargs=True) for a in attentions(backbone.model)]
    found = read(backbone, batch, position)
    for handle in handles:
        handle.remove()
    heads, kv_heads, width = HEADS[family]
    assert sorted(found) == list(range(LAYERS))
    for layer, attention in enumerate(attentions(backbone.model)):
        hidden, angles = entered[layer]
        wanted = projections(family, attention, hidden)
        if position == "post_rope":
            wanted = rotate(wanted[0], angles), rotate(wanted[1], angles)
        queries, keys = found[layer]
        assert queries.shape == (2, 30, heads * width)
        assert keys.shape == (2, 30, kv_heads * width)
        torch.testing.assert_close(queries, wanted[0].flatten(2), rtol=0, atol=2e-5)
        torch.testing.assert_close(keys, wanted[1].flatten(2), rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_fused_projections_are_taken_apart_where_the_model_does(family: str) -> None:
    """Without the query rows of the one weight, the queries are nothing and the keys are what they were."""
    whole = tiny_model(family)
    without = copy.deepcopy(whole)
    with torch.no_grad():
        for attention in attentions(without):
            if family == "gpt2":
                attention.c_attn.weight[:, :48] = 0
                attention.c_attn.bias[:48] = 0
            else:
                for head in range(6):
                    attention.query_key_value.weight[24 * head : 24 * head + 8] = 0
                    attention.query_key_value.bias[24 * head : 24 * head + 8] = 0
    revision = Revision("copy", "copy", "")
    before = read(Backbone(whole, tokenizer(), revision), a_batch(), "pre_rope")
    after = read(Backbone(without, tokenizer(), revision), a_batch(), "pre_rope")
    assert not after[0][0].any()
    assert before[0][0].any()
    assert torch.equal(after[0][1], before[0][1])


@families
def test_dimensions_and_scales(family: str) -> None:
    backbone = tiny_backbone(family)
    assert backbone.dims == Dimensions(LAYERS, 48, *HEADS[family], inner=192 if family == "gpt2" else 64)
    for layer in range(LAYERS):
        assert backbone.attention_scale(layer) == pytest.approx(scale(family, layer), rel=1e-12)


@families
def test_parts_are_where_the_table_says(family: str) -> None:
    """The output projection reads the heads side by side, and the named norm is the last thing before the head."""
    backbone, batch = tiny_backbone(family), a_batch()
    heads, _, width = HEADS[family]
    assert [backbone.attention(layer) for layer in range(LAYERS)] == attentions(backbone.model)
    shapes: list[tuple[int, ...]] = []
    normed: list[Tensor] = []
    output = submodule(backbone.attention(2), backbone.anatomy.output)
    norm = submodule(backbone.model.get_decoder(), backbone.anatomy.final_norm)
    with (
        torch.no_grad(),
        forward_hook(output, lambda _m, inputs, _o: shapes.append(tuple(inputs[0].shape))),
        forward_hook(norm, lambda _m, _i, out: normed.append(out)),
        forward_hook(submodule(backbone.blocks[2], backbone.anatomy.mlp), lambda _m, _i, out: shapes.append(out.shape)),
    ):
        states = backbone.hidden_states(batch)
    assert shapes == [(2, 30, heads * width), (2, 30, 48)]
    assert torch.equal(normed[0], states)


def test_every_entry_of_the_table_has_a_tiny_model() -> None:
    assert set(ANATOMIES) == {tiny_backbone(family).model.config.model_type for family in EVERY_FAMILY}


def test_an_unsupported_family_is_told_what_to_add() -> None:
    config = PretrainedConfig()
    config.model_type = "mamba9"
    with pytest.raises(UserError, match=r"'mamba9' is not supported: add an entry .* to ANATOMIES in .*llama"):
        anatomy_of(config)
