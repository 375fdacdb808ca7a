from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.attention import extra_channels
from icrbench.backbone.batch import PaddingSide
from icrbench.backbone.trunk import captured_input, continue_from, trunk_states
from reference import low_rank
from tiny import EVERY_FAMILY, LAYERS, tiny_backbone, tiny_model

families = pytest.mark.parametrize("family", EVERY_FAMILY)


def a_batch(padding: PaddingSide = "right", lengths: tuple[int, ...] = (30, 19, 25), seed: int = 3) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in lengths]
    return make_batch(rows, [""] * len(rows), padding=padding)


def real(batch: Batch, states: Tensor) -> Tensor:
    return states[batch.attention_mask.bool()]


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@families
@pytest.mark.parametrize("layer", [0, 1, LAYERS - 1])
def test_trunk_states_are_what_enters_the_block(family: str, layer: int) -> None:
    backbone, batch = tiny_backbone(family), a_batch(lengths=(20,))
    model = tiny_model(family)
    wanted = model(batch.input_ids, output_hidden_states=True).hidden_states[layer]
    torch.testing.assert_close(trunk_states(backbone, layer, batch), wanted, rtol=0, atol=1e-4)


@families
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("layer", [0, 2, LAYERS - 1])
def test_continuing_is_the_whole_pass(family: str, layer: int, padding: PaddingSide) -> None:
    backbone, batch = tiny_backbone(family), a_batch(padding)
    whole = backbone.hidden_states(batch)
    assert torch.equal(continue_from(backbone, layer, trunk_states(backbone, layer, batch), batch), whole)
    assert torch.equal(backbone.hidden_states(batch), whole)  # nothing is left behind


@families
def test_continuing_under_routing_is_the_whole_pass_under_routing(family: str) -> None:
    backbone, batch, term = tiny_backbone(family), a_batch(), low_rank(family, [4, 5], 3)
    below = trunk_states(backbone, 4, batch)
    with extra_channels(backbone, term.layers, term.channels):
        whole = backbone.hidden_states(batch)
        assert torch.equal(continue_from(backbone, 4, below, batch), whole)
    assert not torch.equal(backbone.hidden_states(batch), whole)


def test_continuing_uses_the_states_it_is_given() -> None:
    backbone, batch = tiny_backbone("gpt2"), a_batch()
    below = trunk_states(backbone, 3, batch)
    assert not torch.equal(continue_from(backbone, 3, below * 2, batch), backbone.hidden_states(batch))


@families
def test_blocks_below_are_not_run(family: str) -> None:
    backbone, batch = tiny_backbone(family), a_batch()
    below = trunk_states(backbone, 3, batch)
    with captured_input(backbone, 5, stop=False) as last:
        handles = [block.register_forward_hook(lambda *_: None) for block in backbone.blocks]
        ran: list[int] = []
        inner = [backbone.attention(layer) for layer in range(LAYERS)]
        handles += [m.register_forward_hook(lambda *_, i=i: ran.append(i)) for i, m in enumerate(inner)]
        continue_from(backbone, 3, below, batch)
        for handle in handles:
            handle.remove()
    assert ran == [3, 4, 5]
    assert len(last) == 1


def own_forwards(backbone: Backbone) -> list[bool]:
    return ["forward" in vars(block) for block in backbone.blocks]


@families
def test_an_exception_restores_the_blocks(family: str) -> None:
    backbone, batch = tiny_backbone(family), a_batch()
    whole = backbone.hidden_states(batch)
    with pytest.raises(RuntimeError):
        continue_from(backbone, 3, torch.zeros(3, 30, 7), batch)
    assert not any(own_forwards(backbone))
    assert torch.equal(backbone.hidden_states(batch), whole)


def test_forwards_that_were_replaced_before_are_put_back() -> None:
    """Accelerate spreads a model over devices by replacing each block's forward."""
    backbone, batch = tiny_backbone("llama"), a_batch()
    calls: list[int] = []
    block = backbone.blocks[1]
    original = block.forward

    def wrapped(*args: object, **kwargs: object) -> Tensor:
        calls.append(1)
        result: Tensor = original(*args, **kwargs)
        return result

    block.forward = wrapped  # type: ignore[method-assign]
    try:
        continue_from(backbone, 3, trunk_states(backbone, 3, batch), batch)
        calls.clear()
        backbone.hidden_states(batch)
        assert calls == [1]
    finally:
        del block.forward  # type: ignore[misc]
