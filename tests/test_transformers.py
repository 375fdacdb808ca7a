"""What the project takes for granted about transformers: fails first when a new version changes it."""

import inspect
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from reference import HEADS, attentions, scale, window
from tiny import EVERY_FAMILY, LAYERS, WINDOWED, tiny_model

families = pytest.mark.parametrize("family", EVERY_FAMILY)
Call = dict[str, Any]


def watched(family: str, name: str, *, masked: bool) -> tuple[PreTrainedModel, list[Call]]:
    """A model with an attention of ours that writes down what it is given."""
    calls: list[Call] = []

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        calls.append({"module": module, "query": query, "key": key, "value": value, "mask": mask, **kwargs})
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)

    AttentionInterface.register(name, attention)
    if masked:
        AttentionMaskInterface.register(name, sdpa_mask)
    model = tiny_model(family)
    model.set_attn_implementation(name)
    return model, calls


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@families
def test_what_an_attention_function_is_given(family: str) -> None:
    model, calls = watched(family, "tests_watched", masked=True)
    ids = torch.arange(60).reshape(2, 30)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), use_cache=False)
    heads, kv_heads, width = HEADS[family]
    assert [call["module"] for call in calls] == attentions(model)
    for layer, call in enumerate(calls):
        assert call["query"].shape == (2, heads, 30, width)
        assert call["key"].shape == call["value"].shape == (2, kv_heads, 30, width)  # heads not repeated
        assert call["scaling"] == pytest.approx(scale(family, layer))
        assert call["module"].layer_idx == layer
        assert call["mask"].dtype == torch.bool  # True where attended to
        assert call["mask"].shape == (2, 1, 30, 30)
        seen = call["mask"][1, 0, -1].sum()
        assert seen == min(30, window(family, layer) or 30)
        assert not call["mask"][0, 0, -1, :5].any()


@families
def test_without_a_mask_function_padding_would_be_lost(family: str) -> None:
    """Why the attention and its mask function are registered by one function."""
    model, calls = watched(family, "tests_unmasked", masked=False)
    ids = torch.arange(60).reshape(2, 30)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    model(input_ids=ids, attention_mask=mask, use_cache=False)
    assert all(call["mask"] is None for call in calls)


@families
def test_blocks_return_a_tensor_and_attentions_a_pair(family: str) -> None:
    model = tiny_model(family)
    returned: dict[str, Any] = {}
    inside = attentions(model)[2]
    block = next(m for m in model.modules() if inside in m.children())
    for name, module in (("attention", inside), ("block", block)):
        module.register_forward_hook(lambda _m, _i, out, name=name: returned.update({name: out}))
    model(torch.arange(20)[None])
    assert isinstance(returned["block"], torch.Tensor)
    assert isinstance(returned["attention"], tuple)
    assert isinstance(returned["attention"][0], torch.Tensor)


@families
def test_names_of_arguments(family: str) -> None:
    model = tiny_model(family)
    decoder = model.get_decoder()
    names = set(inspect.signature(inspect.unwrap(type(decoder).forward)).parameters)
    assert {"input_ids", "inputs_embeds", "attention_mask", "position_ids", "cache", "use_cache"} <= names
    given: list[set[str]] = []
    attentions(model)[0].register_forward_pre_hook(lambda _m, _a, kw: given.append(set(kw)), with_kwargs=True)
    output = model(torch.arange(20)[None], use_cache=True)
    assert ("layer_past" if family == "gpt_neox" else "cache") in given[0]
    assert isinstance(output.cache, DynamicCache)
    assert decoder(torch.arange(20)[None]).last_hidden_state.shape == (1, 20, 48)


@families
def test_layers_of_a_cache(family: str) -> None:
    """Windowed layers drop what no later token sees, and every layer holds its keys and values openly."""
    model = tiny_model(family)
    cache = DynamicCache(config=model.config)
    model(torch.arange(40)[None], cache=cache, use_cache=True)
    assert len(cache.layers) == LAYERS
    assert cache.get_seq_length() == 40
    for layer, held in enumerate(cache.layers):
        assert isinstance(held, DynamicLayer)
        assert held.keys is not None
        width = window(family, layer)
        assert held.keys.shape == (1, HEADS[family][1], 40 if width is None else width - 1, HEADS[family][2])
    assert any(held.is_sliding for held in cache.layers) == (family in WINDOWED)


@families
def test_positions_must_be_given(family: str) -> None:
    """Left to itself a forward pass counts padding as positions; only rotary models do not mind."""
    model = tiny_model(family)
    ids = torch.arange(20)[None]
    padded = torch.cat([torch.zeros(1, 7, dtype=torch.long), ids], 1)
    mask = (torch.arange(27) >= 7).long()[None]
    wanted = model(ids).logits[0, -1]
    given = model(padded, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits[0, -1]
    left = model(padded, attention_mask=mask).logits[0, -1]
    assert (given - wanted).abs().max() < 1e-4
    assert ((left - wanted).abs().max() < 1e-4) == (family != "gpt2")


@families
def test_the_head_is_one_matrix_on_the_final_states(family: str) -> None:
    model = tiny_model(family)
    ids = torch.arange(20)[None]
    states = model.get_decoder()(ids).last_hidden_state
    head = model.get_output_embeddings()
    assert getattr(head, "bias", None) is None
    torch.testing.assert_close(states @ head.weight.T, model(ids).logits, rtol=0, atol=1e-4)
