"""MimIC: the shift is exact where its parts are, and no token's shift knows of later tokens or of padding."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from icr_setup import some_batch
from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.head_outputs import changed_heads
from icrbench.backbone.sites import Site, captured
from icrbench.methods.mimic import MimIC, MimICFitted
from icrbench.toolkit.distillation import Lessons, attempt
from method_setup import (
    DOMAINS,
    DTYPES,
    Training,
    assert_spread,
    fit,
    logits,
    some_lessons,
    trained,
    zero_shot_questions,
)
from slow_heads import assert_heads
from tiny import FAMILIES, LAYERS, tiny_backbone

__all__ = ["trained"]  # a fixture

families = pytest.mark.parametrize("family", FAMILIES)
SITES = [Site("mlp", layer) for layer in range(LAYERS)]
TINY = {"queries": 6, "per_class": 1, "per_task": 1, "queries_per_set": 3, "batch_size": 3, "epochs": 2}


def some_fitted(backbone: Backbone) -> MimICFitted:
    """Shifts as large as head outputs, and shares that are far from 0 and 1."""
    generator = torch.Generator().manual_seed(7)
    size = (LAYERS, backbone.dims.heads, backbone.dims.head_dim)
    return MimICFitted(
        {},
        {
            "shifts": torch.randn(size, generator=generator),
            "probes": 0.2 * torch.randn(size, generator=generator),
            "biases": 2 + torch.randn(size[:2], generator=generator),
        },
    )


def states(backbone: Backbone, fitted: MimICFitted, batch: Batch, cache: Any = None) -> Tensor:
    with torch.no_grad(), fitted.applied(backbone, batch):
        return backbone.hidden_states(batch, cache)


@families
@pytest.mark.parametrize("dtype", DTYPES)
def test_shift_0_is_zero_shot_bit_for_bit(family: str, dtype: str) -> None:
    backbone = tiny_backbone(family, DTYPES[dtype])
    fitted, questions = some_fitted(backbone), zero_shot_questions(backbone)
    assert not torch.equal(logits(backbone, fitted, questions), logits(backbone, None, questions))
    fitted.tensors["shifts"] = torch.zeros_like(fitted.tensors["shifts"])
    assert torch.equal(logits(backbone, fitted, questions), logits(backbone, None, questions))


@families
def test_heads_are_shifted_as_the_formula_says(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted, questions = some_fitted(backbone), zero_shot_questions(backbone)
    v, w, b = (fitted.tensors[name].double() for name in ("shifts", "probes", "biases"))

    def heads(layer: int, queries: Tensor, scores: Tensor, values: Tensor) -> Tensor:
        log_first = (queries * w[layer, :, None]).sum(-1) + b[layer, :, None]
        log_second = scores.logsumexp(-1)
        mu = (log_first - torch.logaddexp(log_first, log_second)).exp()
        return scores.softmax(-1) @ values + mu[..., None] * v[layer, :, None]

    assert_heads(family, fitted, questions, heads)


@families
def test_shares_do_not_know_later_tokens(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted, batch = some_fitted(backbone), some_batch((40,))
    changed = batch.input_ids.clone()
    changed[0, 30:] = changed[0, 30:].flip(0)
    other = make_batch([changed[0].tolist()], [""])
    both = [states(backbone, fitted, own)[0] for own in (batch, other)]
    torch.testing.assert_close(both[0][:30], both[1][:30], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(both[0][30:], both[1][30:], atol=0.1)


@families
def test_decoding_with_a_cache_equals_one_pass(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted, batch = some_fitted(backbone), some_batch((40, 33), padding="left")
    wanted = states(backbone, fitted, batch)
    cache = DynamicCache(config=backbone.model.config)
    first = Batch(
        batch.input_ids[:, :36], batch.attention_mask[:, :36], batch.position_ids[:, :36], batch.last - 4, batch.texts
    )
    found = []
    with torch.no_grad(), fitted.applied(backbone, first):
        found.append(backbone.hidden_states(first, cache))
        for at in range(36, 40):
            step = Batch(
                batch.input_ids[:, at : at + 1],
                batch.attention_mask[:, : at + 1],
                batch.position_ids[:, at : at + 1],
                batch.last,
                batch.texts,
            )
            found.append(backbone.hidden_states(step, cache))
    real = batch.attention_mask.bool()
    torch.testing.assert_close(torch.cat(found, 1)[real], wanted[real], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_the_true_demonstration_term_gives_what_attention_to_demonstrations_gives(family: str) -> None:
    """In the first block, whose inputs demonstrations leave as they are, for the last of the query's tokens."""
    backbone = tiny_backbone(family)
    batch = some_batch((40,))
    tokens, site = batch.input_ids[0].tolist(), Site("heads", 0)
    read: dict[str, Any] = {}

    def run(name: str, own: list[int], places: range) -> None:
        one = torch.tensor([list(own)])
        where = torch.tensor([list(places)])
        part = Batch(one, torch.ones_like(one), where, torch.tensor([len(own) - 1]), ("",))

        def keep(layer: int, heads: Any) -> Tensor:
            if layer == 0:
                read[name] = heads
            return heads.outputs

        with torch.no_grad(), changed_heads(backbone, part, keep):
            backbone.hidden_states(part)
        read[f"{name} batch"] = part

    # The demonstrations with the query's last token behind them tell what that token attends to in them: its own key
    # and value are taken out again.
    run("whole", tokens, range(40))
    run("query", tokens[25:], range(25, 40))
    run("last", tokens[39:], range(39, 40))
    run("demonstrations", [*tokens[:25], tokens[39]], [*range(25), 39])  # type: ignore[arg-type]
    whole, query, last, front = (read[name] for name in ("whole", "query", "last", "demonstrations"))
    z_front, z_last = front.log_normaliser[0, -1].double().exp(), last.log_normaliser[0, -1].double().exp()
    z = (z_front - z_last)[:, None]
    attended = (z_front[:, None] * front.outputs[0, -1] - z_last[:, None] * last.outputs[0, -1]) / z
    size = (LAYERS, backbone.dims.heads, backbone.dims.head_dim)
    fitted = MimICFitted(
        {},
        {
            "shifts": (attended - query.outputs[0, -1].double()).float().expand(size),
            "probes": torch.zeros(size),
            "biases": z[:, 0].log().float().expand(size[:2]),
        },
    )
    with torch.no_grad(), fitted.applied(backbone, read["query batch"]), captured(backbone, [site]) as seen:
        backbone.hidden_states(read["query batch"])
    found = seen[site][0, -1].view(size[1:])
    torch.testing.assert_close(found, whole.outputs[0, -1], rtol=1e-3, atol=1e-3)
    assert not torch.allclose(query.outputs[0, -1], whole.outputs[0, -1], atol=0.05)


def test_the_objective_is_distance_and_cross_entropy() -> None:
    backbone = tiny_backbone("llama")
    found = attempt(backbone, some_fitted(backbone), some_lessons(backbone, SITES), SITES)
    wanted = 3 * found.distance() + 0.25 * found.cross_entropy()
    assert float(MimIC(w_distance=3, w_answer=0.25).objective(found)) == pytest.approx(float(wanted))
    assert min(float(found.distance()), float(found.cross_entropy())) > 0.1


def test_what_is_trained_and_from_where(trained: list[Training]) -> None:
    fitted = fit("mimic", queries=4, per_class=1)
    (own,) = trained
    assert own.rates == {"shifts": 0.005, "probes": 0.005, "biases": 0.005}
    shifts, probes = fitted.tensors["shifts"], fitted.tensors["probes"]
    assert_spread(shifts, 0.001)
    assert_spread(probes, 0.02)
    assert abs(float(torch.corrcoef(torch.stack([shifts.flatten(), probes.flatten()]))[0, 1])) < 0.3
    assert not fitted.tensors["biases"].any()
    assert list(own.sites) == SITES
    assert isinstance(own.lessons, Lessons)
    assert [set(lesson.vectors) for lesson in own.lessons.taught(range(4), 0)] == [set(SITES)] * 4
    assert getattr(own.objective, "__func__", None) is MimIC.objective


@pytest.mark.parametrize(("names", "target"), [(("trec",), "trec"), (DOMAINS, None)])
def test_both_protocols_fit_and_the_count_is_the_formula_s(names: Any, target: str | None) -> None:
    backbone = tiny_backbone("qwen3")
    fitted = fit("mimic", backbone, names, target, **TINY)
    assert fitted.cached_parameters == fitted.parameters_by_formula(backbone.dims) == LAYERS * 6 * (2 * 16 + 1)


def test_published_sizes() -> None:
    assert (MimIC().learning_rate, MimIC().weight_decay, MimIC().batch_size) == (0.005, 0.001, 4)
    assert (MimIC().w_distance, MimIC().w_answer, MimIC().clip, MimIC().warmup) == (1, 0.5, 1, 0.1)
