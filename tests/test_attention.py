from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.attention import Position, extra_channels, queries_and_keys
from icrbench.backbone.attention_kernel import ATTENTION_NAME, Channels
from icrbench.backbone.batch import PaddingSide
from reference import LowRank, low_rank, reference_logits, window
from tiny import EVERY_FAMILY, LAYERS, WINDOWED, tiny_backbone, tiny_model

LENGTHS = (40, 23, 31)  # the longest is longer than every window
POSITIONS: tuple[Position, ...] = ("pre_rope", "post_rope")

families = pytest.mark.parametrize("family", EVERY_FAMILY)
positions = pytest.mark.parametrize("position", POSITIONS)


def tokens(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 256, (length,), generator=generator).tolist() for length in lengths]


def a_batch(lengths: tuple[int, ...] = LENGTHS, padding: PaddingSide = "right") -> Batch:
    return make_batch(tokens(lengths), [""] * len(lengths), padding=padding)


def real(batch: Batch, logits: Tensor) -> Tensor:
    """Logits of tokens, without those of padding."""
    return logits[batch.attention_mask.bool()]


def all_logits(backbone: Backbone, batch: Batch) -> Tensor:
    return real(batch, backbone.logits(backbone.hidden_states(batch)))


def term_for(family: str, layers: list[int] | None = None, rows: int = len(LENGTHS)) -> LowRank:
    return low_rank(family, [1, 3, 4, 5] if layers is None else layers, rows)


def close(found: Tensor, wanted: Tensor, relative: float) -> bool:
    """Largest difference against the size of the logits."""
    return float((found.double() - wanted.double()).abs().max()) <= relative * float(wanted.abs().max())


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@families
def test_the_oracle_without_a_term_is_the_librarys_own_model(family: str) -> None:
    model = tiny_model(family, torch.float64)
    model.set_attn_implementation("eager")
    batch = a_batch()
    found = reference_logits(family, batch)
    for row, sequence in enumerate(tokens()):
        wanted = model(torch.tensor([sequence])).logits[0]
        # not closer, since the library computes some norms in float32 whatever the model's type
        assert close(found[row, : len(sequence)], wanted, 3e-6)


@families
@positions
@pytest.mark.parametrize("padding", ["left", "right"])
def test_extra_channels_are_the_bias_spelled_out(family: str, position: Position, padding: PaddingSide) -> None:
    backbone, batch, term = tiny_backbone(family), a_batch(padding=padding), term_for(family)
    wanted = real(batch, reference_logits(family, batch, term, position))
    with extra_channels(backbone, term.layers, term.channels, position):
        found = all_logits(backbone, batch)
    assert close(found, wanted, 1e-5)
    plain = all_logits(backbone, batch)
    assert not close(plain, wanted, 0.05), "the term must matter"


@families
def test_before_and_after_rotation_differ_where_there_is_rotation(family: str) -> None:
    backbone, batch, term = tiny_backbone(family), a_batch(), term_for(family)
    found = []
    for position in POSITIONS:
        with extra_channels(backbone, term.layers, term.channels, position):
            found.append(all_logits(backbone, batch))
    assert close(found[0], found[1], 1e-5) == (family == "gpt2")


@families
def test_one_row_without_padding_takes_the_unmasked_kernel(family: str) -> None:
    backbone, batch, term = tiny_backbone(family), a_batch((12,)), term_for(family, rows=1)
    with extra_channels(backbone, term.layers, term.channels):
        found = all_logits(backbone, batch)
    assert close(found, real(batch, reference_logits(family, batch, term)), 1e-5)


@families
@positions
def test_no_layers_leave_the_model_bit_for_bit(family: str, position: Position) -> None:
    backbone, batch = tiny_backbone(family), a_batch()
    before = all_logits(backbone, batch)
    with extra_channels(backbone, [], term_for(family).channels, position):
        assert torch.equal(all_logits(backbone, batch), before)


@families
@positions
def test_channels_of_zeros_add_nothing(family: str, position: Position) -> None:
    backbone, batch, term = tiny_backbone(family), a_batch(), low_rank(family, [1, 5], 3, strength=0.0)
    before = all_logits(backbone, batch)
    with extra_channels(backbone, term.layers, term.channels, position):
        assert close(all_logits(backbone, batch), before, 1e-6)


@families
@positions
def test_reading_queries_and_keys_changes_nothing(family: str, position: Position) -> None:
    backbone, batch = tiny_backbone(family), a_batch()
    before = all_logits(backbone, batch)
    seen: list[int] = []
    layers = list(range(LAYERS))
    with queries_and_keys(backbone, layers, lambda layer, queries, keys: seen.append(layer), position):
        assert torch.equal(all_logits(backbone, batch), before)
    assert seen == layers


def leftovers(backbone: Backbone) -> list[str]:
    """Hooks and attributes on any module that were not there at the start."""
    found = []
    for name, module in backbone.model.named_modules():
        found += [f"{name}.{key}" for key in vars(module) if key.startswith("_icrbench") or key == "forward"]
        found += [f"{name} hook" for _ in [*module._forward_hooks, *module._forward_pre_hooks]]
    return found


@families
@positions
def test_leaving_restores_the_model(family: str, position: Position) -> None:
    backbone, batch, term = tiny_backbone(family), a_batch(), term_for(family)
    before = all_logits(backbone, batch)
    assert not leftovers(backbone)
    with extra_channels(backbone, term.layers, term.channels, position):
        assert leftovers(backbone)
        routed = all_logits(backbone, batch)
    assert not leftovers(backbone)
    assert torch.equal(all_logits(backbone, batch), before)
    assert not torch.equal(routed, before)


@families
@positions
def test_an_exception_in_a_forward_pass_restores_the_model(family: str, position: Position) -> None:
    backbone, batch, term = tiny_backbone(family), a_batch(), term_for(family)
    before = all_logits(backbone, batch)

    def fails(layer: int, queries: Tensor, keys: Tensor) -> Channels:
        if layer == 4:
            raise ZeroDivisionError
        return term.channels(layer, queries, keys)

    with pytest.raises(ZeroDivisionError), extra_channels(backbone, term.layers, fails, position):
        all_logits(backbone, batch)
    assert not leftovers(backbone)
    assert torch.equal(all_logits(backbone, batch), before)


@positions
def test_a_failed_pass_does_not_spoil_the_next_in_the_same_context(position: Position) -> None:
    backbone, batch, term = tiny_backbone("llama"), a_batch(), term_for("llama")
    failures = [ZeroDivisionError()]

    def fails_once(layer: int, queries: Tensor, keys: Tensor) -> Channels:
        if layer == 4 and failures:
            raise failures.pop()
        return term.channels(layer, queries, keys)

    with extra_channels(backbone, term.layers, fails_once, position):
        with pytest.raises(ZeroDivisionError):
            all_logits(backbone, batch)
        found = all_logits(backbone, batch)
    assert close(found, real(batch, reference_logits("llama", batch, term, position)), 1e-5)


@families
@positions
@pytest.mark.parametrize("chunks", [[10] + [1] * 30, [18, 17, 5]], ids=["token by token", "in pieces"])
def test_decoding_with_a_cache_is_the_full_pass(family: str, position: Position, chunks: list[int]) -> None:
    backbone, term = tiny_backbone(family), term_for(family, rows=2)
    lengths = (sum(chunks), sum(chunks))  # far beyond the windows
    batch = a_batch(lengths)
    cache = DynamicCache(config=backbone.model.config)
    pieces, start = [], 0
    with extra_channels(backbone, term.layers, term.channels, position):
        whole = backbone.logits(backbone.hidden_states(batch))
        for size in chunks:
            part = Batch(
                batch.input_ids[:, start : start + size],
                batch.attention_mask[:, : start + size],
                batch.position_ids[:, start : start + size],
                batch.last,
                batch.texts,
            )
            pieces.append(backbone.logits(backbone.hidden_states(part, cache)))
            start += size
    assert close(torch.cat(pieces, 1), whole, 1e-5)


@families
@positions
def test_generation_with_a_cache_is_computing_each_step_from_scratch(family: str, position: Position) -> None:
    backbone, term, steps = tiny_backbone(family), term_for(family), 12
    batch = a_batch((18, 7, 12), padding="left")  # passes all windows while it decodes
    with extra_channels(backbone, term.layers, term.channels, position):
        made = backbone.model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            max_new_tokens=steps,
            min_new_tokens=steps,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        rows = tokens((18, 7, 12))
        for step in range(steps):
            again = make_batch(rows, batch.texts, padding="left")
            logits = backbone.logits(again.at_last(backbone.hidden_states(again)))
            assert close(made.logits[step], logits, 1e-5)
            logits[:, 257] = -torch.inf  # the end is not allowed before min_new_tokens
            chosen = logits.argmax(-1).tolist()
            assert made.sequences[:, 18 + step].tolist() == chosen
            rows = [[*row, token] for row, token in zip(rows, chosen, strict=True)]


@pytest.mark.parametrize("family", WINDOWED)
def test_windows_are_shorter_than_the_prompts(family: str) -> None:
    """Else nothing above would say anything about windows."""
    cache = DynamicCache(config=tiny_backbone(family).model.config)
    tiny_backbone(family).hidden_states(a_batch((40,)), cache)
    widths = [layer.keys.shape[2] for layer in cache.layers]
    assert widths == [(window(family, layer) or 41) - 1 for layer in range(LAYERS)]


@families
@positions
def test_bfloat16_runs(family: str, position: Position) -> None:
    backbone, batch, term = tiny_backbone(family, torch.bfloat16), a_batch(padding="left"), term_for(family)
    with extra_channels(backbone, term.layers, term.channels, position):
        found = all_logits(backbone, batch)
        assert found.isfinite().all()
        made = backbone.model.generate(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, max_new_tokens=3, do_sample=False
        )
    assert made.shape[1] <= batch.input_ids.shape[1] + 3
    wanted = real(batch, reference_logits(family, batch, term, position))
    direction = torch.nn.functional.cosine_similarity(found.double(), wanted, dim=-1)
    assert float(direction.median()) > 0.9  # rounding of bfloat16, not another computation


def test_attention_is_never_registered_without_its_mask() -> None:
    tiny_backbone("llama")
    assert ATTENTION_NAME in ALL_ATTENTION_FUNCTIONS.valid_keys()
    assert ATTENTION_NAME in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys()


@positions
def test_channels_carry_gradients(position: Position) -> None:
    backbone = tiny_backbone("llama")
    with torch.inference_mode(False), torch.enable_grad():
        batch = a_batch()
        alpha = term_for("llama").alpha.requires_grad_()
        trained = replace(term_for("llama", [4, 5]), alpha=alpha)
        with extra_channels(backbone, trained.layers, trained.channels, position):
            loss = backbone.hidden_states(batch).square().mean()
        loss.backward()
        assert alpha.grad is not None
        assert alpha.grad.abs().min() > 0
