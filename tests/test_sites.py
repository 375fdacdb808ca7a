from typing import Any

import pytest
import torch
from torch import Tensor

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.sites import Point, Site, captured, edited, output_weight
from icrbench.backbone.steering import steered
from tiny import EVERY_FAMILY, LAYERS, tiny_backbone

families = pytest.mark.parametrize("family", EVERY_FAMILY)
POINTS: tuple[Point, ...] = ("heads", "attention", "mlp", "block")
EVERYWHERE = [Site(point, layer) for point in POINTS for layer in range(LAYERS)]


def a_batch(padding: str = "right") -> Batch:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in (21, 30, 12)]
    return make_batch(rows, [""] * 3, padding="left" if padding == "left" else "right")


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def states_entering(backbone: Backbone, batch: Batch) -> list[Tensor]:
    """The residual stream before each block and after the last, from hooks of this file's own."""
    seen: list[Tensor] = []
    handles = [
        block.register_forward_pre_hook(
            lambda _, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
        for block in [*backbone.blocks, getattr(backbone.model.get_decoder(), backbone.anatomy.final_norm)]
    ]
    backbone.hidden_states(batch)
    for handle in handles:
        handle.remove()
    return seen


@families
def test_branches_add_up_to_the_residual_stream(family: str) -> None:
    backbone, batch = tiny_backbone(family), a_batch()
    residual = states_entering(backbone, batch)
    with captured(backbone, EVERYWHERE) as seen:
        backbone.hidden_states(batch)
    for layer in range(LAYERS):
        after = residual[layer] + seen[Site("attention", layer)] + seen[Site("mlp", layer)]
        torch.testing.assert_close(after, residual[layer + 1], atol=1e-4, rtol=1e-4)
        assert torch.equal(seen[Site("block", layer)], residual[layer + 1])


def test_nothing_is_held_of_the_columns_before_the_start() -> None:
    backbone, batch = tiny_backbone("llama"), a_batch()
    with captured(backbone, EVERYWHERE) as whole:
        backbone.hidden_states(batch)
    with captured(backbone, EVERYWHERE, start=5) as end:
        backbone.hidden_states(batch)
    for site, vectors in end.items():
        assert torch.equal(vectors, whole[site][:, 5:])
        assert vectors.untyped_storage().nbytes() == vectors.numel() * vectors.element_size()


@families
def test_heads_through_their_weights_add_up_to_the_attention(family: str) -> None:
    backbone, batch = tiny_backbone(family), a_batch()
    dims = backbone.dims
    for layer in (0, LAYERS - 1):
        projection = backbone.part(layer, backbone.anatomy.output)
        outputs: list[Tensor] = []
        handle = projection.register_forward_hook(lambda _, __, output, outputs=outputs: outputs.append(output))
        with captured(backbone, [Site("heads", layer)]) as seen:
            backbone.hidden_states(batch)
        handle.remove()
        heads = seen[Site("heads", layer)].unflatten(-1, (dims.heads, dims.head_dim))
        weight = output_weight(backbone, layer).unflatten(1, (dims.heads, dims.head_dim))
        parts = torch.einsum("bthk,dhk->bthd", heads, weight)
        bias = getattr(projection, "bias", None)
        torch.testing.assert_close(parts.sum(2) + (0 if bias is None else bias), outputs[0], atol=1e-4, rtol=1e-4)


@families
@pytest.mark.parametrize("point", POINTS)
def test_edits_take_effect_and_leave_nothing_behind(family: str, point: Point) -> None:
    backbone, batch = tiny_backbone(family), a_batch()
    plain = backbone.hidden_states(batch)
    with edited(backbone, {Site(point, 2): lambda states: states}):
        assert torch.equal(backbone.hidden_states(batch), plain)
    with edited(backbone, {Site(point, 2): lambda states: 3 * states + 1}):
        assert not torch.allclose(batch.at_last(backbone.hidden_states(batch)), batch.at_last(plain), atol=1e-2)
    assert torch.equal(backbone.hidden_states(batch), plain)

    def broken(_: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), edited(backbone, {Site(point, 2): broken}):
        backbone.hidden_states(batch)
    assert torch.equal(backbone.hidden_states(batch), plain)


@families
@pytest.mark.parametrize("padding", ["left", "right"])
def test_steering_the_last_token_changes_it_alone(family: str, padding: str) -> None:
    backbone, batch = tiny_backbone(family), a_batch(padding)
    with captured(backbone, [Site("block", 3)]) as seen:
        backbone.hidden_states(batch)
        plain = seen[Site("block", 3)]
        with steered(backbone, batch, {Site("mlp", 3): lambda states: states + 2}, "last"):
            backbone.hidden_states(batch)
        changed = (seen[Site("block", 3)] != plain).any(-1)
    expected = torch.zeros_like(changed)
    expected[batch.rows, batch.last] = True
    assert torch.equal(changed, expected)


def test_edits_are_computed_in_single_precision() -> None:
    backbone, batch = tiny_backbone("llama", torch.bfloat16), a_batch()
    types: list[torch.dtype] = []

    def note(states: Tensor) -> Tensor:
        types.append(states.dtype)
        return states

    plain = backbone.hidden_states(batch)
    with steered(backbone, batch, {Site("mlp", 1): note}, "all"):
        assert torch.equal(backbone.hidden_states(batch), plain)
    assert types == [torch.float32]
