"""Adaptive task vectors: what is added where, what is trained, and that one fit serves every task."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from icr_setup import pools
from icrbench.backbone import make_batch
from icrbench.backbone.sites import Site
from icrbench.backbone.steering import steered
from icrbench.method import FitData, Scope
from icrbench.methods.atv import ATV, ATVFitted
from icrbench.randomness import Randomness
from icrbench.toolkit.distillation import Lesson, attempt
from icrbench.toolkit.encoder import sentence_encoder
from icrbench.toolkit.universal import training_rows
from icrbench.util.errors import UserError
from method_setup import DOMAINS, DTYPES, Slow, Training, fit, logits, trained, zero_shot_questions
from official import golden
from tiny import FAMILIES, LAYERS, tiny_backbone

__all__ = ["trained"]  # a fixture

families = pytest.mark.parametrize("family", FAMILIES)
QUICK = {"domains": "sst2", "train_per_domain": 6, "epochs": 2, "batch_size": 4, "learning_rate": 0.05, "strength": 0.5}


def drawn(family: str = "llama", positions: str = "all", strength: float = 0.5) -> ATVFitted:
    """Without training, but with vectors that matter."""
    backbone = tiny_backbone(family)
    method = ATV(encoder="random", strength=strength, positions=positions)  # type: ignore[arg-type]
    made = method._initial(backbone, Randomness(3))
    made.tensors["weight"] = made.tensors["weight"] * 20
    return made


@families
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("positions", ["all", "last"])
def test_strength_zero_is_zero_shot_bit_for_bit(family: str, dtype: str, positions: str) -> None:
    backbone = tiny_backbone(family, DTYPES[dtype])
    questions = zero_shot_questions(backbone)
    bare = logits(backbone, None, questions)
    assert not torch.equal(logits(backbone, drawn(family, positions), questions), bare)
    assert torch.equal(logits(backbone, drawn(family, positions, strength=0.0), questions), bare)


@families
@pytest.mark.parametrize("positions", ["all", "last"])
def test_it_is_what_the_formula_says_in_float64(family: str, positions: str) -> None:
    backbone, slow, fitted = tiny_backbone(family), Slow(family), drawn(family, positions)
    questions = zero_shot_questions(backbone)
    weight, bias = (fitted.tensors[name].double() for name in ("weight", "bias"))
    for own, found in zip(questions, logits(backbone, fitted, questions, "left"), strict=True):
        embedding = sentence_encoder("random")([own.prompt.text])[0].double()

        def add(layer: int, states: Tensor, embedding: Tensor = embedding) -> Tensor:
            vector = 0.5 * (weight[layer] @ embedding + bias[layer])
            return torch.cat([states[:-1] + (positions == "all") * vector, states[-1:] + vector])

        edits = {("block", layer): lambda h, layer=layer: add(layer, h) for layer in range(LAYERS)}
        wanted = slow.logits(own.prompt.tokens, edits)[-1]
        torch.testing.assert_close(found, wanted.float(), rtol=1e-3, atol=5e-3)


def test_what_is_added_is_what_the_official_code_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    given = golden("atv")
    backbone = tiny_backbone("llama")
    vectors = torch.tensor(given["inputs"]["vectors"])
    monkeypatch.setattr(ATVFitted, "vectors", lambda _self, _texts: 0.5 * vectors)
    batch = make_batch(given["inputs"]["tokens"], ["", ""])
    with torch.no_grad(), drawn().applied(backbone, batch):
        found = backbone.logits(batch.at_last(backbone.hidden_states(batch)))
    torch.testing.assert_close(found[:, :40], torch.tensor(given["expected"]["logits"]), rtol=1e-4, atol=1e-3)


@families
def test_without_a_map_it_is_steering_by_fixed_vectors(family: str) -> None:
    backbone, fitted = tiny_backbone(family), drawn(family)
    fitted.tensors["weight"].zero_()
    bias = fitted.tensors["bias"]
    questions = zero_shot_questions(backbone)
    batch = make_batch([own.prompt.tokens for own in questions], [own.prompt.text for own in questions])
    edits = {Site("block", layer): lambda h, layer=layer: h + 0.5 * bias[layer] for layer in range(LAYERS)}
    with torch.no_grad(), steered(backbone, batch, edits, "all"):
        wanted = backbone.logits(batch.at_last(backbone.hidden_states(batch)))
    assert torch.equal(logits(backbone, fitted, questions), wanted)


def test_rows_of_a_batch_get_their_own_vectors() -> None:
    backbone, fitted = tiny_backbone("gemma3"), drawn("gemma3")
    questions = zero_shot_questions(backbone)
    order = [3, 0, 4, 1, 2]
    found = logits(backbone, fitted, questions)
    permuted = logits(backbone, fitted, [questions[row] for row in order])
    torch.testing.assert_close(permuted, found[order], atol=1e-4, rtol=0)
    vectors = fitted.vectors(tuple(own.prompt.text for own in questions))
    assert vectors.shape == (5, LAYERS, backbone.dims.hidden)
    assert not torch.allclose(vectors[0], vectors[1])


def test_an_empty_text_has_vectors_too() -> None:
    assert ATVFitted(drawn().config | {"encoder": "minilm"}, drawn().tensors).vectors(("",)).isfinite().all()


@pytest.mark.parametrize("positions", ["all", "last"])
def test_answers_of_one_token_train_every_block(positions: str) -> None:
    backbone, fitted = tiny_backbone("llama"), drawn(positions=positions)
    for tensor in fitted.tensors.values():
        tensor.requires_grad_(True)
    attempt(backbone, fitted, [Lesson(own) for own in zero_shot_questions(backbone)]).cross_entropy().backward()
    for tensor in fitted.tensors.values():
        assert tensor.grad is not None
        assert (tensor.grad.flatten(1).norm(dim=1) > 0).all()  # of each block


def test_training_lowers_the_loss_and_says_how_much_is_added() -> None:
    backbone = tiny_backbone("llama")
    fitted = fit("atv", backbone, DOMAINS, None, **{**QUICK, "epochs": 6})
    assert fitted.config["loss"][-1] < fitted.config["loss"][0]
    assert len(fitted.config["share"]) == LAYERS
    doubled = fit("atv", backbone, DOMAINS, None, **{**QUICK, "epochs": 1, "learning_rate": 0.0, "strength": 1.0})
    single = fit("atv", backbone, DOMAINS, None, **{**QUICK, "epochs": 1, "learning_rate": 0.0})
    torch.testing.assert_close(torch.tensor(doubled.config["share"]), 2 * torch.tensor(single.config["share"]))


def test_rows_are_those_of_icrs_router(trained: list[Training], monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, rng = tiny_backbone("llama"), Randomness(5)
    monkeypatch.setattr("icrbench.methods.atv._share", lambda *_: [])
    data = FitData(pools(*DOMAINS), None, Path("unused"))
    ATV(domains="trec+sst2", train_per_domain=3).fit(backbone, data, rng)
    texts = [lesson.question.prompt.text for lesson in trained[0].lessons]
    wanted = [
        data.pools[name].task.prompt(row)
        for name in ("sst2", "trec")
        for row in training_rows(data.pools[name], 3, rng)
    ]
    assert texts == wanted


def test_it_is_fitted_once_for_all_tasks() -> None:
    assert ATV.scope is Scope.UNIVERSAL
    with pytest.raises(UserError, match="in-domain task"):
        fit("atv", None, DOMAINS, None, domains="sst5")
