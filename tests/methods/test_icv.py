"""ICV: the shift it reads, and the turn that keeps norms."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from icr_setup import pools
from icrbench.backbone import Backbone
from icrbench.method import FitData
from icrbench.methods.icv import STRENGTHS, ICVFitted, _turned, shift, states
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.toolkit.episodes import Episodes, Labelled, Questions
from icrbench.util.errors import UserError
from method_setup import DOMAINS, DTYPES, Slow, fit, logits, zero_shot_questions
from tiny import FAMILIES, LAYERS, tiny_backbone

families = pytest.mark.parametrize("family", FAMILIES)


def some_fitted(backbone: Backbone, strength: float) -> ICVFitted:
    vectors = torch.randn(LAYERS, backbone.dims.hidden, generator=torch.Generator().manual_seed(7))
    return ICVFitted({"strength": strength, "sweep": []}, {"vectors": 3 * vectors})


def turned(x: Tensor, v: Tensor, strength: float) -> Tensor:
    """The formula, token by token."""
    rows = []
    for own in x:
        length = own.dot(own).sqrt()
        u = v / v.dot(v).sqrt()
        s = 1 + max(0.0, float(-own.dot(u) / length))
        moved = own / length + strength * s * u
        rows.append(moved / moved.dot(moved).sqrt() * length)
    return torch.stack(rows)


@families
@pytest.mark.parametrize("dtype", DTYPES)
def test_strength_0_is_zero_shot_up_to_rounding(family: str, dtype: str) -> None:
    backbone = tiny_backbone(family, DTYPES[dtype])
    questions = zero_shot_questions(backbone)
    bare = logits(backbone, None, questions)
    changed = logits(backbone, some_fitted(backbone, 0.5), questions)
    assert (changed - bare).abs().max() > 0.1
    close = 1e-4 if dtype == "float32" else 0.05 * float(bare.abs().max())
    torch.testing.assert_close(logits(backbone, some_fitted(backbone, 0.0), questions), bare, rtol=1e-5, atol=close)


@families
def test_the_mlp_output_of_every_block_is_turned_at_every_token(family: str) -> None:
    backbone, slow = tiny_backbone(family), Slow(family)
    fitted = some_fitted(backbone, 0.3)
    vectors = fitted.tensors["vectors"].double()
    edits = {("mlp", layer): lambda x, v=vectors[layer]: turned(x, v, 0.3) for layer in range(LAYERS)}
    questions = zero_shot_questions(backbone)
    for padding in ("left", "right"):
        for own, found in zip(questions, logits(backbone, fitted, questions, padding), strict=True):
            wanted = slow.logits(own.prompt.tokens, edits)[-1]
            torch.testing.assert_close(found, wanted.float(), rtol=0, atol=2e-3)


def test_norms_are_kept_and_a_great_strength_leaves_the_direction_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, 5, 48, generator=generator) * torch.tensor([0.1, 30.0])[:, None, None]
    vector = torch.randn(48, generator=generator)
    for strength in (0.0, 0.1, 2.0, 1e6):
        torch.testing.assert_close(_turned(vector, strength)(outputs).norm(dim=-1), outputs.norm(dim=-1))
    far = _turned(vector, 1e6)(outputs)
    assert (torch.cosine_similarity(far, vector, dim=-1) > 0.9999).all()
    small, smaller = _turned(vector, 1e-3)(outputs) - outputs, _turned(vector, 1e-4)(outputs) - outputs
    assert small.norm() < 1e-2 * outputs.norm()  # no jump at 0
    assert smaller.norm() < 0.2 * small.norm()


def test_what_points_away_from_the_vector_is_turned_up_to_twice_as_hard() -> None:
    vector = torch.eye(4)[0]
    across, against = torch.eye(4)[1], -torch.eye(4)[0] + 1e-3 * torch.eye(4)[1]
    edit = _turned(vector, 0.1)
    assert float(edit(across[None])[0] @ vector) == pytest.approx(0.1 / 1.01**0.5, abs=1e-4)
    # against: -1 + 0.1 * 2 along the vector, the rest across it
    moved = torch.tensor([-0.8, 1e-3, 0, 0])
    torch.testing.assert_close(edit(against[None])[0], moved / moved.norm() * against.norm(), rtol=0, atol=1e-5)


@families
def test_states_are_the_residual_stream_at_the_last_token_embeddings_first(family: str) -> None:
    backbone, slow = tiny_backbone(family), Slow(family)
    texts = ["Review: good\nSentiment:", "Review: a longer bad one\nSentiment:"]
    for text, found in zip(texts, states(backbone, texts), strict=True):
        outputs = slow.outputs(backbone.encode(text))
        wanted = torch.stack([outputs["block", layer][-1] for layer in range(-1, LAYERS)])
        torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("pair", ["answered", "label"])
def test_a_pair_is_a_prompt_without_and_with_its_answer(pair: str) -> None:
    backbone, slow = tiny_backbone("llama"), Slow("llama")
    fitted = fit("icv", backbone, per_class=2, direction="mean", pair=pair, strength=0.1)
    data = FitData(pools("sst2"), "sst2", Path("unused"))
    shown = Episodes(data, Randomness(0), per_class=2, per_task=3, held_out=32).demonstrations()
    total = torch.zeros(LAYERS, backbone.dims.hidden, dtype=torch.float64)
    for own in shown:
        answer = own.task.answer(own.example)
        second = own.task.demonstration(own.example) if pair == "answered" else answer
        for text, sign in ((second, 1), (own.task.prompt(own.example), -1)):
            outputs = slow.outputs(backbone.encode(text))
            total += sign * torch.stack([outputs["block", layer][-1] for layer in range(LAYERS)])
    torch.testing.assert_close(fitted.tensors["vectors"], (total / len(shown)).float(), rtol=1e-3, atol=1e-3)


def power_iteration(rows: Tensor) -> Tensor:
    """First principal component, the slow way, with the sign that makes the largest loading positive."""
    centred = rows - rows.mean(0)
    vector = centred[0] + 0.1 * centred[1]
    for _ in range(500):
        vector = centred.T @ (centred @ vector)
        vector = vector / vector.norm()
    loadings = centred @ vector
    return vector * loadings[loadings.abs().argmax()].sign()


def some_differences() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    spread = torch.tensor([3.0, 1.0, 0.5, 0.2, 0.1])[:, None] * torch.randn(5, 4 * 6, generator=generator)
    return (torch.randn(7, 5, generator=generator) @ spread + 2).unflatten(1, (4, 6))


def test_the_direction_is_component_plus_mean_over_all_layers_together() -> None:
    differences = some_differences()
    flat = differences.flatten(1).double()
    component, mean = power_iteration(flat), flat.mean(0)
    for direction, wanted in {"pc1": component, "mean": mean, "code": component + mean}.items():
        found = shift(differences, direction)  # type: ignore[arg-type]
        assert found.shape == (3, 6)
        torch.testing.assert_close(found, wanted.view(4, 6)[1:].float(), rtol=1e-4, atol=1e-5)


def test_swapping_the_texts_of_every_pair_turns_the_mean_round() -> None:
    differences = some_differences()
    assert torch.equal(shift(-differences, "mean"), -shift(differences, "mean"))


def test_the_strength_is_the_best_on_held_out_rows() -> None:
    backbone = tiny_backbone("llama")
    settings: dict[str, Any] = {"names": ("trec",), "target": "trec", "seed": 1, "per_class": 1, "held_out": 12}
    fitted = fit("icv", backbone, **settings)
    sweep = fitted.config["sweep"]
    assert len(sweep) == len(STRENGTHS)
    assert 0 < sweep.index(max(sweep)) < len(STRENGTHS) - 1  # these rows tell the strengths apart
    assert fitted.config["strength"] == STRENGTHS[sweep.index(max(sweep))]
    data = FitData(pools("trec"), "trec", Path("unused"))
    rows = Episodes(data, Randomness(1), per_class=1, per_task=3, held_out=12).held_out
    assert len(rows) == 12
    right = []
    for strength in STRENGTHS:
        fixed = fit("icv", backbone, strength=strength, **settings)
        assert fixed.config == {"strength": strength, "sweep": []}
        assert torch.equal(fixed.tensors["vectors"], fitted.tensors["vectors"])
        right.append(sum(answered(backbone, fixed, row) for row in rows) / 12)
    assert sweep == right


def answered(backbone: Backbone, fitted: Any, row: Labelled) -> bool:
    own = Questions(backbone)(row)
    return int(logits(backbone, fitted, [own])[0, list(own.prompt.options)].argmax()) == own.label


def test_tasks_without_demonstrations_learn_from_three_of_every_domain() -> None:
    backbone = tiny_backbone("llama")
    read: list[list[str]] = []

    def spy(own: Backbone, texts: list[str]) -> Tensor:
        read.append(texts)
        return states(own, texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("icrbench.methods.icv.states", spy)
        fit("icv", backbone, DOMAINS, None, strength=0.1)
    known = {pool.task.demonstration(row) for pool in pools(*DOMAINS).values() for row in pool.train}
    second, first = read
    assert len(set(second)) == 15
    assert set(second) <= known
    assert all(text.startswith(prompt + " ") for text, prompt in zip(second, first, strict=True))


@families
def test_the_count_of_parameters_is_the_formula(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted = fit("icv", backbone, per_class=1, strength=0.1)
    assert fitted.cached_parameters == fitted.parameters_by_formula(backbone.dims) == 48 * LAYERS


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(UserError, match="held_out must be at least 1"):
        make_method("icv", {"held_out": 0})
