"""LIVE: lengths are kept, directions turned, where and how the formula says."""

from typing import Any

import pytest
import torch
from torch import Tensor

from icrbench.backbone import Backbone
from icrbench.methods.live import LIVE, LIVEFitted, _turned
from icrbench.registry import make_method
from icrbench.toolkit.distillation import Lesson, attempt
from icrbench.util.errors import UserError
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
points = pytest.mark.parametrize("point", ["attention", "mlp", "block"])
TINY = {"queries": 6, "per_class": 1, "per_task": 1, "queries_per_set": 3, "batch_size": 3, "epochs": 2}


def some_fitted(backbone: Backbone, point: str = "attention") -> LIVEFitted:
    generator = torch.Generator().manual_seed(7)
    vectors = torch.randn(LAYERS, backbone.dims.hidden, generator=generator)
    scales = 0.2 + torch.rand(LAYERS, generator=generator)
    return LIVEFitted({"point": point}, {"vectors": vectors, "scales": scales})


@families
@points
@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_0_is_zero_shot_bit_for_bit(family: str, point: str, dtype: str) -> None:
    backbone = tiny_backbone(family, DTYPES[dtype])
    fitted, questions = some_fitted(backbone, point), zero_shot_questions(backbone)
    assert not torch.equal(logits(backbone, fitted, questions), logits(backbone, None, questions))
    fitted.tensors["scales"] = torch.zeros(LAYERS)
    assert torch.equal(logits(backbone, fitted, questions), logits(backbone, None, questions))


@families
@points
def test_every_token_of_every_block_is_turned(family: str, point: str) -> None:
    backbone, slow = tiny_backbone(family), Slow(family)
    fitted, questions = some_fitted(backbone, point), zero_shot_questions(backbone)
    vectors, scales = (fitted.tensors[name].double() for name in ("vectors", "scales"))

    def turn(layer: int) -> Any:
        def edit(h: Tensor) -> Tensor:
            moved = h + scales[layer] * vectors[layer]
            return moved / moved.norm(dim=-1, keepdim=True) * h.norm(dim=-1, keepdim=True)

        return edit

    edits = {(point, layer): turn(layer) for layer in range(LAYERS)}
    for padding in ("left", "right"):
        found = logits(backbone, fitted, questions, padding)
        for row, question in zip(found, questions, strict=True):
            torch.testing.assert_close(
                row.double(), slow.logits(question.prompt.tokens, edits)[-1], rtol=1e-3, atol=2e-3
            )


def test_lengths_are_kept_and_a_long_vector_gives_the_direction() -> None:
    states = torch.randn(2, 3, 8)
    states[0, 0] = 0
    vector = torch.randn(8)
    for scale in (0.1, 3.0):
        turned = _turned(vector, torch.tensor(scale))(states)
        assert turned.isfinite().all()
        torch.testing.assert_close(turned.norm(dim=-1), states.norm(dim=-1))
    far = _turned(vector, torch.tensor(1e6))(states)[1]
    torch.testing.assert_close(far / far.norm(dim=-1, keepdim=True), (vector / vector.norm()).expand_as(far))


@points
def test_gradients_reach_vectors_and_scales_alone(point: str) -> None:
    backbone = tiny_backbone("gemma3")
    fitted = some_fitted(backbone, point)
    for tensor in fitted.tensors.values():
        tensor.requires_grad_(True)
    attempt(backbone, fitted, [Lesson(own) for own in zero_shot_questions(backbone)]).cross_entropy().backward()
    for tensor in fitted.tensors.values():
        assert tensor.grad is not None
        assert (tensor.grad.flatten(1) if tensor.dim() > 1 else tensor.grad[:, None]).abs().sum(1).min() > 0
    assert all(parameter.grad is None for parameter in backbone.model.parameters())


def test_the_objective_is_imitation_and_cross_entropy() -> None:
    backbone = tiny_backbone("llama")
    found = attempt(backbone, some_fitted(backbone), some_lessons(backbone))
    wanted = found.divergence() + 0.25 * found.cross_entropy()
    assert float(LIVE(w_answer=0.25).objective(found)) == pytest.approx(float(wanted))
    assert min(float(found.divergence()), float(found.cross_entropy())) > 0.1


def test_what_is_trained_and_from_where(trained: list[Training]) -> None:
    fitted = fit("live", point="mlp", queries=4, per_class=1)
    (own,) = trained
    assert own.rates == {"vectors": 0.001, "scales": 0.01}
    assert fitted.config == {"point": "mlp"}
    assert_spread(fitted.tensors["vectors"], 0.01)
    assert fitted.tensors["scales"].tolist() == pytest.approx([0.1] * LAYERS)
    assert len(own.lessons) == 4
    assert getattr(own.objective, "__func__", None) is LIVE.objective


@pytest.mark.parametrize(("names", "target"), [(("trec",), "trec"), (DOMAINS, None)])
def test_both_protocols_fit_and_the_count_is_the_formula_s(names: Any, target: str | None) -> None:
    backbone = tiny_backbone("llama")
    fitted = fit("live", backbone, names, target, **TINY)
    assert fitted.config["point"] == "attention"
    assert fitted.cached_parameters == fitted.parameters_by_formula(backbone.dims) == LAYERS * 48 + LAYERS


def test_published_sizes_and_refusals() -> None:
    assert (LIVE().learning_rate, LIVE().learning_rate_scales, LIVE().weight_decay) == (0.001, 0.01, 0.001)
    assert (LIVE().epochs, LIVE().warmup, LIVE().clip, LIVE().w_answer, LIVE().queries_per_set) == (10, 0.1, 1, 0.5, 1)
    with pytest.raises(UserError, match=r"live.queries must be at least 1"):
        make_method("live", {"queries": 0})
    with pytest.raises(UserError, match="point"):
        make_method("live", {"point": "heads"})
