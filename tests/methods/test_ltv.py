"""LTV: the map it solves for, what it is solved from, and that it reaches the few-shot logits where it can."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from icr_setup import demo_pool, pools
from icrbench.backbone import Backbone
from icrbench.backbone.batch import make_batch
from icrbench.method import FitData
from icrbench.methods.ltv import LTVFitted, ridge_map
from icrbench.registry import make_method
from icrbench.toolkit.episodes import Episode, Question, Questions, shares
from icrbench.toolkit.reading import last_token_vectors
from icrbench.util.errors import UserError
from method_setup import DOMAINS, DTYPES, Slow, fit, logits, zero_shot_questions
from tiny import FAMILIES, LAYERS, tiny_backbone

families = pytest.mark.parametrize("family", FAMILIES)
spaces = pytest.mark.parametrize("space", ["released", "final_in", "post_norm"])
READ = {"released": ("final", LAYERS - 1), "final_in": ("block", LAYERS - 1), "post_norm": ("final", LAYERS - 1)}
CHANGED = {**READ, "released": ("block", LAYERS - 1)}


def some_fitted(backbone: Backbone, space: str = "released", scale: float = 0.2) -> LTVFitted:
    width = backbone.dims.hidden
    matrix = scale * torch.randn(width, width, generator=torch.Generator().manual_seed(7))
    return LTVFitted({"space": space, "layer": LAYERS - 1}, {"matrix": matrix})


class Prompts:
    """Catches the prompts of a fit: zero-shot ones first, then those with demonstrations."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.read: list[list[Question]] = []
        self.episodes: list[Episode] = []

        def vectors(backbone: Backbone, questions: list[Question], sites: Any) -> Any:
            self.read.append(list(questions))
            return last_token_vectors(backbone, questions, sites)

        below = Questions.in_context

        def in_context(questions: Questions, episodes: Any) -> list[Question]:
            self.episodes = list(episodes)
            return below(questions, self.episodes)

        patch.setattr("icrbench.methods.ltv.last_token_vectors", vectors)
        patch.setattr(Questions, "in_context", in_context)


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> Prompts:
    return Prompts(monkeypatch)


@families
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_map_of_zeros_is_zero_shot_bit_for_bit(family: str, dtype: str) -> None:
    backbone = tiny_backbone(family, DTYPES[dtype])
    questions = zero_shot_questions(backbone)
    bare = logits(backbone, None, questions)
    assert not torch.equal(logits(backbone, some_fitted(backbone), questions), bare)
    assert torch.equal(logits(backbone, some_fitted(backbone, scale=0.0), questions), bare)


@families
@spaces
def test_the_last_tokens_state_gets_the_map_of_itself(family: str, space: str) -> None:
    backbone, slow = tiny_backbone(family), Slow(family)
    fitted = some_fitted(backbone, space)
    matrix = fitted.tensors["matrix"].double()
    questions = zero_shot_questions(backbone)
    edits = {CHANGED[space]: lambda h: torch.cat([h[:-1], h[-1:] + (matrix @ h[-1])[None]])}
    for padding in ("left", "right"):
        for own, found in zip(questions, logits(backbone, fitted, questions, padding), strict=True):
            wanted = slow.logits(own.prompt.tokens, edits)[-1]
            torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=2e-3)


@spaces
def test_no_other_token_is_changed(space: str) -> None:
    backbone = tiny_backbone("gemma3")
    questions = zero_shot_questions(backbone)
    batch = make_batch([own.prompt.tokens for own in questions], [own.prompt.text for own in questions])
    with torch.no_grad():
        bare = backbone.hidden_states(batch)
        with some_fitted(backbone, space).applied(backbone, batch):
            changed = backbone.hidden_states(batch)
    differs = (changed != bare).any(-1)
    last = torch.zeros_like(differs)
    last[batch.rows, batch.last] = True
    assert torch.equal(differs, last)


@families
@spaces
def test_the_fit_is_ridge_regression_of_shifts_on_zero_shot_states(family: str, space: str, prompts: Prompts) -> None:
    backbone, slow = tiny_backbone(family), Slow(family)
    fitted = fit("ltv", backbone, shots=4, queries=5, ridge=3.0, space=space)
    asked, shown = prompts.read
    for bare, long in zip(asked, shown, strict=True):
        assert (
            long.prompt.tokens[-len(bare.prompt.tokens) + backbone.adds_bos :]
            == bare.prompt.tokens[backbone.adds_bos :]
        )
        assert len(long.prompt.tokens) > 3 * len(bare.prompt.tokens)
    states, shifted = (
        torch.stack([slow.outputs(own.prompt.tokens)[READ[space]][-1] for own in questions], 1)  # [d, N]
        for questions in (asked, shown)
    )
    shifts = shifted - states
    primal = shifts @ states.T @ torch.linalg.inv(states @ states.T + 3 * torch.eye(len(states), dtype=states.dtype))
    torch.testing.assert_close(fitted.tensors["matrix"], primal.float(), rtol=1e-3, atol=1e-3)
    constant = fit("ltv", backbone, shots=4, queries=5, space=space, variant="constant")
    torch.testing.assert_close(constant.tensors["mean"], shifts.mean(1).float(), rtol=1e-3, atol=1e-3)


def test_the_released_form_is_the_default() -> None:
    """Fitted on states behind the final norm, applied to those before it."""
    fitted = fit("ltv", tiny_backbone("llama"), shots=4, queries=2)
    assert fitted.config["space"] == "released"


@families
@pytest.mark.parametrize("space", ["final_in", "post_norm"])  # what is read is what is changed
def test_a_single_query_gets_its_few_shot_logits(family: str, space: str, prompts: Prompts) -> None:
    backbone = tiny_backbone(family)
    fitted = fit("ltv", backbone, shots=4, queries=1, ridge=1e-9, space=space)
    asked, shown = prompts.read
    wanted = logits(backbone, None, shown)
    missing = (logits(backbone, None, asked) - wanted).abs().max()  # little, where windows hide the demonstrations
    assert (logits(backbone, fitted, asked) - wanted).abs().max() < 0.05 * missing


def test_a_great_ridge_is_zero_shot() -> None:
    backbone = tiny_backbone("llama")
    questions = zero_shot_questions(backbone)
    fitted = fit("ltv", backbone, shots=4, queries=5, ridge=1e12)
    torch.testing.assert_close(
        logits(backbone, fitted, questions), logits(backbone, None, questions), rtol=0, atol=1e-4
    )


def test_the_constant_variant_adds_one_vector() -> None:
    backbone = tiny_backbone("llama")
    fitted = fit("ltv", backbone, shots=4, queries=5, variant="constant", space="post_norm")
    questions = zero_shot_questions(backbone)
    head = backbone.model.get_output_embeddings().weight
    wanted = logits(backbone, None, questions) + head @ fitted.tensors["mean"]
    torch.testing.assert_close(logits(backbone, fitted, questions), wanted, rtol=1e-4, atol=1e-3)
    assert fitted.cached_parameters == fitted.parameters_by_formula(backbone.dims) == 48


def test_the_map_is_where_the_regularised_error_is_least() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, outputs = (torch.randn(7, 12, generator=generator, dtype=torch.float64) for _ in range(2))

    def error(matrix: Tensor) -> Tensor:
        return (outputs - inputs @ matrix.T).square().sum() + 0.3 * matrix.square().sum()

    found = ridge_map(inputs, outputs, 0.3).requires_grad_(True)
    (gradient,) = torch.autograd.grad(error(found), found)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-10)


def test_queries_are_not_among_the_demonstrations(prompts: Prompts) -> None:
    fit("ltv", shots=30, queries=256)
    shown = {row.example.content_hash for row in prompts.episodes[0].demonstrations}
    asked = [episode.query.example.content_hash for episode in prompts.episodes]
    assert len(shown) == 30
    assert not shown & set(asked)
    assert set(asked) | shown == {row.content_hash for row in demo_pool("sst2").train}  # all that are left are asked
    assert all(episode.demonstrations == prompts.episodes[0].demonstrations for episode in prompts.episodes)


def test_tasks_without_demonstrations_learn_from_every_domain(prompts: Prompts) -> None:
    fit("ltv", None, DOMAINS, None, shots=10, queries=10)
    for rows in (prompts.episodes[0].demonstrations, [episode.query for episode in prompts.episodes]):
        names = [row.task.name for row in rows]
        assert set(names) <= set(DOMAINS)
        assert len(names) == 10
    assert sorted(row.task.name for row in prompts.episodes[0].demonstrations) == sorted([*DOMAINS, *DOMAINS])


def test_shots_are_dealt_evenly() -> None:
    def data(*names: str, target: str | None) -> FitData:
        return FitData(pools(*names), target, Path("unused"))

    assert shares(data("sst2", target="sst2"), 30)[0] == 15
    assert shares(data("agnews", target="agnews"), 30)[0] == 7
    assert shares(data("trec", target="trec"), 3)[0] == 1
    assert shares(data(*DOMAINS, target=None), 30)[1] == 6


@families
def test_the_count_of_parameters_is_the_formula(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted = fit("ltv", backbone, shots=2, queries=2)
    assert fitted.cached_parameters == fitted.parameters_by_formula(backbone.dims) == 48 * 48


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(UserError, match="ridge must be above 0"):
        make_method("ltv", {"ridge": 0})
    with pytest.raises(UserError, match="lower"):
        fit("ltv", shots=40)
