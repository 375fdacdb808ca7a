from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.virtual import Virtual, attending, virtual_embeddings, virtual_tokens
from tiny import EVERY_FAMILY, WINDOWED, tiny_backbone

ENDS = [30, 3, 11]
families = pytest.mark.parametrize("family", EVERY_FAMILY)


def tokens(length: int, seed: int) -> list[int]:
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def ends(backbone: Backbone) -> list[list[int]]:
    """Rows as prompts are: with BOS where the model has one."""
    return [[256] * backbone.adds_bos + tokens(length, length) for length in ENDS]


def text(backbone: Backbone, length: int) -> list[int]:
    return [256] * backbone.adds_bos + tokens(length - backbone.adds_bos, 9)


def last_logits(backbone: Backbone, batch: Batch) -> Tensor:
    with torch.no_grad():
        return backbone.logits(batch.at_last(backbone.hidden_states(batch)))


def together(backbone: Backbone, front: list[int], rows: list[list[int]]) -> Tensor:
    """Logits of the text and each row run as one sequence, alone; a second BOS is no part of it."""
    rows = [row[1:] if backbone.adds_bos and row[0] == 256 else row for row in rows]
    alone = [make_batch([front + row], [""]) for row in rows]
    return torch.cat([last_logits(backbone, batch) for batch in alone])


def close(found: Tensor, wanted: Tensor, within: float = 1e-4) -> bool:
    return bool((found - wanted).abs().max() <= within)


@families
@pytest.mark.parametrize("length", [5, 60])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_a_text_s_tokens_act_as_the_text(family: str, length: int, padding: Any) -> None:
    """Also where text and rows are longer than the windows."""
    backbone = tiny_backbone(family)
    front, rows = text(backbone, length), ends(backbone)
    batch = make_batch(rows, [""] * 3, padding=padding)
    with torch.no_grad(), attending(backbone, batch, virtual_tokens(backbone, front)):
        found = last_logits(backbone, batch)
    wanted = together(backbone, front, rows)
    assert close(found, wanted)
    assert not close(last_logits(backbone, batch), wanted, 0.1), "the text must matter"


@families
def test_a_row_s_own_cache_holds_its_own_tokens_alone(family: str) -> None:
    """A row cut into passes, as in decoding, gives what it gives in one."""
    backbone = tiny_backbone(family)
    front, rows = text(backbone, 30), ends(backbone)
    virtual = virtual_tokens(backbone, front)
    whole = make_batch(rows, [""] * 3, padding="left")
    width = whole.input_ids.shape[1]
    cuts = [0, width - 6, width - 2, width - 1, width]
    cache = DynamicCache(config=backbone.model.config)
    with torch.no_grad(), attending(backbone, whole, virtual):
        for start, end in pairwise(cuts):
            states = backbone.hidden_states(
                Batch(
                    whole.input_ids[:, start:end],
                    whole.attention_mask[:, :end],
                    whole.position_ids[:, start:end],
                    torch.full((3,), end - start - 1),
                    whole.texts,
                ),
                cache,
            )
    assert cache.get_seq_length() == width
    assert close(backbone.logits(states[:, -1]), together(backbone, front, rows))


@families
def test_generation_goes_on_behind_them(family: str) -> None:
    backbone = tiny_backbone(family)
    front, rows = text(backbone, 30), ends(backbone)
    batch = make_batch(rows, [""] * 3, padding="left")
    model: Any = backbone.model
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 258}
    with torch.no_grad(), attending(backbone, batch, virtual_tokens(backbone, front)):
        found = model.generate(batch.input_ids, attention_mask=batch.attention_mask, **options)[:, -5:]
    for row, continuation in zip(rows, found.tolist(), strict=True):
        grown = list(row)
        for token in continuation:
            assert int(together(backbone, front, [grown]).argmax()) == token
            grown.append(token)


@families
def test_some_of_a_text_s_tokens_act_as_the_text_with_the_others_masked(family: str) -> None:
    backbone = tiny_backbone(family)
    front, rows = text(backbone, 30), ends(backbone)
    kept = [0, 3, 4, 11, 19, 28, 29]
    virtual = virtual_tokens(backbone, front).kept(kept)
    batch = make_batch(rows, [""] * 3)
    with torch.no_grad(), attending(backbone, batch, virtual):
        found = last_logits(backbone, batch)
    # The text alone first, whole; then the rows behind it, from which its other tokens are hidden.
    own = [row[1:] if backbone.adds_bos else row for row in rows]
    for row, logits in zip(own, found, strict=True):
        batch = make_batch([row], [""], prefix_length=30)
        cache = DynamicCache()
        seen = torch.zeros(1, 30, dtype=torch.long)
        seen[:, kept] = 1
        mask = torch.cat([seen, batch.attention_mask[:, 30:]], 1)
        with torch.no_grad():
            backbone.hidden_states(make_batch([front], [""]), cache)
            behind = Batch(batch.input_ids, mask, batch.position_ids, batch.last, batch.texts)
            wanted = backbone.logits(behind.at_last(backbone.hidden_states(behind, cache)))[0]
        assert close(logits, wanted)
    assert virtual.length == 30


@families
def test_embeddings_of_tokens_act_as_the_tokens_and_pass_gradients_on(family: str) -> None:
    backbone = tiny_backbone(family)
    front, rows = tokens(7, 9), [tokens(length, length) for length in ENDS]
    embeddings = backbone.model.get_input_embeddings()(torch.tensor(front)).clone().requires_grad_(True)
    batch = make_batch(rows, [""] * 3)
    with attending(backbone, batch, virtual_embeddings(backbone, embeddings)):
        found = backbone.logits(batch.at_last(backbone.hidden_states(batch)))
    assert close(found, together(backbone, front, rows))
    found[1].square().sum().backward()
    assert embeddings.grad is not None
    assert (embeddings.grad.abs().sum(1) > 0).all()


@families
def test_no_virtual_tokens_leave_the_model_bit_for_bit(family: str) -> None:
    backbone = tiny_backbone(family)
    batch = make_batch(ends(backbone), [""] * 3)
    none = virtual_tokens(backbone, text(backbone, 9)).kept([])
    before = last_logits(backbone, batch)
    with attending(backbone, batch, none):
        assert torch.equal(last_logits(backbone, batch), before)


@families
@pytest.mark.parametrize("padding", ["left", "right"])
def test_each_row_can_have_tokens_hidden_from_it(family: str, padding: Any) -> None:
    """As if they were not kept, in that row alone."""
    backbone = tiny_backbone(family)
    front, rows = text(backbone, 20), ends(backbone)
    virtual = virtual_tokens(backbone, front)
    batch = make_batch(rows, [""] * 3, padding=padding)
    kept = [list(range(20)), [0, 3, 4, 19], [0]]
    hidden = torch.tensor([[token not in own for token in range(20)] for own in kept])
    with torch.no_grad(), attending(backbone, batch, virtual, hidden):
        found = last_logits(backbone, batch)
    for row, own, logits in zip(rows, kept, found, strict=True):
        alone = make_batch([row], [""])
        with torch.no_grad(), attending(backbone, alone, virtual.kept(own)):
            assert close(logits, last_logits(backbone, alone)[0])


@families
def test_no_gradient_reaches_what_is_hidden(family: str) -> None:
    backbone = tiny_backbone(family)
    front, rows = text(backbone, 8), ends(backbone)
    fixed = virtual_tokens(backbone, front)
    keys, values = (tensor.detach().clone().requires_grad_(True) for tensor in (fixed.keys, fixed.values))
    hidden = torch.zeros(1, 8, dtype=torch.bool)
    hidden[0, 2:5] = True
    batch = make_batch(rows[1:2], [""])
    with attending(backbone, batch, replace(fixed, keys=keys, values=values), hidden):
        backbone.logits(batch.at_last(backbone.hidden_states(batch))).square().sum().backward()
    for tensor in (keys, values):
        assert tensor.grad is not None
        reached = tensor.grad.abs().amax((0, 1, 3))  # by token
        assert (reached[2:5] == 0).all()
        assert (reached[[0, 1, 5, 6, 7]] > 0).all()


@pytest.mark.parametrize("family", ["gemma3", "llama"])
def test_only_rows_that_start_with_bos_have_it_hidden(family: str) -> None:
    backbone = tiny_backbone(family)
    front, row = text(backbone, 9), tokens(8, 2)
    batch = make_batch([[256, *row], row], [""] * 2)
    with torch.no_grad(), attending(backbone, batch, virtual_tokens(backbone, front)):
        found = last_logits(backbone, batch)
    assert close(found[0], found[1], 1e-5) == backbone.adds_bos  # a token like any other for a model without


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_rows_that_would_end_beyond_the_model_start_earlier(family: str) -> None:
    backbone = tiny_backbone(family)
    limit = backbone.max_length
    rows = [tokens(min(limit, 600) - 10, 1), tokens(4, 2)]
    virtual = virtual_tokens(backbone, tokens(30, 9))
    batch = make_batch(rows, [""] * 2)
    with torch.no_grad(), attending(backbone, batch, virtual):
        found = last_logits(backbone, batch)
    assert close(found[1], together(backbone, tokens(30, 9), rows[1:])[0])
    if family == "gpt2":
        earlier = Virtual(virtual.keys, virtual.values, virtual.positions, 10, has_bos=False)
        alone = make_batch(rows[:1], [""])
        with torch.no_grad(), attending(backbone, alone, earlier):
            assert close(found[:1], last_logits(backbone, alone))
    else:
        assert close(found[:1], together(backbone, tokens(30, 9), rows[:1]))


@pytest.mark.parametrize("family", WINDOWED)
def test_layers_with_a_window_see_the_near_ones_alone(family: str) -> None:
    backbone = tiny_backbone(family)
    batch = make_batch([tokens(10, 1)], [""])
    layers = DynamicCache(config=backbone.model.config).layers
    with torch.no_grad(), attending(backbone, batch, virtual_tokens(backbone, tokens(30, 9))) as sees:
        last_logits(backbone, batch)
        for layer, kind in enumerate(layers):
            window = getattr(kind, "sliding_window", 1000)
            wanted = [[30 + row - place < window for place in range(30)] for row in range(10)]
            assert sees(layer)[0].tolist() == wanted
    assert any(hasattr(kind, "sliding_window") for kind in layers)


@families
def test_leaving_restores_the_model_also_after_an_exception(family: str) -> None:
    backbone = tiny_backbone(family)
    batch = make_batch(ends(backbone), [""] * 3)
    virtual = virtual_tokens(backbone, text(backbone, 9))
    before = last_logits(backbone, batch)
    with pytest.raises(KeyError), attending(backbone, batch, virtual):
        raise KeyError
    assert torch.equal(last_logits(backbone, batch), before)
    assert not any(module._forward_pre_hooks for module in backbone.model.modules())


@families
def test_a_narrow_number_type_and_one_row_alone(family: str) -> None:
    backbone = tiny_backbone(family, torch.bfloat16)
    front, rows = text(backbone, 9), ends(backbone)
    virtual = virtual_tokens(backbone, front)
    assert virtual.keys.dtype == torch.bfloat16
    for row in rows:
        batch = make_batch([row], [""])
        with torch.no_grad(), attending(backbone, batch, virtual):
            found = last_logits(backbone, batch)
        wanted = together(backbone, front, [row])
        assert close(found, wanted, 0.05 * float(wanted.abs().max()))
