import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from icrbench.backbone import make_batch
from icrbench.backbone.positions import Ends, chosen_tokens
from icrbench.backbone.sites import Site, captured
from icrbench.methods.reft import WHERE, ReFT, ReFTFitted, orthonormal
from icrbench.randomness import Randomness
from icrbench.store.artefact import Artefact
from icrbench.toolkit.answer_training import fixed_minibatches
from icrbench.toolkit.distillation import answer_loss
from icrbench.toolkit.selection import question_batch
from method_setup import Slow, fit, logits, zero_shot_questions
from tiny import FAMILIES, LAYERS, tiny_backbone

QUICK: dict[str, Any] = {"per_class": 2, "epochs": 3, "rank": 2, "batch_size": 2, "learning_rate": 0.01}
STORED = json.loads((Path(__file__).parents[1] / "golden" / "reft.json").read_text("utf-8"))
GOLDEN = {**STORED["inputs"], **STORED["expected"]}
families = pytest.mark.parametrize("family", FAMILIES)
places = pytest.mark.parametrize("positions", ["l1", "f7+l7"])


def drawn(family: str, positions: Any = "f7+l7") -> ReFTFitted:
    """As before training."""
    return ReFT(positions=positions, rank=3)._initial(tiny_backbone(family), Randomness(1))


def edited(states: Tensor, rotation: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The formula, written out: ``h + R'(Wh + b - Rh)``."""
    rows = rotation.T
    return torch.stack([state + rows.T @ (weight @ state + bias - rows @ state) for state in states])


def test_the_formula_and_its_places_are_the_authors() -> None:
    """Numbers of their code; where they come from stands in the file."""
    rotation, weight, bias, states, wanted = (
        torch.tensor(GOLDEN[name]) for name in ("rotation", "weight", "bias", "states", "edited")
    )
    torch.testing.assert_close(orthonormal(rotation[None])[0], rotation, atol=1e-6, rtol=0)
    torch.testing.assert_close(edited(states, rotation, weight, bias), wanted, atol=1e-5, rtol=1e-5)
    backbone = tiny_backbone("llama")
    for case in GOLDEN["locations"]:
        batch = make_batch([list(range(case["tokens"])), list(range(25))], [""] * 2, padding="left")
        with torch.no_grad(), chosen_tokens(backbone, batch, WHERE[case["positions"]]) as chosen:
            backbone.hidden_states(batch)
            row = chosen()[0]
        assert (row.nonzero()[:, 0] - (25 - case["tokens"])).tolist() == case["edited"]


@families
@places
def test_it_is_the_formula_after_every_block(family: str, positions: Any) -> None:
    """Against a model in float64 with hooks of its own."""
    fitted, backbone = drawn(family, positions), tiny_backbone(family)
    (question,) = zero_shot_questions(backbone, count=1)
    count = len(question.prompt.tokens)
    rotation = orthonormal(fitted.tensors["rotation"]).double()
    weight, bias = (fitted.tensors[name].double() for name in ("weight", "bias"))
    chosen = [count - 1] if positions == "l1" else [*range(7), *range(count - 7, count)]

    def edit(layer: int) -> Any:
        def change(states: Tensor) -> Tensor:
            changed = states.clone()
            changed[chosen] = edited(states[chosen], rotation[layer], weight[layer], bias[layer])
            return changed

        return change

    edits = {("block", layer): edit(layer) for layer in range(LAYERS)}
    wanted = Slow(family).logits(question.prompt.tokens, edits)[-1]
    found = logits(backbone, fitted, [question])[0]
    torch.testing.assert_close(found.double(), wanted, atol=2e-3, rtol=2e-3)
    assert (found - logits(backbone, None, [question])[0]).abs().max() > 0.1


def test_its_directions_take_their_value_and_the_rest_stays() -> None:
    backbone, fitted = tiny_backbone("qwen3"), drawn("qwen3", "l1")
    (question,) = zero_shot_questions(backbone, count=1)
    batch = question_batch(backbone, [question])
    site = Site("block", 0)
    with torch.no_grad(), captured(backbone, [site]) as plain:
        backbone.hidden_states(batch)
        before = plain[site][0, -1]
    with torch.no_grad(), fitted.applied(backbone, batch), captured(backbone, [site]) as seen:
        backbone.hidden_states(batch)
        after = seen[site][0, -1]
    rows = orthonormal(fitted.tensors["rotation"])[0].T
    wanted = fitted.tensors["weight"][0] @ before + fitted.tensors["bias"][0]
    torch.testing.assert_close(rows @ after, wanted, atol=1e-4, rtol=1e-4)
    rest = torch.eye(48) - rows.T @ rows
    torch.testing.assert_close(rest @ after, rest @ before, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
@places
def test_training_lowers_the_loss_and_rotations_stay_orthonormal(family: str, positions: Any, tmp_path: Path) -> None:
    backbone = tiny_backbone(family)
    trained = fit("reft", backbone, **{**QUICK, "epochs": 8, "positions": positions})
    assert trained.config["loss"][-1] < trained.config["loss"][0]
    Artefact(ReFT(), trained, backbone.identity()).save(tmp_path)
    read = Artefact.load(tmp_path, backbone).fitted
    columns = orthonormal(read.tensors["rotation"])
    torch.testing.assert_close(columns.transpose(1, 2) @ columns, torch.eye(2).expand(LAYERS, 2, 2), atol=1e-5, rtol=0)
    assert torch.equal(columns, orthonormal(trained.tensors["rotation"]))


@families
def test_it_can_start_at_the_plain_model(family: str) -> None:
    backbone, asked = tiny_backbone(family), zero_shot_questions(tiny_backbone(family))
    start = ReFT(start="plain", rank=3)._initial(backbone, Randomness(1))
    torch.testing.assert_close(logits(backbone, start, asked), logits(backbone, None, asked), atol=1e-4, rtol=1e-5)
    assert (logits(backbone, drawn(family), asked) - logits(backbone, None, asked)).abs().max() > 0.1


def test_orthonormal_columns_are_kept() -> None:
    columns = orthonormal(torch.randn(4, 20, 3, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(orthonormal(columns), columns, atol=1e-6, rtol=0)


@families
def test_gradients_behind_cached_keys_are_those_of_whole_prompts(family: str) -> None:
    backbone = tiny_backbone(family)
    questions = zero_shot_questions(backbone, count=3)
    gradients = []
    for last in (True, False):
        (own,) = fixed_minibatches(backbone, questions, 3, Randomness(0), last_token_only=last)
        fitted = drawn(family, "l1")
        for tensor in fitted.tensors.values():
            tensor.requires_grad_(True)
        with fitted.applied(backbone, own.batch):
            states = own.states()
        answer_loss(backbone.logits(states), own.questions).backward()
        gradients.append({name: tensor.grad for name, tensor in fitted.tensors.items()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("padding", ["left", "right"])
def test_what_follows_the_context_is_not_edited(padding: Any) -> None:
    backbone = tiny_backbone("llama")
    batch = make_batch([[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3]], [""] * 2, padding=padding)
    whole = batch.__class__(**{**vars(batch), "last": batch.last - 1})  # the context ends one token earlier
    with torch.no_grad(), chosen_tokens(backbone, whole, Ends(2, 2)) as chosen:
        backbone.hidden_states(whole)
        found = [row[mask.bool()].tolist() for row, mask in zip(chosen(), batch.attention_mask, strict=True)]
    assert found == [[True, True, False, False, False, True, True, False], [True, True, False]]
