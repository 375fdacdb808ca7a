"""M2IV-style vectors: what they add, and the term that couples both branches."""

from typing import Any

import pytest
import torch
from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.backbone.sites import Site
from icrbench.methods.m2iv import M2IV, M2IVFitted, synergy
from icrbench.toolkit.distillation import attempt
from method_setup import (
    DOMAINS,
    DTYPES,
    Slow,
    Training,
    assert_spread,
    fit,
    logits,
    some_lessons,
    trained,
    zero_shot_questions,
)
from tiny import FAMILIES, LAYERS, tiny_backbone

__all__ = ["trained"]  # a fixture

families = pytest.mark.parametrize("family", FAMILIES)
BRANCHES = ("attention", "mlp")
SITES = [Site(branch, layer) for layer in range(LAYERS) for branch in BRANCHES]  # type: ignore[arg-type]
TINY = {"queries": 6, "per_class": 1, "per_task": 1, "queries_per_set": 3, "batch_size": 3, "epochs": 2}


def some_fitted(backbone: Backbone) -> M2IVFitted:
    generator = torch.Generator().manual_seed(7)
    vectors = torch.randn(LAYERS, 2, backbone.dims.hidden, generator=generator)
    return M2IVFitted({}, {"vectors": vectors, "scales": 0.2 + torch.rand(LAYERS, 2, generator=generator)})


def additions(fitted: M2IVFitted, branches: Any = BRANCHES) -> Any:
    def add(layer: int, place: int) -> Any:
        added = fitted.tensors["scales"][layer, place].double() * fitted.tensors["vectors"][layer, place].double()
        return lambda outputs: outputs + added

    return {(branch, layer): add(layer, BRANCHES.index(branch)) for layer in range(LAYERS) for branch in branches}


@families
@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_0_is_zero_shot_bit_for_bit(family: str, dtype: str) -> None:
    backbone = tiny_backbone(family, DTYPES[dtype])
    fitted, questions = some_fitted(backbone), zero_shot_questions(backbone)
    assert not torch.equal(logits(backbone, fitted, questions), logits(backbone, None, questions))
    fitted.tensors["scales"] = torch.zeros(LAYERS, 2)
    assert torch.equal(logits(backbone, fitted, questions), logits(backbone, None, questions))


@families
@pytest.mark.parametrize("branches", [BRANCHES, ("mlp",)])
def test_scaled_vectors_are_added_to_both_branches_at_every_token(family: str, branches: Any) -> None:
    """Also with one half of them at 0."""
    backbone, slow = tiny_backbone(family), Slow(family)
    fitted, questions = some_fitted(backbone), zero_shot_questions(backbone)
    edits = additions(fitted, branches)
    if branches == ("mlp",):
        fitted.tensors["scales"][:, 0] = 0
    for padding in ("left", "right"):
        found = logits(backbone, fitted, questions, padding)
        for row, question in zip(found, questions, strict=True):
            torch.testing.assert_close(
                row.double(), slow.logits(question.prompt.tokens, edits)[-1], rtol=1e-3, atol=2e-3
            )


def edited_outputs(slow: Slow, fitted: M2IVFitted, tokens: list[int]) -> dict[Any, Tensor]:
    """What both branches add to the residual stream, with the vectors in it, ``[T, d]``."""
    found: dict[Any, Tensor] = {}

    def keep(place: Any, edit: Any) -> Any:
        return lambda states: found.setdefault(place, edit(states))

    slow.logits(tokens, {place: keep(place, edit) for place, edit in additions(fitted).items()})
    return found


def slow_synergy(first: Tensor, second: Tensor, w_apart: float) -> float:
    size = first.shape[1]
    first, second = (values - values.mean(0) for values in (first, second))
    total = 0.0
    for i in range(size):
        for j in range(size):
            correlation = float(first[:, i] @ second[:, j] / first[:, i].norm() / second[:, j].norm())
            total += (1 - correlation) ** 2 if i == j else w_apart * correlation**2
    return total / size


@pytest.mark.parametrize("rows", [4, 30])
def test_synergy_is_the_formula_for_few_and_for_many_tokens(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(rows, 12, generator=generator, dtype=torch.float64) for _ in range(2))
    assert float(synergy(first, second, 0.3)) == pytest.approx(slow_synergy(first, second, 0.3))


def test_synergy_is_0_for_equal_orthogonal_columns_of_any_length() -> None:
    drawn = torch.randn(20, 6, dtype=torch.float64)
    columns = torch.linalg.qr(drawn - drawn.mean(0)).Q
    assert float(synergy(columns, 3 * columns, 1.0)) == pytest.approx(0, abs=1e-12)
    assert float(synergy(columns + 5, columns - 7, 1.0)) == pytest.approx(0, abs=1e-12)  # correlations, not angles
    assert float(synergy(columns, columns.roll(1, 1), 0.0)) == pytest.approx(1)


def test_the_objective_sums_three_terms_over_real_tokens() -> None:
    backbone = tiny_backbone("gemma3")
    fitted, slow = some_fitted(backbone), Slow("gemma3")
    lessons = some_lessons(backbone)
    found = attempt(backbone, fitted, lessons, SITES)
    runs = [edited_outputs(slow, fitted, list(lesson.question.prompt.tokens)) for lesson in lessons]
    coupled = 0.0
    for layer in range(LAYERS):
        first, second = (torch.cat([run[branch, layer][1:] for run in runs]) for branch in BRANCHES)
        coupled += slow_synergy(first, second, 0.02) / LAYERS
    plain = float(found.divergence() + 0.25 * found.cross_entropy())
    weights = {"w_answer": 0.25, "w_apart": 0.02}
    assert float(M2IV(w_synergy=0.3, **weights).objective(found)) == pytest.approx(plain + 0.3 * coupled, rel=1e-4)
    without = attempt(backbone, fitted, lessons)
    assert float(M2IV(w_synergy=0, **weights).objective(without)) == pytest.approx(plain, rel=1e-4)
    assert 0.3 * coupled > 0.01


@pytest.mark.parametrize(("weight", "sites"), [(0.1, SITES), (0.0, [])])
def test_what_is_trained_and_from_where(trained: list[Training], weight: float, sites: list[Site]) -> None:
    fitted = fit("m2iv", queries=4, per_class=1, w_synergy=weight)
    (own,) = trained
    assert own.rates == {"vectors": 0.001, "scales": 0.01}
    assert_spread(fitted.tensors["vectors"], 0.01)
    assert fitted.tensors["scales"].flatten().tolist() == pytest.approx([0.1] * 2 * LAYERS)
    assert list(own.sites) == sites
    assert len(own.lessons) == 4
    assert getattr(own.objective, "__func__", None) is M2IV.objective


def test_sizes_are_those_of_live() -> None:
    assert (M2IV().learning_rate, M2IV().weight_decay, M2IV().epochs, M2IV().warmup) == (0.001, 0.001, 10, 0.1)
    assert (M2IV().w_answer, M2IV().w_synergy, M2IV().w_apart) == (0.5, 0.1, 0.005)


@pytest.mark.parametrize(("names", "target"), [(("trec",), "trec"), (DOMAINS, None)])
def test_both_protocols_fit_and_the_count_is_the_formula_s(names: Any, target: str | None) -> None:
    backbone = tiny_backbone("llama")
    fitted = fit("m2iv", backbone, names, target, **TINY)
    assert fitted.cached_parameters == fitted.parameters_by_formula(backbone.dims) == 2 * LAYERS * 48 + 2 * LAYERS


def test_it_says_that_it_is_our_own_form() -> None:
    assert "M2IV-style" in str(M2IV.__doc__).splitlines()[0]
    assert "own form" in str(M2IV.__doc__).splitlines()[0]
