"""I2CL: what it reads, what it mixes in, and that calibration is AdamW on the published loss."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from icr_setup import demo_pool, pools
from icrbench.backbone import Backbone
from icrbench.method import FitData
from icrbench.methods.i2cl import I2CL, I2CLFitted, _injection, context_vectors
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.toolkit.episodes import Episodes, Labelled
from icrbench.util.errors import UserError
from method_setup import DOMAINS, DTYPES, Slow, fit, logits, zero_shot_questions
from tiny import FAMILIES, LAYERS, tiny_backbone

PLACES = {
    (point, layer): (layer, branch) for layer in range(LAYERS) for branch, point in enumerate(("attention", "mlp"))
}
families = pytest.mark.parametrize("family", FAMILIES)


def some_fitted(backbone: Backbone, inject: str = "linear", positions: str = "all") -> I2CLFitted:
    """Random vectors and coefficients, different in every branch."""
    generator = torch.Generator().manual_seed(7)
    vectors = torch.randn(LAYERS, 2, backbone.dims.hidden, generator=generator)
    coefficients = torch.tensor([0.1, 1.0]) + 0.2 * torch.randn(LAYERS, 2, 2, generator=generator)
    config = {"inject": inject, "positions": positions}
    return I2CLFitted(config, {"vectors": vectors, "coefficients": coefficients})


def formula(inject: str, outputs: Tensor, vector: Tensor, strength: Any, scale: Any) -> Tensor:
    if inject == "linear":
        return scale * outputs + strength * vector
    if inject == "add":
        return outputs + max(strength, 0) * vector
    return scale * ((1 - strength) * outputs + strength * vector)


@families
@pytest.mark.parametrize("dtype", DTYPES)
def test_lambda_0_and_beta_1_are_zero_shot_bit_for_bit(family: str, dtype: str) -> None:
    backbone = tiny_backbone(family, DTYPES[dtype])
    fitted = some_fitted(backbone)
    questions = zero_shot_questions(backbone)
    assert not torch.equal(logits(backbone, fitted, questions), logits(backbone, None, questions))
    fitted.tensors["coefficients"] = torch.tensor([0.0, 1.0]).repeat(LAYERS, 2, 1)
    assert torch.equal(logits(backbone, fitted, questions), logits(backbone, None, questions))


@families
@pytest.mark.parametrize("inject", ["linear", "add", "balance"])
def test_both_branches_of_every_block_are_mixed_at_every_token(family: str, inject: str) -> None:
    backbone, slow = tiny_backbone(family), Slow(family)
    fitted = some_fitted(backbone, inject)
    vectors, coefficients = (fitted.tensors[name].double() for name in ("vectors", "coefficients"))

    def edit(layer: int, branch: int) -> Any:
        strength, scale = coefficients[layer, branch].tolist()
        return lambda outputs: formula(inject, outputs, vectors[layer, branch], strength, scale)

    edits = {
        (point, layer): edit(layer, branch)
        for layer in range(LAYERS)
        for branch, point in enumerate(("attention", "mlp"))
    }
    questions = zero_shot_questions(backbone)
    for padding in ("left", "right"):
        for own, found in zip(questions, logits(backbone, fitted, questions, padding), strict=True):
            wanted = slow.logits(own.prompt.tokens, edits)[-1]
            torch.testing.assert_close(found, wanted.float(), rtol=0, atol=2e-3)


def test_the_last_token_alone_is_the_right_one() -> None:
    backbone, slow = tiny_backbone("llama"), Slow("llama")
    fitted = some_fitted(backbone, positions="last")
    vectors, coefficients = (fitted.tensors[name].double() for name in ("vectors", "coefficients"))

    def edit(layer: int, branch: int) -> Any:
        strength, scale = coefficients[layer, branch].tolist()
        return lambda o: torch.cat([o[:-1], formula("linear", o[-1:], vectors[layer, branch], strength, scale)])

    edits = {
        (point, layer): edit(layer, branch)
        for layer in range(LAYERS)
        for branch, point in enumerate(("attention", "mlp"))
    }
    questions = zero_shot_questions(backbone)
    for own, found in zip(questions, logits(backbone, fitted, questions), strict=True):
        torch.testing.assert_close(found, slow.logits(own.prompt.tokens, edits)[-1].float(), rtol=0, atol=2e-3)


@families
def test_vectors_are_means_of_branch_outputs_at_the_separator_after_each_answer(family: str) -> None:
    backbone, slow = tiny_backbone(family), Slow(family)
    fitted = fit("i2cl", backbone, per_class=2, epochs=1)
    shown = Episodes(FitData(pools("sst2"), "sst2", None), Randomness(0), per_class=2, per_task=3).demonstrations()  # type: ignore[arg-type]
    assert len(shown) == 4
    read = []
    for own in shown:
        tokens = backbone.encode(own.task.demonstration(own.example) + "\n")
        assert backbone.tokenizer.decode(tokens[-1:]) == "\n"
        outputs = slow.outputs(tokens)
        read.append(
            torch.stack([torch.stack([outputs[p, layer][-1] for p in ("attention", "mlp")]) for layer in range(LAYERS)])
        )
    wanted = torch.stack(read).mean(0)
    torch.testing.assert_close(fitted.tensors["vectors"], wanted.float(), rtol=1e-4, atol=1e-4)


def test_the_order_of_the_demonstrations_leaves_the_vectors_alone() -> None:
    backbone = tiny_backbone("llama")
    texts = [own.prompt.text + " great\n" for own in zero_shot_questions(backbone)]
    torch.testing.assert_close(context_vectors(backbone, texts), context_vectors(backbone, texts[::-1]))


def test_calibration_is_adamw_on_the_answers_cross_entropy_over_the_whole_vocabulary() -> None:
    backbone, slow = tiny_backbone("llama"), Slow("llama")
    rate, decay, steps = 0.05, 0.2, 6
    fitted = fit(
        "i2cl", per_class=2, epochs=3, noise=0.0, learning_rate=rate, weight_decay=decay, warmup=0.5, batch_size=2
    )
    data = FitData(pools("sst2"), "sst2", None)  # type: ignore[arg-type]
    shown = list(Episodes(data, Randomness(0), per_class=2, per_task=3).demonstrations())
    draw = Randomness(0).python("calibration")
    vectors = fitted.tensors["vectors"].double()
    coefficients = torch.tensor([0.1, 1.0]).double().repeat(LAYERS, 2, 1)
    first, second = torch.zeros_like(coefficients), torch.zeros_like(coefficients)
    losses = []
    for step in range(steps):
        leaf = coefficients.clone().requires_grad_(True)
        edits = {
            place: lambda o, c=leaf, v=vectors, at=at: c[at][1] * o + c[at][0] * v[at] for place, at in PLACES.items()
        }
        loss = torch.zeros((), dtype=torch.float64)
        for own in draw.sample(shown, 2):
            prompt = own.task.prompt(own.example)
            (answer,) = backbone.encode(own.task.answer(own.example)[0])  # one token a byte: the options' first letters
            found = slow.logits(backbone.encode(prompt), edits)[-1]
            loss = loss + cross_entropy(found[None], torch.tensor([answer])) / 2
        losses.append(loss.item())
        (gradient,) = torch.autograd.grad(loss, leaf)
        rising = 0.5 * steps
        factor = step / rising if step <= rising else 0.5 * (1 + math.cos(math.pi * step / steps))
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        moved = (first / (1 - 0.9 ** (step + 1))) / ((second / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8)
        coefficients = coefficients * (1 - rate * factor * decay) - rate * factor * moved
    torch.testing.assert_close(fitted.tensors["coefficients"], coefficients.float(), rtol=0, atol=2e-3)
    passes = [(losses[at] + losses[at + 1]) / 2 for at in range(0, steps, 2)]
    assert fitted.config["loss"] == pytest.approx(passes, abs=1e-3)


def test_calibration_lowers_the_loss_and_leaves_the_model_alone() -> None:
    backbone = tiny_backbone("gemma3")
    before = {name: tensor.clone() for name, tensor in backbone.model.state_dict().items()}
    loss = fit("i2cl", backbone, per_class=2, epochs=12, learning_rate=0.05).config["loss"]
    assert loss[-1] < loss[0] - 0.2
    for name, tensor in backbone.model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())


def test_noise_is_relative_to_each_tokens_output_and_grows_with_the_square_root_of_d() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(1, 2, 4096, generator=generator) * torch.tensor([1.0, 50.0])[:, None]
    clean = _injection(torch.zeros(4096), torch.tensor([0.1, 1.0]), "linear", 0.0, None)(outputs)
    noisy = _injection(torch.zeros(4096), torch.tensor([0.1, 1.0]), "linear", 0.001, generator)(outputs)
    relative = (noisy - clean).norm(dim=-1) / outputs.norm(dim=-1)
    torch.testing.assert_close(relative, torch.full((1, 2), 0.064), rtol=0.05, atol=0)


def test_no_gradient_flows_through_the_length_that_scales_the_noise() -> None:
    outputs = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
    vector, coefficients = torch.randn(8, generator=torch.Generator().manual_seed(1)), torch.tensor([0.3, 0.8])
    gradients = []
    for noise in (0.0, 0.5):
        leaf = coefficients.clone().requires_grad_(True)
        generator = torch.Generator().manual_seed(2)
        _injection(vector, leaf, "linear", noise, generator)(outputs).sum().backward()  # type: ignore[no-untyped-call]
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_noise_is_only_in_calibration_and_comes_from_the_seed() -> None:
    settings: dict[str, Any] = {"per_class": 1, "epochs": 4, "learning_rate": 0.05}
    noisy, again, clean = (fit("i2cl", noise=noise, **settings).tensors["coefficients"] for noise in (0.05, 0.05, 0.0))
    assert torch.equal(noisy, again)
    assert not torch.allclose(noisy, clean, atol=1e-3)
    backbone = tiny_backbone("llama")
    fitted, questions = some_fitted(backbone), zero_shot_questions(backbone)
    assert torch.equal(logits(backbone, fitted, questions), logits(backbone, fitted, questions))


def test_tasks_without_demonstrations_learn_from_three_of_every_domain() -> None:
    backbone = tiny_backbone("llama")
    read: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "icrbench.methods.i2cl.context_vectors",
            lambda own, texts: read.extend(texts) or context_vectors(own, texts),
        )
        fit("i2cl", backbone, DOMAINS, None, epochs=1, most_steps=2)
    assert len(set(read)) == 15
    known = {own.task.demonstration(own.example) + "\n" for name in DOMAINS for own in rows(name)}
    assert set(read) <= known


def rows(name: str) -> list[Labelled]:
    return [Labelled(demo_pool(name).task, row) for row in demo_pool(name).train]


def test_a_pass_is_as_many_minibatches_as_the_demonstrations_fill() -> None:
    method = I2CL()
    assert method._steps(10) == 500
    assert method._steps(5) == 200
    assert method._steps(1) == 100  # the code makes none
    assert I2CL(most_steps=30)._steps(10) == 30
    assert len(fit("i2cl", per_class=3, epochs=3, most_steps=7).config["loss"]) == 3


@families
def test_the_count_of_parameters_is_the_formula(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted = fit("i2cl", backbone, per_class=1, epochs=1)
    assert fitted.cached_parameters == fitted.parameters_by_formula(backbone.dims) == 2 * 48 * LAYERS + 4 * LAYERS


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(UserError, match="most_steps must be at least 1"):
        make_method("i2cl", {"most_steps": 0})
