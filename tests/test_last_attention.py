"""The last token's attention, as the fused kernel weighs it, against attention written out in float64."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.attention import extra_channels, last_attention
from icrbench.backbone.prefix import expanded, prefix_cache
from icrbench.backbone.virtual import attending, virtual_tokens
from reference import low_rank
from slow_attention import Reference, Term
from tiny import EVERY_FAMILY, LAYERS, tiny_backbone

LENGTH = 40  # longer than every window

families = pytest.mark.parametrize("family", EVERY_FAMILY)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def sequence(backbone: Backbone, length: int = LENGTH) -> list[int]:
    generator = torch.Generator().manual_seed(7)
    body: list[int] = torch.randint(0, 256, (length - backbone.adds_bos,), generator=generator).tolist()
    return [256] * backbone.adds_bos + body


def watched(backbone: Backbone, batch: Batch, cache: DynamicCache | None = None) -> dict[int, Tensor]:
    found: dict[int, Tensor] = {}
    with last_attention(backbone, found.__setitem__):
        backbone.hidden_states(batch, cache)
    assert sorted(found) == list(range(LAYERS))
    return found


def agrees(found: dict[int, Tensor], wanted: dict[int, Tensor]) -> bool:
    assert all(found[layer].shape == wanted[layer].shape for layer in wanted)
    return all(bool((found[layer] - wanted[layer]).abs().max() < 2e-5) for layer in wanted)


def slow(family: str, tokens: list[int], low_rank: dict[int, Term] | None = None) -> dict[int, Tensor]:
    """Attention ``[1, H, T]`` of the last token, in float64."""
    reference = Reference(family)
    reference.logits(make_batch([tokens], [""]), low_rank)
    return {layer: seen.attention[:, :, -1] for layer, seen in reference.seen.items()}


@families
def test_weights_are_those_of_attention_written_out(family: str) -> None:
    """With grouped queries, sliding windows and GPT-2's scales that differ by layer."""
    backbone = tiny_backbone(family)
    tokens = sequence(backbone)
    found = watched(backbone, make_batch([tokens], [""]))
    assert agrees(found, slow(family, tokens))
    short = sequence(backbone, 9)  # no window, no padding: the pass has no mask at all
    assert agrees(watched(backbone, make_batch([short], [""])), slow(family, short))


@families
@pytest.mark.parametrize("position", ["pre_rope", "post_rope"])
def test_extra_channels_are_in_the_weights(family: str, position: str) -> None:
    backbone, term = tiny_backbone(family), low_rank(family, [1, 4], 1)
    tokens = sequence(backbone)
    terms = {
        layer: Term(
            term.query_basis[layer], term.key_basis[layer], term.alpha, term.gamma, rotated=position == "post_rope"
        )
        for layer in term.layers
    }
    batch = make_batch([tokens], [""])
    with extra_channels(backbone, term.layers, term.channels, position):  # type: ignore[arg-type]
        found = watched(backbone, batch)
    wanted = slow(family, tokens, terms)
    assert agrees(found, wanted)
    assert not agrees(watched(backbone, batch), wanted), "the term must matter"


@families
def test_cached_and_virtual_keys_have_columns_in_front(family: str) -> None:
    backbone = tiny_backbone(family)
    tokens = sequence(backbone)
    wanted = slow(family, tokens)
    with_bos = [256] * backbone.adds_bos + tokens[30:]
    batch = make_batch([with_bos], [""])
    with attending(backbone, batch, virtual_tokens(backbone, tokens[:30])):
        found = watched(backbone, batch)
    if backbone.adds_bos:  # the second one is seen by nobody
        assert all(bool((weights[..., 30] == 0).all()) for weights in found.values())
        found = {layer: torch.cat([weights[..., :30], weights[..., 31:]], -1) for layer, weights in found.items()}
    assert agrees(found, wanted)
    behind = make_batch([tokens[30:]], [""], prefix_length=30)
    cached = watched(backbone, behind, expanded(prefix_cache(backbone, tokens[:30]), 1))
    for layer, weights in cached.items():  # a layer with a window keeps no keys from before it
        seen = weights.shape[-1]
        assert (weights - wanted[layer][..., -seen:]).abs().max() < 2e-5


@families
def test_watching_changes_nothing_and_ends_with_its_context(family: str) -> None:
    backbone = tiny_backbone(family)
    batch = make_batch([sequence(backbone)], [""])
    before = backbone.hidden_states(batch)
    seen: list[int] = []
    with last_attention(backbone, lambda layer, _: seen.append(layer)):
        assert torch.equal(backbone.hidden_states(batch), before)
    assert seen == list(range(LAYERS))
    backbone.hidden_states(batch)
    assert len(seen) == LAYERS
