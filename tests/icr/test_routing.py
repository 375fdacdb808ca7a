"""Routed attention on every family, against a reference that builds the T x T matrices of eq. 10."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from icr_setup import demo_pool, demo_test, some_batch, some_directions, some_strengths
from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.methods.icr import ICRFitted
from icrbench.methods.icr.router import Router
from icrbench.methods.icr.routing import Directions, RoutingScale, routed
from icrbench.methods.zero_shot import ZeroShotFitted
from icrbench.scoring.next_token import score
from slow_attention import Reference, Term, softmax_scale
from tiny import FAMILIES, tiny_backbone


def plain(backbone: Backbone, batch: Batch) -> Tensor:
    with torch.inference_mode():
        return backbone.logits(backbone.hidden_states(batch))


def steered(
    backbone: Backbone, batch: Batch, found: Directions, alpha: Tensor, gamma: Tensor, scale: RoutingScale = "paper"
) -> Tensor:
    with torch.inference_mode(), routed(backbone, found, alpha, gamma, scale):
        return backbone.logits(backbone.hidden_states(batch))


def slow(
    family: str, batch: Batch, found: Directions, alpha: Tensor, gamma: Tensor, scale: RoutingScale = "paper"
) -> Tensor:
    terms = {
        layer: Term(
            found.queries[place],
            found.keys[place],
            alpha[:, place],
            gamma[:, place],
            1.0 if scale == "paper" else softmax_scale(family, layer),
            found.position == "post_rope",
        )
        for place, layer in enumerate(found.layers)
    }
    return Reference(family).logits(batch, terms)


def worst(batch: Batch, first: Tensor, second: Tensor) -> float:
    """Largest difference at a real token, relative to the largest logit."""
    real = batch.attention_mask.bool()
    return float((first.double() - second.double()).abs()[real].max() / second.abs()[real].max())


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("scale", ["paper", "attention"])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_eq_10(family: str, scale: RoutingScale, padding: str) -> None:
    backbone, batch = tiny_backbone(family), some_batch(padding=padding)
    found = some_directions(backbone)
    alpha, gamma = some_strengths(backbone, found, 3)
    expected = slow(family, batch, found, alpha, gamma, scale)
    assert worst(batch, steered(backbone, batch, found, alpha, gamma, scale), expected) < 1e-5
    assert worst(batch, plain(backbone, batch), expected) > 1e-3  # the term is not a detail
    for row in range(3):  # nor is any row's, any layer's or any head's own strength
        swapped = slow(family, batch, found, alpha.roll(1, 0), gamma, scale)
        assert worst(batch, swapped[row : row + 1].expand_as(expected), expected) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_eq_10_after_rotary_embedding(family: str) -> None:
    backbone, batch = tiny_backbone(family), some_batch()
    found = some_directions(backbone, position="post_rope")
    alpha, gamma = some_strengths(backbone, found, 3)
    expected = slow(family, batch, found, alpha, gamma)
    assert worst(batch, steered(backbone, batch, found, alpha, gamma), expected) < 1e-5
    before = slow(family, batch, some_directions(backbone), alpha, gamma)
    rotates = family != "gpt2"
    assert (worst(batch, before, expected) > 1e-4) == rotates


@pytest.mark.parametrize("family", FAMILIES)
def test_the_two_scales_differ_by_the_attention_scale(family: str) -> None:
    backbone, batch = tiny_backbone(family), some_batch()
    found = some_directions(backbone)
    alpha, gamma = some_strengths(backbone, found, 3)
    factors = torch.tensor([softmax_scale(family, layer) for layer in found.layers])[:, None]
    torch.testing.assert_close(
        steered(backbone, batch, found, alpha, gamma, "attention"),
        steered(backbone, batch, found, alpha * factors, gamma, "paper"),
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("zero", ["alpha", "gamma"])
def test_no_strength_is_the_model_itself_bit_for_bit(family: str, zero: str) -> None:
    backbone, batch = tiny_backbone(family), some_batch()
    found = some_directions(backbone)
    alpha, gamma = some_strengths(backbone, found, 3)
    alpha, gamma = (alpha * 0, gamma) if zero == "alpha" else (alpha, gamma * 0)
    assert torch.equal(steered(backbone, batch, found, alpha, gamma), plain(backbone, batch))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_can_be_routed_and_a_zero_layer_is_left_alone(family: str) -> None:
    backbone, batch = tiny_backbone(family), some_batch()
    found = some_directions(backbone, layers=list(range(6)))
    alpha, gamma = some_strengths(backbone, found, 3)
    alpha, gamma = 0.2 * alpha, gamma.clone()
    alpha[:, 2] = 0
    gamma[:, 4] = 0
    assert worst(batch, steered(backbone, batch, found, alpha, gamma), slow(family, batch, found, alpha, gamma)) < 2e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_without_strength_among_others(family: str) -> None:
    backbone, batch = tiny_backbone(family), some_batch()
    found = some_directions(backbone)
    alpha, gamma = some_strengths(backbone, found, 3)
    alpha[1] = 0
    logits, untouched = steered(backbone, batch, found, alpha, gamma), plain(backbone, batch)
    torch.testing.assert_close(logits[1], untouched[1], atol=1e-5, rtol=1e-5)
    assert worst(batch, logits, untouched) > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_does_not_see_the_strengths_of_others(family: str) -> None:
    backbone, batch = tiny_backbone(family), some_batch((30, 30, 30))
    found = some_directions(backbone)
    alpha, gamma = some_strengths(backbone, found, 3)
    together = steered(backbone, batch, found, alpha, gamma)
    for row in range(3):
        alone = make_batch([batch.input_ids[row].tolist()], ["text"])
        own = slice(row, row + 1)
        logits = steered(backbone, alone, found, alpha[own], gamma[own])
        torch.testing.assert_close(together[own], logits, atol=1e-5, rtol=1e-5)
    other = alpha.clone()
    other[2] = -other[2]
    changed = steered(backbone, batch, found, other, gamma)
    torch.testing.assert_close(changed[:2], together[:2], atol=1e-5, rtol=1e-5)
    assert (changed[2] - together[2]).abs().max() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_gamma_is_per_head(family: str) -> None:
    """Opening one head's gate changes that head's attention, as the reference sees it, and no other's."""
    backbone, batch = tiny_backbone(family), some_batch((30,))
    found = some_directions(backbone, layers=[5])
    alpha, _ = some_strengths(backbone, found, 1)
    seen = []
    for head in range(6):
        gamma = torch.zeros(1, 1, 6)
        gamma[0, 0, head] = 1
        logits = steered(backbone, batch, found, alpha, gamma)
        assert worst(batch, logits, slow(family, batch, found, alpha, gamma)) < 1e-5
        seen.append(logits)
    assert min(float((a - b).abs().max()) for i, a in enumerate(seen) for b in seen[:i]) > 1e-3


@pytest.mark.parametrize("position", ["pre_rope", "post_rope"])
@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_with_a_cache_equals_one_pass(family: str, position: str) -> None:
    backbone, whole = tiny_backbone(family), some_batch((45, 45))
    found = some_directions(backbone, position=position)
    alpha, gamma = some_strengths(backbone, found, 2)
    expected = steered(backbone, whole, found, alpha, gamma)
    cache = DynamicCache(config=backbone.model.config)
    pieces, start = [], 0
    with torch.inference_mode(), routed(backbone, found, alpha, gamma, "paper"):
        for width in (20, 1, 1, 1, 7, 1, 14):  # a prefill, then single tokens and pieces, beyond both windows
            rows = whole.input_ids[:, start : start + width].tolist()
            pieces.append(
                backbone.logits(backbone.hidden_states(make_batch(rows, ["", ""], prefix_length=start), cache))
            )
            start += width
    assert start == 45
    assert worst(whole, torch.cat(pieces, 1), expected) < 2e-5


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox"])
def test_generation_keeps_the_strengths_of_the_prompt(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny_backbone(family)
    batch = some_batch((40, 23, 9), padding="left")
    fitted = small_fitted(backbone, alive=True)
    asked: list[tuple[str, ...]] = []
    found = some_directions(backbone)
    alpha, gamma = some_strengths(backbone, found, 3)

    def strengths(_self: ICRFitted, texts: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        asked.append(texts)
        return alpha, gamma

    monkeypatch.setattr(ICRFitted, "strengths", strengths)
    model: Any = backbone.model
    with torch.inference_mode(), fitted.applied(backbone, batch):
        made = model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            do_sample=False,
            max_new_tokens=6,
            min_new_tokens=6,
            pad_token_id=258,
        )
    assert asked == [batch.texts]
    for row, length in enumerate((40, 23, 9)):
        tokens = made[row, 40 - length :].tolist()
        reference = slow(
            family, make_batch([tokens], [""]), fitted.directions, alpha[row : row + 1], gamma[row : row + 1]
        )
        greedy = reference[0, length - 1 : -1].clone()
        greedy[:, 257] = -torch.inf  # the end token was forbidden
        assert tokens[length:] == greedy.argmax(1).tolist()


def small_fitted(backbone: Backbone, *, alive: bool = False, closed: bool = False) -> ICRFitted:
    """An ICR artefact made by hand around an untrained router, whose alpha is zero."""
    found = some_directions(backbone)
    sizes = {"width": 384, "layers": len(found.layers), "rank": 3, "heads": 6, "hidden": 5}
    router = Router.initial(**sizes, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        if alive or closed:
            router.alpha[2].bias.fill_(0.3)
        if closed:
            router.gamma[2].weight.zero_()
            router.gamma[2].bias.fill_(-200)  # the sigmoid is zero to the last bit
    config = {
        "layers": found.layers,
        "position": "pre_rope",
        "routing_scale": "paper",
        "alpha_scale": 0.8,
        "encoder": "minilm",
        "embedding": "pipeline",
        "router": sizes,
    }
    state = {f"router.{name}": tensor for name, tensor in router.state_dict().items()}
    return ICRFitted(config, {"directions.queries": found.queries, "directions.keys": found.keys, **state})


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_zero_shot_bit_for_bit_without_strength(family: str) -> None:
    backbone, pool = tiny_backbone(family), demo_pool("sst2")
    examples = demo_test("sst2")[:6]
    reference = [row.option_logits for row in score(backbone, ZeroShotFitted({}, {}), pool.task, examples)]
    for fitted in (small_fitted(backbone), small_fitted(backbone, closed=True)):
        assert [row.option_logits for row in score(backbone, fitted, pool.task, examples)] == reference
    alive = score(backbone, small_fitted(backbone, alive=True), pool.task, examples)
    assert [row.option_logits for row in alive] != reference


@pytest.mark.parametrize("position", ["pre_rope", "post_rope"])
def test_leaving_the_context_restores_the_model(position: str) -> None:
    backbone, batch = tiny_backbone("qwen3"), some_batch()
    before = plain(backbone, batch)
    found = some_directions(backbone, position=position)
    alpha, gamma = some_strengths(backbone, found, 3)
    steered(backbone, batch, found, alpha, gamma)
    with pytest.raises(ZeroDivisionError), routed(backbone, found, alpha, gamma, "paper"):
        raise ZeroDivisionError
    assert torch.equal(plain(backbone, batch), before)
